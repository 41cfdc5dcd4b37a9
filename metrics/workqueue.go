package metrics

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Queues holds the metrics of the work queues of controllers.
type Queues struct {
	depth, unfinished, longest *Gauges
	adds, retries              *Counters
	waited, work               *Histograms

	mu  sync.Mutex
	all map[string]*Queue
}

// NewQueues registers the metrics of queues.
func NewQueues(r *Registry) *Queues {
	seconds := prometheus.ExponentialBuckets(10e-9, 10, 10)
	q := &Queues{
		all:        map[string]*Queue{},
		unfinished: r.gauges("workqueue_unfinished_work_seconds", "[BETA] How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.", "name"),
		longest:    r.gauges("workqueue_longest_running_processor_seconds", "[BETA] How many seconds has the longest running processor for workqueue been running.", "name"),
		depth:      r.gauges("workqueue_depth", "[BETA] Current depth of workqueue", "name"),
		adds:       r.Counters("workqueue_adds_total", "[BETA] Total number of adds handled by workqueue", "name"),
		retries:    r.Counters("workqueue_retries_total", "[BETA] Total number of retries handled by workqueue", "name"),
		waited:     r.Histograms("workqueue_queue_duration_seconds", "[BETA] How long in seconds an item stays in workqueue before being requested.", seconds, "name"),
		work:       r.Histograms("workqueue_work_duration_seconds", "[BETA] How long in seconds processing an item from workqueue takes.", seconds, "name"),
	}
	r.beforeScrape(q.sample)
	return q
}

// sample sets the gauges of what is in progress.
func (q *Queues) sample() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, queue := range q.all {
		sum, longest := queue.running(time.Now())
		q.unfinished.WithLabelValues(name).Set(sum.Seconds())
		q.longest.WithLabelValues(name).Set(longest.Seconds())
	}
}

// Queue records the metrics of one work queue.
type Queue struct {
	all  *Queues
	name string

	mu    sync.Mutex
	since []time.Time // start times of the items in progress
}

// running returns how long the items in progress have been processed, in sum and at
// most.
func (q *Queue) running(now time.Time) (sum, longest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range q.since {
		sum += now.Sub(t)
		longest = max(longest, now.Sub(t))
	}
	return sum, longest
}

// Queue returns the metrics of a controller's queue. Its series exist from now on, so
// that an idle queue is visible.
func (q *Queues) Queue(name string) *Queue {
	q.depth.WithLabelValues(name).Set(0)
	q.adds.WithLabelValues(name).Add(0)
	q.retries.WithLabelValues(name).Add(0)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all[name] == nil {
		q.all[name] = &Queue{all: q, name: name}
	}
	return q.all[name]
}

// Added records a new item.
func (q *Queue) Added() {
	q.all.adds.WithLabelValues(q.name).Inc()
	q.all.depth.WithLabelValues(q.name).Inc()
}

// Taken records that an item is processed, after waiting in the queue.
func (q *Queue) Taken(waited time.Duration) {
	q.mu.Lock()
	q.since = append(q.since, time.Now())
	q.mu.Unlock()
	q.all.depth.WithLabelValues(q.name).Dec()
	q.all.waited.WithLabelValues(q.name).Observe(waited.Seconds())
}

// Done records that an item was processed.
func (q *Queue) Done(worked time.Duration) {
	q.finish(time.Now().Add(-worked))
	q.all.work.WithLabelValues(q.name).Observe(worked.Seconds())
}

// finish removes the start time of an item: the nearest one, since the caller's clock
// was read a little earlier or later.
func (q *Queue) finish(began time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	best := -1
	for i, t := range q.since {
		if best < 0 || t.Sub(began).Abs() < q.since[best].Sub(began).Abs() {
			best = i
		}
	}
	if best >= 0 {
		q.since = slices.Delete(q.since, best, best+1)
	}
}

// Retried records that an item will be retried.
func (q *Queue) Retried() { q.all.retries.WithLabelValues(q.name).Inc() }
