package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
)

func testEnv(t *testing.T) *Env {
	ctx, cancel := context.WithCancel(t.Context())
	g := &group{}
	t.Cleanup(func() { cancel(); g.wait() })
	return &Env{Log: slog.New(slog.DiscardHandler), ctx: ctx, running: g, onStart: func(func(context.Context)) {}, onJump: func(func()) {}}
}

// A key has one turn at a time, another one if it is added meanwhile, and turns
// until there is no error.
func TestQueue(t *testing.T) {
	var active, turns atomic.Int32
	begun, let := make(chan struct{}, 10), make(chan struct{})
	done := make(chan struct{})
	q := NewQueue(testEnv(t), 4, func(_ context.Context, key string) error {
		if active.Add(1) > 1 {
			t.Error("two turns at a time")
		}
		defer active.Add(-1)
		n := turns.Add(1)
		begun <- struct{}{}
		<-let
		switch n {
		case 2:
			return errors.New("again")
		case 3:
			close(done)
		}
		return nil
	})
	q.Add("a")
	<-begun
	for range 5 {
		q.Add("a")
	}
	close(let)
	<-done
	q.waitIdle(t.Context())
	if got := turns.Load(); got != 3 {
		t.Errorf("%d turns", got)
	}
}

func TestQueueMany(t *testing.T) {
	const keys = 1000
	var mu sync.Mutex
	seen := map[int]int{}
	var all sync.WaitGroup
	all.Add(keys)
	env := testEnv(t)
	q := NewQueue(env, 8, func(_ context.Context, key int) error {
		mu.Lock()
		defer mu.Unlock()
		seen[key]++
		if seen[key] == 1 && key%10 == 0 {
			return errors.New("again")
		}
		all.Done()
		return nil
	})
	for i := range keys {
		q.Add(i)
	}
	all.Wait()
	env.running.wait()
	if q.workers != 8 {
		t.Errorf("%d of 8 workers rest", q.workers)
	}
}

func TestEnabled(t *testing.T) {
	all := []Controller{{Name: "a-controller", Alias: "a"}, {Name: "b-controller", Alias: "b"}}
	for _, c := range []struct {
		words []string
		want  string
		wrong bool
	}{
		{nil, "ab", false},
		{[]string{"*"}, "ab", false},
		{[]string{"*", "-b"}, "a", false},
		{[]string{"-b-controller", "*"}, "a", false},
		{[]string{"b"}, "b", false},
		{[]string{"-*"}, "", false},
		{[]string{}, "", false},
		{[]string{"c"}, "", true},
		{[]string{"*", "-c"}, "", true},
	} {
		on, err := Enabled(all, c.words)
		got := ""
		for _, o := range on {
			got += o.Alias
		}
		if got != c.want || (err != nil) != c.wrong {
			t.Errorf("%q: %q, %v", c.words, got, err)
		}
	}
}
