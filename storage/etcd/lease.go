package etcd

import (
	"context"
	"fmt"
	"time"

	"github.com/apikeel/kelson/storage"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// leaseSlack is how long a write may take from the choice of its lease to its
// commit without the key expiring before its time.
const leaseSlack = time.Second

// maxLeasesHeld bounds the pool when many different ttls are in use.
const maxLeasesHeld = 64

// leasePool hands out leases, the same one to keys that are written close
// together: an etcd with a lease for every key is slow and large.
//
// A lease for keys with ttl t is granted for t, rounded up to seconds, plus the
// window in which it is handed out, plus the slack: even the last key under it
// lives for t. How long a lease has left is reckoned from the moment before it
// was asked for, which is earlier than etcd does. (etcd itself renews all
// leases when its leader changes; keys then live longer.)
type leasePool struct {
	granter leaseGranter
	window  time.Duration // longest
	maxKeys int
	now     func() time.Time

	// turn guards held; it is a channel to be given up waiting for.
	turn chan struct{}
	held map[int64]*heldLease // by ttl in seconds
}

type leaseGranter interface {
	Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error)
}

// heldLease is a lease that may be handed out again.
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
		turn:    make(chan struct{}, 1),
		held:    make(map[int64]*heldLease),
	}
}

// get returns a lease for one key that is to live for ttl.
func (p *leasePool) get(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
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

// drop forgets a lease that etcd does not know any more.
func (p *leasePool) drop(id clientv3.LeaseID) {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	for seconds, l := range p.held {
		if l.id == id {
			delete(p.held, seconds)
		}
	}
}

// windowFor returns for how long a lease for keys with this ttl is handed out.
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
