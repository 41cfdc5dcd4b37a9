package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/internal/clock"
	"github.com/apikeel/kelson/storage"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// compactKey is the key by which servers that share an etcd agree on who compacts it.
// Its name, outside all prefixes, and its value, the revision last compacted to, are
// those of kube-apiserver.
const compactKey = "compact_rev_key"

// Compact discards history before revision.
//
// etcd is compacted to the revision before: etcd keeps the state at the revision that
// it compacts to, and an event at revision needs the state before it for its previous
// value. Were etcd compacted to revision itself, a watch from there on could not be
// served. Reads at the one revision more that etcd has are refused here.
func (b *Backend) Compact(ctx context.Context, revision int64) error {
	current, err := b.Revision(ctx)
	switch {
	case err != nil:
		return err
	case revision > current:
		return fmt.Errorf("%w: cannot compact to %d, the current revision is %d", storage.ErrFutureRevision, revision, current)
	}
	if err := b.history.learn(ctx, b); err != nil {
		return err
	}
	return b.compact(ctx, revision)
}

// compact does the work of Compact for a revision known to exist.
func (b *Backend) compact(ctx context.Context, revision int64) error {
	if oldest := b.history.oldest.Load(); revision <= oldest || revision <= 0 {
		return fmt.Errorf("%w: already to %d", storage.ErrCompacted, oldest)
	}
	var err error
	// Nothing is older than revision 1, and etcd has no revision 0 to compact to.
	if revision > 1 {
		if _, err = b.kv.Compact(ctx, revision-1); err != nil {
			err = b.readError(ctx, err)
		}
	}
	if err == nil || errors.Is(err, storage.ErrCompacted) {
		b.history.raise(revision)
	}
	return err
}

// checkCompacted returns ErrCompacted for a revision older than the oldest that this
// backend knows to be kept. etcd refuses the others.
func (b *Backend) checkCompacted(ctx context.Context, revision int64) error {
	if err := b.history.learn(ctx, b); err != nil {
		return err
	}
	if oldest := b.history.oldest.Load(); revision < 0 || revision < oldest {
		return fmt.Errorf("%w: revision %d, the oldest kept is %d", storage.ErrCompacted, revision, oldest)
	}
	return nil
}

// history tracks the oldest revision that this backend serves: the one after the
// revision to which etcd is compacted, by this backend or before it was opened.
// Compactions by others are noticed only when etcd refuses a read.
type history struct {
	oldest  atomic.Int64
	learned atomic.Bool
	lock    chan struct{} // capacity 1: the lock of learn, which can be waited for with a context
}

func newHistory() *history { return &history{lock: make(chan struct{}, 1)} }

func (h *history) raise(revision int64) {
	for {
		old := h.oldest.Load()
		if revision <= old || h.oldest.CompareAndSwap(old, revision) {
			return
		}
	}
}

// learn finds out, once, to which revision etcd is compacted. etcd does not report it,
// so learn searches for the oldest readable revision.
func (h *history) learn(ctx context.Context, b *Backend) error {
	if h.learned.Load() {
		return nil
	}
	select {
	case h.lock <- struct{}{}:
		defer func() { <-h.lock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if h.learned.Load() {
		return nil
	}
	readable := func(revision int64) (bool, error) {
		_, err := b.kv.Get(ctx, compactKey, clientv3.WithRev(revision), clientv3.WithCountOnly())
		if errors.Is(err, rpctypes.ErrCompacted) {
			return false, nil
		}
		if err != nil {
			return false, b.readError(ctx, err)
		}
		return true, nil
	}
	current, err := b.Revision(ctx)
	if err != nil {
		return err
	}
	ok, err := readable(1)
	if err != nil {
		return err
	}
	if !ok {
		gone, there := int64(1), current
		for there-gone > 1 {
			middle := gone + (there-gone)/2
			if ok, err = readable(middle); err != nil {
				return err
			}
			if ok {
				there = middle
			} else {
				gone = middle
			}
		}
		// Somebody who compacts to the current revision by hand wants the current
		// revision to stay readable.
		h.raise(min(there+1, current))
	}
	h.learned.Store(true)
	return nil
}

// compactor compacts etcd at intervals. Any number of them work on one etcd, also those
// inside kube-apiservers, and one of them acts in each interval.
//
// The version of compactKey, which etcd increases with every write to it, is their
// shared clock. Each compactor remembers the version that it saw last. After its
// interval it writes the key, on condition that the version is unchanged. The one that
// succeeds compacts, to the revision that was current at the end of its previous
// interval. The others read the version and the current revision, and start from them
// next time. So at least one interval of history is kept, and at most two when the
// compactor that used to win is gone.
type compactor struct {
	b *Backend

	mu       sync.Mutex // one step at a time
	version  int64      // of compactKey; zero if it does not exist
	revision int64      // to compact to in the next interval; zero if not known yet

	// seen is the revision that another server has compacted to, from compactKey.
	seen atomic.Int64
}

// run calls step at every interval until ctx ends.
func (c *compactor) run(ctx context.Context, interval time.Duration) {
	for range clock.Every(ctx, interval) {
		revision, err := c.step(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.b.log.Warn("compaction failed", "error", err)
		case revision != 0:
			c.b.log.Info("compacted", "revision", revision)
		}
	}
}

// step takes part in one interval. It returns the revision to which it compacted, zero
// if another did.
func (c *compactor) step(ctx context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resp, err := c.b.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(compactKey), "=", c.version)).
		Then(clientv3.OpPut(compactKey, strconv.FormatInt(c.revision, 10))).
		Else(clientv3.OpGet(compactKey)).
		Commit()
	if err != nil {
		return 0, c.b.readError(ctx, err)
	}
	target := c.revision
	c.revision = resp.Header.Revision
	if !resp.Succeeded {
		c.version = 0
		// Without the key (somebody deleted it), the version starts at zero again.
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
			c.version = kvs[0].Version
			if seen, err := strconv.ParseInt(string(kvs[0].Value), 10, 64); err == nil {
				c.seen.Store(seen)
			}
		}
		return 0, nil
	}
	c.version++
	if target == 0 {
		return 0, nil
	}
	err = c.b.compact(ctx, target)
	if errors.Is(err, storage.ErrCompacted) {
		// Somebody has compacted further by hand.
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return target, nil
}
