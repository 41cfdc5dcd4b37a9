package etcd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// fill writes keys prefix00000, prefix00001… past the backend, many in a
// transaction, and returns them.
func fill(tb testing.TB, client *clientv3.Client, prefix string, n int, value string) []string {
	tb.Helper()
	var keys []string
	var ops []clientv3.Op
	for i := range n {
		keys = append(keys, fmt.Sprintf("%s%05d", prefix, i))
		ops = append(ops, clientv3.OpPut(keys[i], value))
		if len(ops) == 100 || i == n-1 {
			if _, err := client.Txn(tb.Context()).Then(ops...).Commit(); err != nil {
				tb.Fatal(err)
			}
			ops = nil
		}
	}
	return keys
}

// hookedKV runs a function around every range request.
type hookedKV struct {
	kvClient
	beforeGet func(n int, op clientv3.Op)
	n         int
}

func (k *hookedKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	k.beforeGet(k.n, clientv3.OpGet(key, opts...))
	k.n++
	return k.kvClient.Get(ctx, key, opts...)
}

func keysOf(items []storage.KeyValue) []string {
	var keys []string
	for _, kv := range items {
		keys = append(keys, kv.Key)
	}
	return keys
}

func TestListInChunks(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	b, client, ctx := open(t, cluster), cluster.Client(t), t.Context()
	// 1500 keys of 8 KiB: 256 at first, then chunks of 4 MiB.
	want := fill(t, client, "/registry/a/", 1500, strings.Repeat("v", 8<<10))
	fill(t, client, "/registry/b/", 10, "other")
	start, err := b.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}

	if err := b.history.learn(ctx, b); err != nil {
		t.Fatal(err)
	}
	var limits []int64
	plain := b.kv
	b.kv = &hookedKV{kvClient: plain, beforeGet: func(_ int, op clientv3.Op) {
		limits = append(limits, op.Limit())
		// What changes while a list is being read is not in it.
		fill(t, client, "/registry/a/zzz", 1, fmt.Sprint(op.Limit()))
		if _, err := client.Delete(ctx, want[len(want)-1]); err != nil {
			t.Error(err)
		}
	}}
	page, err := b.List(ctx, "/registry/a/", storage.ListOptions{Revision: start, Count: true})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(keysOf(page.Items), want) || page.More || page.Remaining != 0 || page.Revision != start {
		t.Errorf("%d items, more %v, remaining %d, revision %d of %d", len(page.Items), page.More, page.Remaining, page.Revision, start)
	}
	if len(limits) < 4 || limits[0] != firstChunkKeys || slices.Max(limits) > 600 {
		t.Errorf("chunks of %v keys", limits)
	}
	b.kv = plain

	// Pages, of several chunks each.
	var got []string
	opts := storage.ListOptions{Revision: start, Limit: 700, Count: true, KeysOnly: true}
	for {
		page, err := b.List(ctx, "/registry/a/", opts)
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range page.Items {
			got = append(got, kv.Key)
			if len(kv.Value) != 0 || kv.ModRevision == 0 {
				t.Fatalf("keys only: %+v", kv)
			}
		}
		if page.Remaining != int64(len(want)-len(got)) || page.More != (page.Remaining > 0) {
			t.Errorf("after %d keys: more %v, remaining %d", len(got), page.More, page.Remaining)
		}
		if !page.More {
			break
		}
		opts.Start = storage.NextKey(got[len(got)-1])
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d keys in pages, want %d", len(got), len(want))
	}

	// The last of them was deleted above, and zzz00000 written.
	if n, revision, err := b.Count(ctx, "/registry/a/"); err != nil || n != 1500 || revision <= start {
		t.Errorf("Count: %d at %d, %v", n, revision, err)
	}
	for prefix, want := range map[string]int{"": 1510, "/": 1510, "/registry/b/": 10, "/registry/b/00009": 1, "/nothing/": 0, "\xff": 0} {
		page, err := b.List(ctx, prefix, storage.ListOptions{KeysOnly: true})
		if err != nil || len(page.Items) != want || page.More || page.Remaining != 0 {
			t.Errorf("list of %q: %d items, more %v, %v; want %d", prefix, len(page.Items), page.More, err, want)
		}
	}
	_, err = b.List(ctx, "/registry/b/", storage.ListOptions{Start: "/registry/a/"})
	wantErr(t, "start outside", err, storage.ErrInvalidKey)
	now, err := b.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.List(ctx, "/", storage.ListOptions{Revision: now + 1})
	wantErr(t, "future", err, storage.ErrFutureRevision)
	_, err = b.List(ctx, "/", storage.ListOptions{Revision: -1})
	wantErr(t, "negative", err, storage.ErrCompacted)
}

func TestListOfNowSurvivesCompaction(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	b, client, ctx := open(t, cluster), cluster.Client(t), t.Context()
	want := fill(t, client, "/registry/a/", firstChunkKeys+10, "1")
	plain := b.kv
	compact := func(times int) func(int, clientv3.Op) {
		return func(_ int, op clientv3.Op) {
			if times == 0 || op.Rev() == 0 {
				return
			}
			times--
			fill(t, client, "/other", 2, "x")
			now, err := client.Get(ctx, "x")
			if err == nil {
				_, err = client.Compact(ctx, now.Header.Revision)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	b.kv = &hookedKV{kvClient: plain, beforeGet: compact(2)}
	page, err := b.List(ctx, "/registry/a/", storage.ListOptions{})
	if err != nil || !slices.Equal(keysOf(page.Items), want) {
		t.Errorf("%d items, %v", len(page.Items), err)
	}
	b.kv = &hookedKV{kvClient: plain, beforeGet: compact(-1)}
	_, err = b.List(ctx, "/registry/a/", storage.ListOptions{})
	wantErr(t, "compacted whenever a list is read", err, storage.ErrCompacted)
}

func TestListExpiry(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	b, ctx := open(t, cluster), t.Context()
	for key, ttl := range map[string]time.Duration{"/a": 0, "/b": time.Hour, "/c": time.Hour, "/d": time.Minute} {
		if _, err := b.Create(ctx, key, nil, ttl); err != nil {
			t.Fatal(err)
		}
	}
	page, err := b.List(ctx, "/", storage.ListOptions{Expiry: true})
	if err != nil || len(page.Items) != 4 {
		t.Fatalf("%+v, %v", page, err)
	}
	for i, ttl := range []time.Duration{0, time.Hour, time.Hour, time.Minute} {
		expires := page.Items[i].Expires
		if ttl == 0 {
			if !expires.IsZero() {
				t.Errorf("%s expires at %v", page.Items[i].Key, expires)
			}
			continue
		}
		// etcd counts in seconds; the lease lasts a twentieth longer.
		if left := time.Until(expires); left < ttl-2*time.Second || left > ttl+ttl/20+3*time.Second {
			t.Errorf("%s expires in %v, want about %v", page.Items[i].Key, left, ttl)
		}
	}
	// A key at a revision whose lease is gone since.
	resp, err := cluster.Client(t).Get(ctx, "/d")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Client(t).Revoke(ctx, clientv3.LeaseID(resp.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	page, err = b.List(ctx, "/", storage.ListOptions{Expiry: true, Revision: page.Revision})
	if err != nil || len(page.Items) != 4 || time.Until(page.Items[3].Expires) > 0 || page.Items[3].Expires.IsZero() {
		t.Errorf("%+v, %v", page, err)
	}
}
