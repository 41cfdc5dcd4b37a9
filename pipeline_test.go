package kelson

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
)

func TestPanic(t *testing.T) {
	s := start(t, &Server{Paths: map[string]http.Handler{
		"/early": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("early bird") }),
		"/late": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half an ans")
			w.(http.Flusher).Flush()
			panic("late bird")
		}),
		"/abort": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
	}})
	for _, major := range []int{1, 2} {
		client := s.client(t, major, s.PKI.AdminCertificate())
		code, body, header := s.get(t, client, "GET", "/early")
		if code != 500 || body != "This request caused apiserver to panic. Look in the logs for details.\n" || header.Get("Audit-Id") == "" {
			t.Errorf("%d %q", code, body)
		}
		for _, path := range []string{"/late", "/abort"} {
			resp, err := client.Get(s.URL() + path)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if err == nil {
				t.Errorf("HTTP/%d %s: a broken answer looks whole", major, path)
			}
		}
		if code, _, _ := s.get(t, client, "GET", "/version"); code != 200 {
			t.Errorf("the server is gone: %d", code)
		}
	}
	log := s.log.String()
	if !strings.Contains(log, "early bird") || !strings.Contains(log, "late bird") || !strings.Contains(log, "pipeline_test.go") {
		t.Errorf("panics are not in the log: %s", log)
	}
	if strings.Contains(log, "abort") {
		t.Errorf("an abort is in the log: %s", log)
	}
}

func TestDeadline(t *testing.T) {
	bodyErr := make(chan error, 1)
	s := start(t, &Server{API: routes{
		"/api/v1/silent": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"/api/v1/answers": func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			http.Error(w, r.Context().Err().Error(), http.StatusTeapot)
		},
		"/api/v1/reads": func(w http.ResponseWriter, r *http.Request) {
			_, err := io.ReadAll(r.Body)
			bodyErr <- err
		},
		"/api/v1/writes": func(w http.ResponseWriter, r *http.Request) {
			piece := bytes.Repeat([]byte("x"), 1<<20)
			for {
				if _, err := w.Write(piece); err != nil {
					bodyErr <- err
					return
				}
			}
		},
		"/api/v1/watch/pods": func(w http.ResponseWriter, r *http.Request) {
			if _, ok := r.Context().Deadline(); ok {
				t.Error("a watch has a deadline")
			}
		},
		"/api/v1/pods": func(w http.ResponseWriter, r *http.Request) {
			got, ok := r.Context().Deadline()
			if want := request.From(r.Context()).Received.Add(time.Minute); !ok || !got.Equal(want) {
				t.Errorf("deadline %v, want %v", got, want)
			}
		},
	}})
	for _, major := range []int{1, 2} {
		client := s.client(t, major, s.PKI.AdminCertificate())
		if code, body, _ := s.get(t, client, "GET", "/api/v1/silent?timeout=20ms"); code != 504 || body != timedOut {
			t.Errorf("HTTP/%d: %d %q", major, code, body)
		}
		if code, body, _ := s.get(t, client, "GET", "/api/v1/answers?timeout=20ms"); code != 418 || body != "context deadline exceeded\n" {
			t.Errorf("HTTP/%d: %d %q", major, code, body)
		}
		s.get(t, client, "GET", "/api/v1/watch/pods?timeout=1ns")
		s.get(t, client, "GET", "/api/v1/pods?timeout=5m")

		// A body that does not come.
		never, write := io.Pipe()
		go func() {
			resp, err := client.Post(s.URL()+"/api/v1/reads?timeout=20ms", mediaJSON, never)
			if err == nil {
				resp.Body.Close()
			}
		}()
		if _, err := write.Write([]byte("{")); err != nil {
			t.Fatal(err)
		}
		if err := <-bodyErr; err == nil {
			t.Errorf("HTTP/%d: a body without end was read", major)
		}
		write.Close()

		// A client that does not read. On a slow machine the time is over before the
		// answer begins: then there is none, but it has an end all the same.
		resp, err := client.Get(s.URL() + "/api/v1/writes?timeout=200ms")
		select {
		case err := <-bodyErr:
			if err == nil {
				t.Errorf("HTTP/%d: an answer without end was written", major)
			}
		case <-time.After(time.Minute):
			t.Fatalf("HTTP/%d: an answer without end is still written; the client got %v", major, err)
		}
		if err == nil {
			resp.Body.Close()
		}
	}
}

