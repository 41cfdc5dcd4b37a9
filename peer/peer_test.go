package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// patience is how long tests wait for what must come.
const patience = 30 * time.Second

// leases is a scripted resource.Follower.
type leases struct {
	mu      sync.Mutex
	changes []resource.Change
	wake    chan struct{} // capacity 1
}

func newLeases() *leases { return &leases{wake: make(chan struct{}, 1)} }

func (l *leases) put(name, holder string, deleted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes = append(l.changes, resource.Change{Deleted: deleted, Object: &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system", Labels: map[string]string{IdentityLabel: IdentityValue}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}})
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *leases) Current() bool { return false }

func (l *leases) Pull(_ context.Context, apply func(reset bool, changes []resource.Change)) error {
	l.mu.Lock()
	changes := l.changes
	l.changes = nil
	l.mu.Unlock()
	apply(false, changes)
	return nil
}

func (l *leases) Wait(ctx context.Context) error {
	select {
	case <-l.wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// counts is a measure.Sink that adds up.
type counts struct {
	mu  sync.Mutex
	all map[string]float64
}

func (c *counts) Series(metric string, labels ...string) measure.Series {
	return &count{c, strings.Join(append([]string{metric}, labels...), " ")}
}

func (c *counts) get(name string) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[name]
}

type count struct {
	to   *counts
	name string
}

func (c *count) Observe(v float64) {
	c.to.mu.Lock()
	defer c.to.mu.Unlock()
	c.to.all[c.name] += v
}

// bench is a proxy with peers that are played by the test.
type bench struct {
	t         *testing.T
	proxy     *Proxy
	leases    *leases
	counts    *counts
	authority *pki.Authority
	clients   *x509.CertPool // that peers believe
	front     *httptest.Server

	mu        sync.Mutex
	addresses map[string]string
	dynamic   map[schema.GroupVersion]bool
	revision  atomic.Int64
	user      request.User // of requests to front
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{
		t: t, leases: newLeases(), counts: &counts{all: map[string]float64{}}, addresses: map[string]string{},
		user: request.User{Name: "jane", UID: "7", Groups: []string{"devs", "system:authenticated"}, Extra: map[string][]string{"Scope": {"a", "b"}}},
	}
	b.revision.Store(1)
	var err error
	if b.authority, err = pki.New("127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	issuer, err := pki.NewIssuer()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := issuer.IssueClient("front-proxy-client")
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(bundle, bundle)
	if err != nil {
		t.Fatal(err)
	}
	b.clients = issuer.Pool()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, b.authority.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	catalog, err := resource.NewCatalog()
	if err != nil {
		t.Fatal(err)
	}
	b.proxy, err = New(Config{
		Name: "self", Leases: b.leases, CAFile: ca, Certificate: func() (*tls.Certificate, error) { return &certificate, nil },
		Address: b.address, Catalog: func() *resource.Catalog { return catalog },
		Dynamic: func() map[schema.GroupVersion]bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return maps.Clone(b.dynamic)
		},
		DynamicRevision: b.revision.Load,
		Fail: func(w http.ResponseWriter, _ *http.Request, err error) {
			var status apierrors.APIStatus
			if !errors.As(err, &status) {
				t.Errorf("got the error %v, want a Status", err)
				return
			}
			http.Error(w, status.Status().Message, int(status.Status().Code))
		},
		Metrics: b.counts,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); b.proxy.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; b.proxy.transport.Load().CloseIdleConnections() })
	b.front = httptest.NewUnstartedServer(http.HandlerFunc(b.serve))
	b.front.EnableHTTP2 = true
	b.front.StartTLS()
	t.Cleanup(b.front.Close)
	return b
}

func (b *bench) address(_ context.Context, name string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if address := b.addresses[name]; address != "" {
		return address, nil
	}
	return "", fmt.Errorf("%s has no address", name)
}

// serve is the end of the chain of servers: what a peer does not take is not found.
// Requests are for the resource in the last three segments of the path.
func (b *bench) serve(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	req := &request.Request{AuditID: "audit-1"}
	if len(parts) == 4 && parts[0] == "apis" {
		req.Info = request.Info{IsResource: true, Group: parts[1], Version: parts[2], Resource: parts[3], Verb: "list", Path: r.URL.Path}
	}
	b.mu.Lock()
	req.User = b.user
	b.mu.Unlock()
	if !b.proxy.Route(w, r.WithContext(request.With(r.Context(), req))) {
		http.NotFound(w, r)
	}
}

// start starts a peer that says that it serves some resources of the group g/v1.
func (b *bench) start(name string, handler http.HandlerFunc, resources ...string) *httptest.Server {
	b.t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api", "/apis":
			if len(r.TLS.PeerCertificates) == 0 || r.Header.Get("X-Remote-User") != "system:apiserver" || r.Header.Get(ProxiedHeader) != "true" {
				b.t.Errorf("discovery was asked with certificates %v and headers %v, want those of an API server", r.TLS.PeerCertificates, r.Header)
			}
			writeGroups(w, r, resources)
		default:
			handler(w, r)
		}
	}))
	s.TLS = &tls.Config{GetCertificate: b.authority.ServerCertificate, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: b.clients}
	s.EnableHTTP2 = true
	s.StartTLS()
	b.t.Cleanup(s.Close)
	b.publish(name, s.Listener.Addr().String())
	b.leases.put(name, name+"-1", false)
	return s
}

