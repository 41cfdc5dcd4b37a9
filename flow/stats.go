package flow

import (
	"math"
	"sync"
	"time"
)

// This file holds what is exported as metrics.

// Count is a number of requests, its peak, and its histogram over time.
type Count struct {
	mu        sync.Mutex
	now, most int
	born      time.Time
	over      ratio
}

func (c *Count) init(now time.Time) {
	c.born, c.over = now, newRatio([]float64{0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1})
}

// add adds n.
func (c *Count) add(n int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.most = max(c.most, c.now)
	c.over.set(c.now, now.Sub(c.born))
}

// limit sets the limit that the histogram relates to.
func (c *Count) limit(n int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over.setLimit(n, now.Sub(c.born))
}

// Load returns the current number.
func (c *Count) Load() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Peak returns the largest number since the last call.
func (c *Count) Peak() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := c.most
	c.most = c.now
	return most
}

// Over returns the histogram of the number in relation to its limit.
func (c *Count) Over() Histogram {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over.histogram(time.Since(c.born))
}

// Observer receives measurements.
type Observer interface{ Observe(float64) }

// Observers receive the measurements of a schema in a level; nil receives nothing.
// Durations are in seconds.
//
// Waited: time in a queue of requests that were admitted or queued. Refused: the same
// of refused requests. Worked: execution time. Began: of watches, the time until the
// initial events were sent. Seats: estimated seats of a request. Queue: length of its
// queue when it was added. Watches: number of watches that get the event of a write.
type Observers struct{ Waited, Refused, Worked, Began, Seats, Queue, Watches Observer }

func observe(to Observer, n int) {
	if to != nil {
		to.Observe(float64(n))
	}
}

func (o *Observers) waited(d time.Duration, in bool) {
	to := o.Waited
	if !in {
		to = o.Refused
	}
	if to != nil {
		to.Observe(d.Seconds())
	}
}

func (o *Observers) worked(d time.Duration, watch bool) {
	to := o.Worked
	if watch {
		to = o.Began
	}
	if to != nil {
		to.Observe(d.Seconds())
	}
}

// LevelStats is a snapshot of a priority level.
type LevelStats struct {
	Name string
	// Nominal is the number of seats by its shares, Lowest and Highest are the bounds
	// after lending and borrowing, Now is the current number.
	Nominal, Lowest, Highest, Now int
	// The demand for seats in the last period (adjustInterval).
	DemandHighest                                  int
	DemandAverage, DemandDeviation, DemandSmoothed float64
	// Target is the number of seats that its demand asks for.
	Target float64
	// Virtual is the virtual time in seat-seconds.
	Virtual float64
	// Dispatched describes the last dispatch from a queue; nil if there was none.
	Dispatched *DispatchStats
	// Histograms over time of demand, seats in use, executing and waiting requests, in
	// relation to their limits.
	DemandOver, SeatsOver, WorkingOver, WaitingOver Histogram
	Schemas                                         []SchemaStats
}

// DispatchStats describes a dispatch in virtual time, in seat-seconds: the time, the
// start time of the request, and the least and most of the start times of the queues'
// first requests, without and with the work in progress of the queues.
type DispatchStats struct {
	At, Began                        float64
	Least, Most, LeastLess, MostLess float64
}

// SchemaStats are the statistics of a schema in a level.
type SchemaStats struct {
	Name                string
	Dispatched          int
	Refused             map[string]int // by reason
	Waiting, Working    int
	Seats, SeatsWaiting int
	NoRoom              int // how often there were too few seats for the next request
}

// Fraction is the fraction of its target that a level gets which is not at a bound.
func (c *Control) Fraction() float64 { return math.Float64frombits(c.fraction.Load()) }

// Stats returns snapshots of all levels.
func (c *Control) Stats() []LevelStats {
	var all []LevelStats
	now := time.Now()
	seconds := func(w work) float64 { return float64(w) / workSecond }
	for _, l := range c.table.Load().levels {
		l.mu.Lock()
		found, age := &l.demand.found, now.Sub(l.created)
		s := LevelStats{
			Name: l.name, Nominal: l.limits.nominal, Lowest: l.limits.lowest, Highest: l.limits.highest, Now: l.limits.now,
			DemandHighest: found.highest, DemandAverage: found.average, DemandDeviation: found.deviation, DemandSmoothed: found.smoothed,
			Target: l.demand.found.target, Virtual: seconds(l.virtual),
			DemandOver: l.over.demand.histogram(age), SeatsOver: l.over.seats.histogram(age),
			WorkingOver: l.over.working.histogram(age), WaitingOver: l.over.waiting.histogram(age),
		}
		if d := l.last; d.any {
			s.Dispatched = &DispatchStats{seconds(d.at), seconds(d.began),
				seconds(d.bounds.least), seconds(d.bounds.most), seconds(d.bounds.leastIn), seconds(d.bounds.mostIn)}
		}
		for name, f := range l.flows {
			schema := SchemaStats{
				Name: name, Dispatched: f.dispatched, Waiting: f.waiting, Working: f.working,
				Seats: f.seats, SeatsWaiting: f.seatsWaiting, NoRoom: f.noRoom, Refused: map[string]int{},
			}
			for why, n := range f.refused {
				if n > 0 {
					schema.Refused[reason(why).String()] = n
				}
			}
			s.Schemas = append(s.Schemas, schema)
		}
		l.mu.Unlock()
		all = append(all, s)
	}
	return all
}
