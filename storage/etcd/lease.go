package etcd

import (
	"context"
	"fmt"
	"time"

	"github.com/apikeel/kelson/storage"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// leaseSlack is how long a write may take, from the choice of its lease to the commit,
// without the key expiring too early.
const leaseSlack = time.Second

// maxLeasesHeld bounds the number of leases in the pool, one for every ttl in use.
const maxLeasesHeld = 64

// leasePool shares leases between keys with the same ttl that are written close
// together: a lease for every key would make etcd slow and large.
//
// A lease for keys with ttl t is granted for t, rounded up to seconds, plus the window
// in which it is handed out, plus leaseSlack: even the last key under it lives for t.
// The remaining time of a lease is counted from before the grant request, which is
// earlier than etcd counts. (etcd extends all leases when its leader changes; keys live
// longer then.)
type leasePool struct {
	granter leaseGranter
	window  time.Duration // the longest time for which a lease is handed out
	maxKeys int
	now     func() time.Time

	// lock guards held: a channel of capacity 1, so that waiting for it can be
	// canceled.
	lock chan struct{}
	held map[int64]*heldLease // ttl in seconds -> lease
}

type leaseGranter interface {
	Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error)
}

// heldLease is a lease that is handed out again: until a time, for a number of keys.
type heldLease struct {
	id    clientv3.LeaseID
	until time.Time
	keys  int
}

func newLeasePool(granter leaseGranter, window time.Duration, maxKeys int) *leasePool {
	return &leasePool{
		granter: granter,
		window:  window,
		maxKeys: maxKeys,
		now:     time.Now,
		lock:    make(chan struct{}, 1),
		held:    make(map[int64]*heldLease),
	}
}

// get returns a lease for one key that is to live for ttl.
func (p *leasePool) get(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	select {
	case p.lock <- struct{}{}:
		defer func() { <-p.lock }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	seconds := roundUp(ttl)
	now := p.now()
	if l := p.held[seconds]; l != nil && l.keys < p.maxKeys && now.Before(l.until) {
		l.keys++
		return l.id, nil
	}
	window := p.windowFor(ttl)
	resp, err := p.granter.Grant(ctx, seconds+roundUp(window+leaseSlack))
	if err != nil {
		return 0, fmt.Errorf("grant a lease: %w", err)
	}
	if resp.Error != "" {
		return 0, fmt.Errorf("%w: grant a lease: %s", storage.ErrUnavailable, resp.Error)
	}
	if window > 0 {
		p.hold(seconds, &heldLease{id: resp.ID, until: now.Add(window), keys: 1}, now)
	}
	return resp.ID, nil
}

// drop removes a lease that etcd does not know any more.
func (p *leasePool) drop(id clientv3.LeaseID) {
	p.lock <- struct{}{}
	defer func() { <-p.lock }()
	for seconds, l := range p.held {
		if l.id == id {
			delete(p.held, seconds)
		}
	}
}

// windowFor returns how long a lease for keys with this ttl is handed out.
func (p *leasePool) windowFor(ttl time.Duration) time.Duration {
	if p.window <= 0 || p.maxKeys <= 1 {
		return 0
	}
	return min(p.window, max(ttl/20, time.Second))
}

func (p *leasePool) hold(seconds int64, l *heldLease, now time.Time) {
	if len(p.held) >= maxLeasesHeld {
		for s, old := range p.held {
			if !now.Before(old.until) {
				delete(p.held, s)
			}
		}
		if len(p.held) >= maxLeasesHeld {
			clear(p.held)
		}
	}
	p.held[seconds] = l
}

// roundUp returns d in seconds, the granularity of leases.
func roundUp(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}
