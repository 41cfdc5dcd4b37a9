package flow

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	flowcontrol "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// The tests run in bubbles of testing/synctest: time is made up, stands still as
// long as anybody has something to do, and sleeping takes none of the real one.

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name)}
}

// queues is a level whose requests wait.
func queues(name string, shares, lendable int32, queues, hand, length int32) *flowcontrol.PriorityLevelConfiguration {
	return &flowcontrol.PriorityLevelConfiguration{ObjectMeta: meta(name), Spec: flowcontrol.PriorityLevelConfigurationSpec{
		Type: flowcontrol.PriorityLevelEnablementLimited,
		Limited: &flowcontrol.LimitedPriorityLevelConfiguration{
			NominalConcurrencyShares: &shares, LendablePercent: &lendable,
			LimitResponse: flowcontrol.LimitResponse{Type: flowcontrol.LimitResponseTypeQueue,
				Queuing: &flowcontrol.QueuingConfiguration{Queues: queues, HandSize: hand, QueueLengthLimit: length}},
		},
	}}
}

// of is a schema for the requests of users whose group has its name.
func of(name, level string, precedence int32) *flowcontrol.FlowSchema {
	all := mandatorySchemas()[flowcontrol.FlowSchemaNameCatchAll]
	s := &flowcontrol.FlowSchema{ObjectMeta: meta(name), Spec: *all.Spec.DeepCopy()}
	s.Spec.MatchingPrecedence = precedence
	s.Spec.PriorityLevelConfiguration.Name = level
	s.Spec.Rules[0].Subjects = []flowcontrol.Subject{{Kind: flowcontrol.SubjectKindGroup, Group: &flowcontrol.GroupSubject{Name: name}}}
	return s
}

func with(cfg Config, objects ...resource.Object) *Control {
	c := New(cfg)
	var changes []resource.Change
	for _, object := range objects {
		changes = append(changes, resource.Change{Object: object})
	}
	c.apply(true, changes)
	return c
}

// get is a request of a user in a group.
func get(user, group string) *request.Request {
	return &request.Request{
		Info:     request.Info{IsResource: true, Verb: request.Get, Path: "/api/v1/namespaces/d/pods/p", Version: "v1", Namespace: "d", Resource: "pods", Name: "p"},
		User:     request.User{Name: user, Groups: []string{group, "system:authenticated"}},
		Received: time.Now(),
	}
}

func (c *Control) level(name string) *level {
	for _, l := range c.table.Load().levels {
		if l.name == name {
			return l
		}
	}
	return nil
}

// load sends requests of a user, so many at a time, until ctx ends, and returns
// how many were answered, each after some time.
func load(ctx context.Context, c *Control, running *sync.WaitGroup, user, group string, parallel int, took time.Duration) *int {
	var mu sync.Mutex
	answered := new(int)
	for range parallel {
		running.Go(func() {
			for ctx.Err() == nil {
				var e Entry
				if !c.Enter(context.Background(), get(user, group), &e) {
					time.Sleep(time.Second)
					continue
				}
				time.Sleep(took)
				e.Leave()
				mu.Lock()
				*answered++
				mu.Unlock()
			}
		})
	}
	return answered
}

func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := with(Config{MaxReading: 10, MaxWriting: -1}, queues("work", 100, 0, 64, 6, 50), of("users", "work", 500))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var running sync.WaitGroup
		flood := load(ctx, c, &running, "flood", "users", 200, 10*time.Millisecond)
		quiet := load(ctx, c, &running, "quiet", "users", 3, 10*time.Millisecond)
		running.Wait()
		// Three at a time are less than a fair share of ten seats: nearly a hundred
		// a second each. In the order of their coming they would have a few dozen.
		if *quiet < 2000 {
			t.Errorf("the flood has left %d requests to the other user, and had %d", *quiet, *flood)
		}
		// It takes what nobody else wants.
		if total := *flood + *quiet; total < 9500 {
			t.Errorf("ten seats were used for %d requests", total)
		}
	})
}

