package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/kelsontest"
)

// openWatches opens watches as a user until the server refuses one, and returns a function
// that ends one of them. It returns how many were opened.
func openWatches(t *testing.T, config *rest.Config, most int) (n int, end func()) {
	t.Helper()
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	var cancels []context.CancelFunc
	for n < most {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/api/v1/configmaps?watch=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cancel(); resp.Body.Close() })
		if resp.StatusCode == http.StatusTooManyRequests {
			if resp.Header.Get("Retry-After") == "" {
				t.Error("a watch was refused without Retry-After")
			}
			break
		}
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("watch %d: %s", n, resp.Status)
		}
		n++
		cancels = append(cancels, cancel)
	}
	return n, func() {
		cancels[len(cancels)-1]()
		cancels = cancels[:len(cancels)-1]
	}
}

// TestWatchesAreBounded: a user who opens watches without end is refused when they take their
// part of the memory. Others have room, and the user has it again when a watch ends.
func TestWatchesAreBounded(t *testing.T) {
	t.Parallel()
	s := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.MemoryLimit(128<<20))
	const viewers = "viewers"
	greedy, other := s.User("greedy", viewers), s.User("other", viewers)
	allowWatches(t, s, viewers)
	n, end := openWatches(t, greedy, 2000)
	if n < 300 || n >= 2000 {
		t.Fatalf("%d watches were opened, want some hundreds", n)
	}
	if got, _ := openWatches(t, other, 10); got != 10 {
		t.Errorf("another user: %d watches were opened, want 10", got)
	}
	if got, _ := openWatches(t, s.Config(), 20); got != 20 {
		t.Errorf("an administrator: %d watches were opened, want 20", got)
	}
	for range 40 { // more than the others have
		end()
	}
	polltest.Until(t, "room for a watch", func() bool {
		got, _ := openWatches(t, greedy, 1)
		return got == 1
	})
}

// allowWatches lets a group watch config maps.
func allowWatches(t *testing.T, s *kelsontest.Server, viewers string) {
	t.Helper()
	rights := client(t, s).RbacV1()
	if _, err := rights.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: viewers},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"watch"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := rights.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: viewers},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: viewers},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: viewers}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestAccountsAreBoundedTogether: who may create service accounts in a namespace does not get
// more memory by having many of them. Others have room, also accounts of other namespaces.
func TestAccountsAreBoundedTogether(t *testing.T) {
	t.Parallel()
	s := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.MemoryLimit(128<<20))
	const viewers = "viewers"
	allowWatches(t, s, viewers)
	for i := range 6 {
		account := s.Token(fmt.Sprint("system:serviceaccount:tenant:", i), viewers)
		if n, _ := openWatches(t, account, 2000); n > 0 && i > 0 || n < 300 && i == 0 {
			t.Errorf("account %d: %d watches were opened, want that the first takes what there is for all", i, n)
		}
	}
	for _, other := range []string{"system:serviceaccount:other:0", "system:node:a", "system:serviceaccount:tenants:0"} {
		if n, _ := openWatches(t, s.Token(other, viewers), 10); n != 10 {
			t.Errorf("%s: %d watches were opened, want 10", other, n)
		}
	}
}

// TestConnectionsAreBounded: a user who opens connections without end, and may do nothing, is
// refused, and others are not.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	s := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.MemoryLimit(128<<20))
	get := func(config *rest.Config) (status int) {
		settings, err := rest.TLSConfigFor(config)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{TLSClientConfig: settings, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
		t.Cleanup(transport.CloseIdleConnections)
		resp, err := (&http.Client{Transport: transport}).Get(config.Host + "/api/v1/secrets")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp.StatusCode
	}
	nobody := s.User("nobody")
	n := 0
	for status := http.StatusForbidden; status == http.StatusForbidden && n < 2000; n++ {
		if status = get(nobody); status != http.StatusForbidden && status != http.StatusTooManyRequests {
			t.Fatalf("connection %d: got %d", n, status)
		}
	}
	if n < 200 || n >= 2000 {
		t.Errorf("%d connections were opened, want some hundreds", n)
	}
	if got := get(s.User("other")); got != http.StatusForbidden {
		t.Errorf("another user: got %d, want 403", got)
	}
	if got := get(s.Config()); got != http.StatusOK {
		t.Errorf("an administrator: got %d, want 200", got)
	}
}

