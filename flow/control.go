package flow

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	flowcontrol "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// This file is API priority and fairness as a whole: configuration, admission of
// requests, and the loop that follows the API objects.

// Defaults of Config.
const (
	DefaultReading = 400
	DefaultWriting = 200
	// maxWait is the longest time that a request waits in a queue.
	maxWait = time.Minute
	// retrySource is the delay before a failed pull from the source is retried.
	retrySource = time.Second
)

// Config configures the limits of a server; the flags of kube-apiserver are beside the
// fields.
type Config struct {
	// Off disables priority and fairness: --enable-priority-and-fairness=false.
	// MaxReading and MaxWriting are then two separate limits (NewInFlight).
	Off bool
	// MaxReading and MaxWriting are how many requests are executed at a time, and their
	// sum is the number of seats: --max-requests-inflight,
	// --max-mutating-requests-inflight. 0 is the default, a negative value no limit.
	MaxReading, MaxWriting int
	// RequestTimeout is the timeout of requests without a deadline of their own,
	// --request-timeout; a request waits in a queue for a quarter of it. 0 is a minute.
	RequestTimeout time.Duration

	// Source delivers the API objects; without one there are only the mandatory levels.
	Source resource.Follower
	// Stats returns the sizes of resources, to estimate the cost of lists; without it a
	// list costs one seat like other requests.
	Stats Stats
	// Report is called for flow schemas that are new or whose level has changed, with
	// whether their level exists; nil reports nothing.
	Report func(ctx context.Context, schema *flowcontrol.FlowSchema, found bool) error
	// Observe returns the observers of a schema's requests in a level; nil measures
	// nothing.
	Observe func(schema, level string) Observers
	// Logger gets failures to follow the source; nil discards them.
	Logger *slog.Logger
}

// Control implements API priority and fairness. It is a Limiter at once; while Run
// runs, it follows its source and adjusts the levels' seats.
type Control struct {
	cfg     Config
	stats   Stats
	watches watches
	table   atomic.Pointer[table]

	// Working counts the requests that are executed, Waiting those in queues.
	Working, Waiting Kinds
	fraction         atomic.Uint64 // see Fraction

	mu      sync.Mutex // held while the table is rebuilt; guards schemas and levels
	schemas map[string]*flowcontrol.FlowSchema
	levels  map[string]*flowcontrol.PriorityLevelConfiguration
	reap    chan struct{} // capacity 1: a level that has no object any more has become idle
}

// Kinds counts read-only and mutating requests separately.
type Kinds struct{ Reading, Writing Count }

// counts returns all counters, those of executing requests first.
func (c *Control) counts() []*Count {
	return []*Count{&c.Working.Reading, &c.Working.Writing, &c.Waiting.Reading, &c.Waiting.Writing}
}

func (k *Kinds) of(verb string) *Count {
	if ReadOnly(verb) {
		return &k.Reading
	}
	return &k.Writing
}

var _ Limiter = (*Control)(nil)

// Validate checks the limits.
func (cfg *Config) Validate() error {
	if !cfg.Off && cfg.seats() <= 0 {
		return errors.New("--max-requests-inflight and --max-mutating-requests-inflight can not both be 0 when priority and fairness is enabled")
	}
	return nil
}

func (cfg *Config) limits() (reading, writing int) {
	limit := func(n, missing int) int {
		if n == 0 {
			return missing
		}
		return max(n, 0)
	}
	return limit(cfg.MaxReading, DefaultReading), limit(cfg.MaxWriting, DefaultWriting)
}

func (cfg *Config) seats() int {
	reading, writing := cfg.limits()
	return reading + writing
}

// NewInFlight returns the limiter that is used when priority and fairness is off; nil
// if there are no limits.
func NewInFlight(cfg Config) Limiter {
	reading, writing := cfg.limits()
	if reading == 0 && writing == 0 {
		return nil
	}
	return &InFlight{reading: limit{most: int64(reading)}, writing: limit{most: int64(writing)}}
}

