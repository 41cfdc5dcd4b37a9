package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
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
// answer, also with a watch. A write that has made much of little is done, and its client is told so.
func refusesWhenFull(t *testing.T, h *Handler, memory *budget.Memory) {
	t.Helper()
	free, err := memory.Answers.Acquire(t.Context(), 1<<40, true)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for _, query := range []string{"", "?watch=1&timeoutSeconds=60", "?watch=1&timeoutSeconds=60&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"} {
		group.Go(func() {
			if a := do(t, h, "GET", "/api/v1/configmaps"+query, ""); a.code != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" {
				t.Errorf("%q: got %d with Retry-After %q, want 429 with one", query, a.code, a.header.Get("Retry-After"))
			}
		})
	}
	group.Go(func() {
		a := do(t, h, "PATCH", configMaps+"/new", `[{"op":"copy","from":"/data/x","path":"/data/y"}]`, "Content-Type", "application/json-patch+json")
		if a.code != http.StatusGatewayTimeout || a.header.Get("Retry-After") != "" || !strings.Contains(a.body, "the change is stored") {
			t.Errorf("patch: got %d with Retry-After %q and %.200s, want 504 without one, and that the change is stored", a.code, a.header.Get("Retry-After"), a.body)
		}
	})
	group.Wait()
	free()
	if a := do(t, h, "GET", configMaps+"/new", ""); a.code != 200 || !strings.Contains(a.body, `"y":"xxx`) {
		t.Errorf("get after the patch: got %d %.200s, want the object with y", a.code, a.body)
	}
}

