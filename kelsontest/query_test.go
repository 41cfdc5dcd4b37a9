package kelsontest_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/kelsontest"
)

// TestFloodedQueriesTakeNothingFromTheHandler: a node may list the pods that run on it. A query
// with more parameters than net/url reads must not show it those of others, nor make a dry run
// a write.
func TestFloodedQueriesTakeNothingFromTheHandler(t *testing.T) {
	s := kelsontest.Start(t, kelsontest.NoControllers())
	admin := kubernetes.NewForConfigOrDie(s.Config())
	for _, node := range []string{"n1", "n2"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "on-" + node}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if _, err := admin.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	node, flood := s.User("system:node:n1", "system:nodes"), strings.Repeat("&", 10_000)
	const mine = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1"
	for _, c := range []struct {
		config          *rest.Config
		method, path    string
		body            string
		code            int
		holds, holdsNot string
	}{
		{node, "GET", mine, "", 200, "on-n1", "on-n2"},
		{node, "GET", mine + flood, "", 400, "more than 10000 parameters", "on-n"},
		{node, "GET", "/api/v1/pods?" + flood + "fieldSelector=spec.nodeName%3Dn1", "", 400, "more than 10000 parameters", "on-n"},
		{node, "GET", mine + "&watch=1&timeoutSeconds=1" + flood, "", 400, "more than 10000 parameters", "on-n"},
		{node, "GET", mine + flood[1:], "", 200, "on-n1", "on-n2"},
		{node, "GET", "/api/v1/pods?fieldSelector=&fieldSelector=spec.nodeName%3Dn1", "", 403, "can only list", "on-n"},
		{node, "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1;&limit=5", "", 403, "can only list", "on-n"},
		{node, "DELETE", "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dn1" + flood, "", 400, "more than 10000 parameters", ""},
		{s.Config(), "POST", "/api/v1/namespaces/default/configmaps?dryRun=All" + flood, `{"metadata":{"name":"dry"}}`, 400, "more than 10000 parameters", ""},
		{s.Config(), "GET", "/api/v1/namespaces/default/configmaps/dry", "", 404, "not found", ""},
	} {
		transport, err := rest.TransportFor(c.config)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), c.method, c.config.Host+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		got := string(text)
		if resp.StatusCode != c.code || !strings.Contains(got, c.holds) || c.holdsNot != "" && strings.Contains(got, c.holdsNot) {
			t.Errorf("%s %.100s: got %d %.300s; want %d with %q and without %q", c.method, c.path, resp.StatusCode, got, c.code, c.holds, c.holdsNot)
		}
	}
}