// New returns a Control that knows only the mandatory levels.
func New(cfg Config) *Control {
	if cfg.RequestTimeout <= 0 {
		cfg.RequestTimeout = time.Minute
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Control{cfg: cfg, stats: cfg.Stats, reap: make(chan struct{}, 1)}
	for _, count := range c.counts() {
		count.init(time.Now())
	}
	c.apply(true, nil)
	return c
}

// Enter implements Limiter.
func (c *Control) Enter(ctx context.Context, r *request.Request, e *Entry) bool {
	if r.LongRunning() && r.Verb != request.Watch {
		return true
	}
	s := c.table.Load().find(r)
	e.control, e.request, e.schema = c, r, s
	e.estimate = c.estimate(r, s)
	observe(s.observers().Seats, e.estimate.seats())
	var flow uint64
	if s.queues > 1 {
		e.distinguisher = s.distinguisher(r)
		flow = hash(s.name, e.distinguisher)
	}
	now := time.Now()
	state := s.level.enter(e, flow, now)
	if e.ahead > 0 {
		observe(s.observers().Queue, e.ahead)
	}
	taken := state != outside
	if state == waiting {
		state = c.wait(ctx, e)
		e.Waited = time.Since(now)
		now = now.Add(e.Waited)
	}
	// A request that timed out in a queue counts among those that were queued, as in
	// kube-apiserver: only one that is refused at once has not waited.
	s.observers().waited(e.Waited, taken)
	if state != working {
		e.RetryAfter = s.level.retry.drop(time.Now())
		return false
	}
	c.Working.of(r.Verb).add(1, now)
	e.admitted = true
	if r.Verb == request.Watch {
		e.watched, e.counted = c.watches.add(r)
	}
	return true
}

// wait waits until an entry leaves its queue: at most a quarter of the request's
// timeout.
func (c *Control) wait(ctx context.Context, e *Entry) state {
	e.request.EndArrival()
	waiting := c.Waiting.of(e.request.Verb)
	waiting.add(1, time.Now())
	defer func() { waiting.add(-1, time.Now()) }()
	limit := c.cfg.RequestTimeout / 4
	if deadline, ok := ctx.Deadline(); ok {
		limit = deadline.Sub(e.request.Arrived()) / 4
	}
	until := e.request.Arrived().Add(min(limit, maxWait))
	timer := time.NewTimer(min(time.Until(until), stallPatience))
	defer timer.Stop()
	for {
		select {
		case <-e.dispatched:
			return working
		case <-timer.C:
			if left := time.Until(until); left > 0 {
				e.level.cutOffStalled()
				timer.Reset(min(left, stallPatience))
				continue
			}
		case <-ctx.Done():
		}
		return e.level.giveUp(e, time.Now())
	}
}

// Release returns the seats of an entry before the request has ended. It is for watches
// that have sent their initial events: from then on they cost next to nothing. It may
// be called any number of times, by the goroutine that serves the request.
func (e *Entry) Release() {
	if e.admitted {
		e.admitted = false
		now := time.Now()
		e.control.Working.of(e.request.Verb).add(-1, now)
		e.worked = now.Sub(e.started)
		e.schema.observers().worked(e.worked, e.request.Verb == request.Watch)
		if e.level.leave(e, now) {
			select {
			case e.control.reap <- struct{}{}:
			default:
			}
		}
	}
}

// Leave ends a request that was let in.
func (e *Entry) Leave() {
	e.Release()
	if e.counted {
		e.counted = false
		e.control.watches.remove(e.watched)
	}
	if e.limit != nil {
		e.limit.now.Add(-1)
		e.limit = nil
	}
}

// Sync applies what the source has. It is for callers who need the objects before Run
// starts: while Run runs, nobody else may pull from the source, or Run would wait for
// changes that are applied already and report none of them.
func (c *Control) Sync(ctx context.Context) error {
	if c.cfg.Source == nil {
		return nil
	}
	return c.cfg.Source.Pull(ctx, c.apply)
}

// Run follows the source and adjusts the levels' seats until ctx ends.
func (c *Control) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	if c.cfg.Source != nil {
		running.Go(func() { c.follow(ctx) })
	}
	tick := time.NewTicker(adjustInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.mu.Lock()
			c.storeFraction(adjust(c.table.Load().levels, time.Now()))
			c.mu.Unlock()
		case <-c.reap:
			c.apply(false, nil)
		case <-ctx.Done():
			return
		}
	}
}