func (b *bench) publish(name, address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addresses[name] = address
}

func writeGroups(w http.ResponseWriter, r *http.Request, resources []string) {
	list := apidiscovery.APIGroupDiscoveryList{}
	if r.URL.Path == "/apis" {
		list.Items = []apidiscovery.APIGroupDiscovery{groupOf("g", "v1", resources...)}
	}
	etag := fmt.Sprintf("%q", strings.Join(resources, ","))
	w.Header().Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	_ = json.NewEncoder(w).Encode(list)
}

func groupOf(name, version string, resources ...string) apidiscovery.APIGroupDiscovery {
	v := apidiscovery.APIVersionDiscovery{Version: version}
	for _, r := range resources {
		v.Resources = append(v.Resources, apidiscovery.APIResourceDiscovery{Resource: r, Verbs: []string{"list"}})
	}
	return apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}, Versions: []apidiscovery.APIVersionDiscovery{v}}
}

// knows waits until the proxy knows, or does not know any more, who serves a resource.
func (b *bench) knows(resource string, peers int) {
	b.t.Helper()
	gvr := schema.GroupVersionResource{Group: "g", Version: "v1", Resource: resource}
	polltest.Until(b.t, fmt.Sprintf("%d peers serve %s", peers, resource), func() bool { return len(b.proxy.current().serving[gvr]) == peers })
}

func (b *bench) do(method, path, body string, header http.Header) (int, string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.front.URL+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	maps.Copy(r.Header, header)
	resp, err := b.front.Client().Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestForwardsAsTheUser forwards a request, with headers by which a client would like to
// be somebody else.
func TestForwardsAsTheUser(t *testing.T) {
	b := newBench(t)
	var got *http.Request
	var body []byte
	b.start("other", func(w http.ResponseWriter, r *http.Request) {
		got, body = r, nil
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "made")
	}, "things")
	b.knows("things", 1)
	code, text := b.do(http.MethodPost, "/apis/g/v1/things?dryRun=All", "content", http.Header{
		"Authorization":      {"Bearer secret"},
		"X-Remote-User":      {"admin"},
		"X-Remote-Group":     {"system:masters"},
		"X-Remote-Uid":       {"0"},
		"X-Remote-Extra-Foo": {"bar"},
		"Impersonate-User":   {"admin"},
		"Impersonate-Group":  {"system:masters"},
		"X_Remote_Group":     {"system:masters"}, // some servers do not tell _ from -
		"Impersonate_user":   {"admin"},
		"Content-Type":       {"text/plain"},
		ProxiedHeader:        {"no"},
	})
	if code != http.StatusCreated || text != "made" {
		t.Fatalf("got %d %q, want 201 made", code, text)
	}
	if got.URL.RequestURI() != "/apis/g/v1/things?dryRun=All" || got.Method != http.MethodPost || string(body) != "content" {
		t.Errorf("got %s %s with the body %q, want the request of the client", got.Method, got.URL.RequestURI(), body)
	}
	want := map[string][]string{
		"X-Remote-User": {"jane"}, "X-Remote-Uid": {"7"}, "X-Remote-Group": {"devs", "system:authenticated"}, "X-Remote-Extra-%53cope": {"a", "b"}, // which keeps the case
		ProxiedHeader: {"true"}, "Audit-Id": {"audit-1"}, "Content-Type": {"text/plain"},
	}
	for name, values := range want {
		if !slices.Equal(got.Header[name], values) {
			t.Errorf("header %s: got %q, want %q", name, got.Header[name], values)
		}
	}
	for name := range got.Header {
		if name == "Authorization" || strings.HasPrefix(name, "Impersonate") || strings.Contains(name, "_") || strings.HasPrefix(name, "X-Remote-") && want[name] == nil {
			t.Errorf("the peer got the header %s: %q, want none", name, got.Header[name])
		}
	}
	if n := b.counts.get(measure.PeerRequests + " 201 g v1 things"); n != 1 {
		t.Errorf("got %v forwarded requests in the metrics, want 1", n)
	}
	if n := b.counts.get(measure.PeerRequests + " 200   "); n != 2 {
		t.Errorf("got %v requests for discovery in the metrics, want 2", n)
	}
}

