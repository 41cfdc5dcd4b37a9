package transfer

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/apikeel/kelson/storage"
)

// expirySlack is by how much the expiry of a key may differ between two reads: etcd
// reports the remaining time in whole seconds.
const expirySlack = 2 * time.Second

// sameValue returns an error unless two stores agree on the value of a key.
func sameValue(a, b storage.KeyValue) error {
	if !bytes.Equal(a.Value, b.Value) {
		return fmt.Errorf("%q has another value in the target than in the source", a.Key)
	}
	return nil
}

// sameRevisions returns an error unless two stores agree on everything about a
// key that does not depend on the time.
func sameRevisions(a, b storage.KeyValue) error {
	if a.CreateRevision != b.CreateRevision || a.ModRevision != b.ModRevision {
		return fmt.Errorf("%q has revisions %d and %d in the target, %d and %d in the source",
			a.Key, b.CreateRevision, b.ModRevision, a.CreateRevision, a.ModRevision)
	}
	return sameValue(a, b)
}

// compare returns an error unless the target has exactly the keys of the source, each
// equal by same. Keys that have expired meanwhile may be missing.
func (c *copier) compare(ctx context.Context, to storage.Backend, same func(from, to storage.KeyValue) error) error {
	c.mu.Lock()
	c.progress = Progress{Verifying: true, Total: c.summary.Keys}
	c.mu.Unlock()
	source, err := openView(ctx, c.from.b, c.from.revision)
	if err != nil {
		return fmt.Errorf("comparing: %w", err)
	}
	target, err := openView(ctx, to, 0)
	if err != nil {
		return fmt.Errorf("comparing: %w", err)
	}
	next, stop := iter.Pull2(target.all(ctx))
	defer stop()
	there, err, more := next()
	for kv, sourceErr := range source.all(ctx) {
		if sourceErr != nil || err != nil {
			return fmt.Errorf("comparing: %w", firstError(sourceErr, err))
		}
		switch {
		case more && there.Key < kv.Key:
			return extraKey(there)
		case !more || there.Key > kv.Key:
			if kv.Expires.IsZero() || time.Until(kv.Expires) > expirySlack {
				return fmt.Errorf("comparing: %q is missing in the target", kv.Key)
			}
		default:
			if err := same(kv, there); err != nil {
				return fmt.Errorf("comparing: %w", err)
			}
			there, err, more = next()
		}
		c.countKey(kv, nil)
	}
	switch {
	case err != nil:
		return fmt.Errorf("comparing: %w", err)
	case more:
		return extraKey(there)
	}
	return nil
}

func extraKey(kv storage.KeyValue) error {
	return fmt.Errorf("comparing: %q is in the target and not in the source", kv.Key)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
