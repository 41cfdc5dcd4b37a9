package flow

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apikeel/kelson/request"
)

// seen collects what is observed.
type seen []float64

func (s *seen) Observe(v float64) { *s = append(*s, v) }

// TestStats: what operators see of a level with two seats, whose requests wait.
func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waited, seats, queue, watches seen
		c := with(Config{MaxReading: 1, MaxWriting: -1, Observe: func(schema, _ string) Observers {
			if schema != "users" {
				return Observers{}
			}
			return Observers{Waited: &waited, Seats: &seats, Queue: &queue, Watches: &watches}
		}}, queues("level", 100, 0, 1, 1, 10), of("users", "level", 1))
		level := func() LevelStats {
			all := c.Stats()
			return all[slices.IndexFunc(all, func(l LevelStats) bool { return l.Name == "level" })]
		}
		var first, second Entry
		if !c.Enter(t.Context(), get("a", "users"), &first) {
			t.Fatal("refused")
		}
		done := make(chan bool)
		write := get("b", "users")
		write.Verb = request.Create
		go func() { done <- c.Enter(t.Context(), write, &second) }()
		synctest.Wait()
		now := level()
		if now.Nominal != 1 || now.Schemas[0].Waiting != 1 || now.Schemas[0].SeatsWaiting != 1 || now.Schemas[0].Seats != 1 || now.Schemas[0].NoRoom > 0 {
			t.Errorf("%+v", now)
		}
		time.Sleep(time.Second)
		first.Leave()
		if !<-done {
			t.Fatal("refused")
		}
		time.Sleep(time.Second)
		second.Leave()
		now = level()
		// One second with a seat in use and one waited for, one without the latter.
		for _, h := range []struct {
			name string
			over Histogram
			want float64 // the sum, in seconds
		}{{"demand", now.DemandOver, 3}, {"seats", now.SeatsOver, 2}, {"working", now.WorkingOver, 2}, {"waiting", now.WaitingOver, 0.1},
			{"reading", c.Working.Reading.Over(), 1. / 2}, {"waiting to write", c.Waiting.Writing.Over(), 0.1}} {
			if got := h.over.Sum / float64(time.Second); got < h.want-0.01 || got > h.want+0.01 {
				t.Errorf("%s: %v, want %v", h.name, got, h.want)
			}
		}
		if d := now.Dispatched; d == nil || now.Schemas[0].Dispatched != 2 {
			t.Errorf("dispatched: %+v, %+v", d, now.Schemas)
		}
		for name, got := range map[string]struct{ is, want seen }{
			"waited": {waited, seen{0, 1}}, "seats": {seats, seen{1, 1}}, "queue": {queue, seen{1, 1}}, "watches": {watches, seen{0}},
		} {
			if !slices.Equal(got.is, got.want) {
				t.Errorf("%s: %v, want %v", name, got.is, got.want)
			}
		}
		if d, ok := second.Describe(); !ok || d != (Description{"level", "users", 1, 0, 0, time.Second}) {
			t.Errorf("%+v", d)
		}
	})
}

// A queue that is full takes no more only if there are no seats: one that waits for
// many seats does not keep others out, until the queue is much too long.
func TestFullQueue(t *testing.T) {
	now := time.Now()
	l := newLevel("l", false, now)
	l.configure(queuing{1, 1, 1})
	l.setLimits(10, 0, 10, now)
	s := &schema{name: "s", level: l, stats: l.stats("s"), observers: unobserved}
	entry := func(seats int) *Entry { return &Entry{schema: s, estimate: estimate{initial: seats}} }
	for i, tt := range []struct {
		seats int
		want  state
	}{{5, working}, {6, waiting}, {1, waiting}, {1, waiting}, {1, waiting}, {1, outside}} {
		if got := l.enter(entry(tt.seats), 0, now); got != tt.want {
			t.Errorf("%d: %v, want %v", i, got, tt.want)
		}
	}
	l.setLimits(5, 0, 10, now)
	if got := l.enter(entry(1), 0, now); got != outside || s.stats.refused[queueFull] != 2 {
		t.Errorf("without a seat: %v", got)
	}
}