// TestWriteThatIsDoneIsAnswered checks that a write is not refused for want of memory when the
// object is stored: its client would try again, and find a conflict.
func TestWriteThatIsDoneIsAnswered(t *testing.T) {
	h, _ := serve(t, nil)
	h.Memory = budget.New(512 << 20)
	free, err := h.Memory.Answers.Acquire(t.Context(), 1<<40, true)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	object := func(value string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"large"},"data":{"k":"` + strings.Repeat(value, 200<<10) + `"}}`
	}
	for _, c := range []struct {
		method, path, contentType, body string
		want                            int
	}{
		{"POST", configMaps, "application/json", object("a"), http.StatusCreated},
		{"PUT", configMaps + "/large", "application/json", object("b"), http.StatusOK},
		{"PATCH", configMaps + "/large", "application/merge-patch+json", `{"data":{"y":"z"}}`, http.StatusOK},
	} {
		if a := do(t, h, c.method, c.path, c.body, "Content-Type", c.contentType); a.code != c.want || a.meta("name") != "large" {
			t.Errorf("%s %s: got %d %.200s, want %d and the object", c.method, c.path, a.code, a.body, c.want)
		}
	}
}

// countsWhatIsChanged: a patch of a few bytes, and a delete without a body, hold as much as
// the object that they change, and a JSON patch as much as it copies.
func countsWhatIsChanged(t *testing.T, h *Handler, memory *budget.Memory) {
	t.Helper()
	for _, gate := range []*budget.Gate{&memory.Bodies, &memory.Decoded, &memory.Changed} {
		free, err := gate.Acquire(t.Context(), 1<<40, true)
		if err != nil {
			t.Fatal(err)
		}
		defer free()
	}
	const small, merge, jsonPatch = "/api/v1/namespaces/default/configmaps/c0", "application/merge-patch+json", "application/json-patch+json"
	copies := func(op string) string {
		return "[" + strings.Repeat(`{"op":"`+op+`","from":"/data/x","path":"/data/y"},`, 100) + `{"op":"add","path":"/data/z","value":"z"}]`
	}
	var group sync.WaitGroup
	for _, c := range []struct {
		method, path, contentType, body string
		want                            int
	}{
		{"PATCH", small + "001", merge, `{"data":{"y":"z"}}`, http.StatusOK},
		{"PATCH", configMaps + "/new", merge, `{"data":{"y":"z"}}`, http.StatusTooManyRequests},
		{"DELETE", small + "002", "", "", http.StatusOK},
		{"DELETE", configMaps + "/new", "", "", http.StatusTooManyRequests},
		{"PATCH", small + "003", jsonPatch, `[{"op":"add","path":"/data/y","value":"z"}]`, http.StatusOK},
		{"PATCH", small + "004", jsonPatch, copies("copy"), http.StatusTooManyRequests},
		{"PATCH", small + "005", jsonPatch, copies(`c\u006fpy`), http.StatusTooManyRequests},
	} {
		group.Go(func() {
			if a := do(t, h, c.method, c.path, c.body, "Content-Type", c.contentType); a.code != c.want {
				t.Errorf("%s %s with %.60s: got %d, want %d: %s", c.method, c.path, c.body, a.code, c.want, a.body)
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

// growingPlugin stands for a plugin that makes a large object of a small one: text is its JSON.
type growingPlugin struct {
	memory *budget.Memory
	text   []byte
	held   atomic.Int64 // when the object is validated
}

func (*growingPlugin) Name() string                  { return "Growing" }
func (*growingPlugin) Handles(admission.Target) bool { return true }

func (p *growingPlugin) Admit(_ context.Context, a *admission.Attributes) error {
	if err := a.Memory.HoldDecoded(p.text); err != nil {
		return err
	}
	a.Memory.Settle(true)
	return nil
}

func (p *growingPlugin) Validate(context.Context, *admission.Attributes) error {
	p.held.Store(p.memory.Changed.Held())
	return nil
}

// TestPluginsHoldMemory checks that a write holds memory for what admission makes of its object, until
// it is answered, and is refused if that is more than the server can decode.
func TestPluginsHoldMemory(t *testing.T) {
	h, _ := serve(t, nil)
	h.Memory = budget.New(512 << 20)
	values := func(n int) []byte { return []byte(`{"a":[` + strings.Repeat("{},", n) + `{}]}`) }
	p := &growingPlugin{memory: h.Memory}
	h.Admission = admission.NewChain(p)
	for name, c := range map[string]struct {
		text []byte
		want int
	}{
		"small": {values(1), http.StatusCreated}, "large": {values(100_000), http.StatusCreated}, "larger": {values(4_000_000), http.StatusRequestEntityTooLarge},
	} {
		p.text = c.text
		p.held.Store(0)
		if a := do(t, h, "POST", configMaps, `{"metadata":{"name":"`+name+`"}}`); a.code != c.want {
			t.Errorf("%s: got %d %.200s, want %d", name, a.code, a.body, c.want)
		}
		// What weighs more than all requests may hold waits until it is alone.
		if want := min(wire.Weigh(c.text), h.Memory.Changed.Limit()*4/5); c.want == http.StatusCreated && want > budget.Small && p.held.Load() < want {
			t.Errorf("%s: %d bytes are held, want those of the object, %d", name, p.held.Load(), want)
		}
		if held := h.Memory.Changed.Held(); held != 0 {
			t.Errorf("%s: %d bytes are held after the answer", name, held)
		}
	}
	// Objects of a collection are deleted at the same time, each with memory of its own.
	p.text = values(1000)
	for i := range 100 {
		if a := do(t, h, "POST", configMaps, fmt.Sprintf(`{"metadata":{"name":"many-%d"}}`, i)); a.code != http.StatusCreated {
			t.Fatalf("create: got %d %.200s", a.code, a.body)
		}
	}
	if a := do(t, h, "DELETE", configMaps, ""); a.code != http.StatusOK {
		t.Errorf("deletecollection: got %d %.200s", a.code, a.body)
	}
	if held := h.Memory.Changed.Held(); held != 0 {
		t.Errorf("%d bytes are held after a collection was deleted", held)
	}
}

// TestJSONPatchesHoldMemory: what a patch of a client makes of an object is weighed by its values.
func TestJSONPatchesHoldMemory(t *testing.T) {
	h, _ := serve(t, nil)
	h.Memory = budget.New(128 << 20)
	if a := do(t, h, "POST", configMaps, `{"metadata":{"name":"small"}}`); a.code != http.StatusCreated {
		t.Fatalf("create: got %d %.200s", a.code, a.body)
	}
	// A list of a few hundred KB that is copied ten times is more than this server can decode.
	patch := `[{"op":"add","path":"/x0","value":[` + strings.Repeat("{},", 50_000) + `{}]}`
	for i := range 10 {
		patch += fmt.Sprintf(`,{"op":"copy","from":"/x0","path":"/x%d"}`, i+1)
	}
	a := do(t, h, "PATCH", configMaps+"/small", patch+"]", "Content-Type", "application/json-patch+json")
	if a.code != http.StatusRequestEntityTooLarge {
		t.Errorf("got %d %.200s, want 413", a.code, a.body)
	}
	if held := h.Memory.Changed.Held() + h.Memory.Decoded.Held() + h.Memory.Bodies.Held(); held != 0 {
		t.Errorf("%d bytes are held after the answer", held)
	}
}

// TestMemoryOfAnObjectIsKept: between two webhooks a write holds no more than its object, and nothing for
// an ordinary one.
func TestMemoryOfAnObjectIsKept(t *testing.T) {
	h := &Handler{Memory: budget.New(512 << 20)}
	s := &scope{h: h, req: &request.Request{}, context: t.Context()}
	m := s.changes()
	large := []byte(`{"a":[` + strings.Repeat("{},", 2000) + `{}]}`)
	weight := wire.Weigh(large) + bodyFactor*int64(len(large))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	held := func(when string, want int64) {
		t.Helper()
		if got := h.Memory.Changed.Held(); got != want {
			t.Errorf("%s: %d bytes are held, want %d", when, got, want)
		}
	}
	must(m.HoldAnswer(1 << 20))
	held("an answer", webhookFactor<<20)
	m.Settle(false)
	held("an answer without a patch", 0)
	must(m.HoldPatch(8 << 20))
	must(m.HoldDecoded(large))
	held("a patch", 8<<20)
	m.Settle(true)
	held("a patched object", weight)
	must(m.HoldAnswer(1 << 20))
	held("the next answer", weight+webhookFactor<<20)
	must(m.HoldDecoded([]byte("{}")))
	m.Settle(false)
	held("a patch that failed", weight)
	must(m.HoldDecoded([]byte("{}")))
	m.Settle(true)
	held("an object that has become small", 0)
	must(m.HoldDecoded(large))
	m.Settle(true)
	m.end()
	held("the end", 0)
	s.forBody = 1 << 20
	long := []byte(`{"a":"` + strings.Repeat("x", 3<<20) + `"}`)
	must(m.HoldDecoded(long))
	m.Settle(true)
	held("an object with a long text", wire.Weigh(long)+bodyFactor*(int64(len(long))-s.forBody))
	must(m.HoldDecoded(long[:1<<20]))
	m.Settle(true)
	held("an object as long as its body", 0)
	s.forBody = 0
	must(m.HoldAnswer(1 << 20))
	held("an answer after the end", webhookFactor<<20)
	m.end()
	held("the end", 0)
}

// TestBusyConversions: a conversion for which there is no memory is nobody's fault, whatever it was for.
func TestBusyConversions(t *testing.T) {
	busy := false
	convert := func(obj resource.Object) (resource.Object, error) {
		if busy {
			return nil, fmt.Errorf("the webhook: %w", budget.ErrBusy)
		}
		return obj.DeepCopyObject().(resource.Object), nil
	}
	h, _ := serve(t, func(def *resource.Definition) {
		var log steps
		*def = orderedKind(&log)
		old := &def.Versions[1]
		old.ToHub, old.FromHub = convert, convert
		old.FromHubAll = func(objs []resource.Object) ([]resource.Object, error) {
			obj, err := convert(objs[0])
			return []resource.Object{obj}, err
		}
	})
	const path, old = "/api/v1beta1/namespaces/default/configmaps", `{"apiVersion":"v1beta1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"x":"y"}}`
	if a := do(t, h, "POST", strings.Replace(path, "v1beta1", "v1", 1), `{"metadata":{"name":"a"}}`); a.code != http.StatusCreated {
		t.Fatalf("create: got %d %.300s", a.code, a.body)
	}
	busy = true
	for _, c := range []struct{ method, path, body, contentType string }{
		{"POST", path, strings.Replace(old, `"a"`, `"b"`, 1), "application/json"},
		{"PUT", path + "/a", old, "application/json"},
		{"PATCH", path + "/a", `{"data":{"x":"z"}}`, "application/merge-patch+json"},
		{"PATCH", path + "/a", `[{"op":"add","path":"/data/x","value":"z"}]`, "application/json-patch+json"},
		{"GET", path + "/a", "", ""},
		{"GET", path, "", ""},
	} {
		a := do(t, h, c.method, c.path, c.body, "Content-Type", c.contentType)
		if a.code != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" || strings.Contains(a.body, "webhook") {
			t.Errorf("%s %s %s: got %d %v %.300s, want 429 with Retry-After, and no word of a webhook", c.method, c.path, c.contentType, a.code, a.header, a.body)
		}
	}
}

