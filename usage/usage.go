// Package usage accounts for what clients cost the server: who asks, for what, and how
// much of it. Start at Meter, which takes finished requests (Request), and at Meter.Top,
// which reads the accounts. It never decides about a request, and keeps no more than a
// few megabytes however many names clients invent.
//
// A request is added to the entry of its names: user, user agent, verb, resource,
// namespace and priority level. Entries are bounded in number and their names in length.
// Every second the entries' new counts are moved into the accounts by user, by agent, by
// resource, by namespace and by level (sketch.go). Every five seconds these become a slot,
// every minute twelve slots become a minute (slots.go). What is read is a sum of slots.
//
// CPU time is estimated. Go does not tell how much CPU time a goroutine has used, so a
// request is given a weight: the time that its handler took, without the time in which it
// is known to have waited (Request.Busy), within bounds. Every second the CPU time of the
// process is shared out by weight; what the weights cannot explain, such as work of
// the server itself, is nobody's. So rows and rest together are the process.
package usage

import (
	"context"
	"hash/maphash"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/internal/clock"
)

const (
	// shards is the number of independently locked parts of the table of entries.
	shards = 16
	// shardEntries is the largest number of entries of a shard, and of its other tables.
	shardEntries = 48
	// candidates is the number of entries of which the least used makes room.
	candidates = 4
	// maxName is the largest length in bytes of a name that is kept.
	maxName = 128
	// bucket is the time after which the recent counts of an entry are moved on.
	// Recent is between one and two buckets.
	bucket        = 10 * time.Second
	recentBuckets = 2
	// freshFor is how long counts are recent enough for a reader.
	freshFor = 200 * time.Millisecond
)

// The weight of a request, by which CPU time is shared out.
const (
	// requestWeight is for what happens outside of a handler: TLS, HTTP, the kernel.
	requestWeight = 15 * time.Microsecond
	// mostBusy and mostBusyByte bound the weight of the time that a handler took: a
	// handler that took longer for so many bytes has waited for something.
	mostBusy     = 20 * time.Millisecond
	mostBusyByte = 20 * time.Nanosecond
	// writeWeight and writeByteWeight are for a write of a long-running response, whose
	// handler waits nearly all of the time.
	writeWeight     = 8 * time.Microsecond
	writeByteWeight = 2 * time.Nanosecond
	// maxFactor is how many times its weight a request is given of the process's CPU
	// time. What is left is the server's own.
	maxFactor = 4
)

// Names in rows that are not the names of anything.
const (
	Others          = "(others)"
	unauthenticated = "(not authenticated)"
	noAgent         = "(no user agent)"
	clusterScope    = "(cluster)"
	noLevel         = "(no level)"
	unknownResource = "(unknown)"
	otherPath       = "(paths)"
)

// Request is what one request has cost.
type Request struct {
	// User is the user as whom the request was served, empty without authentication.
	// Agent is the header User-Agent.
	User, Agent string
	Verb        string
	// IsResource is false for other paths: they have no group, resource and namespace.
	IsResource               bool
	Group, Version, Resource string
	Namespace                string
	// Level is the priority level; empty if flow control had nothing to decide.
	Level  string
	Status int
	// Bytes are those of the response's body, BodyBytes those of the request's.
	Bytes, BodyBytes int64
	// Busy is the time from arrival to the end, without waits that were measured.
	Busy time.Duration
	// Waited is the time in a queue of flow control.
	Waited time.Duration
	// SeatTime is the number of seats times how long they were held.
	SeatTime time.Duration
	// HeldByteSeconds is the memory reserved for bodies and responses, times how long.
	HeldByteSeconds float64
	// Reads and Writes are operations on the store, as opposed to its cache.
	Reads, Writes int64
	// Unpaged: the request is a list without a limit.
	Unpaged bool
	// Deprecation is the warning about the version, empty if it is current.
	Deprecation string
	// Begun: the request is one that Begin has counted. Took is from arrival to the end.
	Begun bool
	Took  time.Duration
}

