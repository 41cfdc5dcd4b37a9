package rest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/wire"
)

// TestHeldMemoryIsGivenBack: long lists and watches, and bodies, with and without a budget,
// are answered in full, and hold nothing when they have been.
func TestHeldMemoryIsGivenBack(t *testing.T) {
	t.Parallel() // it waits for a time-out
	const objects, size = 2 * wire.LongList, 1000
	for _, memory := range []*budget.Memory{nil, budget.New(512 << 20)} {
		t.Run(fmt.Sprintf("budget=%t", memory != nil), func(t *testing.T) {
			h := serveConfigMaps(t, objects, size, 0)
			h.Memory = memory
			for _, query := range []string{"", "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"} {
				if got := strings.Count(watched(t, h, "/api/v1/configmaps?watch=1&timeoutSeconds=1"+query), `"ADDED"`); got != objects {
					t.Errorf("watch with %q: got %d events, want %d", query, got, objects)
				}
			}
			if got := strings.Count(do(t, h, "GET", "/api/v1/configmaps", "").body, `"name":"c`); got != objects {
				t.Errorf("list: got %d objects, want %d", got, objects)
			}
			body := `{"metadata":{"name":"new"},"data":{"x":"` + strings.Repeat("x", 100_000) + `"}}`
			if a := do(t, h, "POST", configMaps, body); a.code != 201 {
				t.Errorf("create: got %d, want 201", a.code)
			}
			if memory != nil {
				refusesWhenFull(t, h, memory)
				countsWhatIsChanged(t, h, memory)
			}
			if memory != nil && memory.Answers.Held()+memory.Bodies.Held() != 0 {
				t.Errorf("answers hold %d bytes and bodies %d, want none", memory.Answers.Held(), memory.Bodies.Held())
			}
		})
	}
}

// refusesWhenFull: who has waited too long for memory is refused before the first byte of an
// answer, also with a watch.
func refusesWhenFull(t *testing.T, h *Handler, memory *budget.Memory) {
	t.Helper()
	free, err := memory.Answers.Acquire(t.Context(), 1<<40, true)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	var group sync.WaitGroup
	for _, query := range []string{"", "?watch=1&timeoutSeconds=60", "?watch=1&timeoutSeconds=60&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"} {
		group.Go(func() {
			if a := do(t, h, "GET", "/api/v1/configmaps"+query, ""); a.code != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" {
				t.Errorf("%q: got %d with Retry-After %q, want 429 with one", query, a.code, a.header.Get("Retry-After"))
			}
		})
	}
	group.Wait()
}

// countsWhatIsChanged: a patch of a few bytes, and a delete without a body, hold as much as
// the object that they change.
func countsWhatIsChanged(t *testing.T, h *Handler, memory *budget.Memory) {
	t.Helper()
	free, err := memory.Bodies.Acquire(t.Context(), 1<<40, true)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	var group sync.WaitGroup
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"PATCH", "/api/v1/namespaces/default/configmaps/c0001", http.StatusOK}, {"PATCH", configMaps + "/new", http.StatusTooManyRequests},
		{"DELETE", "/api/v1/namespaces/default/configmaps/c0002", http.StatusOK}, {"DELETE", configMaps + "/new", http.StatusTooManyRequests},
	} {
		group.Go(func() {
			body := ""
			if c.method == "PATCH" {
				body = `{"data":{"y":"z"}}`
			}
			if a := do(t, h, c.method, c.path, body, "Content-Type", "application/merge-patch+json"); a.code != c.want {
				t.Errorf("%s %s: got %d, want %d: %s", c.method, c.path, a.code, c.want, a.body)
			}
		})
	}
	group.Wait()
}

// seat notes whether it was returned.
type seat struct{ returned bool }

func (s *seat) Release() { s.returned = true }

// slowClient notes whether a seat was still taken while the last bytes were written.
type slowClient struct {
	http.ResponseWriter
	seat *seat
	held bool
}

func (w *slowClient) Write(b []byte) (int, error) {
	w.held = !w.seat.returned
	return w.ResponseWriter.Write(b)
}

// TestSmallAnswersHoldNoSeat: while a small answer is written its client may take all the
// time it has; a large one keeps its seat.
func TestSmallAnswersHoldNoSeat(t *testing.T) {
	h := serveConfigMaps(t, 2, 1000, 0)
	large := `{"metadata":{"name":"large"},"data":{"x":"` + strings.Repeat("x", 2*budget.Small) + `"}}`
	for _, c := range []struct {
		method, path, body string
		held               bool
	}{
		{"GET", "/api/v1/configmaps", "", false},
		{"POST", configMaps, `{"metadata":{"name":"small"}}`, false},
		{"GET", configMaps + "/small", "", false},
		{"POST", configMaps, large, true},
		{"GET", configMaps + "/large", "", true},
		{"DELETE", configMaps + "/small", "", false},
		{"GET", configMaps + "/small", "", false},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		info, err := request.Parse(r)
		if err != nil {
			t.Fatal(err)
		}
		taken := &seat{}
		w := &slowClient{ResponseWriter: httptest.NewRecorder(), seat: taken}
		req := &request.Request{Info: info, Received: time.Now(), Hold: taken}
		h.Route(w, r.WithContext(request.With(r.Context(), req)))
		if w.held != c.held {
			t.Errorf("%s %s of %d bytes: a seat is taken while the answer is written: %t, want %t", c.method, c.path, len(c.body), w.held, c.held)
		}
	}
}
