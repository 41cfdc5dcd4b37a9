package connect_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/apikeel/kelson/pki"
)

// kubelet is a kubelet as far as connections go: a command that runs echoes its
// input, or exits with the code that it is told, and ports echo.
type kubelet struct {
	*httptest.Server
	authority *pki.Authority
	// more lets a log that is followed go on.
	more chan struct{}

	mu   sync.Mutex
	seen []*http.Request
}

// newKubelet starts a kubelet that wants a certificate of its authority.
func newKubelet(t *testing.T) *kubelet {
	t.Helper()
	authority, err := pki.New("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{authority: authority, more: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("/containerLogs/", k.log)
	mux.HandleFunc("/exec/", k.stream)
	mux.HandleFunc("/attach/", k.stream)
	mux.HandleFunc("/portForward/", k.stream)
	mux.HandleFunc("/refuse/", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not for you", http.StatusForbidden) })
	mux.HandleFunc("/move/", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/exec/n/p/c", http.StatusFound) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s %s", r.Method, r.URL) })
	k.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		k.seen = append(k.seen, r)
		k.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	cert, err := authority.ServerCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	k.Config.ErrorLog = log.New(io.Discard, "", 0)
	k.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: authority.Pool()}
	k.StartTLS()
	t.Cleanup(k.Close)
	return k
}

// last is the request that came last.
func (k *kubelet) last(t *testing.T) *http.Request {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.seen) == 0 {
		t.Fatal("the kubelet was not asked")
	}
	return k.seen[len(k.seen)-1]
}

// asked returns how many requests there were.
func (k *kubelet) asked() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.seen)
}

// files writes what a server needs to be known to the kubelet.
func (k *kubelet) files(t *testing.T) (ca, cert string) {
	t.Helper()
	pair, err := k.authority.IssueClient("kube-apiserver", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ca, cert = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "client.pem")
	for file, pem := range map[string][]byte{ca: k.authority.CertificatePEM(), cert: pair} {
		if err := os.WriteFile(file, pem, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return ca, cert
}

func (k *kubelet) log(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/missing"):
		http.Error(w, "no such container", http.StatusNotFound)
	case strings.HasSuffix(r.URL.Path, "/waiting"):
		http.Error(w, "container is waiting to start", http.StatusBadRequest)
	case strings.HasSuffix(r.URL.Path, "/broken"):
		http.Error(w, "out of order", http.StatusInternalServerError)
	case strings.HasSuffix(r.URL.Path, "/moved"):
		http.Redirect(w, r, "/containerLogs/n/p/c", http.StatusFound)
	default:
		fmt.Fprintln(w, "first")
		if r.URL.Query().Get("follow") == "" {
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-k.more:
			fmt.Fprintln(w, "second")
		case <-r.Context().Done():
		}
	}
}

// stream answers in the protocol that it is asked for.
func (k *kubelet) stream(w http.ResponseWriter, r *http.Request) {
	if websocket.IsWebSocketUpgrade(r) {
		upgrader := websocket.Upgrader{Subprotocols: websocket.Subprotocols(r)}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		for {
			kind, message, err := conn.ReadMessage()
			if err != nil || conn.WriteMessage(kind, message) != nil {
				return
			}
		}
	}
	supported := []string{"portforward.k8s.io", remotecommand.StreamProtocolV4Name}
	if _, err := httpstream.Handshake(r, w, supported); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 8)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	if strings.HasPrefix(r.URL.Path, "/portForward/") {
		forward(conn, streams)
		return
	}
	run(r.URL.Query(), streams)
	// Who hangs up with something unread takes back what the other has not read.
	select {
	case <-conn.CloseChan():
	case <-time.After(30 * time.Second):
	}
}

// forward echoes on data streams until the connection ends.
func forward(conn httpstream.Connection, streams <-chan httpstream.Stream) {
	for {
		select {
		case s := <-streams:
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData {
				go func() {
					_, _ = io.Copy(s, s)
					_ = s.Close()
				}()
			} else {
				_ = s.Close()
			}
		case <-conn.CloseChan():
			return
		}
	}
}

// run is the command.
func run(query url.Values, streams <-chan httpstream.Stream) {
	want := 1
	for _, name := range []string{"input", "output", "error"} {
		if query.Get(name) == "1" {
			want++
		}
	}
	got := map[string]httpstream.Stream{}
	for len(got) < want {
		s := <-streams
		got[s.Headers().Get(corev1.StreamType)] = s
	}
	status := metav1.Status{Status: metav1.StatusSuccess}
	if command := query["command"]; len(command) == 2 && command[0] == "exit" {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: command[1]}},
		}}
	} else if got["stdin"] != nil && got["stdout"] != nil {
		_, _ = io.Copy(got["stdout"], got["stdin"])
	}
	if got["stdout"] != nil {
		_ = got["stdout"].Close()
	}
	_ = json.NewEncoder(got["error"]).Encode(status)
	_ = got["error"].Close()
}

func port(t *testing.T, address string) int32 {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	var n int32
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
