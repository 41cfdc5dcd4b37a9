package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Queues are the metrics of the queues of controllers.
type Queues struct {
	depth         *prometheus.GaugeVec
	adds, retries *prometheus.CounterVec
	waited, work  *prometheus.HistogramVec
}

// NewQueues registers the metrics of queues.
func NewQueues(r *Registry) *Queues {
	seconds := prometheus.ExponentialBuckets(10e-9, 10, 12)
	return &Queues{
		depth:   r.gauges("workqueue_depth", "[ALPHA] Current depth of workqueue", "name"),
		adds:    r.Counters("workqueue_adds_total", "[ALPHA] Total number of adds handled by workqueue", "name"),
		retries: r.Counters("workqueue_retries_total", "[ALPHA] Total number of retries handled by workqueue", "name"),
		waited:  r.Histograms("workqueue_queue_duration_seconds", "[ALPHA] How long in seconds an item stays in workqueue before being requested.", seconds, "name"),
		work:    r.Histograms("workqueue_work_duration_seconds", "[ALPHA] How long in seconds processing an item from workqueue takes.", seconds, "name"),
	}
}

// Queue measures one queue.
type Queue struct {
	all  *Queues
	name string
}

// Queue returns what measures the queue of a controller. It is there from now
// on, so that one with nothing to do is seen to have nothing to do.
func (q *Queues) Queue(name string) *Queue {
	q.depth.WithLabelValues(name).Set(0)
	q.adds.WithLabelValues(name).Add(0)
	q.retries.WithLabelValues(name).Add(0)
	return &Queue{q, name}
}

// Added: there is one more.
func (q *Queue) Added() {
	q.all.adds.WithLabelValues(q.name).Inc()
	q.all.depth.WithLabelValues(q.name).Inc()
}

// Taken: it is worked on, after so long.
func (q *Queue) Taken(waited time.Duration) {
	q.all.depth.WithLabelValues(q.name).Dec()
	q.all.waited.WithLabelValues(q.name).Observe(waited.Seconds())
}

// Done: it was worked on for so long.
func (q *Queue) Done(worked time.Duration) {
	q.all.work.WithLabelValues(q.name).Observe(worked.Seconds())
}

// Retried: it will be tried again.
func (q *Queue) Retried() { q.all.retries.WithLabelValues(q.name).Inc() }
