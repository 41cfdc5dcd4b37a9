package flow

import (
	"math"
	"sync"
	"time"
)

// Count is how many there are, and how many there were at most.
type Count struct {
	mu        sync.Mutex
	now, most int
	born      time.Time
	over      ratio
}

func (c *Count) init(now time.Time) {
	c.born, c.over = now, newRatio([]float64{0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1})
}

// add counts n more.
func (c *Count) add(n int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.most = max(c.most, c.now)
	c.over.set(c.now, now.Sub(c.born))
}

// limit says how many there should be at most.
func (c *Count) limit(n int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over.of(n, now.Sub(c.born))
}

// Load returns how many there are.
func (c *Count) Load() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Peak returns how many there were at most since it was last called.
func (c *Count) Peak() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := c.most
	c.most = c.now
	return most
}

// Over returns how many there were over time, in relation to how many there should
// be at most.
func (c *Count) Over() Histogram {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over.histogram(time.Since(c.born))
}

// Observer takes measurements.
type Observer interface{ Observe(float64) }

// Observers take, in seconds, how long requests have waited that were let in, if
// only into a queue, and that were refused, and how long others were worked on; of watches, how long it
// took them to begin. Seats takes how many a request is thought to need, Queue how
// many there are in its queue when it has joined it, and Watches how many see what
// it writes. Nil takes nothing.
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

// LevelStats is a priority level as it is now.
type LevelStats struct {
	Name string
	// Nominal is how many seats its shares give it, Lowest and Highest bound
	// what lending and borrowing make of that, and Now is what it has.
	Nominal, Lowest, Highest, Now int
	// The demand for seats in the last period.
	DemandHighest                                  int
	DemandAverage, DemandDeviation, DemandSmoothed float64
	// Target is how many seats it should have by its demand.
	Target float64
	// Virtual is the virtual time, in seat-seconds.
	Virtual float64
	// Dispatched tells of the last request that was dispatched from a queue; nil if
	// there is none.
	Dispatched *DispatchStats
	// The demand, the seats in use, and the requests that are worked on or wait, over
	// time, in relation to how many there can be.
	DemandOver, SeatsOver, WorkingOver, WaitingOver Histogram
	Schemas                                         []SchemaStats
}

// DispatchStats is the virtual world, in seat-seconds, as it was at a dispatch: the
// time, when the request began, and the least and most of when the first ones in
// the queues begin, without and with regard to what is being done for the queues.
type DispatchStats struct {
	At, Began                        float64
	Least, Most, LeastLess, MostLess float64
}

// SchemaStats is what a level has to do with a schema.
type SchemaStats struct {
	Name                string
	Dispatched          int
	Refused             map[string]int // by reason
	Waiting, Working    int
	Seats, SeatsWaiting int
	NoRoom              int // how often there were too few seats for the next request
}

// Fraction is how much of its target each level gets that is not bound otherwise.
func (c *Control) Fraction() float64 { return math.Float64frombits(c.fraction.Load()) }

// Stats returns all levels.
func (c *Control) Stats() []LevelStats {
	var all []LevelStats
	now := time.Now()
	seconds := func(w work) float64 { return float64(w) / workSecond }
	for _, l := range c.table.Load().levels {
		l.mu.Lock()
		found, age := &l.demand.found, now.Sub(l.born)
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
