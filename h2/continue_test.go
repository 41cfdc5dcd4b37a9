package h2_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apikeel/kelson/h2"
)

// TestContinuation: an answer goes on when its handler has returned, until what it left
// returns too, or panics, or the client leaves.
func TestContinuation(t *testing.T) {
	returned, lines, ended := make(chan struct{}, 1), make(chan string), make(chan error, 1)
	ts := serve(t, newServer(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Own", "1")
		_, _ = io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		panics := r.URL.Path == "/panic"
		w.(h2.Continuer).Continue(func() {
			defer func() { ended <- r.Context().Err() }()
			w.Header().Set("X-Late", "1") // too late, and no harm
			for {
				select {
				case line, ok := <-lines:
					if !ok {
						return
					}
					if panics {
						panic(http.ErrAbortHandler)
					}
					_, _ = io.WriteString(w, line+"\n")
					_ = http.NewResponseController(w).Flush()
				case <-r.Context().Done():
					return
				}
			}
		})
		returned <- struct{}{}
	})
	begin := func(path string) (*http.Response, *bufio.Reader, context.CancelFunc) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, ts.URL+path, nil)
		resp, err := ts.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		body := bufio.NewReader(resp.Body)
		if line, err := body.ReadString('\n'); line != "first\n" || err != nil || resp.Header.Get("X-Own") != "1" {
			t.Fatalf("%q, %v, header %v", line, err, resp.Header)
		}
		<-returned
		return resp, body, cancel
	}

	_, body, _ := begin("/")
	for range 3 {
		lines <- "more"
		if line, err := body.ReadString('\n'); line != "more\n" || err != nil {
			t.Fatalf("%q, %v", line, err)
		}
	}
	close(lines)
	if rest, err := io.ReadAll(body); len(rest) > 0 || err != nil {
		t.Errorf("at the end %q, %v", rest, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the context has ended before the answer: %v", err)
	}

	lines = make(chan string)
	_, body, _ = begin("/panic")
	lines <- "never"
	if rest, err := io.ReadAll(body); len(rest) > 0 || err == nil {
		t.Errorf("after a panic %q, %v", rest, err)
	}
	<-ended

	_, _, cancel := begin("/")
	cancel()
	if err := <-ended; err == nil {
		t.Error("the context goes on without a client")
	}
}

// TestManyContinuations: answers that go on count as requests that run, and make room for
// those that wait when they end.
func TestManyContinuations(t *testing.T) {
	s := newServer()
	s.MaxStreams = 3
	var running, most atomic.Int64
	ts := serve(t, s, func(w http.ResponseWriter, r *http.Request) {
		w.(h2.Continuer).Continue(func() {
			n := running.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			_, _ = io.WriteString(w, "done")
			running.Add(-1)
		})
	})
	done := make(chan string)
	for range 20 {
		go func() {
			_, body := get(t, ts, "/")
			done <- body
		}()
	}
	for range 20 {
		select {
		case body := <-done:
			if body != "done" {
				t.Errorf("answer %q", body)
			}
		case <-time.After(patience):
			t.Fatal("requests are stuck")
		}
	}
	if most.Load() > 3 {
		t.Errorf("%d at a time", most.Load())
	}
}
