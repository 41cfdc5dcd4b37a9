package audit

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/flowcontrol"

	"github.com/apikeel/kelson/internal/protect"
)

// This file truncates and batches events on their way to a backend.

// Names of the backends in flags, logs and metrics.
const (
	logName     = "log"
	webhookName = "webhook"
)

// logDropsEvery is the shortest interval between two log lines about lost events. All
// lost events are counted.
const logDropsEvery = time.Second

var (
	errFull     = errors.New("audit buffer queue blocked")
	errClosed   = errors.New("audit backend shut down")
	errTooLarge = errors.New("event is too large even after truncating")
)

// sendFunc writes or sends a batch.
type sendFunc func(ctx context.Context, batch []entry) error

// backend truncates and queues events and passes them to a sendFunc.
type backend struct {
	name     string
	strict   bool
	truncate TruncateConfig
	send     sendFunc
	finish   func() error
	logger   *slog.Logger

	ctx    context.Context // of sending; canceled if closing takes too long
	cancel context.CancelFunc
	queue  *queue // nil unless in ModeBatch

	dropped atomic.Int64
	logged  atomic.Int64 // when lost events were last logged, in Unix nanoseconds
}

func newBackend(name string, batch BatchConfig, truncate TruncateConfig, senders int, send sendFunc, finish func() error, logger *slog.Logger) *backend {
	b := &backend{name: name, strict: batch.Mode == ModeBlockingStrict, truncate: truncate, send: send, finish: finish, logger: logger}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if batch.Mode == ModeBatch {
		b.queue = newQueue(b, batch, senders)
		go b.queue.run()
	}
	return b
}

// put takes an event. It returns false if the request must be refused.
func (b *backend) put(e entry) bool {
	e, err := b.truncateToFit(e)
	if err != nil {
		b.recordLost(err, e)
		return !b.strict
	}
	if b.queue != nil {
		if err := b.queue.add(e); err != nil {
			b.recordLost(err, e)
		}
		return true
	}
	if err := b.send(b.ctx, []entry{e}); err != nil {
		b.recordLost(err, e)
		return !b.strict
	}
	return true
}

// truncateToFit truncates an event that is too large: first it has no objects, then no long
// texts and lists. An event is lost only if the limit is too small for any.
func (b *backend) truncateToFit(e entry) (entry, error) {
	if !b.truncate.Enabled || e.size() <= b.truncate.MaxEventSize {
		return e, nil
	}
	for short, most := e.event.truncated(), b.truncate.MaxEventSize; most >= minText; short, most = short.shortened(int(most/4)), most/4 {
		body, err := short.encode()
		if err != nil {
			return e, err
		}
		if e = (entry{short, body}); e.size() <= b.truncate.MaxEventSize {
			return e, nil
		}
	}
	return e, errTooLarge
}

// recordLost counts and logs events that were not sent.
func (b *backend) recordLost(err error, lost ...entry) {
	total := b.dropped.Add(int64(len(lost)))
	now, last := time.Now().UnixNano(), b.logged.Load()
	if now-last >= int64(logDropsEvery) && b.logged.CompareAndSwap(last, now) {
		b.logger.Error("audit events are lost", "backend", b.name, "error", err, "total", total, "event", lost[0].event.line())
	}
}

// close sends the queued events until ctx ends.
func (b *backend) close(ctx context.Context) error {
	defer b.cancel()
	if b.queue != nil {
		b.queue.close()
		select {
		case <-b.queue.done:
		case <-ctx.Done():
			b.cancel()
			<-b.queue.done
		}
	}
	return b.finish()
}

// queue collects events into batches.
type queue struct {
	backend  *backend
	config   BatchConfig
	throttle flowcontrol.RateLimiter // nil: no limit
	senders  chan struct{}           // bounds the number of batches in flight

	mu      sync.RWMutex // held for writing while entries is being closed
	closed  bool
	entries chan entry
	bytes   atomic.Int64  // of events that are queued or being sent
	done    chan struct{} // closed when everything is sent
}

// maxQueued is how many bytes the events of a queue have together, unless it is one event. More
// are dropped.
const maxQueued = 32 << 20

func newQueue(b *backend, config BatchConfig, senders int) *queue {
	q := &queue{
		backend: b, config: config, senders: make(chan struct{}, senders),
		entries: make(chan entry, config.BufferSize), done: make(chan struct{}),
	}
	if config.ThrottleEnable {
		q.throttle = flowcontrol.NewTokenBucketRateLimiter(config.ThrottleQPS, config.ThrottleBurst)
	}
	return q
}

// add queues an event without blocking.
func (q *queue) add(e entry) error {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return errClosed
	}
	size := e.size()
	if now := q.bytes.Add(size); now > maxQueued && now > size {
		q.bytes.Add(-size)
		return errFull
	}
	select {
	case q.entries <- e:
		return nil
	default:
		q.bytes.Add(-size)
		return errFull
	}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.entries)
	}
}

// run sends batches until the queue is closed and empty.
func (q *queue) run() {
	defer close(q.done)
	var sending sync.WaitGroup
	defer sending.Wait()
	var left *entry // the event that did not fit into the previous batch
	for {
		var batch []entry
		if batch, left = q.collect(left); len(batch) == 0 {
			return
		}
		if q.throttle != nil {
			_ = q.throttle.Wait(q.backend.ctx) // when ctx ends, sending fails too
		}
		q.senders <- struct{}{}
		sending.Go(func() {
			defer func() {
				for i := range batch {
					q.bytes.Add(-batch[i].size())
				}
				<-q.senders
			}()
			if err := protect.Call(func() error { return q.backend.send(q.backend.ctx, batch) }); err != nil {
				q.backend.recordLost(err, batch...)
			}
		})
	}
}

// collect returns the next batch, and the event that would have made it too large. The
// batch is empty when the queue is closed.
func (q *queue) collect(first *entry) (batch []entry, left *entry) {
	if first == nil {
		e, ok := <-q.entries
		if !ok {
			return nil, nil
		}
		first = &e
	}
	batch = append(batch, *first)
	size := first.size()
	if q.config.MaxSize == 1 {
		return batch, nil
	}
	wait := time.NewTimer(q.config.MaxWait)
	defer wait.Stop()
	for len(batch) < q.config.MaxSize {
		select {
		case e, ok := <-q.entries:
			if !ok {
				return batch, nil
			}
			if size += e.size(); q.backend.truncate.Enabled && size > q.backend.truncate.MaxBatchSize {
				return batch, &e
			}
			batch = append(batch, e)
		case <-wait.C:
			return batch, nil
		}
	}
	return batch, nil
}
