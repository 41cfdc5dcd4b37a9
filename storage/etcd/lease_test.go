package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// fakeGranter grants leases numbered from one.
type fakeGranter struct{ ttls []int64 }

func (g *fakeGranter) Grant(_ context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	g.ttls = append(g.ttls, ttl)
	return &clientv3.LeaseGrantResponse{ID: clientv3.LeaseID(len(g.ttls)), TTL: ttl}, nil
}

func TestLeasePool(t *testing.T) {
	var granter fakeGranter
	now := time.Unix(1000, 0)
	p := newLeasePool(&granter, time.Minute, 3)
	p.now = func() time.Time { return now }
	for i, step := range []struct {
		wait  time.Duration
		ttl   time.Duration
		lease clientv3.LeaseID
	}{
		{0, time.Hour, 1},
		{59 * time.Second, time.Hour, 1},
		{999 * time.Millisecond, time.Hour - 1, 1}, // rounds up to the same
		{0, time.Hour, 2},                          // the first has its three keys
		{time.Minute, time.Hour, 3},                // the window is over
		{0, 2 * time.Minute, 4},                    // another ttl
		{5999 * time.Millisecond, 2 * time.Minute, 4},
		{time.Millisecond, 2 * time.Minute, 5}, // a twentieth of it is over
		{0, time.Millisecond, 6},
		{999 * time.Millisecond, time.Second, 6},
		{time.Millisecond, time.Second, 7},
	} {
		now = now.Add(step.wait)
		got, err := p.get(t.Context(), step.ttl)
		if err != nil || got != step.lease {
			t.Errorf("step %d: lease %d, %v; want %d", i, got, err, step.lease)
		}
	}
	// The ttl, the window, one second of slack.
	want := []int64{3600 + 61, 3600 + 61, 3600 + 61, 120 + 7, 120 + 7, 1 + 2, 1 + 2}
	for i, ttl := range want {
		if granter.ttls[i] != ttl {
			t.Errorf("lease %d granted for %d s, want %d", i+1, granter.ttls[i], ttl)
		}
	}
	p.drop(7)
	if got, err := p.get(t.Context(), time.Second); err != nil || got != 8 {
		t.Errorf("after drop: %d, %v", got, err)
	}
	for i := range 5 * maxLeasesHeld {
		if _, err := p.get(t.Context(), time.Duration(i)*time.Minute); err != nil {
			t.Fatal(err)
		}
		if len(p.held) > maxLeasesHeld {
			t.Fatalf("%d leases held", len(p.held))
		}
	}
}

func TestLeasePoolWithoutSharing(t *testing.T) {
	for _, p := range []*leasePool{newLeasePool(&fakeGranter{}, -1, 1000), newLeasePool(&fakeGranter{}, time.Minute, 1)} {
		for want := range clientv3.LeaseID(3) {
			if got, err := p.get(t.Context(), time.Hour); err != nil || got != want+1 {
				t.Errorf("lease %d, %v; want %d", got, err, want+1)
			}
		}
	}
}

func TestLeasePoolWaitEndsWithContext(t *testing.T) {
	p := newLeasePool(&fakeGranter{}, time.Minute, 10)
	p.lock <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.get(ctx, time.Hour)
	wantErr(t, "get", err, context.Canceled)
}

func TestKeysShareLeasesAndExpire(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	// So long that a busy machine writes all keys in it.
	b := open(t, cluster, func(o *Options) { o.LeaseReuse = time.Minute })
	client, ctx := cluster.Client(t), t.Context()
	leaseOf := func(key string) int64 {
		resp, err := client.Get(ctx, key)
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("%s: %v, %v", key, resp, err)
		}
		return resp.Kvs[0].Lease
	}
	kvs := map[string]storage.KeyValue{}
	began := time.Now()
	for key, ttl := range map[string]time.Duration{
		"/1h a": time.Hour, "/1h b": time.Hour, "/2h": 2 * time.Hour,
		"/short a": 700 * time.Millisecond, "/short b": time.Second, "/short kept": time.Second, "/short longer": time.Second,
	} {
		kv, err := b.Create(ctx, key, nil, ttl)
		if err != nil {
			t.Fatal(err)
		}
		kvs[key] = kv
	}
	if a, b := leaseOf("/1h a"), leaseOf("/1h b"); a != b || a == 0 {
		t.Errorf("leases %x and %x of keys written together", a, b)
	}
	if leaseOf("/1h a") == leaseOf("/2h") {
		t.Error("one lease for two ttls")
	}
	// A ttl goes with the write that set it.
	if _, err := b.Update(ctx, "/short kept", nil, kvs["/short kept"].ModRevision, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Update(ctx, "/short longer", nil, kvs["/short longer"].ModRevision, time.Hour); err != nil {
		t.Fatal(err)
	}
	if leaseOf("/short kept") != 0 || leaseOf("/short longer") != leaseOf("/1h a") {
		t.Error("updates did not change the leases")
	}

	w, err := b.Watch(ctx, "/short", kvs["/short a"].ModRevision)
	if err != nil {
		t.Fatal(err)
	}
	expired := map[string]bool{}
	for len(expired) < 2 {
		batch, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range batch.Events {
			if e.Op == storage.Deleted {
				expired[e.KV.Key] = true
				if e.Prev.ModRevision != kvs[e.KV.Key].ModRevision {
					t.Errorf("expired: %+v", e)
				}
			}
		}
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("expired after %v", took)
	}
	if !expired["/short a"] || !expired["/short b"] {
		t.Errorf("expired: %v", expired)
	}
}

func TestLostLeaseIsReplaced(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	b, client, ctx := open(t, cluster), cluster.Client(t), t.Context()
	if _, err := b.Create(ctx, "/a", nil, time.Hour); err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(ctx, "/a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Revoke(ctx, clientv3.LeaseID(resp.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(ctx, "/a", nil, time.Hour); err != nil {
		t.Errorf("under a lease that is gone: %v", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := b.Create(ctx, "/b", nil, time.Hour); !errors.Is(err, context.Canceled) || errors.Is(err, storage.ErrUncertain) {
		t.Errorf("context ended before: %v", err)
	}
}
