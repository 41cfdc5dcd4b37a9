package controller

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// Bounds of the wait after an error.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Queue does work by keys. A key that is added several times before its turn is
// worked on once; one that is added while it is worked on has another turn. Of
// one key there is never more than one turn at a time. A queue has goroutines
// only while there is something to do.
type Queue[K comparable] struct {
	ctx     context.Context
	work    func(ctx context.Context, key K) error
	log     *slog.Logger
	running *group
	measure QueueMetrics // nil measures nothing

	mu      sync.Mutex
	workers int // that may still be started
	order   []K
	waiting map[K]time.Time // since when
	active  map[K]bool      // true: it was added meanwhile
	failed  map[K]int
	timers  map[K]timer
	idle    chan struct{} // closed when there is nothing to do, nil unless somebody waits
}

// QueueMetrics is told what the queues of a controller do.
type QueueMetrics interface {
	// Added: there is one more key to work on.
	Added()
	// Taken: it is worked on, after so long.
	Taken(waited time.Duration)
	// Done: it was worked on for so long.
	Done(worked time.Duration)
	// Retried: it will be tried again.
	Retried()
}

// NewQueue returns a queue of which at most workers keys are worked on at a
// time, until the controller ends.
func NewQueue[K comparable](env *Env, workers int, work func(ctx context.Context, key K) error) *Queue[K] {
	q := &Queue[K]{
		ctx: env.ctx, work: work, log: env.Log, running: env.running, measure: env.measure, workers: workers,
		waiting: map[K]time.Time{}, active: map[K]bool{}, failed: map[K]int{}, timers: map[K]timer{},
	}
	env.settle(q.settled)
	env.onJump(q.hurry)
	context.AfterFunc(env.ctx, q.stop)
	return q
}

// Add puts a key into the queue.
func (q *Queue[K]) Add(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(key)
}

func (q *Queue[K]) add(key K) {
	if _, waits := q.waiting[key]; waits || q.ctx.Err() != nil {
		return
	}
	if t, ok := q.timers[key]; ok {
		t.Stop()
		delete(q.timers, key)
	}
	if _, busy := q.active[key]; busy {
		q.active[key] = true
		return
	}
	q.waiting[key] = time.Now()
	if q.measure != nil {
		q.measure.Added()
	}
	q.order = append(q.order, key)
	if q.workers > 0 {
		q.workers--
		q.running.Go(q.run)
	}
}

// AddAfter puts a key into the queue after a time, unless it comes there
// earlier.
func (q *Queue[K]) AddAfter(key K, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.later(key, wait)
}

func (q *Queue[K]) later(key K, wait time.Duration) {
	if _, waits := q.waiting[key]; waits || q.ctx.Err() != nil {
		return
	}
	at := time.Now().Add(wait)
	if t, ok := q.timers[key]; ok {
		if !t.at.After(at) {
			return
		}
		t.Stop()
	}
	q.timers[key] = timer{at, time.AfterFunc(wait, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.timers[key].at.Equal(at) {
			delete(q.timers, key)
			q.add(key)
		}
	})}
}

// hurry looks at all keys that wait for a time, since it may have come: the clock
// has jumped.
func (q *Queue[K]) hurry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key := range q.timers {
		q.add(key)
	}
	for key := range q.active {
		q.active[key] = true
	}
}

// timer is when a key will be in the queue.
type timer struct {
	at time.Time
	*time.Timer
}

// run works until nothing is left.
func (q *Queue[K]) run() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.order) > 0 && q.ctx.Err() == nil {
		key := q.order[0]
		q.order = q.order[1:]
		began := time.Now()
		if q.measure != nil {
			q.measure.Taken(began.Sub(q.waiting[key]))
		}
		delete(q.waiting, key)
		q.active[key] = false
		q.mu.Unlock()
		err := q.try(key)
		if q.measure != nil {
			q.measure.Done(time.Since(began))
		}
		q.mu.Lock()
		again := q.active[key]
		delete(q.active, key)
		switch {
		case err == nil:
			delete(q.failed, key)
		case q.ctx.Err() == nil:
			n := q.failed[key]
			q.failed[key] = n + 1
			if q.measure != nil {
				q.measure.Retried()
			}
			wait := lastRetry
			if n < 13 {
				wait = min(wait, firstRetry<<n)
			}
			q.log.Debug("will be tried again", "key", key, "wait", wait, "error", err)
			if !again {
				q.later(key, wait)
			}
		}
		if again {
			q.add(key)
		}
	}
	q.workers++
	if q.idle != nil && len(q.order) == 0 && len(q.active) == 0 {
		close(q.idle)
		q.idle = nil
	}
}

// try works on a key. A panic is an error like others: the server that the
// controller runs in has more to do.
func (q *Queue[K]) try(key K) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			q.log.Error("a controller has panicked", "key", key, "cause", cause, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return q.work(q.ctx, key)
}

// settled waits until there is nothing to do at once.
func (q *Queue[K]) settled(ctx context.Context) {
	q.mu.Lock()
	if len(q.order) == 0 && len(q.active) == 0 {
		q.mu.Unlock()
		return
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

func (q *Queue[K]) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, t := range q.timers {
		t.Stop()
		delete(q.timers, key)
	}
	if q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}
