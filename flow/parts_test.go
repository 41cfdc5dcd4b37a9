package flow

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	flowcontrol "k8s.io/api/flowcontrol/v1"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

func TestDeal(t *testing.T) {
	var space [maxHand]int
	count := make([]int, 16)
	for i := range uint64(2000) {
		hand := dealHand(hash("schema", string(rune('a'+i))), 16, 4, &space)
		sorted := slices.Clone(hand)
		slices.Sort(sorted)
		if len(slices.Compact(sorted)) != 4 || sorted[0] < 0 || sorted[3] > 15 {
			t.Fatalf("%v is not a hand", hand)
		}
		for _, card := range hand {
			count[card]++
		}
	}
	for card, n := range count {
		if n < 400 || n > 600 {
			t.Errorf("card %d was dealt %d times out of 500", card, n)
		}
	}
	// All hands of three cards out of five, each as often as the others.
	hands := map[[3]int]int{}
	for i := range uint64(5 * 4 * 3 * 7) {
		hands[[3]int(dealHand(i, 5, 3, &space))]++
	}
	if len(hands) != 60 {
		t.Errorf("%d hands", len(hands))
	}
	for hand, n := range hands {
		if n != 7 || hand[0] == hand[1] || hand[1] == hand[2] || hand[0] == hand[2] {
			t.Errorf("%v: %d times", hand, n)
		}
	}
}

func TestFairFraction(t *testing.T) {
	for _, tt := range []struct {
		sum    float64
		shares []share
		want   []float64
	}{
		{10, []share{{0, 100, 1}, {0, 100, 4}}, []float64{2, 8}},
		{10, []share{{4, 100, 4}, {0, 100, 36}}, []float64{4, 6}},
		{10, []share{{0, 3, 3}, {0, 100, 1}}, []float64{3, 7}},
		{10, []share{{5, 5, 5}, {5, 9, 7}}, []float64{5, 5}},
		{20, []share{{5, 5, 5}, {5, 9, 7}}, []float64{5, 9}},
		{10, []share{{0, 10, 0}, {0, 10, 0}}, []float64{5, 5}},
		{30, []share{{1, 10, 2}, {4, 40, 8}, {2, 12, 2}}, []float64{5, 20, 5}},
	} {
		fraction := fairFraction(tt.sum, tt.shares)
		for i, s := range tt.shares {
			if got := s.at(fraction); math.Abs(got-tt.want[i]) > 1e-6 {
				t.Errorf("%v of %v: share %d is %v", tt.sum, tt.shares, i, got)
			}
		}
	}
}

func TestDemand(t *testing.T) {
	begin := time.Unix(1000, 0)
	d := demand{at: begin}
	d.set(10, begin)
	d.set(0, begin.Add(5*time.Second))
	d.take(begin.Add(10 * time.Second))
	if f := d.found; f.highest != 10 || f.average != 5 || f.deviation != 5 || f.smoothed != 10 {
		t.Errorf("%+v", f)
	}
	d.take(begin.Add(20 * time.Second))
	if f := d.found; f.highest != 0 || f.average != 0 || math.Abs(f.smoothed-9.77) > 1e-9 {
		t.Errorf("%+v", f)
	}
}

func TestRetry(t *testing.T) {
	var d retryAfter
	second := time.Unix(1_000_000, 0)
	after := 0
	drop := func(seconds, each int) {
		for range seconds {
			for range each {
				after = d.drop(second)
			}
			second = second.Add(time.Second)
		}
	}
	drop(1, 5)
	if after != 1 {
		t.Errorf("at first %d", after)
	}
	drop(1, 5)
	if after != 2 {
		t.Errorf("after a second %d", after)
	}
	drop(200, 100)
	if after != maxRetryAfter {
		t.Errorf("after minutes %d", after)
	}
	second = second.Add(time.Hour)
	drop(10, 1)
	if after != maxRetryAfter-10 {
		t.Errorf("when it is over %d", after)
	}
}

