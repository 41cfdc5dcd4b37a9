package usage

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Viewer is who reads the accounts: it reports whether they may list a resource in a
// namespace; an empty namespace is all of them, and "*" as group and resource is
// everything.
type Viewer func(group, resource, namespace string) bool

// Everything is a Viewer who may see all rows.
func Everything(_, _, _ string) bool { return true }

// Query says which account is wanted.
type Query struct {
	By Dimension
	// Since is how far back the account goes; 0 is ten seconds.
	Since time.Duration
	// Sort is a key of Sorts; empty is cpu.
	Sort string
	// Rows is the largest number of rows; 0 is 20.
	Rows int
	// Only has, by dimension, the names of the requests that are wanted. It is for
	// recent requests.
	Only map[Dimension]string
}

// Top is an account.
type Top struct {
	By   string    `json:"by"`
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Seconds is the time between them.
	Seconds float64           `json:"seconds"`
	Only    map[string]string `json:"only,omitempty"`
	// ProcessCPUSeconds is the CPU time of the whole process. That of the rows, of
	// Others, of Hidden and UnattributedCPUSeconds add up to it, unless Only is set.
	ProcessCPUSeconds      float64 `json:"processCPUSeconds"`
	UnattributedCPUSeconds float64 `json:"unattributedCPUSeconds"`
	Processors             int     `json:"processors"`
	Total                  Row     `json:"total"`
	Rows                   []Row   `json:"rows"`
	// Others is the sum of the rows that are not shown, or no longer known by name.
	Others *Row `json:"others,omitempty"`
	// Hidden is the sum of what the reader may not list.
	Hidden *Row `json:"hidden,omitempty"`
}

// Row is the account of one name.
type Row struct {
	Name              string  `json:"name"`
	Requests          int64   `json:"requests"`
	RequestsPerSecond float64 `json:"requestsPerSecond"`
	CPUSeconds        float64 `json:"cpuSeconds"`
	// CPUPercent is that of one processor: 100 is one busy processor.
	CPUPercent float64 `json:"cpuPercent"`
	BytesOut   int64   `json:"bytesOut"`
	// MemoryBytes and Seats are averages of what the requests held.
	MemoryBytes      int64   `json:"memoryBytes"`
	Seats            float64 `json:"seats"`
	OpenWatches      int64   `json:"openWatches"`
	WatchesBegun     int64   `json:"watchesBegun"`
	StoreReads       int64   `json:"storeReads"`
	StoreWrites      int64   `json:"storeWrites"`
	Refused          int64   `json:"refused"`
	Failed           int64   `json:"failed"`
	QueueWaitSeconds float64 `json:"queueWaitSeconds"`
}

func newRow(name string, c *Counts, open int64, seconds float64) Row {
	seconds = max(seconds, 0.001)
	return Row{
		Name: name, Requests: c.Requests, RequestsPerSecond: float64(c.Requests) / seconds,
		CPUSeconds: c.CPU.Seconds(), CPUPercent: 100 * c.CPU.Seconds() / seconds, BytesOut: c.Bytes,
		MemoryBytes: int64(c.Held / seconds), Seats: c.Seats.Seconds() / seconds, OpenWatches: open, WatchesBegun: c.Watches,
		StoreReads: c.Reads, StoreWrites: c.Writes, Refused: c.Refused, Failed: c.Failed, QueueWaitSeconds: c.Waited.Seconds(),
	}
}

// sorts are the keys by which rows are sorted, the largest value first.
func sorts() map[string]func(r *Row) float64 {
	return map[string]func(r *Row) float64{
		"cpu":      func(r *Row) float64 { return r.CPUSeconds },
		"requests": func(r *Row) float64 { return float64(r.Requests) },
		"bytes":    func(r *Row) float64 { return float64(r.BytesOut) },
		"memory":   func(r *Row) float64 { return float64(r.MemoryBytes) },
		"seats":    func(r *Row) float64 { return r.Seats },
		"watches":  func(r *Row) float64 { return float64(r.OpenWatches) },
		"reads":    func(r *Row) float64 { return float64(r.StoreReads) },
		"writes":   func(r *Row) float64 { return float64(r.StoreWrites) },
		"refused":  func(r *Row) float64 { return float64(r.Refused) },
		"waited":   func(r *Row) float64 { return r.QueueWaitSeconds },
	}
}