// TestLargeHeadersAreBounded: requests with large headers, or with selectors that take a
// multiple of their text, count with what they hold. Who has too many of them under way is
// refused, and is not any more when they have ended.
func TestLargeHeadersAreBounded(t *testing.T) {
	t.Parallel()
	for name, large := range map[string]func(*http.Request){
		"header":     func(r *http.Request) { r.Header.Set("X-Large", strings.Repeat("x", 400<<10)) },
		"selector":   func(r *http.Request) { r.URL.RawQuery = "labelSelector=" + strings.Repeat("a,", 10<<10) + "a" },
		"watch":      func(r *http.Request) { r.URL.RawQuery = "watch=1&labelSelector=" + strings.Repeat("a,", 10<<10) + "a" },
		"escaped":    func(r *http.Request) { r.URL.RawQuery = "fieldSelector=" + strings.Repeat("a%2C", 10<<10) + "a" },
		"parameters": func(r *http.Request) { r.URL.RawQuery = strings.Repeat("a&", 9<<10) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.MemoryLimit(128<<20))
			release := make(chan struct{})
			held := s.On(kelsontest.Rule{Resource: "secrets"}, kelsontest.Hold(release))
			nobody := s.User("nobody")
			const requests, ofConnection = 40, 4
			var refused atomic.Int64
			var wg sync.WaitGroup
			var c *http.Client
			send := func(c *http.Client) int {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, nobody.Host+"/api/v1/secrets", nil)
				if err != nil {
					t.Error(err)
					return 0
				}
				large(req)
				resp, err := c.Do(req)
				if err != nil {
					t.Error(err)
					return 0
				}
				resp.Body.Close()
				return resp.StatusCode
			}
			for i := range requests {
				if i%ofConnection == 0 {
					c = ownConnection(t, nobody)
					resp, err := c.Get(nobody.Host + "/version") // the server knows it from now on
					if err != nil {
						t.Fatal(err)
					}
					resp.Body.Close()
				}
				client := c
				wg.Go(func() {
					switch status := send(client); status {
					case http.StatusTooManyRequests:
						refused.Add(1)
					case http.StatusForbidden:
					default:
						t.Errorf("got %d, want 403 or 429", status)
					}
				})
				// One after the other: half headers that come together have a bound of their own.
				polltest.Until(t, "the request is refused or under way", func() bool { return int(refused.Load())+held.Hits() == i+1 })
			}
			if got := refused.Load(); got < requests/2 || got == requests {
				t.Errorf("%d of %d requests were refused, want most of them", got, requests)
			}
			close(release)
			wg.Wait()
			polltest.Until(t, "the user may ask again", func() bool { return send(c) == http.StatusForbidden })
		})
	}
}