// TestOnlyPlainPathsAreForwarded: a proxy in front of a peer that merges slashes would make
// another path of them than the one that was authorized.
func TestOnlyPlainPathsAreForwarded(t *testing.T) {
	b := newBench(t)
	var got atomic.Int32
	b.start("other", func(http.ResponseWriter, *http.Request) { got.Add(1) }, "things")
	b.knows("things", 1)
	for path, want := range map[string]int32{
		"/apis/g/v1/things/": 1, "/apis/g/v1/things//": 0, "//apis/g/v1/things": 0, "/apis/g/v1/things%2F%2F": 0,
	} {
		got.Store(0)
		if code, text := b.do(http.MethodGet, path, "", nil); got.Load() != want {
			t.Errorf("%s: got %d %s, forwarded %d times, want %d", path, code, text, got.Load(), want)
		}
	}
}

// TestConnectionHeaderRemovesNothing names headers in Connection, which a proxy has to
// drop: those that say who the user is stay.
func TestConnectionHeaderRemovesNothing(t *testing.T) {
	b := newBench(t)
	seen := make(chan http.Header, 1)
	b.start("other", func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }, "things")
	b.knows("things", 1)
	conn, err := tls.Dial("tcp", b.front.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /apis/g/v1/things HTTP/1.1\r\nHost: x\r\nConnection: close, X-Remote-User, X-Remote-Group, %s, X-Mine\r\nX-Mine: 1\r\n\r\n", ProxiedHeader)
	if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
		t.Fatal(err)
	}
	h := <-seen
	if h.Get("X-Remote-User") != "jane" || !slices.Equal(h["X-Remote-Group"], []string{"devs", "system:authenticated"}) || h.Get(ProxiedHeader) != "true" || h.Get("X-Mine") != "" {
		t.Errorf("got the headers %v, want the user, that it is forwarded, and no X-Mine", h)
	}
}

// TestForwardsOnce does not forward what was forwarded, also if a client has added values
// to the header.
func TestForwardsOnce(t *testing.T) {
	b := newBench(t)
	b.start("other", func(http.ResponseWriter, *http.Request) { t.Error("the peer got the request") }, "things")
	b.knows("things", 1)
	for _, values := range [][]string{{"true"}, {"no", "true"}} {
		if code, _ := b.do(http.MethodGet, "/apis/g/v1/things", "", http.Header{ProxiedHeader: values}); code != http.StatusNotFound {
			t.Errorf("%v: got %d, want 404", values, code)
		}
	}
}

// TestForwardsOnlyWhatAPeerServes.
func TestForwardsOnlyWhatAPeerServes(t *testing.T) {
	b := newBench(t)
	b.start("other", func(http.ResponseWriter, *http.Request) {}, "things")
	b.knows("things", 1)
	for path, want := range map[string]int{
		"/apis/g/v1/things": 200, "/apis/g/v1/others": 404, "/apis/g/v2/things": 404, "/apis/h/v1/things": 404, "/apis/g/v1": 404,
	} {
		if code, _ := b.do(http.MethodGet, path, "", nil); code != want {
			t.Errorf("%s: got %d, want %d", path, code, want)
		}
	}
}

