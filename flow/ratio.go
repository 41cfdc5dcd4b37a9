package flow

import (
	"sync"
	"time"
)

// This file measures ratios over time, for histograms in which every nanosecond is an
// observation.

// ratio is the histogram over time of a value in relation to a limit: every nanosecond
// counts.
type ratio struct {
	buckets      []float64
	value, limit float64
	quotient     float64
	at           time.Duration // time of the last update, since creation
	now          int           // index of the current bucket
	here         uint64        // nanoseconds since it has been the current one
	counts       []uint64      // nanoseconds by bucket before; the last is for values above all buckets, nil are zeros
	sum          float64
}

func newRatio(buckets []float64) ratio {
	return ratio{buckets: buckets, limit: 1}
}

// set changes the value.
func (r *ratio) set(value int, now time.Duration) {
	r.advance(now)
	if v := float64(value); v != r.value {
		r.value = v
		r.findBucket()
	}
}

// setLimit changes the limit.
func (r *ratio) setLimit(limit int, now time.Duration) {
	r.advance(now)
	r.limit = float64(max(limit, 1))
	r.findBucket()
}

func (r *ratio) findBucket() {
	r.quotient = r.value / r.limit
	next := 0
	for next < len(r.buckets) && r.quotient > r.buckets[next] {
		next++
	}
	if next != r.now && r.here > 0 {
		if r.counts == nil {
			r.counts = make([]uint64, len(r.buckets)+1)
		}
		r.counts[r.now] += r.here
		r.here = 0
	}
	r.now = next
}

func (r *ratio) advance(now time.Duration) {
	passed := now - r.at
	if passed <= 0 {
		return
	}
	r.at = now
	r.here += uint64(passed)
	r.sum += float64(passed) * r.quotient
}

// Histogram is the result of a ratio. Counts are nanoseconds by bucket (not
// cumulative), the last for values above all buckets.
type Histogram struct {
	Buckets []float64
	Counts  []uint64
	Sum     float64
}

func (r *ratio) histogram(now time.Duration) Histogram {
	r.advance(now)
	counts := make([]uint64, len(r.buckets)+1)
	copy(counts, r.counts)
	counts[r.now] += r.here
	return Histogram{Buckets: r.buckets, Counts: counts, Sum: r.sum}
}

// ratios are the histograms of a level.
type ratios struct {
	demand, seats, working, waiting ratio
}

// ratioBuckets are the buckets of ratios, which all levels share.
type ratioBuckets struct{ demand, seats, requests []float64 }

var allRatioBuckets = sync.OnceValue(func() *ratioBuckets {
	return &ratioBuckets{
		demand:   []float64{0.2, 0.4, 0.6, 0.8, 1, 1.2, 1.4, 1.7, 2, 2.8, 4, 6},
		seats:    []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1},
		requests: []float64{0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1},
	}
})

func newRatios() ratios {
	b := allRatioBuckets()
	return ratios{demand: newRatio(b.demand), seats: newRatio(b.seats), working: newRatio(b.requests), waiting: newRatio(b.requests)}
}

// recordDemand updates demand and histograms after a change. The caller holds mu.
func (l *level) recordDemand(now time.Time) {
	l.demand.set(l.seats+l.seatsWaiting, now)
	age := now.Sub(l.created)
	l.over.demand.set(l.seats+l.seatsWaiting, age)
	l.over.seats.set(l.seats, age)
	l.over.working.set(l.working, age)
	l.over.waiting.set(l.waiting, age)
}

// setRatioLimits sets the limits of the histograms; seats are those of the server.
func (l *level) setRatioLimits(seats int, now time.Time) {
	most := l.limits.now
	if most == 0 {
		most = seats / 10
	}
	age := now.Sub(l.created)
	for _, r := range []*ratio{&l.over.demand, &l.over.seats, &l.over.working} {
		r.setLimit(most, age)
	}
	l.over.waiting.setLimit(max(l.queuing.length, 1)*max(l.queuing.queues, 1), age)
}