func TestWriters(t *testing.T) {
	s := start(t, &Server{API: routes{
		"/api/v1/hijack": func(w http.ResponseWriter, r *http.Request) {
			hijacker, ok := w.(http.Hijacker)
			if ok != (r.ProtoMajor == 1) {
				t.Errorf("HTTP/%d: Hijacker is %v", r.ProtoMajor, ok)
			}
			if !ok {
				return
			}
			conn, buffer, err := hijacker.Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = buffer.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
			buffer.Flush()
			conn.Close()
		},
		"/api/v1/controller": func(w http.ResponseWriter, r *http.Request) {
			control := http.NewResponseController(w)
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusCreated)
			if err := errors.Join(control.SetWriteDeadline(time.Now().Add(time.Minute)), control.Flush()); err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(w, "x")
		},
	}})
	if _, body, _ := s.get(t, s.client(t, 1, s.PKI.AdminCertificate()), "GET", "/api/v1/hijack"); body != "hi" {
		t.Errorf("got %q", body)
	}
	s.get(t, s.admin(t), "GET", "/api/v1/hijack")
	for _, major := range []int{1, 2} {
		if code, body, _ := s.get(t, s.client(t, major, s.PKI.AdminCertificate()), "GET", "/api/v1/controller"); code != 201 || body != "x" {
			t.Errorf("HTTP/%d: %d %q", major, code, body)
		}
	}
}

type testKey struct{}

func TestLifetime(t *testing.T) {
	parent, cancel := context.WithCancel(context.WithValue(context.Background(), testKey{}, "v"))
	defer cancel()

	l := &lifetime{parent: parent, deadline: time.Now().Add(time.Hour)}
	if l.Err() != nil || l.inner != nil || l.Value(testKey{}) != "v" {
		t.Error("asking made a timer, or there is no value")
	}
	before := runtime.NumGoroutine()
	child, cancelChild := context.WithCancel(request.With(l, &request.Request{}))
	defer cancelChild()
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("a child needs a goroutine: %d, then %d", before, after)
	}
	if child.Value(testKey{}) != "v" {
		t.Error("the value is lost")
	}
	cancel()
	<-child.Done()
	if l.Err() != context.Canceled {
		t.Errorf("got %v", l.Err())
	}

	over := &lifetime{parent: context.Background(), deadline: time.Now()}
	if over.Err() != context.DeadlineExceeded {
		t.Errorf("got %v", over.Err())
	}
	<-over.Done()
	over.release()

	released := &lifetime{parent: context.Background(), deadline: time.Now().Add(time.Hour)}
	done := released.Done()
	released.release()
	<-done

	open := &lifetime{parent: context.Background()}
	if _, ok := open.Deadline(); ok || open.Done() != nil || open.Err() != nil {
		t.Error("a lifetime without a deadline has an end")
	}
	open.release()
}

// TestBusyAuthenticationAsksToTryAgain: who cannot be told apart from strangers for now is not
// told that its credential is wrong.
func TestBusyAuthenticationAsksToTryAgain(t *testing.T) {
	s := &Server{Authenticate: func(*http.Request) (request.User, bool, error) {
		return request.User{}, false, fmt.Errorf("a provider: %w", request.ErrBusy)
	}}
	if err := s.PrepareRun(); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("GET", "/api", nil))
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), `"reason":"TooManyRequests"`) {
		t.Errorf("got %d, Retry-After %q, %s, want 429 with Retry-After 1", w.Code, w.Header().Get("Retry-After"), w.Body)
	}
}

// BenchmarkPipeline is what the stages cost beyond the handler, without a
// network.
func BenchmarkPipeline(b *testing.B) {
	s := &Server{API: everything{}, Authenticate: func(*http.Request) (request.User, bool, error) { return request.User{Name: "u"}, true, nil }}
	if err := s.PrepareRun(); err != nil {
		b.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/api/v1/namespaces/default/configmaps/a", nil)
	w := nullWriter{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		s.ServeHTTP(w, r)
	}
}

type everything struct{}

func (everything) Route(w http.ResponseWriter, _ *http.Request) bool {
	w.Header()["Content-Type"] = []string{mediaJSON}
	_, _ = w.Write(answer)
	return true
}
func (everything) Paths() []string { return nil }

var answer = bytes.Repeat([]byte("x"), 1000)

type nullWriter struct{ header http.Header }

func (w nullWriter) Header() http.Header         { return w.header }
func (w nullWriter) Write(b []byte) (int, error) { return len(b), nil }
func (w nullWriter) WriteHeader(int)             {}

// BenchmarkGet compares a server with a bare handler that writes the same bytes
// over the same TLS and HTTP/2. Client and server share the processors.
func BenchmarkGet(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		benchmarkGet(b, func(s *Server) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { everything{}.Route(w, r) })
		})
	})
	b.Run("server", func(b *testing.B) { benchmarkGet(b, func(s *Server) http.Handler { return s }) })
}

func benchmarkGet(b *testing.B, handler func(s *Server) http.Handler) {
	s := &running{Server: &Server{API: everything{}, Addr: "127.0.0.1:0"}}
	if err := s.Listen(); err != nil {
		b.Fatal(err)
	}
	server := s.httpServer(context.Background())
	server.Handler = handler(s.Server)
	go func() { _ = server.ServeTLS(s.listener, "", "") }()
	defer server.Close()
	client := s.admin(b)
	url := s.URL() + "/api/v1/namespaces/default/configmaps/a"
	b.ReportAllocs()
	b.ResetTimer()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			resp, err := client.Get(url)
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	})
}