// TestWatchesAreHeld: a watch that is forwarded holds memory here while it lasts, in the name of
// the one who asks, and is refused if there is none. Other requests hold none.
func TestWatchesAreHeld(t *testing.T) {
	b := newBench(t)
	var held, most int64
	b.proxy.Hold = func(user *request.User, bytes int64) func() {
		if user.Name != "mallory" || held > 0 {
			return nil
		}
		held, most = held+bytes, max(most, held+bytes)
		return func() { held -= bytes }
	}
	ask := func(verb string, impersonator *request.User) int {
		req := &request.Request{User: b.user, Impersonator: impersonator}
		req.Info = request.Info{IsResource: true, Group: "g", Version: "v1", Resource: "things", Verb: verb, Path: "/apis/g/v1/things"}
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(request.With(t.Context(), req), http.MethodGet, "/apis/g/v1/things", nil)
		if !b.proxy.Route(w, r) {
			t.Error("the request is not forwarded")
		}
		return w.Code
	}
	b.start("other", func(w http.ResponseWriter, r *http.Request) {
		if held == 0 {
			w.WriteHeader(http.StatusNoContent)
		}
	}, "things")
	b.knows("things", 1)
	mallory := &request.User{Name: "mallory"}
	for _, c := range []struct {
		verb         string
		impersonator *request.User
		want         int
	}{{request.Watch, mallory, 200}, {request.Watch, nil, 429}, {request.List, nil, 204}, {request.Watch, mallory, 200}} {
		if got := ask(c.verb, c.impersonator); got != c.want {
			t.Errorf("%s: got %d, want %d", c.verb, got, c.want)
		}
	}
	if held != 0 || most != watchMemory {
		t.Errorf("%d bytes are held at the end and %d at most, want none and %d", held, most, watchMemory)
	}
}

// TestUserThatAHeaderChanges does not forward the request of a user who would be another
// one at the peer.
func TestUserThatAHeaderChanges(t *testing.T) {
	b := newBench(t)
	b.start("other", func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the peer got the user %q", r.Header) }, "things")
	b.knows("things", 1)
	for _, user := range []request.User{
		{}, {Name: " admin"}, {Name: "admin\t"}, {Name: "a\r\nX-Remote-User: admin"},
		{Name: "jane", Groups: []string{" system:masters"}}, {Name: "jane", UID: "1 "}, {Name: "jane", Extra: map[string][]string{"k": {"v "}}},
	} {
		b.mu.Lock()
		b.user = user
		b.mu.Unlock()
		if code, text := b.do(http.MethodGet, "/apis/g/v1/things", "", nil); code != http.StatusServiceUnavailable {
			t.Errorf("%+v: got %d %s, want 503", user, code, text)
		}
	}
}

// TestTriesAnotherPeer has one peer whose address refuses, or is not known.
func TestTriesAnotherPeer(t *testing.T) {
	b := newBench(t)
	got := make(chan string, 100)
	answer := func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- string(body)
	}
	b.start("a", answer, "things")
	b.start("b", answer, "things")
	b.knows("things", 2)
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing.Close()
	for _, address := range []string{refusing.Addr().String(), ""} {
		b.publish("a", address)
		for i := range 10 { // the order is random
			if code, text := b.do(http.MethodPut, "/apis/g/v1/things", "content", nil); code != http.StatusOK {
				t.Errorf("address %q, request %d: got %d %s, want 200", address, i, code, text)
			} else if body := <-got; body != "content" {
				t.Errorf("got the body %q, want content", body)
			}
		}
	}
	b.publish("b", "")
	code, text := b.do(http.MethodGet, "/apis/g/v1/things", "", nil)
	if want := "Error getting ip and port info of the remote server while proxying"; code != http.StatusServiceUnavailable || !strings.Contains(text, want) {
		t.Errorf("no address: got %d %s, want 503 %s", code, text, want)
	}
	if n := b.counts.get(measure.PeerProxyErrors + " endpoint_resolution g v1 things"); n != 1 {
		t.Errorf("got %v errors in the metrics, want 1", n)
	}
	b.publish("b", refusing.Addr().String())
	if code, text := b.do(http.MethodGet, "/apis/g/v1/things", "", nil); code != http.StatusServiceUnavailable {
		t.Errorf("nobody listens: got %d %s, want 503", code, text)
	}
}

