package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apikeel/kelson/storage"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Create writes a key that must not exist.
func (b *Backend) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	// A key that does not exist has, in etcd's comparisons, revision zero.
	kv, err := b.put(ctx, key, value, 0, ttl)
	if errors.Is(err, storage.ErrConflict) {
		err = fmt.Errorf("%w: %q", storage.ErrExists, key)
	}
	return kv, err
}

// Update replaces the value of a key whose ModRevision is guard.
func (b *Backend) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	if guard <= 0 {
		if err := storage.CheckValue(value); err != nil {
			return storage.KeyValue{}, err
		}
		return b.guardMismatch(ctx, key)
	}
	return b.put(ctx, key, value, guard, ttl)
}

// Delete removes a key whose ModRevision is guard.
func (b *Backend) Delete(ctx context.Context, key string, guard int64) (storage.KeyValue, int64, error) {
	if guard <= 0 {
		kv, err := b.guardMismatch(ctx, key)
		return kv, 0, err
	}
	if err := storage.CheckKey(key); err != nil {
		return storage.KeyValue{}, 0, err
	}
	if err := b.beginWrite(ctx); err != nil {
		return storage.KeyValue{}, 0, err
	}
	defer b.endWrite()
	full := b.etcdKey(key)
	resp, err := b.guardedTxn(ctx, full, guard, clientv3.OpDelete(full, clientv3.WithPrevKV()))
	if err != nil {
		return storage.KeyValue{}, 0, b.writeError(ctx, err)
	}
	if !resp.Succeeded {
		kv, err := b.conflictingKey(key, resp)
		return kv, 0, err
	}
	return b.keyValue(resp.Responses[0].GetResponseDeleteRange().PrevKvs[0]), resp.Header.Revision, nil
}

// Get returns the newest value of a key.
func (b *Backend) Get(ctx context.Context, key string) (storage.KeyValue, error) {
	if err := storage.CheckKey(key); err != nil {
		return storage.KeyValue{}, err
	}
	if err := b.checkUsable(ctx); err != nil {
		return storage.KeyValue{}, err
	}
	resp, err := b.kv.Get(ctx, b.etcdKey(key))
	if err != nil {
		return storage.KeyValue{}, b.readError(ctx, err)
	}
	if len(resp.Kvs) == 0 {
		return storage.KeyValue{}, fmt.Errorf("%w: %q", storage.ErrNotFound, key)
	}
	return b.keyValue(resp.Kvs[0]), nil
}

// maxVersions is how many versions of a key Value looks at.
const maxVersions = 64

// Value implements storage.ValueReader. As a rule the value is the current one. If it is
// not, etcd is asked for the state at its revision. Compaction does not remove a version
// that is still the current one at the revision compacted to, but refuses to read at the
// revision of the version: then the versions of the key are visited backwards, or the state at
// the revision compacted to is read.
func (b *Backend) Value(ctx context.Context, key string, revision int64) ([]byte, error) {
	if err := b.checkUsable(ctx); err != nil {
		return nil, err
	}
	// Revisions to read at; 0 is the current state. When a read is refused, the one before the
	// newest version and the oldest that is kept are tried, each once.
	at, newest, oldest := int64(0), int64(0), max(b.history.oldest.Load(), b.compactor.seen.Load())
	for range maxVersions {
		resp, err := b.kv.Get(ctx, b.etcdKey(key), clientv3.WithRev(at))
		switch {
		case errors.Is(err, rpctypes.ErrCompacted) && at == revision && newest > revision:
			at, newest = newest-1, 0
			continue
		case errors.Is(err, rpctypes.ErrCompacted) && at < oldest:
			at, oldest = oldest, 0
			continue
		case errors.Is(err, rpctypes.ErrCompacted):
			return nil, errNoValue(key, revision)
		case err != nil:
			return nil, b.readError(ctx, err)
		case len(resp.Kvs) > 0 && resp.Kvs[0].ModRevision == revision:
			return resp.Kvs[0].Value, nil
		case at == 0:
			if len(resp.Kvs) > 0 {
				newest = resp.Kvs[0].ModRevision
			}
			at = revision
		case len(resp.Kvs) == 0 || resp.Kvs[0].ModRevision < revision:
			return nil, errNoValue(key, revision)
		default:
			at = resp.Kvs[0].ModRevision - 1
		}
	}
	return nil, errNoValue(key, revision)
}

func errNoValue(key string, revision int64) error {
	return fmt.Errorf("%w: %s at %d", storage.ErrCompacted, key, revision)
}

// HasValues implements storage.ValueReader.
func (b *Backend) HasValues() bool { return true }

// guardMismatch answers a write whose guard no key can have: ErrConflict with the key, or
// ErrNotFound.
func (b *Backend) guardMismatch(ctx context.Context, key string) (storage.KeyValue, error) {
	kv, err := b.Get(ctx, key)
	if err == nil {
		err = fmt.Errorf("%w: %q", storage.ErrConflict, key)
	}
	return kv, err
}

