package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// etcdHistory returns what etcd's own client says has happened since a revision,
// as lines of text.
func etcdHistory(tb testing.TB, client *clientv3.Client, prefix string, after, until int64) []string {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	defer cancel()
	var lines []string
	for resp := range client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1), clientv3.WithPrevKV()) {
		if err := resp.Err(); err != nil {
			tb.Fatal(err)
		}
		for _, e := range resp.Events {
			op, value := storage.Updated, string(e.Kv.Value)
			switch {
			case e.Type == clientv3.EventTypeDelete:
				op = storage.Deleted
			case e.IsCreate():
				op = storage.Created
			}
			prev := ""
			if e.PrevKv != nil {
				prev = string(e.PrevKv.Value)
			}
			lines = append(lines, fmt.Sprintf("%d %v %s %s after %s", e.Kv.ModRevision, op, e.Kv.Key, value, prev))
			if e.Kv.ModRevision >= until {
				return lines
			}
		}
	}
	tb.Fatal("etcd's watch has ended")
	return nil
}

// follow reads a watcher up to a revision, in the form of etcdHistory.
func follow(tb testing.TB, w storage.Watcher, until int64) []string {
	tb.Helper()
	var lines []string
	for {
		batch, err := w.Next(tb.Context())
		if err != nil {
			tb.Errorf("after %d events: %v", len(lines), err)
			return lines
		}
		for _, e := range batch.Events {
			lines = append(lines, fmt.Sprintf("%d %v %s %s after %s", e.KV.ModRevision, e.Op, e.KV.Key, e.KV.Value, e.Prev.Value))
		}
		if batch.Revision >= until {
			return lines
		}
	}
}

// churn writes to keys of its own until stopped, whatever becomes of it, and
// checks that errors are of the kind that an interruption causes.
func churn(tb testing.TB, b *Backend, name string, stop <-chan struct{}) {
	have := map[string]storage.KeyValue{}
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		key := fmt.Sprintf("/registry/%s/%d", name, i%7)
		kv, ok := have[key]
		var err error
		switch {
		case !ok:
			kv, err = b.Create(tb.Context(), key, fmt.Appendf(nil, "%s %d", name, i), 0)
		case i%3 == 0:
			_, _, err = b.Delete(tb.Context(), key, kv.ModRevision)
			kv = storage.KeyValue{}
		default:
			kv, err = b.Update(tb.Context(), key, fmt.Appendf(nil, "%s %d", name, i), kv.ModRevision, 0)
		}
		switch {
		case err == nil, errors.Is(err, storage.ErrConflict), errors.Is(err, storage.ErrExists):
			have[key] = kv
			if kv.Key == "" {
				delete(have, key)
			}
		case errors.Is(err, storage.ErrNotFound):
			delete(have, key)
		case errors.Is(err, storage.ErrUncertain), errors.Is(err, storage.ErrUnavailable):
		default:
			tb.Errorf("write: %v", err)
			return
		}
	}
}

// survive watches under writers while the cluster is disturbed, and compares
// what it saw with what etcd says has happened.
func survive(t *testing.T, cluster *etcdtest.Cluster, disturb func(interrupted func(why string))) {
	logged := make(logRecords, 10_000)
	b := open(t, cluster, func(o *Options) { o.Logger = slog.New(logged) })
	start, err := b.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var watchers []storage.Watcher
	for range 3 {
		w, err := b.Watch(t.Context(), "/registry/", start)
		if err != nil {
			t.Fatal(err)
		}
		watchers = append(watchers, w)
	}
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for i := range 4 {
		writers.Go(func() { churn(t, b, fmt.Sprint(i), stop) })
	}
	// The last watcher is read only afterwards.
	const endKey = "/registry/the end"
	var end int64
	seen := make([][]string, len(watchers))
	for i, w := range watchers[:2] {
		readers.Go(func() {
			// The end is known by its key, since it is not written yet.
			for {
				batch, err := w.Next(t.Context())
				if err != nil {
					t.Errorf("watcher %d: after %d events: %v", i, len(seen[i]), err)
					return
				}
				for _, e := range batch.Events {
					seen[i] = append(seen[i], fmt.Sprintf("%d %v %s %s after %s", e.KV.ModRevision, e.Op, e.KV.Key, e.KV.Value, e.Prev.Value))
					if e.KV.Key == endKey {
						return
					}
				}
			}
		})
	}
	disturb(func(why string) {
		for len(logged) > 0 {
			<-logged
		}
		for {
			attrs := logged.wait(t, "watch interrupted, resuming")
			if strings.Contains(attrs["error"].String(), why) {
				return
			}
		}
	})
	close(stop)
	writers.Wait()
	for end == 0 {
		kv, err := b.Create(t.Context(), endKey, nil, 0)
		if err == nil || errors.Is(err, storage.ErrExists) {
			end = kv.ModRevision
		} else if !errors.Is(err, storage.ErrUnavailable) && !errors.Is(err, storage.ErrUncertain) {
			t.Fatal(err)
		}
	}
	readers.Wait()
	seen[2] = follow(t, watchers[2], end)
	want := etcdHistory(t, cluster.Client(t), "/registry/", start, end)
	for i := range seen {
		if !slices.Equal(seen[i], want) {
			t.Errorf("watcher %d saw %d events, want %d", i, len(seen[i]), len(want))
			for n := range min(len(seen[i]), len(want)) {
				if seen[i][n] != want[n] {
					t.Errorf("first difference at %d: %s, want %s", n, seen[i][n], want[n])
					break
				}
			}
		}
	}
	if len(want) < 50 {
		t.Errorf("only %d events", len(want))
	}
}

// writesGoOn waits until something new is written.
func writesGoOn(t *testing.T, client *clientv3.Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for resp := range client.Watch(ctx, "/registry/", clientv3.WithPrefix()) {
		if n += len(resp.Events); n >= 20 {
			return
		}
	}
	t.Fatal("etcd's watch has ended")
}

func TestWatchSurvivesRestarts(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	client := cluster.Client(t)
	survive(t, cluster, func(func(string)) {
		for _, end := range []func(int){cluster.Stop, cluster.Kill, cluster.Kill} {
			writesGoOn(t, client)
			end(0)
			cluster.Restart(0)
			writesGoOn(t, client)
		}
	})
}

func long(t *testing.T) {
	if !testsize.Long() {
		t.Skip("takes long; set KELSON_LONG=1 to run it")
	}
}

func TestWatchSurvivesLossOfMembers(t *testing.T) {
	long(t)
	cluster := etcdtest.Start(t, etcdtest.Members(3))
	client := cluster.Client(t)
	survive(t, cluster, func(interrupted func(string)) {
		for round := range 3 {
			for i := range 3 {
				writesGoOn(t, client)
				cluster.Kill(i)
				if round == 2 {
					// Two gone: the third has no leader and must not keep the
					// watches that it has.
					other := (i + 1) % 3
					cluster.Kill(other)
					interrupted(rpctypes.ErrNoLeader.Error())
					cluster.Restart(i, other)
				} else {
					cluster.Leader()
					writesGoOn(t, client)
					cluster.Restart(i)
				}
				cluster.Leader()
			}
		}
	})
}
