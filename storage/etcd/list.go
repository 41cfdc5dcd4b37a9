package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/storage"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A list is read in chunks, so that neither side holds all of it in one message. The
// number of keys in a chunk is estimated from the sizes so far. Small chunks are
// expensive: etcd counts the remaining keys for every one.
const (
	firstChunkKeys = 256
	maxChunkKeys   = 10_000
	// likelyBytes is what a value has at most, as a rule: nothing is known of the first ones.
	likelyBytes = 64 << 10
	chunkBytes  = 4 << 20

	// listAttempts bounds how often a list of the current revision is restarted because
	// that revision was compacted meanwhile.
	listAttempts = 5

	// expiryRequests is the number of lease requests in flight.
	expiryRequests = 8
)

// keyRange returns the key range of a prefix as etcd's API wants it: the key is not
// empty, and an end of "\x00" means no end.
func (b *Backend) keyRange(prefix string) (key, end string) {
	key = b.etcdKey(prefix)
	end = storage.PrefixEnd(key)
	if key == "" {
		key = "\x00"
	}
	if end == "" {
		end = "\x00"
	}
	return key, end
}

// List returns the keys that begin with prefix, as they stood at one revision.
func (b *Backend) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	if err := storage.CheckStart(prefix, opts.Start); err != nil {
		return storage.Page{}, err
	}
	if err := b.checkUsable(ctx); err != nil {
		return storage.Page{}, err
	}
	if opts.Revision != 0 {
		if err := b.checkCompacted(ctx, opts.Revision); err != nil {
			return storage.Page{}, err
		}
	}
	for attempt := 1; ; attempt++ {
		page, err := b.list(ctx, prefix, opts)
		if opts.Revision == 0 && errors.Is(err, storage.ErrCompacted) && attempt < listAttempts {
			continue
		}
		return page, err
	}
}

func (b *Backend) list(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	key, end := b.keyRange(prefix)
	if opts.Start != "" {
		key = b.etcdKey(opts.Start)
	}
	page := storage.Page{Revision: opts.Revision}
	var leases []int64 // lease of each of page.Items, if wanted
	var count int64
	total := 0
	chunk := firstChunkKeys
	if opts.MaxBytes > 0 {
		chunk = min(chunk, max(opts.MaxBytes/likelyBytes, 1))
	}
	for first := true; ; first = false {
		limit := chunk
		if opts.Limit > 0 {
			limit = min(limit, opts.Limit-len(page.Items))
		}
		resp, err := b.kv.Get(ctx, key, rangeOptions(end, page.Revision, limit, opts.KeysOnly)...)
		if err != nil {
			return storage.Page{}, b.readError(ctx, err)
		}
		if first {
			if page.Revision == 0 {
				page.Revision = resp.Header.Revision
			}
			count = resp.Count
			capacity := count
			if opts.Limit > 0 {
				capacity = min(capacity, int64(opts.Limit))
			}
			page.Items = make([]storage.KeyValue, 0, capacity)
		}
		size := 0
		for _, kv := range resp.Kvs {
			size += len(kv.Key) + len(kv.Value)
			page.Items = append(page.Items, b.keyValue(kv))
			if opts.Expiry {
				leases = append(leases, kv.Lease)
			}
		}
		if total += size; !resp.More || len(page.Items) == opts.Limit || opts.MaxBytes > 0 && total >= opts.MaxBytes {
			page.More = resp.More
			break
		}
		key = storage.NextKey(string(resp.Kvs[len(resp.Kvs)-1].Key))
		chunk = min(max(chunkBytes/max(size/len(resp.Kvs), 1), 1), maxChunkKeys)
	}
	if opts.Count {
		page.Remaining = count - int64(len(page.Items))
	}
	if opts.Expiry {
		if err := b.fillExpiry(ctx, page.Items, leases); err != nil {
			return storage.Page{}, err
		}
	}
	return page, nil
}

func rangeOptions(end string, revision int64, limit int, keysOnly bool) []clientv3.OpOption {
	opts := []clientv3.OpOption{
		clientv3.WithRange(end),
		clientv3.WithRev(revision),
		clientv3.WithLimit(int64(limit)),
	}
	if keysOnly {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	return opts
}

// Count returns the number of keys that begin with prefix, and the revision at
// which they were counted.
func (b *Backend) Count(ctx context.Context, prefix string) (int64, int64, error) {
	if err := b.checkUsable(ctx); err != nil {
		return 0, 0, err
	}
	key, end := b.keyRange(prefix)
	resp, err := b.kv.Get(ctx, key, clientv3.WithRange(end), clientv3.WithCountOnly())
	if err != nil {
		return 0, 0, b.readError(ctx, err)
	}
	return resp.Count, resp.Header.Revision, nil
}

// fillExpiry sets Expires of the items that have a lease, with one request for each
// lease.
func (b *Backend) fillExpiry(ctx context.Context, items []storage.KeyValue, leases []int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg      protect.Group
		slots   = make(chan struct{}, expiryRequests)
		mu      sync.Mutex
		expires = make(map[int64]time.Time)
	)
	for _, lease := range leases {
		mu.Lock()
		_, known := expires[lease]
		if !known {
			expires[lease] = time.Time{}
		}
		mu.Unlock()
		if lease == 0 || known || ctx.Err() != nil {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			when, err := b.leaseExpiry(ctx, clientv3.LeaseID(lease))
			if err != nil {
				cancel(err)
				return
			}
			mu.Lock()
			expires[lease] = when
			mu.Unlock()
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("reading when keys expire: %w", err)
	}
	for i := range items {
		items[i].Expires = expires[leases[i]]
	}
	return nil
}

// leaseExpiry returns when a lease expires; now if it has expired and etcd is about to
// delete its keys.
func (b *Backend) leaseExpiry(ctx context.Context, lease clientv3.LeaseID) (time.Time, error) {
	asked := time.Now()
	resp, err := memberLeases{b.members}.timeToLive(ctx, lease)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return time.Time{}, b.readError(ctx, err)
	}
	if err != nil || resp.TTL < 0 {
		return asked, nil
	}
	return asked.Add(time.Duration(resp.TTL) * time.Second), nil
}
