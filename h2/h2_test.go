package h2_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apikeel/kelson/h2"
	"github.com/apikeel/kelson/internal/randomtest"
)

const patience = 30 * time.Second

// newServer is what tests serve with: small windows, so that they matter.
func newServer() *h2.Server {
	return &h2.Server{
		MaxStreams: 100, MaxHeaderBytes: 64 << 10, MaxFrame: 64 << 10, StreamWindow: 64 << 10, ConnWindow: 256 << 10,
		IdleTimeout: time.Hour, WriteTimeout: patience, ErrorLog: log.New(io.Discard, "", 0),
	}
}

// serve serves with s, or with net/http if that is nil.
func serve(t testing.TB, s *h2.Server, handler http.HandlerFunc) *httptest.Server {
	ts := httptest.NewUnstartedServer(handler)
	ts.EnableHTTP2 = true
	ts.Config.ErrorLog = log.New(io.Discard, "", 0)
	if s != nil {
		s.Configure(ts.Config)
		ts.Listener = h2.Listen(ts.Listener)
	}
	ts.StartTLS()
	t.Cleanup(ts.Close)
	return ts
}

func get(t testing.TB, ts *httptest.Server, path string) (*http.Response, string) {
	t.Helper()
	resp, err := ts.Client().Get(ts.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// TestLikeNetHTTP sends the same requests to this server and that of net/http.
func TestLikeNetHTTP(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		switch r.URL.Path {
		case "/nothing":
		case "/small":
			h.Set("X-Own", "1")
			_, _ = io.WriteString(w, "small")
		case "/typed":
			h.Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"a":1}`))
		case "/encoded":
			h.Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte("not really"))
		case "/html":
			_, _ = io.WriteString(w, "<html><body>")
		case "/large":
			_, _ = w.Write(bytes.Repeat([]byte("large "), 10_000))
		case "/pieces":
			for i := range 3000 {
				fmt.Fprintf(w, "%d ", i)
			}
		case "/flushed":
			_, _ = io.WriteString(w, "a")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "b")
		case "/empty-flush":
			w.(http.Flusher).Flush()
		case "/late":
			w.WriteHeader(http.StatusAccepted)
			h.Set("X-Late", "1")
			w.WriteHeader(http.StatusTeapot)
		case "/no-content", "/not-modified":
			w.WriteHeader(map[string]int{"/no-content": 204, "/not-modified": 304}[r.URL.Path])
			if _, err := io.WriteString(w, "x"); err != http.ErrBodyNotAllowed {
				t.Errorf("a body: %v", err)
			}
		case "/hop":
			h.Set("Connection", "keep-alive")
			h.Set("Transfer-Encoding", "chunked")
			h["bad name"] = []string{"1"}
			h["Bad-Value"] = []string{"a\nb"}
		case "/multiple":
			h["X-Many"] = []string{"a", "b"}
			h["Date"] = []string{"never"}
		case "/trailers":
			h.Set("Trailer", "X-After, Content-Length")
			_, _ = io.WriteString(w, "body")
			h.Set("X-After", "1")
			h.Set(http.TrailerPrefix+"X-Unannounced", "2")
		case "/echo":
			body, err := io.ReadAll(r.Body)
			fmt.Fprintln(w, r.Method, r.Host, r.RequestURI, r.ContentLength, r.Proto, r.TLS != nil, len(body), err, r.Trailer)
			for _, name := range slices.Sorted(maps.Keys(r.Header)) {
				fmt.Fprintln(w, name, r.Header[name])
			}
		case "/early":
			h.Set("Link", "</x>")
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.WriteString(w, "done")
		case "/error":
			http.Error(w, "no", http.StatusConflict)
		}
	}
	type request struct {
		method, path string
		body         func() io.Reader
		edit         func(*http.Request)
	}
	requests := []request{}
	for _, path := range []string{"nothing", "small", "typed", "encoded", "html", "large", "pieces", "flushed", "empty-flush",
		"late", "no-content", "not-modified", "hop", "multiple", "trailers", "early", "error", "echo?a=%2F&b=%20"} {
		requests = append(requests, request{method: "GET", path: "/" + path})
		requests = append(requests, request{method: "HEAD", path: "/" + path})
	}
	known := func() io.Reader { return strings.NewReader("1234567890") }
	unknown := func() io.Reader { return io.MultiReader(strings.NewReader("12345")) }
	big := func() io.Reader { return bytes.NewReader(make([]byte, 1<<20)) }
	for _, body := range []func() io.Reader{known, unknown, big} {
		requests = append(requests,
			request{method: "POST", path: "/echo", body: body},
			request{method: "PUT", path: "/small", body: body}, // which does not read it
			request{method: "POST", path: "/echo", body: body, edit: func(r *http.Request) { r.Header.Set("Expect", "100-continue") }},
			request{method: "POST", path: "/echo", body: body, edit: func(r *http.Request) {
				r.Trailer = http.Header{"X-Sum": {"1"}}
				r.ContentLength = -1
			}})
	}
	requests = append(requests, request{method: "GET", path: "/echo", edit: func(r *http.Request) {
		r.Header["Cookie"] = []string{"a=1; b=2", "c=3"}
		r.Header["X-Many"] = []string{"a", "b"}
		r.Header.Set("TE", "trailers")
	}})

	ours, theirs := serve(t, newServer(), handler), serve(t, nil, handler)
	for _, q := range requests {
		ask := func(ts *httptest.Server) string {
			var body io.Reader
			if q.body != nil {
				body = q.body()
			}
			req, err := http.NewRequest(q.method, ts.URL+q.path, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = "example.com"
			if q.edit != nil {
				q.edit(req)
			}
			var log strings.Builder
			req = req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				fmt.Fprintln(&log, "informed", code, h)
				return nil
			}}))
			resp, err := ts.Client().Do(req)
			if err != nil {
				t.Fatalf("%s %s: %v", q.method, q.path, err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if resp.Header.Get("Date") == "" {
				t.Errorf("%s %s: no date", q.method, q.path)
			} else if resp.Header.Get("Date") != "never" {
				resp.Header.Del("Date")
			}
			fmt.Fprintln(&log, resp.Status, resp.Proto, resp.ContentLength, resp.Header, resp.Trailer, len(got), err)
			return log.String() + string(got[:min(len(got), 2000)])
		}
		if a, b := ask(ours), ask(theirs); a != b {
			t.Errorf("%s %s:\n%s\nnet/http:\n%s", q.method, q.path, a, b)
		}
	}
}

// TestDeclared has a handler that writes more than it has said.
func TestDeclared(t *testing.T) {
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "4")
		if n, err := io.WriteString(w, "12345"); err != http.ErrContentLength {
			t.Errorf("too much was written: %d, %v", n, err)
		}
		if _, err := io.WriteString(w, "1234"); err != nil {
			t.Error(err)
		}
	})
	if _, body := get(t, ts, "/"); body != "1234" {
		t.Errorf("%q", body)
	}
}

// TestParallel moves much data both ways on one connection.
func TestParallel(t *testing.T) {
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/echo" {
			_, _ = io.Copy(w, r.Body)
			return
		}
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		_, _ = w.Write(make([]byte, n))
	})
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			if i%2 == 0 {
				n := 1 << (i / 2)
				if _, body := get(t, ts, fmt.Sprintf("/?n=%d", n)); len(body) != n {
					t.Errorf("%d bytes instead of %d", len(body), n)
				}
				return
			}
			data := make([]byte, 1<<(i/2)+i)
			_, _ = rand.Read(data)
			resp, err := ts.Client().Post(ts.URL+"/echo", "x/y", bytes.NewReader(data))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			hash := sha256.New()
			if _, err := io.Copy(hash, resp.Body); err != nil || !bytes.Equal(hash.Sum(nil), sum(data)) {
				t.Errorf("%d bytes came back differently: %v", len(data), err)
			}
		})
	}
	all.Wait()
}

func sum(b []byte) []byte { s := sha256.Sum256(b); return s[:] }

// TestFlushed: what is written in large pieces and small ones may wait for more, but
// not once it is flushed.
func TestFlushed(t *testing.T) {
	sizes := []int{100 << 10, 10, 64 << 10, 5000, 1, 200<<10 + 1}
	seen := make(chan struct{})
	ts := serve(t, newServer(), func(w http.ResponseWriter, _ *http.Request) {
		for i, size := range sizes {
			_, _ = w.Write(bytes.Repeat([]byte{byte('a' + i)}, size))
			w.(http.Flusher).Flush()
			<-seen
		}
	})
	resp, err := ts.Client().Get(ts.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for i, size := range sizes {
		part := make([]byte, size)
		if _, err := io.ReadFull(resp.Body, part); err != nil {
			t.Fatal(err)
		}
		if want := bytes.Repeat([]byte{byte('a' + i)}, size); !bytes.Equal(part, want) {
			t.Fatalf("piece %d is not what was written", i)
		}
		seen <- struct{}{}
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("%d bytes more: %v", len(rest), err)
	}
}

// TestPieces: the pieces in which an answer is written do not change it.
func TestPieces(t *testing.T) {
	var want []byte
	random := randomtest.New(t)
	var mu sync.Mutex // there is one request at a time, but the race detector does not see that
	ts := serve(t, newServer(), func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		for rest := want; len(rest) > 0; {
			n := min(len(rest), []int{1, 100, 4096, 5000, 16384, 64 << 10, 65500, 300 << 10}[random.IntN(8)])
			_, _ = w.Write(rest[:n])
			if rest = rest[n:]; random.IntN(20) == 0 {
				w.(http.Flusher).Flush()
			}
		}
	})
	for range 20 {
		mu.Lock()
		want = make([]byte, random.IntN(4<<20))
		_, _ = rand.Read(want)
		mu.Unlock()
		if _, got := get(t, ts, "/"); got != string(want) {
			t.Fatalf("%d bytes are not the %d that were written", len(got), len(want))
		}
	}
}

// TestSlowReader has a client that does not read one answer and gets others.
func TestSlowReader(t *testing.T) {
	written := make(chan struct{})
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			_, _ = w.Write(make([]byte, 16<<20))
			close(written)
		}
	})
	slow, err := ts.Client().Get(ts.URL + "/large")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		get(t, ts, "/small")
	}
	select {
	case <-written:
		t.Error("an answer that nobody reads was written")
	default:
	}
	if n, err := io.Copy(io.Discard, slow.Body); n != 16<<20 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	<-written
}

// TestGone has clients that go while they are served.
func TestGone(t *testing.T) {
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/wait":
			begun <- struct{}{}
			<-r.Context().Done()
			ended <- r.Context().Err()
		case "/read":
			begun <- struct{}{}
			_, err := io.Copy(io.Discard, r.Body)
			ended <- err
		case "/write":
			w.(http.Flusher).Flush()
			begun <- struct{}{}
			var err error
			for err == nil {
				_, err = w.Write(make([]byte, 64<<10))
			}
			ended <- err
		}
	})
	end := func() error {
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			t.Fatal("the handler does not notice")
			return nil
		}
	}
	for _, path := range []string{"/wait", "/read", "/write"} {
		for _, drop := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			body, feed := io.Pipe()
			req, err := http.NewRequestWithContext(ctx, "POST", ts.URL+path, body)
			if err != nil {
				t.Fatal(err)
			}
			// A connection of its own, since one that was dropped may be taken for good.
			transport := ts.Client().Transport.(*http.Transport).Clone()
			defer transport.CloseIdleConnections()
			go func() {
				if resp, err := (&http.Client{Transport: transport}).Do(req); err == nil {
					<-ctx.Done()
					resp.Body.Close()
				}
			}()
			_, _ = feed.Write([]byte("x"))
			<-begun
			if drop {
				ts.CloseClientConnections()
			} else {
				cancel()
			}
			if err := end(); err == nil || err == io.EOF {
				t.Errorf("%s: %v", path, err)
			}
			cancel()
			feed.Close()
		}
	}
}

// TestDeadlines has handlers with little time.
func TestDeadlines(t *testing.T) {
	ended := make(chan error, 1)
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		soon := time.Now().Add(10 * time.Millisecond)
		if r.URL.Path == "/read" {
			_ = control.SetReadDeadline(soon)
			_, err := r.Body.Read(make([]byte, 1))
			ended <- err
			return
		}
		_ = control.SetWriteDeadline(soon)
		_, err := w.Write(make([]byte, 64<<20))
		ended <- err
	})
	body, feed := io.Pipe()
	defer feed.Close()
	resp, err := ts.Client().Post(ts.URL+"/read", "x/y", body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	if resp, err = ts.Client().Get(ts.URL + "/write"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("all was written to a client that does not read")
	}
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("the answer looks complete")
	}
	resp.Body.Close()
}

// TestPanic has handlers that do not return.
func TestPanic(t *testing.T) {
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/abort":
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/panic":
			panic("oh")
		}
	})
	for _, path := range []string{"/abort", "/panic"} {
		resp, err := ts.Client().Get(ts.URL + path)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: the answer looks complete", path)
		}
	}
	if resp, _ := get(t, ts, "/"); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

// connections returns a client's transport that counts its connections.
func connections(ts *httptest.Server) *atomic.Int64 {
	var n atomic.Int64
	transport := ts.Client().Transport.(*http.Transport)
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	return &n
}

// TestLastAnswer ends connections as handlers wish.
func TestLastAnswer(t *testing.T) {
	release := make(chan struct{})
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/close":
			w.Header().Set("Connection", "close")
		case "/slow":
			w.(http.Flusher).Flush()
			<-release
			_, _ = io.WriteString(w, "all")
		}
	})
	n := connections(ts)
	slow, err := ts.Client().Get(ts.URL + "/slow")
	if err != nil {
		t.Fatal(err)
	}
	get(t, ts, "/")
	if resp, _ := get(t, ts, "/close"); resp.Header.Get("Connection") != "" || n.Load() != 1 {
		t.Errorf("%v, %d connections", resp.Header, n.Load())
	}
	deadline := time.Now().Add(patience)
	for n.Load() == 1 {
		if get(t, ts, "/"); time.Now().After(deadline) {
			t.Fatal("the connection is still used")
		}
	}
	close(release)
	if body, err := io.ReadAll(slow.Body); string(body) != "all" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
}

// TestLastLargeAnswer reads large answers after which the server hangs up: what
// the client says of its windows meanwhile must not make it lose the end.
func TestLastLargeAnswer(t *testing.T) {
	const size = 8 << 20
	body := make([]byte, size)
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = w.Write(body)
	})
	for range 20 {
		resp, err := ts.Client().Get(ts.URL)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if n != size || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
}

// TestShutdown lets requests finish.
func TestShutdown(t *testing.T) {
	working, release := make(chan struct{}), make(chan struct{})
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(working)
			<-release
			_, _ = w.Write(make([]byte, 1<<20))
		}
	})
	get(t, ts, "/")
	read := make(chan int)
	go func() {
		_, body := get(t, ts, "/slow")
		read <- len(body)
	}()
	<-working
	shut := make(chan error)
	go func() { shut <- ts.Config.Shutdown(t.Context()) }()
	for {
		// It takes no new connection, and no request on the old one.
		if _, err := ts.Client().Get(ts.URL); err != nil {
			break
		}
	}
	close(release)
	if n := <-read; n != 1<<20 {
		t.Errorf("%d bytes", n)
	}
	if err := <-shut; err != nil {
		t.Error(err)
	}
}

// TestIdle ends connections that nobody uses.
func TestIdle(t *testing.T) {
	s := newServer()
	s.IdleTimeout = time.Millisecond
	ts := serve(t, s, func(w http.ResponseWriter, r *http.Request) {})
	conn, err := tls.Dial("tcp", ts.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	p := &peer{T: t, Conn: conn}
	p.greet()
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("not a clean end: %v", err)
	}
}
