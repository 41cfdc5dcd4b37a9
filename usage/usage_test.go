package usage

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// world is a Meter whose clock and CPU time a test sets.
type world struct {
	*Meter
	now time.Time
	cpu time.Duration
}

func newWorld(cfg Config) *world {
	w := &world{now: time.Unix(1_000_000, 0)}
	cfg.Now, cfg.CPU = func() time.Time { return w.now }, func() time.Duration { return w.cpu }
	if cfg.Processors == 0 {
		cfg.Processors = 2
	}
	w.Meter = New(cfg)
	return w
}

// pass lets time and CPU time go by, and collects.
func (w *world) pass(d, cpu time.Duration) {
	for ; d > 0; d -= time.Second {
		w.now = w.now.Add(min(d, time.Second))
		w.cpu += cpu
		w.collect(0)
	}
}

func (w *world) top(t *testing.T, q Query, may Viewer) *Top {
	t.Helper()
	top, err := w.Top(q, may)
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func get(user, namespace string) *Request {
	return &Request{User: user, Agent: "kubectl", Verb: "get", IsResource: true, Version: "v1", Resource: "pods", Namespace: namespace, Level: "global-default", Status: 200, Bytes: 100, Busy: time.Millisecond}
}

func row(t *testing.T, top *Top, name string) Row {
	t.Helper()
	for _, r := range top.Rows {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("by %s: got %+v, want a row %q", top.By, top.Rows, name)
	return Row{}
}

func TestCPUTimeAddsUpToTheProcess(t *testing.T) {
	w := newWorld(Config{})
	for range 300 {
		w.Add(get("alice", "a"))
	}
	for range 100 {
		w.Add(get("bob", "b"))
	}
	w.pass(time.Second, 400*time.Millisecond)
	top := w.top(t, Query{}, Everything)
	if a, b := row(t, top, "alice"), row(t, top, "bob"); a.CPUSeconds < 0.299 || a.CPUSeconds > 0.301 || b.CPUSeconds < 0.099 || b.CPUSeconds > 0.101 {
		t.Errorf("got %.3f and %.3f seconds of CPU time, want 0.3 and 0.1 of 0.4", a.CPUSeconds, b.CPUSeconds)
	}
	if top.ProcessCPUSeconds != 0.4 || top.UnattributedCPUSeconds > 0.001 {
		t.Errorf("got %v of the process and %v of nobody, want 0.4 and 0", top.ProcessCPUSeconds, top.UnattributedCPUSeconds)
	}

	// One request cannot have used a second: the rest is nobody's.
	w.Add(get("alice", "a"))
	w.pass(time.Second, time.Second)
	top = w.top(t, Query{}, Everything)
	if sum := top.Total.CPUSeconds + top.UnattributedCPUSeconds; sum < 1.399 || sum > 1.401 || top.UnattributedCPUSeconds < 0.99 {
		t.Errorf("got %v with %v of nobody, want 1.4 with nearly 1 of nobody", sum, top.UnattributedCPUSeconds)
	}
}

func TestWaitingIsNotWork(t *testing.T) {
	w := newWorld(Config{})
	slow := get("slow", "a")
	slow.Busy = time.Minute // its client has not read the response
	w.Add(slow)
	for range 100 {
		w.Add(get("busy", "a"))
	}
	w.pass(time.Second, 100*time.Millisecond)
	top := w.top(t, Query{}, Everything)
	if top.Rows[0].Name != "busy" || row(t, top, "slow").CPUSeconds > 0.02 {
		t.Errorf("got %+v, want busy before slow", top.Rows)
	}
}

func TestAccountsAreBounded(t *testing.T) {
	w := newWorld(Config{})
	const all, agents = 10_000, 5000
	for i := range all {
		r := get("stranger", fmt.Sprintf("namespace-%d", i))
		r.Agent = fmt.Sprintf("agent-%d %s", i%agents, strings.Repeat("x", 1000))
		w.Add(r)
		w.Add(get("alice", "a"))
		if i%1000 == 999 {
			w.pass(time.Second, 100*time.Millisecond)
		}
	}
	entries := 0
	for i := range w.shards {
		s := &w.shards[i]
		entries += len(s.entries)
		for n := range s.entries {
			if len(n.agent) > maxName {
				t.Fatalf("an agent of %d bytes is kept", len(n.agent))
			}
		}
	}
	if entries > shards*shardEntries {
		t.Errorf("got %d entries, want at most %d", entries, shards*shardEntries)
	}
	for d := range dimensions {
		top := w.top(t, Query{By: d, Since: time.Minute, Rows: 10}, Everything)
		sum := top.Total.Requests
		if sum != 2*all {
			t.Errorf("by %s: got %d requests, want %d", top.By, sum, 2*all)
		}
		for _, r := range top.Rows {
			sum -= r.Requests
		}
		if top.Others != nil {
			sum -= top.Others.Requests
		}
		if sum != 0 {
			t.Errorf("by %s: rows and others are %d requests short of the total", top.By, sum)
		}
	}
	// Who is heavy is known whatever strangers do.
	if r := row(t, w.top(t, Query{Since: time.Minute}, Everything), "alice"); r.Requests != all {
		t.Errorf("got %d requests of alice, want %d", r.Requests, all)
	}
	if r := row(t, w.top(t, Query{By: ByNamespace, Since: time.Minute}, Everything), "a"); r.Requests < all*9/10 {
		t.Errorf("got %d requests in namespace a, want nearly %d", r.Requests, all)
	}
}

func TestMinutesAreKept(t *testing.T) {
	w := newWorld(Config{})
	w.Add(get("alice", "a"))
	w.pass(10*time.Minute, time.Millisecond)
	for range 7 {
		w.Add(get("bob", "a"))
	}
	w.pass(2*time.Second, time.Millisecond)
	if top := w.top(t, Query{Since: time.Hour}, Everything); row(t, top, "alice").Requests != 1 || row(t, top, "bob").Requests != 7 {
		t.Errorf("in an hour: got %+v, want 1 of alice and 7 of bob", top.Rows)
	}
	if top := w.top(t, Query{Since: 5 * time.Minute}, Everything); len(top.Rows) != 1 || row(t, top, "bob").Requests != 7 || top.Seconds > 400 {
		t.Errorf("in five minutes: got %+v, want bob only", top.Rows)
	}
}

func TestMinutesAreBounded(t *testing.T) {
	for _, tt := range []struct {
		name           string
		names, minutes int
		least          int
	}{{"names that stay", 1, minutesKept + 10, minutesKept}, {"names that are always new", 1 << 30, 600, 400}} {
		w := newWorld(Config{})
		for i := range tt.minutes {
			for j := range 8 {
				name := fmt.Sprintf("user-%d-%d", i%tt.names, j)
				w.Add(&Request{User: name, Agent: name, Level: name, IsResource: true, Resource: name, Namespace: name})
			}
			w.now = w.now.Add(time.Minute)
			w.collect(0)
		}
		s, sum := &w.slots, 0
		for _, minute := range s.minutes {
			sum += minute.bytes
		}
		if sum != s.bytes || s.bytes > minuteBytes || len(s.minutes) > minutesKept || len(s.minutes) < tt.least {
			t.Errorf("%s: got %d minutes of %d bytes, counted as %d; want %d to %d minutes in %d bytes", tt.name, len(s.minutes), sum, s.bytes, tt.least, minutesKept, minuteBytes)
		}
	}
}

func TestLongRunningRequests(t *testing.T) {
	w := newWorld(Config{})
	watch := get("alice", "a")
	watch.Verb = "watch"
	one, two := w.Begin(watch), w.Begin(watch)
	one.Sent(500)
	w.pass(time.Second, time.Millisecond)
	if r := row(t, w.top(t, Query{}, Everything), "alice"); r.OpenWatches != 2 || r.WatchesBegun != 2 || r.BytesOut != 500 || r.Requests != 2 {
		t.Errorf("got %+v, want two watches and 500 bytes", r)
	}
	one.End()
	two.Sent(7)
	two.End()
	w.pass(time.Second, time.Millisecond)
	if r := row(t, w.top(t, Query{}, Everything), "alice"); r.OpenWatches != 0 || r.BytesOut != 507 {
		t.Errorf("got %+v, want no watch and 507 bytes", r)
	}
	var all []*Long
	for i := range 5000 {
		watch.Agent = fmt.Sprint(i)
		all = append(all, w.Begin(watch))
	}
	if top := w.top(t, Query{}, Everything); top.Total.OpenWatches != 5000 || row(t, top, "alice").OpenWatches > shards*shardEntries {
		t.Errorf("got %d watches, %d of them by name, want 5000 with a bounded number by name", top.Total.OpenWatches, row(t, top, "alice").OpenWatches)
	}
	for _, l := range all {
		l.End()
	}
	for i := range w.shards {
		n, others := len(w.shards[i].open), int64(0)
		if w.shards[i].others != nil {
			others = w.shards[i].others.running.Load()
		}
		if n != 0 || others != 0 {
			t.Errorf("got %d and %d watches at the end, want none", n, others)
		}
	}
}

func TestRowsAreForThoseWhoMayList(t *testing.T) {
	w := newWorld(Config{})
	secret := func(namespace string) *Request {
		r := get("alice", namespace)
		r.Resource = "secrets"
		return r
	}
	w.Add(get("alice", "dev"))
	w.Add(secret("dev"))
	w.Add(get("alice", "prod"))
	w.Add(&Request{User: "alice", Agent: "kubectl", Verb: "get", Status: 200})
	w.pass(time.Second, time.Millisecond)
	dev := func(group, resource, namespace string) bool {
		return group == "" && resource == "pods" && namespace == "dev"
	}
	names := func(top *Top) string {
		var text []string
		for _, r := range top.Rows {
			text = append(text, fmt.Sprintf("%s=%d", r.Name, r.Requests))
		}
		if top.Hidden != nil {
			text = append(text, fmt.Sprintf("hidden=%d", top.Hidden.Requests))
		}
		return strings.Join(text, " ")
	}
	for _, tt := range []struct {
		name string
		q    Query
		may  Viewer
		want string
	}{
		{"all namespaces", Query{By: ByNamespace, Sort: "requests"}, Everything, "dev=2 (cluster)=1 prod=1"},
		{"all resources", Query{By: ByResource, Sort: "requests"}, Everything, "pods=2 (paths)=1 secrets=1"},
		{"own namespace", Query{By: ByNamespace}, dev, "dev=1 (cluster)=1 hidden=2"},
		{"own resource", Query{By: ByResource}, dev, "pods=1 (paths)=1 hidden=2"},
		{"users", Query{By: ByUser}, dev, "alice=4"},
		{"verbs of a namespace that is not theirs", Query{By: ByVerb, Only: map[Dimension]string{ByNamespace: "prod"}}, dev, ""},
		{"users of their namespace", Query{By: ByUser, Only: map[Dimension]string{ByNamespace: "dev"}}, dev, "alice=1"},
		{"resources of a user", Query{By: ByResource, Only: map[Dimension]string{ByUser: "alice"}}, dev, "pods=1 (paths)=1"},
	} {
		if got := names(w.top(t, tt.q, tt.may)); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if _, err := w.Top(Query{By: ByNamespace, Since: time.Hour}, dev); err != errRights {
		t.Errorf("got %v, want %v", err, errRights)
	}
	if storm := fmt.Sprint(w.Storm(func(_, _, _ string) bool { return false })); strings.Contains(storm, "secrets") || strings.Contains(storm, "prod") {
		t.Errorf("got %s, want nothing of what may not be listed", storm)
	}
}

func TestFindings(t *testing.T) {
	w := newWorld(Config{Known: func(_, _, resource string) bool { return resource != "nothing" }})
	list := get("lister", "a")
	list.Verb, list.Unpaged, list.Bytes = "list", true, largeList
	w.Add(list)
	paged := *list
	paged.User, paged.Unpaged = "careful", false
	w.Add(&paged)
	watch := get("restarter", "a")
	watch.Verb, watch.Took = "watch", time.Second
	for range 3 {
		w.Add(watch)
	}
	old := get("old", "a")
	old.Group, old.Version, old.Resource, old.Deprecation = "example.com", "v1beta1", "widgets", "use v1"
	w.Add(old)
	unknown := get("x", "a")
	unknown.Resource = "nothing"
	w.Add(unknown)
	for kind, want := range map[FindingKind]string{UnpagedList: "lister pods", RestartedWatch: "restarter pods", DeprecatedVersion: "old widgets.v1beta1.example.com"} {
		got := w.Findings(kind, Everything)
		if len(got) != 1 || got[0].User+" "+got[0].Resource != want {
			t.Errorf("got %+v, want %s", got, want)
		}
		if got := w.Findings(kind, func(_, _, _ string) bool { return false }); len(got) != 0 {
			t.Errorf("who may list nothing got %+v", got)
		}
	}
	if !w.Used("", "pods") || !w.Used("example.com", "widgets") || w.Used("", "nothing") {
		t.Error("got the wrong resources in use, want pods and widgets")
	}
	for i := range 1000 {
		list.User = fmt.Sprint(i)
		w.Add(list)
	}
	if n := len(w.findings.by[UnpagedList]); n > maxFindings {
		t.Errorf("got %d findings, want at most %d", n, maxFindings)
	}
}

func TestStormNamesTheCulprit(t *testing.T) {
	w := newWorld(Config{Levels: func() []Level { return []Level{{Name: "workload-low", Seats: 10, Used: 10, Waiting: 30}} }})
	w.pass(30*time.Second, 10*time.Millisecond)
	for i := range 50 {
		r := get(fmt.Sprintf("system:serviceaccount:apps:client-%d", i), "apps")
		r.Level, r.Agent = "workload-low", fmt.Sprintf("client-%d/1.0", i)
		n := 20
		if i == 17 {
			n, r.Verb, r.Busy, r.SeatTime = 1000, "list", 20*time.Millisecond, 100*time.Millisecond
		}
		for j := range n {
			if r.Status = 200; i == 17 && j%10 == 0 {
				r.Status = 429
			}
			w.Add(r)
		}
	}
	w.pass(3*time.Second, 1900*time.Millisecond)
	s := w.Storm(Everything)
	text := strings.Join(s.Words, "\n")
	if !s.Overloaded || s.Culprit == nil || s.Culprit.Agent != "client-17/1.0" || !strings.Contains(text, "client-17") || !strings.Contains(text, "list pods in namespace apps") {
		t.Errorf("got %+v: %s; want client-17", s.Culprit, text)
	}
	if len(s.Apply) != 2 || fmt.Sprint(s.Apply[1]["spec"]) == "" || !strings.Contains(fmt.Sprint(s.Apply[1]), "client-17") {
		t.Errorf("got %v, want a flow schema for client-17", s.Apply)
	}

	calm := newWorld(Config{})
	calm.Add(get("alice", "a"))
	calm.pass(time.Second, time.Millisecond)
	if s := calm.Storm(Everything); s.Overloaded || s.Culprit != nil || !strings.HasPrefix(s.Words[0], "There is no storm") {
		t.Errorf("got %+v, want no storm", s)
	}

	exempt := get("admin", "a")
	exempt.Level = exemptLevel
	for range 1000 {
		calm.Add(exempt)
	}
	calm.pass(7*time.Second, 2*time.Second)
	if s := calm.Storm(Everything); s.Culprit == nil || s.Apply != nil || !strings.Contains(strings.Join(s.Words, " "), "system:masters") {
		t.Errorf("got %+v, want no flow schema for what no flow schema limits", s)
	}
}

func TestConcurrentUse(t *testing.T) {
	w := New(Config{})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			r := get(fmt.Sprint("user-", i), "a")
			for range 1000 {
				w.Add(r)
				l := w.Begin(r)
				l.Sent(1)
				l.End()
			}
		})
	}
	all.Go(func() {
		for range 20 {
			w.collect(0)
			_ = w.Storm(Everything)
		}
	})
	all.Wait()
	w.collect(0)
	top, err := w.Top(Query{Since: time.Minute}, Everything)
	if err != nil || top.Total.Requests != 8000 || top.Total.BytesOut != 4000*101 || top.Total.OpenWatches != 0 {
		t.Errorf("got %+v, %v; want 8000 requests and %d bytes", top, err, 4000*101)
	}
}

func BenchmarkAdd(b *testing.B) {
	m := New(Config{Known: func(_, _, _ string) bool { return true }})
	requests := make([]*Request, 100)
	for i := range requests {
		requests[i] = get(fmt.Sprintf("system:serviceaccount:namespace:name-%d", i), "namespace")
		m.Add(requests[i])
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			m.Add(requests[i%len(requests)])
		}
	})
}

// BenchmarkStrangers adds requests whose names are all new.
func BenchmarkStrangers(b *testing.B) {
	m := New(Config{})
	b.ReportAllocs()
	r := get("stranger", "a")
	for i := range b.N {
		r.Agent = fmt.Sprintf("agent-%d", i)
		m.Add(r)
	}
}

// BenchmarkCollect is what happens every second, with a full table.
func BenchmarkCollect(b *testing.B) {
	m := New(Config{})
	for range b.N {
		b.StopTimer()
		for i := range 1000 {
			m.Add(get(fmt.Sprintf("user-%d", i), fmt.Sprintf("namespace-%d", i)))
		}
		b.StartTimer()
		m.collect(0)
	}
}