// TestPeersComeAndGo follows leases: a server that ends, one that is replaced by a
// process that serves something else, and one that is not a server.
func TestPeersComeAndGo(t *testing.T) {
	b := newBench(t)
	b.leases.put("self", "self-1", false)
	first := b.start("other", func(http.ResponseWriter, *http.Request) {}, "things")
	b.knows("things", 1)
	first.Close()
	b.start("other", func(http.ResponseWriter, *http.Request) {}, "others")
	b.leases.put("other", "other-2", false)
	b.knows("others", 1)
	b.knows("things", 0)
	if got := len(b.proxy.current().groups); got != 1 {
		t.Errorf("got %d peers, want 1: this server is none", got)
	}
	b.leases.put("other", "other-2", true)
	b.knows("others", 0)
	if got := len(b.proxy.current().groups); got != 0 {
		t.Errorf("got %d peers, want none", got)
	}
}

// TestCustomResourcesAreNotForwarded: this server learns of them from the store. After
// their end a peer that has not noticed is not asked.
func TestCustomResourcesAreNotForwarded(t *testing.T) {
	b := newBench(t)
	b.start("other", func(http.ResponseWriter, *http.Request) {}, "things")
	b.knows("things", 1)
	set := func(dynamic map[schema.GroupVersion]bool) {
		b.mu.Lock()
		b.dynamic = dynamic
		b.mu.Unlock()
		b.revision.Add(1)
	}
	before := b.proxy.Version()
	set(map[schema.GroupVersion]bool{{Group: "g", Version: "v1"}: true})
	b.knows("things", 0)
	if b.proxy.Version() == before {
		t.Errorf("the version is still %d, want another one", before)
	}
	set(nil)
	b.knows("things", 0)
	if got := b.proxy.Merge(nil); len(got) != 0 {
		t.Errorf("got the groups %v, want none", got)
	}
	b.proxy.mu.Lock()
	for gv := range b.proxy.gone {
		b.proxy.gone[gv] = time.Now().Add(-2 * gracePeriod)
	}
	b.proxy.rebuild()
	b.proxy.mu.Unlock()
	b.knows("things", 1) // the peer has it still, or has something new of this name
}

// TestStreams gets events of a watch one by one, and notices that the client goes.
func TestStreams(t *testing.T) {
	b := newBench(t)
	next, ended := make(chan struct{}), make(chan struct{})
	b.start("other", func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case <-next:
				_, _ = io.WriteString(w, "event\n")
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}, "things")
	b.knows("things", 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.front.URL+"/apis/g/v1/things?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := b.front.Client().Do(r) // the header comes before the first event
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for i := range 3 {
		next <- struct{}{}
		if !lines.Scan() || lines.Text() != "event" {
			t.Fatalf("event %d: got %q, %v", i, lines.Text(), lines.Err())
		}
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the watch goes on at the peer, though its client has gone")
	}
}

// TestTruncatedResponseIsNotComplete: a peer that dies while it answers must not make a
// response that looks complete.
func TestTruncatedResponseIsNotComplete(t *testing.T) {
	b := newBench(t)
	b.start("other", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, "things")
	b.knows("things", 1)
	resp, err := b.front.Client().Get(b.front.URL + "/apis/g/v1/things")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("got the complete response %q, want an error", body)
	}
}

// TestUpgrades passes an upgraded connection through.
func TestUpgrades(t *testing.T) {
	b := newBench(t)
	b.start("other", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Remote-User") != "jane" || r.Header.Get(ProxiedHeader) != "true" {
			t.Errorf("got the headers %v, want the user and that it is forwarded", r.Header)
		}
		conn, buffer, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		line, _ := buffer.ReadString('\n')
		fmt.Fprint(conn, "echo "+line)
	}, "things")
	b.knows("things", 1)
	conn, err := tls.Dial("tcp", b.front.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /apis/g/v1/things HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, X-Remote-User\r\nUpgrade: echo\r\n\r\n")
	reader := bufio.NewReader(conn)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %v, %v, want 101", resp, err)
	}
	fmt.Fprint(conn, "hello\n")
	if line, err := reader.ReadString('\n'); line != "echo hello\n" {
		t.Errorf("got %q, %v, want echo hello", line, err)
	}
}