// One who asks for little does not wait for one who asks for hundreds of dear
// lists, and whoever comes next waits for few of them.
func TestGreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := with(Config{MaxReading: 50, MaxWriting: -1, Stats: func(string, string) Size { return Size{Count: 2000, AverageBytes: 5000} }},
			queues("work", 1000, 0, 128, 6, 50), of("users", "work", 500))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var running sync.WaitGroup
		list := func(user string) *request.Request {
			r := get(user, "users")
			r.Verb, r.Name = request.List, ""
			return r
		}
		for i := range 500 {
			running.Go(func() {
				for ctx.Err() == nil {
					var e Entry
					if c.Enter(ctx, list("greedy"), &e) {
						time.Sleep(500*time.Millisecond + time.Duration(i)*time.Millisecond)
						e.Leave()
					} else {
						time.Sleep(time.Second)
					}
				}
			})
		}
		time.Sleep(5 * time.Second)
		for range 100 {
			var e Entry
			if !c.Enter(ctx, get("modest", "users"), &e) || e.Waited > 0 {
				t.Errorf("a get has waited for %v", e.Waited)
			}
			time.Sleep(time.Millisecond)
			e.Leave()
			time.Sleep(10 * time.Millisecond)
		}
		var e Entry
		if !c.Enter(ctx, list("modest"), &e) || e.Waited > 900*time.Millisecond {
			t.Errorf("a list has waited for %v", e.Waited)
		}
		e.Leave()
		cancel()
		running.Wait()
	})
}

// Two users who want more than there is get the same, even if one of them asks
// for much more than the other, or for requests that take longer.
func TestFairness(t *testing.T) {
	for _, tt := range []struct {
		name           string
		parallel       [2]int
		took           [2]time.Duration
		lowest, higest float64
	}{
		{"number", [2]int{30, 240}, [2]time.Duration{10 * time.Millisecond, 10 * time.Millisecond}, 0.8, 1.25},
		{"time", [2]int{60, 60}, [2]time.Duration{10 * time.Millisecond, 40 * time.Millisecond}, 0.8, 1.25},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// One queue each: the hands of these two have no card in common.
				c := with(Config{MaxReading: 8, MaxWriting: -1}, queues("work", 1000, 0, 16, 1, 500), of("users", "work", 500))
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				var running sync.WaitGroup
				first := load(ctx, c, &running, "first", "users", tt.parallel[0], tt.took[0])
				second := load(ctx, c, &running, "second", "users", tt.parallel[1], tt.took[1])
				running.Wait()
				ratio := float64(*first) * tt.took[0].Seconds() / (float64(*second) * tt.took[1].Seconds())
				if ratio < tt.lowest || ratio > tt.higest {
					t.Errorf("%d and %d requests: one has got %.2f times as much as the other", *first, *second, ratio)
				}
			})
		})
	}
}

func TestRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := with(Config{MaxReading: 2, MaxWriting: -1}, queues("work", 1000, 0, 1, 1, 3), of("users", "work", 500))
		seats := c.level("work").limits.now
		var inside []*Entry
		for range seats {
			e := &Entry{}
			if !c.Enter(t.Context(), get("u", "users"), e) {
				t.Fatal("refused although there is a seat")
			}
			inside = append(inside, e)
		}
		// Three may wait, and each gives up after a quarter of its time.
		begin := time.Now()
		var running sync.WaitGroup
		for range 3 {
			running.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
				defer cancel()
				var e Entry
				if c.Enter(ctx, get("u", "users"), &e) {
					t.Error("let in although there is no seat")
				}
				if waited := time.Since(begin); waited != 2*time.Second {
					t.Errorf("it has waited for %v", waited)
				}
			})
		}
		synctest.Wait()
		var e Entry
		if c.Enter(t.Context(), get("u", "users"), &e) || e.RetryAfter != 1 || time.Since(begin) != 0 {
			t.Errorf("a full queue takes one more: %d, after %v", e.RetryAfter, time.Since(begin))
		}
		h := http.Header{}
		e.Headers(h)
		if h.Get("X-Kubernetes-PF-FlowSchema-UID") != "uid-of-users" || h.Get("X-Kubernetes-PF-PriorityLevel-UID") != "uid-of-work" {
			t.Errorf("headers: %v", h)
		}
		// Administrators do not wait.
		var admin Entry
		if !c.Enter(t.Context(), get("admin", "system:masters"), &admin) {
			t.Error("an administrator was refused")
		}
		admin.Leave()
		running.Wait()

		// Without a deadline it is a quarter of the usual one, and who is let in
		// meanwhile is let in.
		var late Entry
		running.Go(func() {
			if !c.Enter(context.Background(), get("u", "users"), &late) {
				t.Error("refused although a seat was free in time")
			}
			late.Leave()
		})
		synctest.Wait()
		time.Sleep(14 * time.Second)
		inside[0].Leave()
		running.Wait()
		// A client that hangs up is not waited for.
		ctx, cancel := context.WithCancel(context.Background())
		if !c.Enter(ctx, get("u", "users"), inside[0]) {
			t.Error("refused although there is a seat")
		}
		running.Go(func() {
			var e Entry
			if c.Enter(ctx, get("u", "users"), &e) {
				t.Error("let in although there is no seat")
			}
		})
		synctest.Wait()
		cancel()
		running.Wait()
		for _, e := range inside {
			e.Leave()
		}
		w := httptest.NewRecorder()
		c.Pages()["/debug/api_priority_and_fairness/dump_priority_levels"].ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		want := fmt.Sprintf("work,              0,            true,   false,       0,               0,                 %d,                  5,                0,                4\n", seats+2)
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("got\n%s, want\n%s", w.Body, want)
		}
	})
}

