package flow

import (
	"sync/atomic"
	"time"
)

// Count is how many there are, and how many there were at most.
type Count struct{ now, most atomic.Int64 }

// Add counts n more.
func (c *Count) Add(n int64) {
	now := c.now.Add(n)
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
}

// Load returns how many there are.
func (c *Count) Load() int64 { return c.now.Load() }

// Peak returns how many there were at most since it was last called.
func (c *Count) Peak() int64 { return c.most.Swap(c.now.Load()) }

// Observer takes measurements.
type Observer interface{ Observe(float64) }

// Observers take, in seconds, how long requests have waited that were let in and
// that were refused, and how long others were worked on; of watches, how long it
// took them to begin. Nil takes nothing.
type Observers struct{ Waited, Refused, Worked, Began Observer }

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
	// Virtual is the virtual time, in seat-seconds.
	Virtual float64
	Schemas []SchemaStats
}

// SchemaStats is what a level has to do with a schema.
type SchemaStats struct {
	Name                string
	Dispatched          int
	Refused             map[string]int // by reason
	Waiting, Working    int
	Seats, SeatsWaiting int
}

// Stats returns all levels.
func (c *Control) Stats() []LevelStats {
	var all []LevelStats
	for _, l := range c.table.Load().levels {
		l.mu.Lock()
		found := &l.demand.found
		s := LevelStats{
			Name: l.name, Nominal: l.limits.nominal, Lowest: l.limits.lowest, Highest: l.limits.highest, Now: l.limits.now,
			DemandHighest: found.highest, DemandAverage: found.average, DemandDeviation: found.deviation, DemandSmoothed: found.smoothed,
			Virtual: float64(l.virtual) / workSecond,
		}
		for name, f := range l.flows {
			schema := SchemaStats{
				Name: name, Dispatched: f.dispatched, Waiting: f.waiting, Working: f.working,
				Seats: f.seats, SeatsWaiting: f.seatsWaiting, Refused: map[string]int{},
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
