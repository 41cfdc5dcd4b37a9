package kelson

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
)

// journal collects what happens in which order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func TestHooks(t *testing.T) {
	release := make(chan struct{})
	var ctxEnded sync.WaitGroup
	ctxEnded.Add(1)
	var j journal
	s := start(t, &Server{
		Name: "outer",
		PostStartHooks: []Hook{{"slow", func(ctx context.Context) error {
			<-release
			go func() {
				<-ctx.Done()
				ctxEnded.Done()
			}()
			return nil
		}}},
		PreShutdownHooks: []Hook{{"last", func(context.Context) error { j.add("last"); return nil }}},
		Close:            []func() error{func() error { j.add("close outer"); return nil }},
		Delegate: &Server{
			Name:             "inner",
			PostStartHooks:   []Hook{{"rbac/roles", func(context.Context) error { return nil }}},
			PreShutdownHooks: []Hook{{"first", func(context.Context) error { j.add("first"); return nil }}},
			HealthChecks:     []HealthCheck{{Name: "etcd", Check: func(context.Context) error { return nil }}},
			Close:            []func() error{func() error { j.add("close inner"); return nil }},
		},
	})
	client := s.admin(t)
	// The server answers before its hooks are done, but is not ready.
	want := "[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]poststarthook/rbac/roles ok\n[-]poststarthook/slow failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n"
	polltest.Until(t, "a server that is not ready", func() bool {
		code, body, _ := s.get(t, client, "GET", "/readyz")
		return code == 500 && body == want
	})
	if code, body, _ := s.get(t, client, "GET", "/livez/poststarthook/slow"); code != 500 || body != "internal server error: not finished\n" {
		t.Errorf("%d %q", code, body)
	}
	close(release)
	polltest.Until(t, "a server that is ready", func() bool {
		code, _, _ := s.get(t, client, "GET", "/readyz")
		return code == 200
	})
	s.stop()
	if err := s.ended(); err != nil {
		t.Error(err)
	}
	ctxEnded.Wait()
	if want := []string{"first", "last", "close outer", "close inner"}; !slices.Equal(j.lines, want) {
		t.Errorf("got %q, want %q", j.lines, want)
	}
}

func TestFailingHooks(t *testing.T) {
	boom := errors.New("boom")
	fail := func(context.Context) error { return boom }
	closed := false
	s := start(t, &Server{
		PostStartHooks:   []Hook{{"bad", fail}},
		PreShutdownHooks: []Hook{{"worse", fail}},
		Close:            []func() error{func() error { closed = true; return nil }},
	})
	err := s.ended()
	if !errors.Is(err, boom) || !closed || !strings.Contains(err.Error(), `post-start hook "bad" failed: boom`) ||
		!strings.Contains(err.Error(), `pre-shutdown hook "worse" failed: boom`) {
		t.Errorf("got %v; closed: %v", err, closed)
	}

	s = start(t, &Server{PostStartHooks: []Hook{{"wild", func(context.Context) error { panic("help") }}}})
	if err := s.ended(); err == nil || !strings.Contains(err.Error(), `post-start hook "wild" failed: panic: help`) {
		t.Errorf("got %v", err)
	}
}

// The end of the server ends watches, lets other requests finish, and is
// quick about it.
func TestShutdown(t *testing.T) {
	for _, major := range []int{1, 2} {
		watching, working := make(chan error, 1), make(chan struct{})
		finish := make(chan struct{})
		var stopping *running
		var readyz string
		s := &Server{
			API: routes{
				"/api/v1/watch/pods": func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.WriteString(w, "first\n")
					w.(http.Flusher).Flush()
					<-r.Context().Done()
					watching <- context.Cause(r.Context())
					close(finish) // the other request outlives the watch
				},
				"/api/v1/pods": func(w http.ResponseWriter, r *http.Request) {
					close(working)
					<-finish
					if err := r.Context().Err(); err != nil {
						t.Errorf("a request that was in time has ended: %v", err)
					}
					_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
				},
			},
			PreShutdownHooks: []Hook{{"ask", func(context.Context) error {
				_, readyz, _ = stopping.get(t, stopping.admin(t), "GET", "/readyz?exclude=ping&exclude=log")
				return nil
			}}},
		}
		stopping = start(t, s)
		client := stopping.client(t, major, stopping.PKI.AdminCertificate())
		watch, err := client.Get(stopping.URL() + "/api/v1/watch/pods")
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 6)
		if _, err := io.ReadFull(watch.Body, first); err != nil {
			t.Fatal(err)
		}
		answered := make(chan string, 1)
		go func() {
			defer close(answered) // also if it fails
			_, body, _ := stopping.get(t, client, "GET", "/api/v1/pods")
			answered <- body
		}()
		<-working
		// One that connects and says nothing is not waited for.
		silent, err := net.Dial("tcp", stopping.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()

		stopping.stop()
		if cause := <-watching; !errors.Is(cause, errStopping) {
			t.Errorf("HTTP/%d: the watch ended because of %v", major, cause)
		}
		if rest, err := io.ReadAll(watch.Body); err != nil || len(rest) > 0 {
			t.Errorf("HTTP/%d: the watch did not end cleanly: %q, %v", major, rest, err)
		}
		if body := <-answered; len(body) != 1<<20 {
			t.Errorf("HTTP/%d: an answer was cut off: %d bytes", major, len(body))
		}
		if err := stopping.ended(); err != nil {
			t.Error(err)
		}
		if log := stopping.log.String(); strings.Contains(log, cutOff) {
			t.Errorf("HTTP/%d: got %q, want an end when the requests are done, not after the timeout", major, log)
		}
		if !strings.Contains(readyz, "[-]shutdown failed: reason withheld") {
			t.Errorf("HTTP/%d: a server that stops says that it is ready: %q", major, readyz)
		}
		if _, err := net.Dial("tcp", stopping.listener.Addr().String()); err == nil {
			t.Errorf("HTTP/%d: it still listens", major)
		}
	}
}

func TestIdleShutdown(t *testing.T) {
	s := start(t, &Server{})
	for _, major := range []int{1, 2} { // connections stay open
		s.get(t, s.client(t, major, s.PKI.AdminCertificate()), "GET", "/version")
	}
	s.stop()
	if err := s.ended(); err != nil {
		t.Error(err)
	}
	if log := s.log.String(); strings.Contains(log, cutOff) {
		t.Errorf("got %q, want no wait for connections without a request", log)
	}
}

// A request that does not end does not keep the server from ending.
func TestStuckShutdown(t *testing.T) {
	stuck, release := make(chan struct{}), make(chan struct{})
	s := start(t, &Server{
		Shutdown: Shutdown{Timeout: 100 * time.Millisecond},
		API: routes{"/api/v1/pods": func(w http.ResponseWriter, r *http.Request) {
			close(stuck)
			<-release
		}},
	})
	defer close(release)
	go func() {
		resp, err := s.admin(t).Get(s.URL() + "/api/v1/pods")
		if err == nil {
			resp.Body.Close()
		}
	}()
	<-stuck
	s.stop()
	if err := s.ended(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(s.log.String(), cutOff) {
		t.Errorf("got the log %q, want %q in it", s.log, cutOff)
	}
}

// cutOff is what the server logs when it has waited as long as Shutdown.Timeout.
const cutOff = "requests are cut off"