// storeFraction stores the result of adjust for Fraction.
func (c *Control) storeFraction(fraction float64) { c.fraction.Store(math.Float64bits(fraction)) }

func (c *Control) follow(ctx context.Context) {
	reported := map[string]report{}
	for ctx.Err() == nil {
		err := protect.Call(func() error {
			if err := c.Sync(ctx); err != nil {
				return err
			}
			return c.report(ctx, reported)
		})
		if err == nil {
			_ = c.cfg.Source.Wait(ctx) // its error is that of ctx
			continue
		}
		if ctx.Err() == nil {
			c.cfg.Logger.Warn("flow control cannot read flow schemas and priority levels; the old ones stay in use, trying again in a second", "error", err)
		}
		again := time.NewTimer(retrySource)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
		}
	}
}

// reduce returns the metadata that this package reads: the objects stay in memory.
func reduce(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, UID: m.UID}
}

// apply applies changes of API objects and builds a new table.
func (c *Control) apply(reset bool, changes []resource.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reset {
		c.schemas = map[string]*flowcontrol.FlowSchema{}
		c.levels = map[string]*flowcontrol.PriorityLevelConfiguration{}
	}
	for _, change := range changes {
		switch object := change.Object.(type) {
		case *flowcontrol.FlowSchema:
			object.ObjectMeta = reduce(&object.ObjectMeta)
			put(c.schemas, object.Name, object, change.Deleted)
		case *flowcontrol.PriorityLevelConfiguration:
			object.ObjectMeta, object.Status = reduce(&object.ObjectMeta), flowcontrol.PriorityLevelConfigurationStatus{}
			put(c.levels, object.Name, object, change.Deleted)
		}
	}
	t := build(c.table.Load(), c.schemas, c.levels, c.cfg.seats(), time.Now())
	c.storeFraction(t.fraction)
	working, waiting := 0, 0
	for _, l := range t.levels {
		working += l.limits.nominal
		waiting += l.queuing.queues * l.queuing.length
	}
	for i, count := range c.counts() {
		count.limit([...]int{working, working, waiting, waiting}[i], time.Now())
	}
	for _, s := range t.schemas {
		s.observers = sync.OnceValue(func() *Observers { return c.observersOf(s) })
	}
	c.table.Store(t)
}

// observersOf returns the observers of a schema. Most schemas never get a request.
func (c *Control) observersOf(s *schema) *Observers {
	if c.cfg.Observe == nil {
		return &Observers{}
	}
	o := c.cfg.Observe(s.name, s.level.name)
	if s.level.exempt { // its requests never wait
		o.Waited, o.Refused = nil, nil
	}
	return &o
}

func put[T any](objects map[string]T, name string, object T, deleted bool) {
	if deleted {
		delete(objects, name)
	} else {
		objects[name] = object
	}
}

// report is what was last reported about a schema.
type report struct {
	schema *flowcontrol.FlowSchema
	found  bool
}

// report calls cfg.Report for schemas whose state has changed since the last report.
func (c *Control) report(ctx context.Context, reported map[string]report) error {
	if c.cfg.Report == nil {
		return nil
	}
	var news []report
	c.mu.Lock()
	for name, schema := range c.schemas {
		_, found := c.levels[schema.Spec.PriorityLevelConfiguration.Name]
		if now := (report{schema, found}); reported[name] != now {
			news = append(news, now)
		}
	}
	for name := range reported {
		if c.schemas[name] == nil {
			delete(reported, name)
		}
	}
	c.mu.Unlock()
	for _, now := range news {
		if err := c.cfg.Report(ctx, now.schema, now.found); err != nil {
			return err
		}
		reported[now.schema.Name] = now
	}
	return nil
}
