package kelson

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/internal/polltest"
)

// order returns the names of signals in the order in which they have happened.
func order(log string) (names []string) {
	for line := range strings.Lines(log) {
		if _, name, ok := strings.Cut(line, " name="); ok {
			name, _, _ = strings.Cut(name, " ")
			names = append(names, name)
		}
	}
	return names
}

// A server that is busy and told to stop refuses new requests in the way that is
// wanted, and answers all others.
func TestDrain(t *testing.T) {
	for _, retry := range []bool{false, true} {
		working, finish := make(chan struct{}), make(chan struct{})
		s := start(t, &Server{
			Shutdown: Shutdown{SendRetryAfter: retry, Delay: time.Millisecond},
			API: routes{
				"/api/v1/pods": func(w http.ResponseWriter, _ *http.Request) {
					close(working)
					<-finish
					_, _ = io.WriteString(w, "done")
				},
				"/api/v1/nodes": say("nodes"),
			},
		})
		client := s.client(t, 1, s.PKI.AdminCertificate())
		if code, _, _ := s.get(t, client, "GET", "/readyz"); code != 200 {
			t.Errorf("not ready: %d", code)
		}
		answered := make(chan string, 1)
		go func() {
			_, body, _ := s.get(t, client, "GET", "/api/v1/pods")
			answered <- body
		}()
		<-working
		s.stop()
		<-s.Signals().NotAcceptingNewRequest.Happened()
		if retry {
			code, body, h := s.get(t, client, "GET", "/api/v1/nodes")
			if code != 429 || body != "The apiserver is shutting down, please try again later.\n" || h.Get("Retry-After") != "5" {
				t.Errorf("%d %q %v", code, body, h)
			}
			if code, _, _ := s.get(t, client, "GET", "/livez"); code != 200 {
				t.Errorf("it does not say that it is alive: %d", code)
			}
			if code, _, _ := s.get(t, client, "GET", "/readyz"); code != 500 {
				t.Errorf("it says that it is ready: %d", code)
			}
			// Other servers of the cluster are not refused, nor is who reads metrics:
			// they get as far as to be asked who they are.
			for path, agent := range map[string]string{"/api/v1/nodes": "kube-apiserver/v1.37.1 (linux/amd64)", "/metrics": "curl/8"} {
				r, w := httptest.NewRequest("GET", path, nil), httptest.NewRecorder()
				r.Header.Set("User-Agent", agent)
				if s.ServeHTTP(w, r); w.Code != http.StatusUnauthorized {
					t.Errorf("%s for %s: %d", path, agent, w.Code)
				}
			}
		} else {
			// There are no new connections; these are requests on one that there is.
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/nodes", nil))
			if w.Code != 503 || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), `"message":"apiserver is shutting down"`) {
				t.Errorf("%d %q %v", w.Code, w.Body, w.Header())
			}
			// The request that is under way ends after the listeners.
			<-s.Signals().HTTPServerStoppedListening.Happened()
		}
		close(finish)
		if body := <-answered; body != "done" {
			t.Errorf("a request was lost: %q", body)
		}
		if err := s.ended(); err != nil {
			t.Error(err)
		}
		got := order(s.log.String())
		if len(got) != 8 {
			t.Errorf("not all signals: %q", got)
		}
		position := map[string]int{}
		for i, name := range got {
			position[name] = i
		}
		before := [][2]string{
			{"HasBeenReady", "ShutdownInitiated"}, {"ShutdownInitiated", "AfterShutdownDelayDuration"}, {"ShutdownInitiated", "PreShutdownHooksStopped"},
			{"AfterShutdownDelayDuration", "NotAcceptingNewRequest"}, {"PreShutdownHooksStopped", "NotAcceptingNewRequest"},
			{"NotAcceptingNewRequest", "HTTPServerStoppedListening"}, {"NotAcceptingNewRequest", "InFlightRequestsDrained"},
		}
		if retry {
			before = append(before, [2]string{"InFlightRequestsDrained", "HTTPServerStoppedListening"})
		} else {
			before = append(before, [2]string{"HTTPServerStoppedListening", "InFlightRequestsDrained"})
		}
		for _, pair := range before {
			if position[pair[0]] > position[pair[1]] {
				t.Errorf("retry %v: %s after %s: %q", retry, pair[0], pair[1], got)
			}
		}
	}
}