// TestQueuesAreBounded: one who has all seats but those for newcomers has as many requests
// waiting as the queues of its hand may have, and no more.
func TestQueuesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hand, length, requests = 3, 10, 500
		c := with(Config{MaxReading: 100, MaxWriting: -1}, queues("work", 1000, 0, 64, hand, length), of("users", "work", 500))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for range requests {
			running.Go(func() {
				var e Entry
				if c.Enter(ctx, get("greedy", "users"), &e) {
					<-ctx.Done()
					e.Leave()
				}
			})
		}
		synctest.Wait()
		l := c.level("work")
		if l.seats >= l.limits.now || l.waiting == 0 || l.waiting > hand*length {
			t.Errorf("%d of %d seats are taken and %d requests wait, want some seats left and at most %d waiting", l.seats, l.limits.now, l.waiting, hand*length)
		}
		if refused := l.counts.refused[queueFull]; int(refused)+l.waiting+l.working != requests {
			t.Errorf("%d requests were refused, %d wait and %d work, want %d together", refused, l.waiting, l.working, requests)
		}
		var newcomer Entry
		if !c.Enter(t.Context(), get("other", "users"), &newcomer) || newcomer.Waited > 0 {
			t.Error("a newcomer has to wait")
		}
		newcomer.Leave()
		cancel()
		running.Wait()
	})
}

// A level that has nothing to do lends seats to one that needs them, and gets
// them back.
func TestBorrowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := with(Config{MaxReading: 100, MaxWriting: -1}, queues("busy", 20, 50, 8, 2, 500), queues("idle", 80, 50, 8, 2, 500),
			of("a", "busy", 500), of("b", "idle", 600))
		run, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.Run(run) })
		limits := func(name string) limits {
			synctest.Wait()
			return c.level(name).limits
		}
		busy, idle := limits("busy"), limits("idle")
		if busy.nominal != 20 || busy.lowest != 10 || idle.nominal != 77 || idle.lowest != 38 || busy.highest != 120 {
			t.Errorf("limits: %+v %+v", busy, idle)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		load(ctx, c, &running, "u", "a", 300, 100*time.Millisecond)
		time.Sleep(25 * time.Second)
		busy, idle = limits("busy"), limits("idle")
		if busy.now < 50 || idle.now < idle.lowest || busy.now+idle.now > 105 {
			t.Errorf("a minute of demand has got %d seats, and leaves %d", busy.now, idle.now)
		}
		if got := c.level("busy").working; got < busy.now-busy.now/newcomersPart || got > busy.now {
			t.Errorf("%d seats, but %d requests are worked on", busy.now, got)
		}
		// Now the other level has use for its own.
		load(ctx, c, &running, "u", "b", 300, 100*time.Millisecond)
		time.Sleep(15 * time.Second)
		busy, idle = limits("busy"), limits("idle")
		if idle.now < idle.nominal || busy.now < busy.nominal-1 {
			t.Errorf("both are busy, and have %d and %d seats", busy.now, idle.now)
		}
		cancel()
		stop()
		running.Wait()
	})
}

// A level that is deleted serves those who are in it, and then is gone.
func TestQuiescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, schema := queues("old", 50, 0, 4, 1, 10), of("users", "old", 500)
		c := with(Config{MaxReading: 10, MaxWriting: -1}, old, schema)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		var e Entry
		if !c.Enter(ctx, get("u", "users"), &e) {
			t.Fatal("refused")
		}
		c.apply(false, []resource.Change{{Object: old, Deleted: true}})
		if l := c.level("old"); l == nil || !l.quiescing || l.limits.nominal == 0 {
			t.Errorf("the level has lost its requests: %+v", l)
		}
		// Its schema points nowhere: the next one has its requests.
		var other Entry
		if !c.Enter(ctx, get("u", "users"), &other) || other.schema.name != "catch-all" {
			t.Errorf("it belongs to %v", other.schema)
		}
		other.Leave()
		e.Leave()
		synctest.Wait()
		if c.level("old") != nil {
			t.Error("the level is still there")
		}
		cancel()
		running.Wait()
	})
}