func TestMatch(t *testing.T) {
	account := func(namespace, name string) []flowcontrol.Subject {
		return []flowcontrol.Subject{{Kind: "ServiceAccount", ServiceAccount: &flowcontrol.ServiceAccountSubject{Namespace: namespace, Name: name}}}
	}
	user := func(name string) []flowcontrol.Subject {
		return []flowcontrol.Subject{{Kind: "User", User: &flowcontrol.UserSubject{Name: name}}}
	}
	pod := request.Info{IsResource: true, Verb: "get", Version: "v1", Namespace: "d", Resource: "pods", Name: "p"}
	status := pod
	status.Subresource = "status"
	node := request.Info{IsResource: true, Verb: "list", Version: "v1", Resource: "nodes"}
	rule := func(verb, group, resource string, cluster bool, namespaces ...string) []flowcontrol.ResourcePolicyRule {
		return []flowcontrol.ResourcePolicyRule{{Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}, ClusterScope: cluster, Namespaces: namespaces}}
	}
	for i, tt := range []struct {
		user     string
		subjects []flowcontrol.Subject
		info     request.Info
		rules    []flowcontrol.ResourcePolicyRule
		paths    []string
		want     bool
	}{
		{"u", user("u"), pod, rule("*", "*", "*", false, "*"), nil, true},
		{"u", user("*"), pod, rule("get", "", "pods", false, "d"), nil, true},
		{"u", user("v"), pod, rule("*", "*", "*", true, "*"), nil, false},
		{"u", user("u"), pod, rule("list", "", "pods", false, "d"), nil, false},
		{"u", user("u"), pod, rule("get", "apps", "pods", false, "d"), nil, false},
		{"u", user("u"), pod, rule("get", "", "pods", true), nil, false},
		{"u", user("u"), status, rule("get", "", "pods", false, "d"), nil, false},
		{"u", user("u"), status, rule("get", "", "pods/status", false, "d"), nil, true},
		{"u", user("u"), status, rule("get", "", "podsxstatus", false, "d"), nil, false},
		{"u", user("u"), node, rule("list", "", "nodes", true, "x"), nil, true},
		{"u", user("u"), node, rule("list", "", "nodes", false, "*"), nil, false},
		{"system:serviceaccount:a:b", account("a", "b"), pod, rule("*", "*", "*", false, "*"), nil, true},
		{"system:serviceaccount:a:b", account("a", "*"), pod, rule("*", "*", "*", false, "*"), nil, true},
		{"system:serviceaccount:aa:b", account("a", "*"), pod, rule("*", "*", "*", false, "*"), nil, false},
		{"system:serviceaccount:a:bb", account("a", "b"), pod, rule("*", "*", "*", false, "*"), nil, false},
		{"u", user("u"), request.Info{Verb: "get", Path: "/healthz"}, nil, []string{"/healthz"}, true},
		{"u", user("u"), request.Info{Verb: "get", Path: "/healthz/etcd"}, nil, []string{"/healthz"}, true},
		{"u", user("u"), request.Info{Verb: "get", Path: "/healthzz"}, nil, []string{"/healthz"}, false},
		{"u", user("u"), request.Info{Verb: "get", Path: "/apis/apps"}, nil, []string{"/apis/*"}, true},
		{"u", user("u"), request.Info{Verb: "get", Path: "/apis"}, nil, []string{"/apis/*"}, false},
		{"u", user("u"), request.Info{Verb: "get", Path: "/x"}, nil, []string{"*"}, true},
	} {
		s := &schema{rules: []flowcontrol.PolicyRulesWithSubjects{{
			Subjects: tt.subjects, ResourceRules: tt.rules,
			NonResourceRules: []flowcontrol.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: tt.paths}},
		}}}
		if got := s.matches(&request.Request{Info: tt.info, User: request.User{Name: tt.user}}); got != tt.want {
			t.Errorf("%d: %v", i, got)
		}
	}
}