// As long as its pre-shutdown hooks run and the delay lasts, a server that is to end
// works as before, but for not being ready. What is audited is written before the
// storage is closed, which is the last that happens.
func TestDelay(t *testing.T) {
	log, written := openAudit(t, "[{level: Metadata}]", func(c *audit.Config) { c.Log.Batch.Mode, c.Log.Batch.MaxWait = "batch", time.Hour })
	var s *running
	var drained, audited bool
	var during []int
	s = start(t, &Server{
		Shutdown: Shutdown{Delay: time.Millisecond}, Audit: log,
		API: routes{"/api/v1/pods": say("pods")},
		PreShutdownHooks: []Hook{{"slow", func(context.Context) error {
			<-s.Signals().AfterShutdownDelayDuration.Happened()
			for _, path := range []string{"/api/v1/pods", "/readyz", "/livez"} {
				code, _, _ := s.get(t, s.admin(t), "GET", path)
				during = append(during, code)
			}
			return nil
		}}},
		Close: []func() error{func() error {
			drained = s.Signals().InFlightRequestsDrained.HasHappened() && s.Signals().HTTPServerStoppedListening.HasHappened()
			audited = len(written.take(t)) > 0
			return nil
		}},
	})
	if code, _, _ := s.get(t, s.admin(t), "GET", "/readyz"); code != 200 {
		t.Errorf("not ready: %d", code)
	}
	s.stop()
	if err := s.ended(); err != nil {
		t.Error(err)
	}
	if !slices.Equal(during, []int{200, 500, 200}) || !drained || !audited {
		t.Errorf("meanwhile %v; drained: %v, audited: %v", during, drained, audited)
	}
}

