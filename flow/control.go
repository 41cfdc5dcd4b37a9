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

	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// What a Control does unless it is told otherwise.
const (
	DefaultReading = 400
	DefaultWriting = 200
	// maxWait is the longest that a request may wait in a queue.
	maxWait = time.Minute
	// retrySource is how long it takes to ask a source again that has failed.
	retrySource = time.Second
)

// Config is how a server shares itself out, with the flags of kube-apiserver
// beside the fields.
type Config struct {
	// Off leaves priorities and fairness out: --enable-priority-and-fairness is
	// false. Then the two below are limits of their own.
	Off bool
	// MaxReading and MaxWriting are how many requests the server works on at a
	// time, and their sum is how many seats it has: --max-requests-inflight,
	// --max-mutating-requests-inflight. 0 is the default, less is no limit.
	MaxReading, MaxWriting int
	// RequestTimeout is how long a request may take that has no deadline of its
	// own, --request-timeout; it waits for a quarter of that. 0 is a minute.
	RequestTimeout time.Duration

	// Source delivers the flow schemas and priority levels; without one only
	// administrators go before others.
	Source resource.Follower
	// Stats says what lists cost; without it they cost the same as other requests.
	Stats Stats
	// Report is told of flow schemas that are new or whose level is, and whether
	// there is a level for them; nil is not.
	Report func(ctx context.Context, schema *flowcontrol.FlowSchema, found bool) error
	// Observe returns what measures the requests of a schema in a level; nil
	// measures nothing.
	Observe func(schema, level string) Observers
	// Logger gets what operators want to know; nil discards it.
	Logger *slog.Logger
}

// Control is API priority and fairness. It is a Limiter at once, and follows
// its source and the demand while Run runs.
type Control struct {
	cfg     Config
	stats   Stats
	watches watches
	table   atomic.Pointer[table]

	// Working counts requests that are worked on, and Waiting those that wait
	// to be.
	Working, Waiting Kinds
	fraction         atomic.Uint64 // see Fraction

	mu      sync.Mutex // held by who changes the table
	schemas map[string]*flowcontrol.FlowSchema
	levels  map[string]*flowcontrol.PriorityLevelConfiguration
	reap    chan struct{} // somebody has left a level that is not wanted
}

// Kinds counts requests that change nothing, and others.
type Kinds struct{ Reading, Writing Count }

// counts are those of requests, of which the first two are worked on.
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

// Validate checks what can be wrong.
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

// NewInFlight returns the limiter that is used when priority and fairness is
// off; nil if there are no limits.
func NewInFlight(cfg Config) Limiter {
	reading, writing := cfg.limits()
	if reading == 0 && writing == 0 {
		return nil
	}
	return &InFlight{reading: limit{most: int64(reading)}, writing: limit{most: int64(writing)}}
}

// New returns a Control that knows no objects yet.
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
func (c *Control) Enter(ctx context.Context, r *request.Request, query string, e *Entry) bool {
	if r.LongRunning() && r.Verb != request.Watch {
		return true
	}
	s := c.table.Load().find(r)
	e.control, e.request, e.schema = c, r, s
	e.estimate = c.estimate(r, query, s)
	observe(s.observers.Seats, e.estimate.seats())
	var flow uint64
	if s.queues > 1 {
		e.distinguisher = s.distinguisher(r)
		flow = hash(s.name, e.distinguisher)
	}
	now := time.Now()
	state := s.level.enter(e, flow, now)
	if e.ahead > 0 {
		observe(s.observers.Queue, e.ahead)
	}
	taken := state != outside
	if state == waiting {
		state = c.wait(ctx, e)
		e.Waited = time.Since(now)
		now = now.Add(e.Waited)
	}
	// Who has given up in a queue counts among those who were let in, as with
	// kube-apiserver: only who is sent away at once has not waited.
	s.observers.waited(e.Waited, taken)
	if state != working {
		e.RetryAfter = s.level.retry.drop(time.Now())
		return false
	}
	c.Working.of(r.Verb).add(1, now)
	e.inside = true
	if r.Verb == request.Watch {
		e.watched, e.counted = c.watches.add(r, query)
	}
	return true
}

