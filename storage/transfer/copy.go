package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
)

// DefaultWriters is how many keys a copy writes at a time.
const DefaultWriters = 32

// CopyOptions says how to copy. The zero value is usable.
type CopyOptions struct {
	// Resume goes on with a copy that was interrupted: keys that the target
	// has with the same value are left alone.
	Resume bool
	// Writers is how many keys are written at a time; 0 is DefaultWriters.
	Writers int
	// Progress, if not nil, is called after every key, by one goroutine at a
	// time.
	Progress func(Progress)
}

// Progress is how far a copy has come.
type Progress struct {
	// Verifying is set in the second part of a copy, where both stores are
	// compared.
	Verifying bool
	// Keys and Bytes are done in this part, of about Total keys.
	Keys, Total, Bytes int64
}

// Copy creates every key of a store, as it stands at one revision, in another,
// and then compares the two. Values and the time that keys have left to live
// are kept; revisions are the target's own.
//
// The target must be empty, or the copy be resumed. Nobody else may write to it
// meanwhile. The source must keep its history for as long as the copy takes.
func Copy(ctx context.Context, from, to storage.Backend, opts CopyOptions) (Summary, error) {
	c, err := newCopier(ctx, from, opts)
	if err != nil {
		return Summary{}, fmt.Errorf("copy: %w", err)
	}
	if !opts.Resume {
		n, _, err := to.Count(ctx, scope(to))
		if err != nil {
			return Summary{}, fmt.Errorf("copy: %w", err)
		}
		if n > 0 {
			return Summary{}, fmt.Errorf("copy: the target holds %d keys already; give an empty one, or resume if they come from an interrupted copy", n)
		}
	}
	if err := c.write(ctx, to); err != nil {
		return Summary{}, fmt.Errorf("copy: %w", err)
	}
	if err := c.compare(ctx, to, sameValue); err != nil {
		return Summary{}, fmt.Errorf("copy: %w", err)
	}
	return c.summary, nil
}

// CopyToFolder makes a store in dir, which must be absent or empty, from
// another, and then compares the two. Revisions are kept as well: the new store
// goes on at the revision at which the old one was read, without history.
// Unless it returns nil there is nothing in dir.
func CopyToFolder(ctx context.Context, from storage.Backend, dir string, opts CopyOptions) (Summary, error) {
	c, err := newCopier(ctx, from, opts)
	if err != nil {
		return Summary{}, fmt.Errorf("copy: %w", err)
	}
	if err := c.importInto(ctx, dir); err != nil {
		return Summary{}, fmt.Errorf("copy: %w", err)
	}
	if err := c.compareFolder(ctx, dir); err != nil {
		return Summary{}, fmt.Errorf("copy: %w", errors.Join(err, os.RemoveAll(dir)))
	}
	return c.summary, nil
}

// copier is the state of one copy.
type copier struct {
	from *view
	opts CopyOptions

	mu       sync.Mutex // guards the fields below, and calls of opts.Progress
	summary  Summary
	progress Progress
}

func newCopier(ctx context.Context, from storage.Backend, opts CopyOptions) (*copier, error) {
	if opts.Writers < 0 {
		return nil, fmt.Errorf("the number of writers cannot be %d", opts.Writers)
	}
	if opts.Writers == 0 {
		opts.Writers = DefaultWriters
	}
	v, err := openView(ctx, from, 0)
	if err != nil {
		return nil, err
	}
	total, _, err := from.Count(ctx, v.prefix)
	if err != nil {
		return nil, err
	}
	return &copier{from: v, opts: opts, summary: Summary{Revision: v.revision}, progress: Progress{Total: total}}, nil
}

// countKey counts a key as done and reports progress.
func (c *copier) countKey(kv storage.KeyValue, count *int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if count != nil {
		*count++
	}
	size := int64(len(kv.Key) + len(kv.Value))
	if !c.progress.Verifying {
		c.summary.Keys++
		c.summary.Bytes += size
	}
	c.progress.Keys++
	c.progress.Bytes += size
	if c.opts.Progress != nil {
		c.opts.Progress(c.progress)
	}
}

// write creates all keys in the target.
func (c *copier) write(ctx context.Context, to storage.Backend) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	work := make(chan storage.KeyValue, c.opts.Writers)
	var writers sync.WaitGroup
	for range c.opts.Writers {
		writers.Go(func() {
			for kv := range work {
				if err := c.writeKey(ctx, to, kv); err != nil {
					stop(err)
					return
				}
			}
		})
	}
	for kv, err := range c.from.all(ctx) {
		if err != nil {
			stop(err)
			break
		}
		select {
		case work <- kv:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(work)
	writers.Wait()
	return context.Cause(ctx)
}

func (c *copier) writeKey(ctx context.Context, to storage.Backend, kv storage.KeyValue) error {
	if !strings.HasPrefix(kv.Key, scope(to)) {
		return fmt.Errorf("%q is outside of %s, where other users of the target may have their keys", kv.Key, scope(to))
	}
	var ttl time.Duration
	if !kv.Expires.IsZero() {
		if ttl = time.Until(kv.Expires); ttl <= 0 {
			c.countKey(kv, &c.summary.Expired)
			return nil
		}
	}
	there, err := to.Create(ctx, kv.Key, kv.Value, ttl)
	switch {
	case err == nil:
		c.countKey(kv, nil)
		return nil
	case !errors.Is(err, storage.ErrExists):
		return fmt.Errorf("%q: %w", kv.Key, err)
	case !c.opts.Resume:
		return fmt.Errorf("%q appeared in the target during the copy: somebody else writes to it", kv.Key)
	case !bytes.Equal(there.Value, kv.Value):
		return fmt.Errorf("%q is in the target with another value: it does not come from an interrupted copy of this store", kv.Key)
	}
	c.countKey(kv, &c.summary.Skipped)
	return nil
}

func (c *copier) importInto(ctx context.Context, dir string) error {
	next, stop := iter.Pull2(c.from.all(ctx))
	defer stop()
	return engine.Import(ctx, dir, c.from.revision, func() (storage.KeyValue, error) {
		kv, err, ok := next()
		if !ok {
			return kv, io.EOF
		}
		if err == nil {
			c.countKey(kv, nil)
		}
		return kv, err
	})
}

func (c *copier) compareFolder(ctx context.Context, dir string) error {
	e, err := engine.Open(engine.Options{Dir: dir})
	if err != nil {
		return err
	}
	return errors.Join(c.compare(ctx, e, sameRevisions), e.Close())
}