// In the second half of the delay, requests are answered as before, and each is the last of
// its connection.
func TestDelayPartsWithClients(t *testing.T) {
	var s *running
	codes, closed := []int{}, 0
	s = start(t, &Server{
		Shutdown: Shutdown{Delay: time.Millisecond},
		API:      routes{"/api/v1/pods": say("pods")},
		PreShutdownHooks: []Hook{{"client", func(context.Context) error {
			<-s.Signals().AfterShutdownDelayDuration.Happened()
			client := s.admin(t)
			for range 3 {
				req, err := http.NewRequest(http.MethodGet, s.URL()+"/api/v1/pods", nil)
				if err != nil {
					return err
				}
				reused := false
				trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
				resp, err := client.Do(req.WithContext(httptrace.WithClientTrace(t.Context(), trace)))
				if err != nil {
					return err
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				codes = append(codes, resp.StatusCode)
				if !reused {
					closed++
				}
			}
			return nil
		}}},
	})
	s.stop()
	if err := s.ended(); err != nil {
		t.Error(err)
	}
	if !slices.Equal(codes, []int{200, 200, 200}) || closed != 3 {
		t.Errorf("got %v on %d connections, want three times 200, each on a connection of its own", codes, closed)
	}
}

// Watches end one after the other.
func TestWatchGrace(t *testing.T) {
	s := start(t, &Server{
		Shutdown: Shutdown{WatchGrace: 100 * time.Millisecond},
		API: routes{"/api/v1/watch/pods": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "first\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}},
	})
	client := s.client(t, 2, s.PKI.AdminCertificate())
	var ended sync.WaitGroup
	for range 10 {
		resp, err := client.Get(s.URL() + "/api/v1/watch/pods")
		if err != nil {
			t.Fatal(err)
		}
		body := bufio.NewReader(resp.Body)
		if _, err := body.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		ended.Go(func() {
			if rest, err := io.ReadAll(body); err != nil || len(rest) > 0 {
				t.Errorf("a watch did not end cleanly: %q, %v", rest, err)
			}
			resp.Body.Close()
		})
	}
	if n := s.watching.Load(); n != 10 {
		t.Errorf("%d watches", n)
	}
	begin := time.Now()
	s.stop()
	ended.Wait()
	// At least 200 are ended a second, so that ten take 45 ms.
	if took := time.Since(begin); took < 40*time.Millisecond {
		t.Errorf("all watches have ended in %v", took)
	}
	if err := s.ended(); err != nil {
		t.Error(err)
	}
}

// As long as hooks run, a path that nobody knows may only not be known yet.
func TestNotFoundYet(t *testing.T) {
	release := make(chan struct{})
	s := start(t, &Server{
		DisabledPostStartHooks: []string{"unwanted"},
		LivezGrace:             time.Hour,
		PostStartHooks: []Hook{
			{"slow", func(context.Context) error { <-release; return nil }},
			{"unwanted", func(context.Context) error { t.Error("a disabled hook has run"); return nil }},
		},
	})
	client := s.admin(t)
	code, body, h := s.get(t, client, "GET", "/apis/example.com/v1/things")
	if code != 503 || h.Get("Retry-After") != "5" || !strings.Contains(body, "the request has been made before all known HTTP paths have been installed, please try again") {
		t.Errorf("%d %q %v", code, body, h)
	}
	if code, body, _ := s.get(t, client, "GET", "/livez?verbose"); code != 200 || body != "[+]ping ok\n[+]log ok\n[+]loopback-serving-certificate ok\n[+]poststarthook/slow ok\nlivez check passed\n" {
		t.Errorf("%d %q", code, body)
	}
	if code, _, _ := s.get(t, client, "GET", "/readyz"); code != 500 || s.Signals().HasBeenReady.HasHappened() {
		t.Errorf("ready: %d", code)
	}
	close(release)
	<-s.Signals().MuxAndDiscoveryComplete.Happened()
	if code, _, _ := s.get(t, client, "GET", "/apis/example.com/v1/things"); code != 404 {
		t.Errorf("%d", code)
	}
}

// A server with many clients that is told to stop loses no request: whoever
// comes back later when told so sees no broken connection.
func TestDrainUnderLoad(t *testing.T) {
	for _, major := range []int{1, 2} {
		var served atomic.Int64
		s := start(t, &Server{
			Shutdown: Shutdown{SendRetryAfter: true},
			API: routes{
				"/api/v1/pods": func(w http.ResponseWriter, _ *http.Request) {
					served.Add(1)
					_, _ = io.WriteString(w, "done")
				},
				"/api/v1/watch/pods": func(w http.ResponseWriter, r *http.Request) {
					w.(http.Flusher).Flush()
					<-r.Context().Done()
				},
			},
		})
		var clients, watching sync.WaitGroup
		var answered atomic.Int64
		for range 16 {
			client := s.client(t, major, s.PKI.AdminCertificate())
			watching.Add(1)
			clients.Go(func() {
				resp, err := client.Get(s.URL() + "/api/v1/watch/pods")
				watching.Done()
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := io.ReadAll(resp.Body); err != nil {
					t.Errorf("HTTP/%d: a watch has broken off: %v", major, err)
				}
				resp.Body.Close()
			})
			clients.Go(func() {
				for {
					resp, err := client.Get(s.URL() + "/api/v1/pods")
					if err != nil {
						t.Errorf("HTTP/%d: a request has no answer: %v", major, err)
						return
					}
					body, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					switch {
					case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "5":
						return
					case err != nil || string(body) != "done":
						t.Errorf("HTTP/%d: %d %q %v", major, resp.StatusCode, body, err)
						return
					}
					answered.Add(1)
				}
			})
		}
		watching.Wait()
		// The clients ask until they are refused, so some ask in every state.
		polltest.Until(t, "answers", func() bool { return answered.Load() > 100 })
		s.stop()
		clients.Wait()
		if err := s.ended(); err != nil {
			t.Error(err)
		}
		if served.Load() != answered.Load() {
			t.Errorf("HTTP/%d: %d requests were done, %d answered", major, served.Load(), answered.Load())
		}
	}
}