// put writes a key whose revision is guard, zero meaning that it does not
// exist. With ErrConflict it returns the key that is there.
func (b *Backend) put(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	if err := errors.Join(storage.CheckKey(key), storage.CheckValue(value)); err != nil {
		return storage.KeyValue{}, err
	}
	if err := b.beginWrite(ctx); err != nil {
		return storage.KeyValue{}, err
	}
	defer b.endWrite()

	resp, err := b.putOnce(ctx, key, value, guard, ttl)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		// Somebody revoked the lease, or this process was suspended so long that it
		// expired. putOnce has dropped it from the pool, so the next attempt gets a new
		// one.
		resp, err = b.putOnce(ctx, key, value, guard, ttl)
	}
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return storage.KeyValue{}, b.afterNoSpace(ctx, key, guard, err)
	case err != nil:
		return storage.KeyValue{}, b.writeError(ctx, err)
	case !resp.Succeeded:
		return b.conflictingKey(key, resp)
	}
	kv := storage.KeyValue{
		Key:            key,
		Value:          bytes.Clone(value),
		CreateRevision: resp.Header.Revision,
		ModRevision:    resp.Header.Revision,
	}
	if guard != 0 {
		kv.CreateRevision = resp.Responses[1].GetResponseRange().Kvs[0].CreateRevision
	}
	return kv, nil
}

func (b *Backend) putOnce(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (*clientv3.TxnResponse, error) {
	var opts []clientv3.OpOption
	var lease clientv3.LeaseID
	if ttl > 0 {
		var err error
		if lease, err = b.leases.get(ctx, ttl); err != nil {
			// Whatever became of the lease, the key was not written.
			return nil, notSentError{err}
		}
		opts = append(opts, clientv3.WithLease(lease))
	}
	full := b.etcdKey(key)
	then := []clientv3.Op{clientv3.OpPut(full, string(value), opts...)}
	if guard != 0 {
		// The read is for the create revision; it costs less than having the previous
		// value sent back.
		then = append(then, clientv3.OpGet(full, clientv3.WithKeysOnly()))
	}
	resp, err := b.guardedTxn(ctx, full, guard, then...)
	if lease != 0 && errors.Is(err, rpctypes.ErrLeaseNotFound) {
		b.leases.drop(lease)
	}
	return resp, err
}

// guardedTxn runs the operations if the mod revision of a key is guard, and else reads the
// key. Without a connection it retries for reconnectGrace.
func (b *Backend) guardedTxn(ctx context.Context, full string, guard int64, then ...clientv3.Op) (*clientv3.TxnResponse, error) {
	for began := time.Now(); ; {
		resp, err := b.kv.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(full), "=", guard)).
			Then(then...).
			Else(clientv3.OpGet(full)).
			Commit()
		if !isNotSent(err) || time.Since(began) > b.grace {
			return resp, err
		}
		select {
		case <-b.ctx.Done():
			return nil, notSentError{storage.ErrClosed}
		case <-ctx.Done():
			return nil, notSentError{ctx.Err()}
		case <-time.After(reconnectPoll):
		}
	}
}

// conflictingKey returns the key that a guarded transaction found instead of the expected
// revision.
func (b *Backend) conflictingKey(key string, resp *clientv3.TxnResponse) (storage.KeyValue, error) {
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return storage.KeyValue{}, fmt.Errorf("%w: %q", storage.ErrNotFound, key)
	}
	return b.keyValue(kvs[0]), fmt.Errorf("%w: %q", storage.ErrConflict, key)
}

// afterNoSpace finds out whether a write was applied that etcd refused for lack of
// space: the write that exceeds the quota can be applied and still be answered with
// this error, if etcd notices only when it applies it.
func (b *Backend) afterNoSpace(ctx context.Context, key string, guard int64, cause error) error {
	if errors.As(cause, new(notSentError)) {
		return b.writeError(ctx, cause)
	}
	resp, err := b.kv.Get(ctx, b.etcdKey(key), clientv3.WithKeysOnly())
	switch {
	case err != nil:
		return fmt.Errorf("%w: etcd: %w; reading the key again: %w", storage.ErrUncertain, cause, err)
	case len(resp.Kvs) == 0 && guard == 0, len(resp.Kvs) != 0 && resp.Kvs[0].ModRevision == guard:
		return b.writeError(ctx, cause)
	}
	return fmt.Errorf("%w: etcd: %w", storage.ErrUncertain, cause)
}

// etcdKey returns the key in etcd of a key or key prefix of the contract, which differs
// if Options.Prefix is set.
func (b *Backend) etcdKey(key string) string {
	if b.opts.Prefix == storage.Root {
		return key
	}
	return b.opts.Prefix + strings.TrimPrefix(key, storage.Root)
}

// contractKey is the inverse of etcdKey.
func (b *Backend) contractKey(key []byte) string {
	if b.opts.Prefix == storage.Root {
		return string(key)
	}
	return storage.Root + strings.TrimPrefix(string(key), b.opts.Prefix)
}

// keyValue converts a key of etcd's to the contract's.
func (b *Backend) keyValue(kv *mvccpb.KeyValue) storage.KeyValue {
	return storage.KeyValue{
		Key:            b.contractKey(kv.Key),
		Value:          kv.Value,
		CreateRevision: kv.CreateRevision,
		ModRevision:    kv.ModRevision,
	}
}