// Counts are sums over requests.
type Counts struct {
	Requests int64
	// Refused are the requests that flow control has refused (429), Failed those that
	// ended with a status from 500 on.
	Refused, Failed int64
	// Watches are the watches that were begun.
	Watches       int64
	Bytes         int64 // of responses
	Reads, Writes int64 // of the store
	// CPU is a share of the process's CPU time; see the comment of the package.
	CPU    time.Duration
	Waited time.Duration // in queues
	// Seats is seat-time, and Held byte-seconds: divided by a duration they are the
	// average number of seats and of bytes held.
	Seats time.Duration
	Held  float64

	weight int64 // nanoseconds, until it has become CPU time
}

func (c *Counts) add(o *Counts) {
	c.Requests += o.Requests
	c.Refused += o.Refused
	c.Failed += o.Failed
	c.Watches += o.Watches
	c.Bytes += o.Bytes
	c.Reads += o.Reads
	c.Writes += o.Writes
	c.CPU += o.CPU
	c.Waited += o.Waited
	c.Seats += o.Seats
	c.Held += o.Held
	c.weight += o.weight
}

// names are what a request is accounted under.
type names struct{ user, agent, verb, group, resource, namespace, level string }

// entry has the counts of requests with the same names, under the lock of its shard.
type entry struct {
	names
	pending Counts                // since the last collection
	recent  [recentBuckets]Counts // before; the first is of the current bucket
	served  bool                  // a request has found its resource
}

func (e *entry) score() int64 {
	s := e.pending.weight
	for i := range e.recent {
		s += int64(e.recent[i].CPU)
	}
	return s
}

// shard is a part of the table of entries. Its maps are made when they are needed.
type shard struct {
	mu      sync.Mutex
	entries map[names]*entry
	// overflow has the pending counts of entries that had to make room, with Others
	// instead of agent and namespace.
	overflow map[names]*Counts
	open     map[names]*Long
	others   *Long // for long-running requests that have no place in open; nil if there were none
	_        [64]byte
}

// Meter keeps the accounts of a server. It is safe for concurrent use.
type Meter struct {
	cfg    Config
	seed   maphash.Seed
	shards [shards]shard
	began  time.Time

	mu        sync.Mutex // guards what follows
	collected time.Time
	bucketed  time.Time
	cpu       time.Duration // of the process, at the last collection
	scratch   []flushed
	slots     slots

	findings findings
	used     usedResources
}

// Config says what a Meter asks others. The zero value works.
type Config struct {
	// Known reports whether a resource is served; nil knows all. Requests for others
	// share a row.
	Known func(group, version, resource string) bool
	// CPU returns the CPU time that the process has used; nil asks the operating system.
	CPU func() time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Levels returns the state of the priority levels, for Storm; nil has none.
	Levels func() []Level
	// Processors is the number of CPUs that the process may use; 0 is GOMAXPROCS.
	Processors int
}

// New returns a Meter. It accounts at once; Start makes it keep the past too.
func New(cfg Config) *Meter {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.CPU == nil {
		cfg.CPU = processTime
	}
	m := &Meter{cfg: cfg, seed: maphash.MakeSeed(), began: cfg.Now()}
	m.collected = m.began
	m.bucketed, m.cpu = m.collected, cfg.CPU()
	m.slots.init(m.collected)
	return m
}

// Start collects the counts every second until ctx ends; running is done then.
func (m *Meter) Start(ctx context.Context, running *sync.WaitGroup) {
	clock.Background(ctx, running, time.Second, func() { m.collect(0) })
}

// processors is the number of CPUs that the process may use.
func (m *Meter) processors() int {
	if m.cfg.Processors > 0 {
		return m.cfg.Processors
	}
	return runtime.GOMAXPROCS(0)
}

// Add accounts for a request that has ended.
func (m *Meter) Add(r *Request) {
	n := m.names(r)
	if m.count(&n, r) && m.cfg.Known != nil && !isHousekeeper(r.User) {
		m.used.note(&n)
	}
	if r.IsResource && r.Status < 400 && n.resource != unknownResource {
		m.find(&n, r)
	}
}