// TestHostilePeers: what a peer says about itself is bounded, and its certificate must be
// that of an API server.
func TestHostilePeers(t *testing.T) {
	b := newBench(t)
	play := func(name string, config *tls.Config, handler http.HandlerFunc) {
		s := httptest.NewUnstartedServer(handler)
		s.TLS = config
		s.Config.ErrorLog = nil
		s.StartTLS()
		t.Cleanup(s.Close)
		b.publish(name, s.Listener.Addr().String())
		b.leases.put(name, name+"-1", false)
	}
	own := &tls.Config{GetCertificate: b.authority.ServerCertificate}
	stranger, err := pki.New("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	play("stranger", &tls.Config{GetCertificate: stranger.ServerCertificate}, func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a server with a certificate of another authority got %v", r.Header)
	})
	play("large", own, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json;as=APIGroupDiscoveryList")
		_, _ = io.WriteString(w, `{"items":[{"metadata":{"name":"`)
		piece := strings.Repeat("x", 1<<20)
		for range 2 * maxDiscovery >> 20 {
			if _, err := io.WriteString(w, piece); err != nil {
				return
			}
		}
		_, _ = io.WriteString(w, `"}}]}`)
	})
	play("headers", own, func(w http.ResponseWriter, _ *http.Request) {
		for i := range 100 {
			w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", maxHeader/50))
		}
		writeGroups(w, &http.Request{URL: mustPath("/apis"), Header: http.Header{}}, []string{"things"})
	})
	play("html", own, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
	play("redirect", own, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://192.0.2.1/", http.StatusFound)
	})
	// One that works comes last: then all others have been asked.
	for _, name := range []string{"stranger", "large", "headers", "html", "redirect"} {
		var met *peer
		polltest.Until(t, "the proxy knows "+name, func() bool {
			b.proxy.mu.Lock()
			defer b.proxy.mu.Unlock()
			met = b.proxy.peers[name]
			return met != nil
		})
		select {
		case <-met.asked:
		case <-time.After(patience):
			t.Errorf("%s: it was not asked, or is waited for", name)
		}
	}
	if got := b.proxy.current().groups; len(got) != 0 {
		t.Errorf("got groups of %v, want none", slices.Collect(maps.Keys(got)))
	}
	if n := b.counts.get(measure.PeerDiscoveryErrors + " fetch_discovery"); n < 5 {
		t.Errorf("got %v errors in the metrics, want at least 5", n)
	}
}

// TestManyLeases follows a bounded number of servers.
func TestManyLeases(t *testing.T) {
	b := newBench(t)
	for i := range 2 * maxPeers {
		b.leases.put(fmt.Sprintf("server-%d", i), "x", false)
	}
	count := func() int {
		b.proxy.mu.Lock()
		defer b.proxy.mu.Unlock()
		return len(b.proxy.peers)
	}
	polltest.Until(t, fmt.Sprintf("%d peers are known", maxPeers), func() bool { return count() >= maxPeers })
	b.leases.put("last", "x", false)
	<-b.proxy.synced
	if got := count(); got != maxPeers {
		t.Errorf("got %d peers, want at most %d", got, maxPeers)
	}
}

// TestSyncPeersDoesNotWaitForever: a server that is down must not keep this one from
// being ready.
func TestSyncPeersDoesNotWaitForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeases()
		l.put("down", "x", false)
		p := &Proxy{
			Config: Config{Name: "self", Leases: l, Address: func(ctx context.Context, _ string) (string, error) {
				<-ctx.Done()
				return "", ctx.Err()
			}},
			peers: map[string]*peer{}, synced: make(chan struct{}),
		}
		p.Logger = discard()
		p.view.Store(&view{})
		p.DynamicRevision, p.Dynamic = func() int64 { return 1 }, func() map[schema.GroupVersion]bool { return nil }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); p.Run(ctx) }()
		began := time.Now()
		if err := p.SyncPeers(ctx); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != firstLook {
			t.Errorf("it took %v, want %v", took, firstLook)
		}
		cancel()
		<-ended
	})
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func mustPath(path string) *url.URL { return &url.URL{Path: path} }
