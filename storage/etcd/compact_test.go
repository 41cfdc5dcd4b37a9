package etcd

import (
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestCompact(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	b, ctx := open(t, cluster), t.Context()
	if err := b.Compact(ctx, 1); err != nil {
		t.Errorf("to revision 1: %v", err)
	}
	wantErr(t, "to 1 again", b.Compact(ctx, 1), storage.ErrCompacted)
	wantErr(t, "to 0", b.Compact(ctx, 0), storage.ErrCompacted)
	first := create(t, b, "/a", "1")
	second := update(t, b, first, "2")
	third := update(t, b, second, "3")
	deleted := remove(t, b, third)

	wantErr(t, "to the future", b.Compact(ctx, deleted+1), storage.ErrFutureRevision)
	for _, to := range []int64{third.ModRevision, deleted} {
		if err := b.Compact(ctx, to); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "again", b.Compact(ctx, to), storage.ErrCompacted)
		wantErr(t, "before", b.Compact(ctx, to-1), storage.ErrCompacted)
		_, err := b.List(ctx, "/", storage.ListOptions{Revision: to - 1})
		wantErr(t, "list before", err, storage.ErrCompacted)
		if _, err := b.List(ctx, "/", storage.ListOptions{Revision: to}); err != nil {
			t.Errorf("list at the revision compacted to: %v", err)
		}
		_, err = b.Watch(ctx, "/", to-2)
		wantErr(t, "watch of events before", err, storage.ErrCompacted)
		// The event at the revision itself, with what was before it.
		w, err := b.Watch(ctx, "/", to-1)
		if err != nil {
			t.Fatal(err)
		}
		if e := collect(t, w, 1)[0]; e.KV.ModRevision != to || e.Prev.ModRevision != to-1 || len(e.Prev.Value) == 0 {
			t.Errorf("first event after %d: %+v", to-1, e)
		}
	}

	// A backend that has not compacted itself, but comes later.
	wantErr(t, "by another", open(t, cluster).Compact(ctx, deleted), storage.ErrCompacted)
	wantErr(t, "to 1 by another", open(t, cluster).Compact(ctx, 1), storage.ErrCompacted)
	_, err := open(t, cluster).List(ctx, "/", storage.ListOptions{Revision: deleted - 1})
	wantErr(t, "list by another", err, storage.ErrCompacted)
	if w, err := open(t, cluster).Watch(ctx, "/", deleted-2); w != nil || !errors.Is(err, storage.ErrCompacted) {
		t.Errorf("watch by another: %v, %v", w, err)
	}
	other := open(t, cluster)
	if s, err := other.Status(ctx); err != nil || s.CompactRevision != deleted {
		t.Errorf("%+v, %v; want compact revision %d", s, err, deleted)
	}
	if page, err := other.List(ctx, "/", storage.ListOptions{Revision: deleted}); err != nil || len(page.Items) != 0 {
		t.Errorf("list by another: %+v, %v", page, err)
	}
}

// TestCompactedByOthers: what is compacted while a backend is open, past it and
// up to the current revision.
func TestCompactedByOthers(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	before, ctx := open(t, cluster), t.Context()
	kv := create(t, before, "/a", "0")
	first := kv.ModRevision
	if s, err := before.Status(ctx); err != nil || s.CompactRevision != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	for i := range 10 {
		kv = update(t, before, kv, strconv.Itoa(i))
	}
	if _, err := cluster.Client(t).Compact(ctx, kv.ModRevision); err != nil {
		t.Fatal(err)
	}
	after := open(t, cluster)
	for name, b := range map[string]*Backend{"opened before": before, "opened after": after} {
		_, err := b.List(ctx, "/", storage.ListOptions{Revision: kv.ModRevision - 1})
		wantErr(t, name+": list", err, storage.ErrCompacted)
		if page, err := b.List(ctx, "/", storage.ListOptions{Revision: kv.ModRevision}); err != nil || len(page.Items) != 1 {
			t.Errorf("%s: list at the current revision: %+v, %v", name, page, err)
		}
	}
	w, err := before.Watch(ctx, "/", first)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err = w.Next(ctx)
		wantErr(t, "watch", err, storage.ErrCompacted)
	}
}