func TestEstimate(t *testing.T) {
	c := New(Config{Stats: func(_, resource string) Size {
		switch resource {
		case "pods":
			return Size{5000, 2000, true}
		case "nodes":
			return Size{5000, 2000, false}
		case "few":
			return Size{3, 1000, true}
		case "odd":
			return Size{1 << 40, 0, true}
		}
		return Size{}
	}})
	list := func(resource, name, verb string) *request.Request {
		return &request.Request{Info: request.Info{IsResource: true, Verb: verb, Resource: resource, Name: name}}
	}
	within := func(r *request.Request) *request.Request {
		r.Namespace = "ns"
		return r
	}
	for _, tt := range []struct {
		r     *request.Request
		query string
		limit int
		want  int
	}{
		{list("pods", "", "list"), "", 0, 10},
		{list("pods", "", "list"), "", 6, 6},
		{list("pods", "", "list"), "limit=100", 0, 2},
		{list("pods", "", "list"), "limit=100&resourceVersion=", 0, 2},
		{list("pods", "", "list"), "limit=100&resourceVersion=7", 0, 2},
		{list("pods", "", "list"), "limit=100&continue=abc", 0, 2},
		{list("pods", "", "list"), "limit=-1", 0, 10},
		// What is at hand comes whole, and selectors look at all objects if few match.
		{list("pods", "", "list"), "limit=1&resourceVersion=0", 0, 10},
		{list("pods", "", "list"), "limit=1&resourceVersion=00", 0, 10},
		{list("pods", "", "list"), "limit=1&labelSelector=a%3Db", 0, 10},
		{list("pods", "", "list"), "limit=1&fieldSelector=spec.nodeName%3Dn", 0, 10},
		{list("pods", "", "list"), "limit=1&shardSelector=x", 0, 10},
		{list("pods", "", "watch"), "limit=1", 0, 10},
		{list("pods", "", "watch"), "resourceVersion=00", 0, 10},
		{list("pods", "", "watch"), "resourceVersion=+0", 0, 1}, // no number: it is refused
		{list("pods", "", "list"), "limit=broken", 0, 100},
		{list("few", "", "list"), "limit=", 7, 7},
		{list("few", "", "watch"), "resourceVersion=5&timeoutSeconds=x", 7, 7},
		// A name is looked up where only one object can have it.
		{within(list("pods", "p", "list")), "fieldSelector=metadata.name%3Dp", 0, 1},
		{within(list("pods", "p", "watch")), "fieldSelector=metadata.name%3Dp", 0, 1},
		{within(list("pods", "p", "list")), "fieldSelector=metadata.name%3Dp&continue=abc", 0, 10},
		{list("pods", "p", "list"), "fieldSelector=metadata.name%3Dp", 0, 10},
		{list("pods", "p", "watch"), "fieldSelector=metadata.name%3Dp", 0, 10},
		{list("nodes", "n", "list"), "fieldSelector=metadata.name%3Dn", 0, 1},
		{list("nodes", "n", "watch"), "", 0, 1},
		// A collection is read before it is deleted.
		{within(list("pods", "", "deletecollection")), "", 0, 10},
		{within(list("pods", "", "deletecollection")), "", 6, 6},
		{within(list("pods", "", "deletecollection")), "limit=100", 0, 2},
		{within(list("pods", "", "deletecollection")), "limit=1&labelSelector=a%3Db", 0, 10},
		{list("few", "", "deletecollection"), "", 0, 1},
		{list("few", "", "list"), "", 0, 1},
		{list("odd", "", "list"), "", 0, 10},
		{list("none", "", "list"), "", 0, 1},
		{list("pods", "", "watch"), "resourceVersion=5", 0, 1},
		{list("pods", "", "watch"), "resourceVersion=5&sendInitialEvents=true", 0, 10},
		{list("pods", "", "watch"), "resourceVersion=5&sendInitialEvents=", 0, 10},
		{list("pods", "", "watch"), "resourceVersion=5&sendInitialEvents=False", 0, 1},
		{list("pods", "", "watch"), "resourceVersion=0", 0, 10},
		{list("pods", "", "watch"), "", 0, 10},
		{list("pods", "p", "get"), "", 0, 1},
	} {
		tt.r.Query, _ = request.ParseQuery(tt.query)
		if got := c.estimate(tt.r, &schema{maxSeats: tt.limit, observers: unobserved}); got.seats() != tt.want || got.after != 0 {
			t.Errorf("%s %s?%s: %+v", tt.r.Verb, tt.r.Resource, tt.query, got)
		}
	}
}