// Sorts are the keys by which rows can be sorted.
func Sorts() []string { return slices.Sorted(maps.Keys(sorts())) }

// Errors of queries.
var (
	errRecentOnly = errors.New("accounts of requests of one name, and by verb, are kept for the last seconds only: leave out since")
	errRights     = errors.New("past accounts by resource and by namespace are for those who may list everything in all namespaces: leave out since")
)

// Top returns an account, with the rows that the viewer may see.
//
// Rows by resource and by namespace are sums of what the viewer may list. The past is not
// kept by resource and namespace together, so only those who may list everything see it.
func (m *Meter) Top(q Query, may Viewer) (*Top, error) {
	if q.Since == 0 {
		q.Since = bucket
	}
	if q.Rows == 0 {
		q.Rows = 20
	}
	key, ok := sorts()[cmp.Or(q.Sort, "cpu")]
	if !ok {
		return nil, fmt.Errorf("rows cannot be sorted by %q, only by one of %v", q.Sort, Sorts())
	}
	if q.By < 0 || int(q.By) >= len(Dimensions()) {
		return nil, fmt.Errorf("there are no accounts by %d", q.By)
	}
	m.collect(freshFor)
	all := may("*", "*", "")
	guarded := !all && q.touches()
	live := liveSlots * slotLength
	switch {
	case (len(q.Only) > 0 || q.By == ByVerb) && q.Since > live:
		return nil, errRecentOnly
	case guarded && q.Since > live:
		return nil, errRights
	}
	rights := remembered(may)
	var s *sum
	var hidden Counts
	if len(q.Only) > 0 || q.By == ByVerb || guarded {
		s, hidden = m.recent(q, guarded, rights)
	} else {
		m.mu.Lock()
		s = m.slots.since(q.Since, q.By, m.collected)
		m.mu.Unlock()
	}
	open, hiddenOpen := m.open(q, guarded, rights)
	return s.top(q, key, open, hidden, hiddenOpen, m.processors()), nil
}

// touches reports whether the query tells anything about resources or namespaces.
func (q *Query) touches() bool {
	_, resource := q.Only[ByResource]
	_, namespace := q.Only[ByNamespace]
	return resource || namespace || q.By == ByResource || q.By == ByNamespace
}

func (q *Query) wants(n *names) bool {
	for d, name := range q.Only {
		if n.of(d) != name {
			return false
		}
	}
	return true
}

// isVisible reports whether a viewer may see what requests of these names cost.
func (n *names) isVisible(may Viewer) bool {
	switch n.resource {
	case otherPath, unknownResource:
		return true
	}
	namespace := n.namespace
	switch namespace {
	case clusterScope, Others:
		namespace = ""
	}
	return n.resource != Others && may(n.group, n.resource, namespace)
}

// remembered is a Viewer that asks each question once.
func remembered(may Viewer) Viewer {
	known := map[[3]string]bool{}
	return func(group, resource, namespace string) bool {
		key := [3]string{group, resource, namespace}
		answer, ok := known[key]
		if !ok {
			answer = may(group, resource, namespace)
			known[key] = answer
		}
		return answer
	}
}

// entries returns the recent counts of all names, and since when they were counted.
func (m *Meter) entries() (all []flushed, from, to time.Time, cpu time.Duration) {
	m.mu.Lock()
	from, to = m.bucketed.Add(-bucket), m.collected
	s := m.slots.since(to.Sub(from), ByUser, to)
	if from.Before(s.began) {
		from = s.began // the server is young
	}
	cpu = s.cpu
	m.mu.Unlock()
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for _, e := range s.entries {
			f := flushed{names: e.names}
			for i := range e.recent {
				f.counts.add(&e.recent[i])
			}
			if f.counts != (Counts{}) {
				all = append(all, f)
			}
		}
		s.mu.Unlock()
	}
	return all, from, to, cpu
}