// count adds a request to its entry. It reports whether it is the first of the entry that
// has found its resource.
func (m *Meter) count(n *names, r *Request) (first bool) {
	most := mostBusy + mostBusyByte*time.Duration(r.Bytes+r.BodyBytes)
	s := m.shard(n)
	s.mu.Lock()
	e := s.entry(n)
	if r.IsResource && r.Status < 400 && !e.served && n.resource != unknownResource {
		e.served, first = true, true
	}
	c := &e.pending
	if !r.Begun {
		c.Requests++
		c.weight += int64(max(0, min(r.Busy, most)) + requestWeight)
	}
	c.Bytes += r.Bytes
	c.Reads += r.Reads
	c.Writes += r.Writes
	c.Waited += r.Waited
	c.Seats += r.SeatTime
	c.Held += r.HeldByteSeconds
	switch {
	case r.Status == 429:
		c.Refused++
	case r.Status >= 500:
		c.Failed++
	}
	s.mu.Unlock()
	return first
}

// Long is a kind of long-running request that is under way: all with the same names.
type Long struct {
	names
	running       atomic.Int64
	writes, bytes atomic.Int64 // since the last collection
	shard         *shard
}

// Begin counts a long-running request until End is called.
func (m *Meter) Begin(r *Request) *Long {
	n := m.names(r)
	s := m.shard(&n)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.entry(&n).pending
	c.Requests++
	c.weight += int64(requestWeight)
	if r.Verb == "watch" {
		c.Watches++
	}
	l := s.open[n]
	if l == nil {
		if len(s.open) >= shardEntries {
			if s.others == nil {
				s.others = &Long{names: names{Others, Others, Others, "", Others, Others, Others}}
			}
			s.others.running.Add(1)
			return s.others
		}
		if s.open == nil {
			s.open = map[names]*Long{}
		}
		n = n.clone()
		l = &Long{names: n, shard: s}
		s.open[n] = l
	}
	l.running.Add(1)
	return l
}

// Sent counts a piece of a response. The bytes come first: whoever collects takes them with the
// write, and nothing of what has no write.
func (l *Long) Sent(bytes int) {
	l.bytes.Add(int64(bytes))
	l.writes.Add(1)
}

// End is called when the request has ended.
func (l *Long) End() {
	if l.running.Add(-1) > 0 || l.shard == nil {
		return
	}
	s := l.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.running.Load() == 0 && s.open[l.names] == l {
		l.collect(s)
		delete(s.open, l.names)
	}
}

// collect moves what was sent to the counts, under the lock of the shard.
func (l *Long) collect(s *shard) {
	if writes := l.writes.Swap(0); writes > 0 {
		c, bytes := &s.entry(&l.names).pending, l.bytes.Swap(0)
		c.Bytes += bytes
		c.weight += writes*int64(writeWeight) + bytes*int64(writeByteWeight)
	}
}

// names returns the names of a request, bounded and never empty.
func (m *Meter) names(r *Request) names {
	n := names{user: r.User, agent: r.Agent, verb: r.Verb, level: r.Level, resource: otherPath, namespace: clusterScope}
	if n.user == "" {
		n.user = unauthenticated
	}
	if n.agent == "" {
		n.agent = noAgent
	}
	if n.level == "" {
		n.level = noLevel
	}
	if r.IsResource {
		n.group, n.resource = r.Group, r.Resource
		if m.cfg.Known != nil && !m.cfg.Known(r.Group, r.Version, r.Resource) {
			n.group, n.resource = "", unknownResource
		} else if r.Namespace != "" {
			n.namespace = r.Namespace
		}
	}
	if max(len(n.user), len(n.agent), len(n.verb), len(n.group), len(n.resource), len(n.namespace), len(n.level)) > maxName {
		for _, s := range n.all() {
			if len(*s) > maxName {
				*s = m.shorten(*s)
			}
		}
	}
	return n
}

// shorten cuts a name, and adds a hash of it, so that long names stay different.
func (m *Meter) shorten(name string) string {
	const digits = "0123456789abcdef"
	end := maxName - 9
	short := append(make([]byte, 0, maxName), name[:end]...)
	short = append(short, '~')
	for hash, i := maphash.String(m.seed, name), 0; i < 8; i, hash = i+1, hash>>4 {
		short = append(short, digits[hash&15])
	}
	return string(short)
}

func isShortened(name string) bool { return len(name) == maxName && name[maxName-9] == '~' }

// clone copies the names, which may be parts of a buffer of a connection.
func (n names) clone() names {
	for _, s := range n.all() {
		*s = strings.Clone(*s)
	}
	return n
}