// Who writes what many watch has seats for longer than the answer takes.
func TestWatches(t *testing.T) {
	c := New(Config{})
	watch := func(namespace, text string, n int) (entries []*Entry) {
		query, _ := request.ParseQuery(text)
		_, name, _ := strings.Cut(query.Get("fieldSelector"), "metadata.name=") // as request.Parse
		for range n {
			e := &Entry{}
			r := &request.Request{Info: request.Info{IsResource: true, Verb: request.Watch, Resource: "pods", Namespace: namespace, Name: name, Query: query}, User: request.User{Groups: []string{request.Masters}}}
			if !c.Enter(context.Background(), r, e) {
				t.Fatal("refused")
			}
			e.Release()
			entries = append(entries, e)
		}
		return entries
	}
	named := &request.Request{Info: request.Info{IsResource: true, Verb: request.Update, Resource: "pods", Namespace: "d", Name: "p"}}
	all := slices.Concat(watch("", "", 20), watch("d", "", 5), watch("e", "", 100), watch("", "fieldSelector=spec.nodeName%3Dn", 100))
	if c.Working.Reading.Load() != 0 {
		t.Error("watches that have begun count as requests")
	}
	write := &request.Request{Info: request.Info{IsResource: true, Verb: request.Create, Resource: "pods", Namespace: "d"}}
	if got, want := c.estimate(write, &schema{observers: unobserved}), (estimate{1, 3, 5 * time.Millisecond}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := c.estimate(write, &schema{maxSeats: 2, observers: unobserved}), (estimate{1, 2, 7500 * time.Microsecond}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	all = append(all, watch("", "fieldSelector=metadata.name%3Dp", 20)...)
	if got, want := c.estimate(named, &schema{observers: unobserved}).final, 5; got != want {
		t.Errorf("a write of what 25 watch, and 20 by its name in all namespaces: got %d seats, want %d", got, want)
	}
	for _, e := range all {
		e.Leave()
		e.Leave()
	}
	if got := c.estimate(write, &schema{observers: unobserved}); got.after != 0 || len(c.watches.by) != 0 || c.watches.all.Load() != 0 {
		t.Errorf("got %+v; %v", got, c.watches.by)
	}
}

func benchmark(b *testing.B, groups ...string) {
	objects := []*flowcontrol.PriorityLevelConfiguration{queues("work", 100, 50, 128, 6, 50)}
	c := New(Config{})
	changes := []resource.Change{{Object: objects[0]}}
	for i := range 10 { // as many schemas as there usually are
		changes = append(changes, resource.Change{Object: of("group-"+string(rune('a'+i)), "work", int32(100+i))})
	}
	changes = append(changes, resource.Change{Object: of("users", "work", 9000)})
	c.apply(true, changes)
	r := get("somebody", "users")
	r.User.Groups = groups
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		var e Entry
		if !c.Enter(ctx, r, &e) {
			b.Fatal("refused")
		}
		e.Leave()
	}
}

// What an idle server pays for a request.
func BenchmarkLimited(b *testing.B) { benchmark(b, "users", "system:authenticated") }
func BenchmarkExempt(b *testing.B)  { benchmark(b, request.Masters) }

// A ratio counts every nanosecond for the bucket that it was in.
func TestRatio(t *testing.T) {
	r := newRatio([]float64{0, 0.5, 1})
	r.setLimit(4, 0)
	r.set(1, 10)      // 0 before
	r.set(4, 30)      // a quarter
	r.setLimit(2, 60) // all
	r.set(0, 100)
	h := r.histogram(1000)
	if want := []uint64{910, 20, 30, 40}; !slices.Equal(h.Counts, want) || h.Sum != 0.25*20+30+2*40 {
		t.Errorf("%v, want %v; the sum is %v", h.Counts, want, h.Sum)
	}
}

func unobserved() *Observers { return &Observers{} }
