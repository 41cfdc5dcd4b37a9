package usage

import (
	"time"
	"unique"
)

const (
	slotLength   = 5 * time.Second
	minuteLength = time.Minute
	// liveSlots is the number of slots that are kept, minutesKept that of minutes.
	liveSlots   = 12
	minutesKept = 24 * 60
	// slotRows and minuteRows are the rows that are kept by each dimension.
	slotRows   = 32
	minuteRows = 5
	// minuteBytes bounds the memory of all minutes: the oldest go first.
	minuteBytes = 2500 << 10
)

// Dimension is what rows are about.
type Dimension int

// The dimensions of accounts.
const (
	ByUser Dimension = iota
	ByAgent
	ByResource
	ByNamespace
	ByLevel
	dimensions
	// ByVerb is there for recent requests only.
	ByVerb = dimensions
)

// Dimensions are the names of the dimensions.
func Dimensions() []string {
	return []string{"user", "agent", "resource", "namespace", "level", "verb"}
}

// of returns the name of a dimension.
func (n *names) of(d Dimension) string {
	switch d {
	case ByUser:
		return n.user
	case ByAgent:
		return n.agent
	case ByResource:
		return resourceName(n.group, n.resource)
	case ByNamespace:
		return n.namespace
	case ByLevel:
		return n.level
	}
	return n.verb
}

// resourceName is a resource with its group: deployments.apps.
func resourceName(group, resource string) string {
	if group == "" {
		return resource
	}
	return resource + "." + group
}

// slot is the account of a past time. It is not changed any more.
type slot struct {
	began, ended time.Time
	cpu          time.Duration // of the process
	total        Counts
	by           [dimensions][]compactRow
	bytes        int // of memory, about
}

// compactRow is a row of a slot. Most numbers of a minute fit into a float32, and names
// are shared between slots.
type compactRow struct {
	name unique.Handle[string]
	n    [11]float32
}

func compact(name string, c *Counts) compactRow {
	return compactRow{unique.Make(name), [11]float32{
		float32(c.Requests), float32(c.Refused), float32(c.Failed), float32(c.Watches), float32(c.Bytes), float32(c.Reads), float32(c.Writes),
		float32(c.CPU), float32(c.Waited), float32(c.Seats), float32(c.Held),
	}}
}

func (r *compactRow) counts() Counts {
	n := &r.n
	return Counts{
		Requests: int64(n[0]), Refused: int64(n[1]), Failed: int64(n[2]), Watches: int64(n[3]), Bytes: int64(n[4]), Reads: int64(n[5]), Writes: int64(n[6]),
		CPU: time.Duration(n[7]), Waited: time.Duration(n[8]), Seats: time.Duration(n[9]), Held: float64(n[10]),
	}
}

// growing is a slot that is not over.
type growing struct {
	began time.Time
	cpu   time.Duration
	total Counts
	by    [dimensions]sketch
}

func (g *growing) add(n *names, c *Counts) {
	g.total.add(c)
	for d := range g.by {
		g.by[d].add(n.of(Dimension(d)), c)
	}
}

// merge adds a slot to a longer one.
func (g *growing) merge(o *growing) {
	g.cpu += o.cpu
	g.total.add(&o.total)
	for d := range g.by {
		g.by[d].merge(&o.by[d])
	}
}

// end makes a slot, and begins the next one.
func (g *growing) end(now time.Time, rows int) *slot {
	s := &slot{began: g.began, ended: now, cpu: g.cpu, total: g.total}
	const fixed, row = 360, 56 // bytes
	s.bytes = fixed
	for d := range g.by {
		top, _ := g.by[d].top(rows)
		for i := range top {
			s.by[d] = append(s.by[d], compact(top[i].name, &top[i].counts))
			s.bytes += row
		}
		s.by[d] = append([]compactRow(nil), s.by[d]...) // without room to grow
		g.by[d].reset()
	}
	g.began, g.cpu, g.total = now, 0, Counts{}
	return s
}

// slots are the accounts of the past, under the lock of the Meter.
type slots struct {
	now, minute growing
	live        []*slot // oldest first
	minutes     []*slot // oldest first
	bytes       int     // of minutes
}

func (s *slots) init(now time.Time) { s.now.began, s.minute.began = now, now }

func (s *slots) add(n *names, c *Counts) { s.now.add(n, c) }

// used adds CPU time of the process.
func (s *slots) used(cpu time.Duration) { s.now.cpu += cpu }

// advance ends slots whose time is over.
func (s *slots) advance(now time.Time) {
	if now.Sub(s.now.began) >= slotLength {
		s.minute.merge(&s.now)
		s.live = append(s.live, s.now.end(now, slotRows))
		if len(s.live) > liveSlots {
			s.live = append([]*slot(nil), s.live[1:]...)
		}
	}
	if now.Sub(s.minute.began) < minuteLength || s.now.began != now { // minutes end with a slot
		return
	}
	over := s.minute.end(now, minuteRows)
	over.bytes += s.newNames(over)
	s.bytes += over.bytes
	s.minutes = append(s.minutes, over)
	drop := 0
	for ; len(s.minutes)-drop > minutesKept || s.bytes > minuteBytes && drop < len(s.minutes)-1; drop++ {
		s.bytes -= s.minutes[drop].bytes
	}
	if drop > 0 {
		s.minutes = append(make([]*slot, 0, len(s.minutes)+1), s.minutes[drop:]...)
	}
}

// newNames is the memory of the names in a minute that the minute before does not have.
func (s *slots) newNames(over *slot) (more int) {
	var last *slot
	if n := len(s.minutes); n > 0 {
		last = s.minutes[n-1]
	}
	for d := range over.by {
		for i := range over.by[d] {
			if h := over.by[d][i].name; last == nil || !last.has(d, h) {
				more += len(h.Value()) + 64
			}
		}
	}
	return more
}

func (s *slot) has(d int, name unique.Handle[string]) bool {
	for i := range s.by[d] {
		if s.by[d][i].name == name {
			return true
		}
	}
	return false
}

// sum is an account of a time.
type sum struct {
	began, ended time.Time
	cpu          time.Duration
	total        Counts
	rows         map[string]*Counts
}

func (m *sum) add(name string, c *Counts) {
	row := m.rows[name]
	if row == nil {
		row = &Counts{}
		m.rows[name] = row
	}
	row.add(c)
}

func (m *sum) addGrowing(g *growing, d Dimension) {
	m.cpu += g.cpu
	m.total.add(&g.total)
	for i := range g.by[d].rows {
		m.add(g.by[d].rows[i].name, &g.by[d].rows[i].counts)
	}
}

// addSlot adds a slot before those that were added.
func (m *sum) addSlot(s *slot, d Dimension) {
	m.began = s.began
	m.cpu += s.cpu
	m.total.add(&s.total)
	for i := range s.by[d] {
		c := s.by[d][i].counts()
		m.add(s.by[d][i].name.Value(), &c)
	}
}

// since returns the account of about a time until now: whole slots, and beyond what
// those reach back to, whole minutes.
func (s *slots) since(ago time.Duration, d Dimension, now time.Time) *sum {
	m := &sum{began: s.now.began, ended: now, rows: map[string]*Counts{}}
	m.addGrowing(&s.now, d)
	past := s.live
	if ago > liveSlots*slotLength {
		m.began, past = s.minute.began, s.minutes
		m.addGrowing(&s.minute, d)
	}
	from := now.Add(-ago)
	for i := len(past) - 1; i >= 0 && past[i].ended.After(from); i-- {
		m.addSlot(past[i], d)
	}
	return m
}