// source tells of objects when it is asked to.
type source struct {
	more    chan []resource.Change
	changes []resource.Change
}

func (s *source) Pull(_ context.Context, apply func(bool, []resource.Change)) error {
	apply(false, s.changes)
	s.changes = nil
	return nil
}

func (s *source) Current() bool { return len(s.changes) == 0 }

func (s *source) Wait(ctx context.Context) error {
	select {
	case s.changes = <-s.more:
	case <-ctx.Done():
	}
	return ctx.Err()
}

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		s := &source{more: make(chan []resource.Change)}
		c := New(Config{Source: s, Report: func(_ context.Context, f *flowcontrol.FlowSchema, found bool) error {
			told = append(told, fmt.Sprint(f.Name, " ", found))
			return nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		level := queues("work", 10, 0, 1, 1, 1)
		for _, changes := range [][]resource.Change{{{Object: of("a", "work", 3)}}, {{Object: level}}, {{Object: level}}, {{Object: level, Deleted: true}}, {{Object: of("a", "work", 3)}}} {
			s.more <- changes
		}
		synctest.Wait()
		cancel()
		running.Wait()
		if got := strings.Join(told, " "); got != "a false a true a false a false" {
			t.Errorf("told %q", got)
		}
	})
}

func TestInFlight(t *testing.T) {
	f := NewInFlight(Config{Off: true, MaxReading: 1, MaxWriting: 1})
	var first, second, watch, write, admin Entry
	log := get("u", "users")
	log.Subresource = "log"
	create := get("u", "users")
	create.Verb = request.Create
	for _, tt := range []struct {
		r    *request.Request
		e    *Entry
		want bool
	}{{get("u", "users"), &first, true}, {get("u", "users"), &second, false}, {log, &watch, true}, {create, &write, true}, {get("a", request.Masters), &admin, true}} {
		if got := f.Enter(t.Context(), tt.r, tt.e); got != tt.want {
			t.Errorf("%s of %s: %v", tt.r.Verb, tt.r.User.Name, got)
		}
	}
	if second.RetryAfter != 1 {
		t.Errorf("come back in %d seconds", second.RetryAfter)
	}
	admin.Leave()
	first.Leave()
	if !f.Enter(t.Context(), get("u", "users"), &second) {
		t.Error("the place is not free again")
	}
}

// reader is a client that reads, or does not.
type reader struct {
	stalled time.Time
	cut     chan struct{}
}

func (r *reader) Stalled() time.Duration {
	if r.stalled.IsZero() {
		return 0
	}
	return time.Since(r.stalled)
}

func (r *reader) CutOff() { close(r.cut) }

// TestStalledRequestsAreCutOff: requests that wait for clients that do not read lose their seats
// to others that wait, and only then. Those whose clients read keep theirs.
func TestStalledRequestsAreCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := with(Config{MaxReading: 2, MaxWriting: -1}, queues("work", 100, 0, 8, 2, 50), of("users", "work", 500))
		seats := c.level("work").limits.now
		reads, stalls := &reader{cut: make(chan struct{})}, &reader{stalled: time.Now(), cut: make(chan struct{})}
		var held []*Entry
		for i := range seats {
			e := &Entry{Client: stalls}
			if i > 0 {
				e.Client = reads
			}
			if !c.Enter(t.Context(), get("slow", "users"), e) {
				t.Fatal("a request has no seat")
			}
			held = append(held, e)
		}
		time.Sleep(3 * stallPatience) // nobody waits
		go func() {
			<-stalls.cut
			held[0].Leave()
		}()
		began, waits := time.Now(), Entry{}
		if !c.Enter(t.Context(), get("quick", "users"), &waits) {
			t.Fatal("the seat of a client that does not read is not given to another")
		}
		if waited := time.Since(began); waited != stallPatience {
			t.Errorf("another has waited for %v, want %v", waited, stallPatience)
		}
		select {
		case <-reads.cut:
			t.Error("a client that reads is cut off")
		default:
		}
		for _, e := range append(held[1:], &waits) {
			e.Leave()
		}
	})
}