// wait waits for an entry in a queue: for a quarter of the time that the request
// may take.
func (c *Control) wait(ctx context.Context, e *Entry) state {
	waiting := c.Waiting.of(e.request.Verb)
	waiting.add(1, time.Now())
	defer func() { waiting.add(-1, time.Now()) }()
	limit := c.cfg.RequestTimeout / 4
	if deadline, ok := ctx.Deadline(); ok {
		limit = deadline.Sub(e.request.Arrived()) / 4
	}
	timer := time.NewTimer(time.Until(e.request.Arrived().Add(min(limit, maxWait))))
	defer timer.Stop()
	select {
	case <-e.dispatched:
		return working
	case <-timer.C:
	case <-ctx.Done():
	}
	return e.level.giveUp(e, time.Now())
}

// Release gives the seats of an entry back before the request is answered: what
// it goes on to do costs next to nothing. It is for watches that have caught up,
// and may be called any number of times by whoever answers the request.
func (e *Entry) Release() {
	if e.inside {
		e.inside = false
		now := time.Now()
		e.control.Working.of(e.request.Verb).add(-1, now)
		e.worked = now.Sub(e.started)
		e.schema.observers.worked(e.worked, e.request.Verb == request.Watch)
		if e.level.leave(e, now) {
			select {
			case e.control.reap <- struct{}{}:
			default:
			}
		}
	}
}

// Leave is the end of a request that was let in.
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

// Sync takes over what there is in the source. It is for whoever wants to know
// before Run that it is done: while Run runs nobody else may take changes out of
// the source, or Run would wait for them and report nothing of them.
func (c *Control) Sync(ctx context.Context) error {
	if c.cfg.Source == nil {
		return nil
	}
	return c.cfg.Source.Pull(ctx, c.apply)
}

// Run follows the source and lends seats between levels until ctx ends.
func (c *Control) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	if c.cfg.Source != nil {
		running.Go(func() { c.follow(ctx) })
	}
	tick := time.NewTicker(adjustEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.mu.Lock()
			c.lent(adjust(c.table.Load().levels, time.Now()))
			c.mu.Unlock()
		case <-c.reap:
			c.apply(false, nil)
		case <-ctx.Done():
			return
		}
	}
}

// lent takes down the fraction of their targets that levels get.
func (c *Control) lent(fraction float64) { c.fraction.Store(math.Float64bits(fraction)) }

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
			c.cfg.Logger.Warn("flow control does not follow its objects, and tries again", "error", err)
		}
		again := time.NewTimer(retrySource)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
		}
	}
}

// apply takes changes over.
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
			put(c.schemas, object.Name, object, change.Deleted)
		case *flowcontrol.PriorityLevelConfiguration:
			put(c.levels, object.Name, object, change.Deleted)
		}
	}
	t := build(c.table.Load(), c.schemas, c.levels, c.cfg.seats(), time.Now())
	c.lent(t.fraction)
	working, waiting := 0, 0
	for _, l := range t.levels {
		working += l.limits.nominal
		waiting += l.queuing.queues * l.queuing.length
	}
	for i, count := range c.counts() {
		count.limit([...]int{working, working, waiting, waiting}[i], time.Now())
	}
	if c.cfg.Observe != nil {
		for _, s := range t.schemas {
			// Those who are exempt never wait.
			if s.observers = c.cfg.Observe(s.name, s.level.name); s.level.exempt {
				s.observers.Waited, s.observers.Refused = nil, nil
			}
		}
	}
	c.table.Store(t)
}

func put[T any](objects map[string]T, name string, object T, deleted bool) {
	if deleted {
		delete(objects, name)
	} else {
		objects[name] = object
	}
}

// report is what was last said about a schema, as it was then.
type report struct {
	schema *flowcontrol.FlowSchema
	found  bool
}

// report tells which schemas have a level, if that is news.
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
