package controller

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// Bounds of the exponential backoff after an error.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Queue calls a work function for keys. A key that is added several times before it is
// worked on is worked on once; a key that is added while it is worked on is worked on
// again. A key is never worked on twice at the same time. A queue has goroutines only
// while it has keys.
type Queue[K comparable] struct {
	ctx     context.Context
	work    func(ctx context.Context, key K) error
	log     *slog.Logger
	running *group
	measure QueueMetrics // nil: no metrics

	mu      sync.Mutex
	workers int // how many more may be started
	order   []K
	waiting map[K]time.Time // keys in order, and when they were added
	active  map[K]bool      // keys being worked on; true: added again meanwhile
	failed  map[K]int
	timers  map[K]timer
	idle    chan struct{} // closed when the queue is empty; nil unless somebody waits
}

// QueueMetrics observes the queues of a controller.
type QueueMetrics interface {
	// Added counts a key that was added.
	Added()
	// Taken counts a key whose work begins, and how long it waited.
	Taken(waited time.Duration)
	// Done counts a key whose work has ended, and how long that took.
	Done(worked time.Duration)
	// Retried counts a key that will be tried again after an error.
	Retried()
}

// NewQueue returns a queue that works on at most workers keys at a time, until the
// controller ends.
func NewQueue[K comparable](env *Env, workers int, work func(ctx context.Context, key K) error) *Queue[K] {
	q := &Queue[K]{
		ctx: env.ctx, work: work, log: env.Log, running: env.running, measure: env.measure, workers: workers,
		waiting: map[K]time.Time{}, active: map[K]bool{}, failed: map[K]int{}, timers: map[K]timer{},
	}
	env.onStart(q.waitIdle)
	env.onJump(q.addDelayed)
	context.AfterFunc(env.ctx, q.stop)
	return q
}

// Add adds a key to the queue.
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

// AddAfter adds a key to the queue after a delay, unless it is added earlier.
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

// addDelayed adds all delayed keys now, after the clock has jumped.
func (q *Queue[K]) addDelayed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key := range q.timers {
		q.add(key)
	}
	for key := range q.active {
		q.active[key] = true
	}
}

// timer adds a key to the queue at a time.
type timer struct {
	at time.Time
	*time.Timer
}

// run works on keys until the queue is empty.
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

// try calls the work function. A panic becomes an error, so that it does not end the
// server process.
func (q *Queue[K]) try(key K) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			q.log.Error("controller panicked, the key is retried", "key", key, "cause", cause, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return q.work(q.ctx, key)
}

// waitIdle waits until the queue is empty, but for delayed keys.
func (q *Queue[K]) waitIdle(ctx context.Context) {
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