func TestOneContenderCompacts(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client, ctx := cluster.Client(t), t.Context()
	var contenders []*compactor
	for range 3 {
		contenders = append(contenders, open(t, cluster).compactor)
	}
	b := contenders[0].b
	kv := create(t, b, "/a", "0")
	var ended []int64 // the revision at the end of each round
	for round := range 6 {
		kv = update(t, b, kv, strconv.Itoa(round))
		var compacted []int64
		for i := range contenders {
			// Another one is first in every round; the last rounds are without
			// the one who was first before.
			c := contenders[(round+i)%3]
			if round >= 4 && c == contenders[0] {
				continue
			}
			revision, err := c.step(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if revision != 0 {
				compacted = append(compacted, revision)
			}
		}
		now, err := b.Revision(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ended = append(ended, now)
		if round == 0 {
			if len(compacted) != 0 {
				t.Errorf("compacted to %v in the first round", compacted)
			}
			continue
		}
		// What was current a round ago is kept, what was before is not.
		if len(compacted) != 1 || compacted[0] != ended[round-1] {
			t.Fatalf("round %d: compacted to %v, want %d", round, compacted, ended[round-1])
		}
		if _, err := client.Get(ctx, "/a", clientv3.WithRev(ended[round-1])); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		if _, err := b.List(ctx, "/a", storage.ListOptions{Revision: ended[round-1] - 2}); err == nil {
			t.Errorf("round %d: history before %d is still there", round, ended[round-1])
		}
		resp, err := client.Get(ctx, compactKey)
		if err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != strconv.FormatInt(compacted[0], 10) || resp.Kvs[0].Version != int64(round+1) {
			t.Errorf("round %d: key %v, %v", round, resp, err)
		}
	}
	// The losers know what the winner has said.
	last := ended[len(ended)-2]
	for i, c := range contenders[1:] {
		s, err := c.b.Status(ctx)
		if err != nil || s.CompactRevision != last {
			t.Errorf("contender %d: %+v, %v; want compact revision %d", i+1, s, err, last)
		}
	}
}

func TestCompactorJoinsOthers(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	b, client, ctx := open(t, cluster), cluster.Client(t), t.Context()
	step := func() int64 {
		t.Helper()
		revision, err := b.compactor.step(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	// As kube-apiserver leaves it: a version of its own, the revision that it
	// has compacted to.
	for _, v := range []string{"0", "2", "3"} {
		if _, err := client.Put(ctx, compactKey, v); err != nil {
			t.Fatal(err)
		}
	}
	kv := create(t, b, "/a", "1")
	if got := step(); got != 0 {
		t.Errorf("came later, but compacted to %d", got)
	}
	if s, err := b.Status(ctx); err != nil || s.CompactRevision != 3 {
		t.Errorf("%+v, %v", s, err)
	}
	kv = update(t, b, kv, "2")
	if got := step(); got != kv.ModRevision-1 {
		t.Errorf("compacted to %d, want %d", got, kv.ModRevision-1)
	}
	// The other was first again, then compacts by hand, then loses the key.
	if _, err := client.Put(ctx, compactKey, "not a number"); err != nil {
		t.Fatal(err)
	}
	if got := step(); got != 0 {
		t.Errorf("came later, but compacted to %d", got)
	}
	kv = update(t, b, kv, "3")
	if _, err := client.Compact(ctx, kv.ModRevision); err != nil {
		t.Fatal(err)
	}
	if got := step(); got != 0 {
		t.Errorf("compacted to %d what was compacted", got)
	}
	if _, err := client.Delete(ctx, compactKey); err != nil {
		t.Fatal(err)
	}
	if got := step(); got != 0 {
		t.Errorf("compacted to %d without the key", got)
	}
	update(t, b, kv, "4")
	if got := step(); got == 0 {
		t.Error("did not recover from the loss of the key")
	}
}

func TestCompactsAtIntervals(t *testing.T) {
	t.Parallel()
	logged := make(logRecords, 100)
	b := open(t, etcdtest.Start(t), func(o *Options) {
		o.CompactInterval = 10 * time.Millisecond
		o.Logger = slog.New(logged)
	})
	kv := create(t, b, "/a", "1")
	for {
		if s := logged.wait(t, "compacted"); s["revision"].Int64() > kv.ModRevision {
			return
		}
	}
}