// busyPlugin stands for a policy with failurePolicy Ignore that cannot read what it needs.
type busyPlugin struct{}

func (busyPlugin) Name() string                  { return "Busy" }
func (busyPlugin) Handles(admission.Target) bool { return true }

func (busyPlugin) Validate(_ context.Context, a *admission.Attributes) error {
	a.Interrupt(fmt.Errorf("policy p: %w", budget.ErrBusy))
	return nil
}

// TestBusyAdmission: a write about which admission cannot decide for want of memory is to be sent again.
func TestBusyAdmission(t *testing.T) {
	h, _ := serve(t, nil)
	h.Admission = admission.NewChain(busyPlugin{})
	a := do(t, h, "POST", configMaps, `{"metadata":{"name":"a"}}`)
	if a.code != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" || strings.Contains(a.body, "policy") {
		t.Errorf("got %d %v %.300s, want 429 with Retry-After, and no word of a policy", a.code, a.header, a.body)
	}
	if a := do(t, h, "GET", configMaps+"/a", ""); a.code != http.StatusNotFound {
		t.Errorf("afterwards: got %d %.300s, want 404", a.code, a.body)
	}
}

// TestMemoryOfAWriteTellsThatItIsBusy: who asks for memory can tell that there is none from a fault of
// its own.
func TestMemoryOfAWriteTellsThatItIsBusy(t *testing.T) {
	h := &Handler{Memory: budget.New(512 << 20)}
	s := &scope{h: h, req: &request.Request{}, context: t.Context(), served: &resource.Served{}, def: &resource.Definition{}}
	m := s.changes()
	defer m.end()
	if err := m.HoldPatch(1 << 20); err != nil { // who holds some does not wait for more
		t.Fatal(err)
	}
	gate := &h.Memory.Changed
	release, err := gate.Acquire(t.Context(), gate.Room(false)-gate.Held(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for what, hold := range map[string]func() error{
		"a patch":   func() error { return m.HoldPatch(2 << 20) },
		"an answer": func() error { return m.HoldAnswer(2 << 20) },
		"an object": func() error { return m.HoldDecoded([]byte(`[` + strings.Repeat("{},", 1<<15) + `{}]`)) },
	} {
		if err := hold(); !errors.Is(err, budget.ErrBusy) {
			t.Errorf("%s: got %v, want budget.ErrBusy", what, err)
		}
	}
}

// TestBusyReads: an object for whose conversion there is no memory is not one that cannot be read.
func TestBusyReads(t *testing.T) {
	busy := false
	h, backend := serve(t, func(def *resource.Definition) {
		var log steps
		*def = orderedKind(&log)
		def.Fields = []resource.Field{{Path: "spec.x", Get: func(resource.Object) string { return "" }}}
		def.Versions[1].ToHub = func(obj resource.Object) (resource.Object, error) {
			if busy {
				return nil, fmt.Errorf("the webhook: %w", budget.ErrBusy)
			}
			return obj, nil
		}
	})
	const path, unsafe = "/api/v1/namespaces/default/configmaps", "?ignoreStoreReadErrorWithClusterBreakingPotential=true"
	for _, name := range []string{"a", "b"} {
		stored := `{"apiVersion":"v1beta1","kind":"ConfigMap","metadata":{"name":"` + name + `","namespace":"default"}}`
		if _, err := backend.Create(t.Context(), "/registry/configmaps/default/"+name, []byte(stored), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, busy = range []bool{true, false} {
		for _, c := range []struct {
			method, path string
			want         int
		}{
			{"GET", "/a", 200}, {"GET", "", 200}, {"GET", "?limit=1", 200}, {"GET", "?resourceVersion=0", 200},
			{"DELETE", "/a" + unsafe, 409}, {"DELETE", "/b", 200},
		} {
			if busy {
				c.want = http.StatusTooManyRequests
			}
			if a := do(t, h, c.method, path+c.path, ""); a.code != c.want || busy && (a.header.Get("Retry-After") == "" || strings.Contains(a.body, "corrupt")) {
				t.Errorf("%s %s, short of memory: %v: got %d %v %.300s, want %d", c.method, c.path, busy, a.code, a.header, a.body, c.want)
			}
		}
	}
}