// ownConnection returns a client that shares no connection with others.
func ownConnection(t *testing.T, config *rest.Config) *http.Client {
	t.Helper()
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: settings, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// TestHalfHeadersAreBounded: clients do not have the server keep as many half headers as they have
// connections, as strangers, or as known clients of HTTP/1.1 after a first request: the oldest
// of them are closed. Others are answered.
func TestHalfHeadersAreBounded(t *testing.T) {
	t.Parallel()
	s := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.MemoryLimit(128<<20))
	const large = 600 << 10 // three are more than may be kept
	const whole = "GET /version HTTP/1.1\r\nHost: a\r\n\r\n"
	half := map[string]string{"http/1.1": "GET / HTTP/1.1\r\nHost: a\r\nX-Large: " + strings.Repeat("x", large)}
	half["http/1.1 of a known client"] = whole + half["http/1.1"]
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&b, nil)
	part := make([]byte, 16<<10)
	err := errors.Join(framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: part}))
	for range large / len(part) {
		err = errors.Join(err, framer.WriteContinuation(1, false, part))
	}
	if err != nil {
		t.Fatal(err)
	}
	half["h2"] = b.String()
	known, err := rest.TLSConfigFor(s.User("nobody"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range half {
		protocol, _, isKnown := strings.Cut(name, " ")
		settings := &tls.Config{InsecureSkipVerify: true}
		if isKnown {
			settings = known.Clone()
		}
		settings.NextProtos = []string{protocol}
		var first *tls.Conn
		for range 6 {
			conn, err := tls.Dial("tcp", strings.TrimPrefix(s.Config().Host, "https://"), settings)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			if _, err := io.WriteString(conn, text); err != nil && first == nil {
				t.Fatal(err)
			}
			if first == nil {
				first = conn
			}
		}
		if n, err := io.Copy(io.Discard, first); n > 4000 { // settings, or the answer to a whole request
			t.Errorf("%s: got %d bytes and %v, want the end of the connection", name, n, err)
		}
		if resp, err := ownConnection(t, s.User("nobody")).Get(s.Config().Host + "/version"); err != nil {
			t.Errorf("%s: another client: %v", name, err)
		} else {
			resp.Body.Close()
		}
	}
}

// TestHalfHeaderBlocksAreBounded: the same for clients of HTTP/2 that are known. Who comes when
// there is no room is told to calm down.
func TestHalfHeaderBlocksAreBounded(t *testing.T) {
	t.Parallel()
	s := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.MemoryLimit(128<<20), kelsontest.HTTP2Server(kelson.HTTP2Own))
	settings, err := rest.TLSConfigFor(s.User("nobody"))
	if err != nil {
		t.Fatal(err)
	}
	settings.NextProtos = []string{http2.NextProtoTLS}
	// half sends a whole request and half a header of 600 KB.
	half := func() *http2.Framer {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(s.Config().Host, "https://"), settings)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		framer := http2.NewFramer(conn, conn)
		var block bytes.Buffer
		encoder := hpack.NewEncoder(&block)
		_, err = io.WriteString(conn, http2.ClientPreface)
		for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "a"}, {":path", "/version"}} {
			err = errors.Join(err, encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
		}
		err = errors.Join(err, framer.WriteSettings(),
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true}))
		for answered := false; err == nil && !answered; {
			var f http2.Frame
			f, err = framer.ReadFrame()
			data, ok := f.(*http2.DataFrame)
			answered = ok && data.StreamEnded()
		}
		if err != nil {
			t.Fatal(err)
		}
		part := make([]byte, 16<<10)
		err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: part})
		for i := 0; i < 40 && err == nil; i++ {
			err = framer.WriteContinuation(3, false, part) // an error: the server has closed the connection
		}
		return framer
	}
	ended := make(chan error)
	for range 6 { // three are more than may be kept
		framer := half()
		go func() {
			for {
				f, err := framer.ReadFrame()
				if away, ok := f.(*http2.GoAwayFrame); ok && away.ErrCode == http2.ErrCodeEnhanceYourCalm {
					err = errCalm
				}
				if err != nil {
					select {
					case ended <- err:
					case <-t.Context().Done():
					}
					return
				}
			}
		}()
	}
	for range 3 {
		if err := <-ended; !errors.Is(err, errCalm) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection ended with %v, want %v", err, errCalm)
		}
	}
	if resp, err := ownConnection(t, s.User("nobody")).Get(s.Config().Host + "/version"); err != nil {
		t.Errorf("another client: %v", err)
	} else {
		resp.Body.Close()
	}
}

var errCalm = errors.New("ENHANCE_YOUR_CALM")