// recent sums the recent requests that are wanted.
func (m *Meter) recent(q Query, guarded bool, may Viewer) (*sum, Counts) {
	entries, from, to, cpu := m.entries()
	s := &sum{began: from, ended: to, cpu: cpu, rows: map[string]*Counts{}}
	var hidden Counts
	for i := range entries {
		e := &entries[i]
		if guarded && !e.isVisible(may) {
			if len(q.Only) == 0 { // else it would tell of what was asked for
				hidden.add(&e.counts)
				s.total.add(&e.counts)
			}
			continue
		}
		if q.wants(&e.names) {
			s.total.add(&e.counts)
			s.add(e.of(q.By), &e.counts)
		}
	}
	return s, hidden
}

// open returns the watches that are open, by name, and those that are hidden.
func (m *Meter) open(q Query, guarded bool, may Viewer) (open map[string]int64, hidden int64) {
	type row struct {
		names
		running int64
	}
	var all []row
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for _, l := range s.open {
			if l.verb == "watch" {
				all = append(all, row{l.names, l.running.Load()})
			}
		}
		if s.others != nil && s.others.running.Load() > 0 {
			all = append(all, row{s.others.names, s.others.running.Load()})
		}
		s.mu.Unlock()
	}
	open = map[string]int64{}
	for i := range all {
		switch n := &all[i].names; {
		case guarded && !n.isVisible(may):
			if len(q.Only) == 0 {
				hidden += all[i].running
			}
		case q.wants(n):
			open[n.of(q.By)] += all[i].running
		}
	}
	return open, hidden
}

// top makes the answer.
func (s *sum) top(q Query, key func(*Row) float64, open map[string]int64, hidden Counts, hiddenOpen int64, processors int) *Top {
	t := &Top{
		By: Dimensions()[q.By], From: s.began, To: s.ended, Seconds: s.ended.Sub(s.began).Seconds(),
		ProcessCPUSeconds: s.cpu.Seconds(), UnattributedCPUSeconds: max(0, (s.cpu - s.total.CPU).Seconds()), Processors: processors, Rows: []Row{},
	}
	for d, name := range q.Only {
		if t.Only == nil {
			t.Only = map[string]string{}
		}
		t.Only[Dimensions()[d]] = name
	}
	others, othersOpen, totalOpen := s.total, open[Others], hiddenOpen
	others.sub(&hidden)
	for name, n := range open {
		if totalOpen += n; s.rows[name] == nil {
			s.rows[name] = &Counts{}
		}
	}
	for name, c := range s.rows {
		if name != Others {
			others.sub(c)
			t.Rows = append(t.Rows, newRow(name, c, open[name], t.Seconds))
		}
	}
	slices.SortFunc(t.Rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(key(&b), key(&a)), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Name, b.Name))
	})
	if len(t.Rows) > q.Rows {
		for _, r := range t.Rows[q.Rows:] {
			others.add(s.rows[r.Name])
			othersOpen += r.OpenWatches
		}
		t.Rows = t.Rows[:q.Rows]
	}
	t.Total = newRow("(total)", &s.total, totalOpen, t.Seconds)
	others.clamp()
	if others.Requests > 0 || othersOpen > 0 {
		row := newRow(Others, &others, othersOpen, t.Seconds)
		t.Others = &row
	}
	if hidden.Requests > 0 || hiddenOpen > 0 {
		row := newRow("(hidden)", &hidden, hiddenOpen, t.Seconds)
		t.Hidden = &row
	}
	return t
}

func (c *Counts) sub(o *Counts) {
	c.Requests -= o.Requests
	c.Refused -= o.Refused
	c.Failed -= o.Failed
	c.Watches -= o.Watches
	c.Bytes -= o.Bytes
	c.Reads -= o.Reads
	c.Writes -= o.Writes
	c.CPU -= o.CPU
	c.Waited -= o.Waited
	c.Seats -= o.Seats
	c.Held -= o.Held
}

// clamp removes what rounding has made negative.
func (c *Counts) clamp() {
	for _, n := range []*int64{&c.Requests, &c.Refused, &c.Failed, &c.Watches, &c.Bytes, &c.Reads, &c.Writes} {
		*n = max(0, *n)
	}
	c.CPU, c.Waited, c.Seats, c.Held = max(0, c.CPU), max(0, c.Waited), max(0, c.Seats), max(0, c.Held)
}