func (n *names) all() []*string {
	return []*string{&n.user, &n.agent, &n.verb, &n.group, &n.resource, &n.namespace, &n.level}
}

func (m *Meter) shard(n *names) *shard {
	return &m.shards[(maphash.String(m.seed, n.user)^maphash.String(m.seed, n.resource))%shards]
}

// entry returns the entry of names. If there is none, it makes one, and another one with
// little use has to go.
func (s *shard) entry(n *names) *entry {
	if e := s.entries[*n]; e != nil {
		return e
	}
	if len(s.entries) >= shardEntries {
		s.evict()
	}
	if s.entries == nil {
		s.entries = map[names]*entry{}
	}
	e := &entry{names: n.clone()}
	s.entries[e.names] = e
	return e
}

// evict removes the least used of a few entries; what it has counted stays.
func (s *shard) evict() {
	var least *entry
	seen := 0
	for _, e := range s.entries {
		if least == nil || e.score() < least.score() {
			least = e
		}
		if seen++; seen == candidates {
			break
		}
	}
	delete(s.entries, least.names)
	if least.pending != (Counts{}) {
		s.overflowOf(least.names).add(&least.pending)
	}
}

func (s *shard) overflowOf(n names) *Counts {
	n.agent, n.namespace = Others, Others
	if s.overflow[n] == nil && len(s.overflow) >= shardEntries {
		n = names{Others, Others, Others, "", Others, Others, Others}
	}
	c := s.overflow[n]
	if c == nil {
		if s.overflow == nil {
			s.overflow = map[names]*Counts{}
		}
		c = &Counts{}
		s.overflow[n] = c
	}
	return c
}

// flushed is what was counted under names since the last collection.
type flushed struct {
	names
	counts Counts
}

// collect moves what was counted to the slots, unless that was done within a time.
func (m *Meter) collect(unlessWithin time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.cfg.Now()
	if now.Sub(m.collected) < unlessWithin && m.collected != m.began {
		return
	}
	cpu := m.cfg.CPU()
	used := cpu - m.cpu
	m.cpu, m.collected = cpu, now
	turn := now.Sub(m.bucketed) >= bucket
	if turn {
		m.bucketed = now
	}
	// The weights are summed first: CPU time is shared out by them.
	m.scratch = m.scratch[:0]
	var weight int64
	for i := range m.shards {
		m.shards[i].drain(&m.scratch)
	}
	for i := range m.scratch {
		weight += m.scratch[i].counts.weight
	}
	factor := 0.0
	if weight > 0 {
		factor = min(maxFactor, float64(used)/float64(weight))
	}
	for i := range m.scratch {
		f := &m.scratch[i]
		f.counts.CPU = time.Duration(float64(f.counts.weight) * factor)
		f.counts.weight = 0
		m.slots.add(&f.names, &f.counts)
	}
	m.slots.used(used)
	m.remember(turn)
	m.slots.advance(now)
	if len(m.scratch) == 0 {
		m.scratch = nil
	}
	clear(m.scratch) // the names of entries that are gone
}

// drain appends what is pending to a list.
func (s *shard) drain(to *[]flushed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.open {
		l.collect(s)
	}
	if s.others != nil {
		s.others.collect(s)
	}
	for _, e := range s.entries {
		if e.pending != (Counts{}) {
			*to = append(*to, flushed{e.names, e.pending})
			e.pending = Counts{}
		}
	}
	for n, c := range s.overflow {
		*to = append(*to, flushed{n, *c})
	}
	clear(s.overflow)
}

// remember adds the collected counts to the recent ones of their entries. With turn a new
// bucket begins, and entries without recent requests go.
func (m *Meter) remember(turn bool) {
	for i := range m.scratch {
		f := &m.scratch[i]
		s := m.shard(&f.names)
		s.mu.Lock()
		if e := s.entries[f.names]; e != nil {
			e.recent[0].add(&f.counts)
		}
		s.mu.Unlock()
	}
	if !turn {
		return
	}
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for n, e := range s.entries {
			copy(e.recent[1:], e.recent[:])
			if e.recent[0] = (Counts{}); e.recent[1] == (Counts{}) && e.pending == (Counts{}) {
				delete(s.entries, n)
			}
		}
		s.mu.Unlock()
	}
}
