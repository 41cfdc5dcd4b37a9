package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/kelsontest"
)

// TestWatchOverWebSocket: a watch that asks for a WebSocket gets each event as a message, of
// text or, in protobuf, of bytes.
func TestWatchOverWebSocket(t *testing.T) {
	config := kelsontest.Start(t).Config()
	c := kubernetes.NewForConfigOrDie(config)
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig.NextProtos = []string{"http/1.1"}
	dialer := websocket.Dialer{TLSClientConfig: tlsConfig}
	url := strings.Replace(config.Host, "https://", "wss://", 1) + "/api/v1/namespaces/default/configmaps?watch=1&resourceVersion="
	dial := func(revision string, header http.Header) (*websocket.Conn, *http.Response, error) {
		if config.BearerToken != "" {
			header.Set("Authorization", "Bearer "+config.BearerToken)
		}
		return dialer.DialContext(t.Context(), url+revision, header)
	}
	if _, resp, err := dial("0", http.Header{}); err == nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("without an origin: got %v, %v, want 403", resp, err)
	}
	if _, resp, err := dial("0&labelSelector=!!", http.Header{"Origin": {"https://example.com"}}); err == nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a selector that is none: got %v, %v, want 400", resp, err)
	}
	list, err := c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		accept string
		kind   int
	}{
		"text":   {"application/json", websocket.TextMessage},
		"binary": {"application/vnd.kubernetes.protobuf;stream=watch", websocket.BinaryMessage},
	} {
		t.Run(name, func(t *testing.T) {
			conn, resp, err := dial(list.ResourceVersion, http.Header{"Origin": {"https://example.com"}, "Accept": {test.accept}})
			if err != nil {
				t.Fatalf("%v: %v", err, resp)
			}
			defer func() { _ = conn.Close() }()
			for range 3 {
				if _, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}}, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			for seen := 0; seen < 3; {
				kind, data, err := conn.ReadMessage()
				if err != nil {
					t.Fatal(err)
				}
				var event metav1.WatchEvent
				if test.kind == websocket.TextMessage {
					err = json.Unmarshal(data, &event)
				} else {
					err = event.Unmarshal(data)
				}
				if err != nil || kind != test.kind || event.Type != "ADDED" {
					t.Fatalf("got a message of type %d, %q, %v, want an event of type %d", kind, data, err, test.kind)
				}
				obj, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), event.Object.Raw)
				if err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(obj.(*corev1.ConfigMap).Name, name) {
					seen++
				}
			}
		})
	}
}
