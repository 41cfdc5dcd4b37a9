package transfer

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

// openEngine opens a store that keeps its history, in a folder of the test if dir is empty.
func openEngine(t *testing.T, dir string) *engine.Engine {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	e, err := engine.Open(engine.Options{Dir: dir, HistoryAge: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// openEtcd returns a backend on a new etcd, which others use too.
func openEtcd(t *testing.T) *etcd.Backend {
	t.Helper()
	cluster := etcdtest.Start(t)
	for _, key := range []string{"compact_rev_key", "/calico/a", "zebra"} {
		if _, err := cluster.Client(t).Put(t.Context(), key, "not ours"); err != nil {
			t.Fatal(err)
		}
	}
	b, err := etcd.Open(t.Context(), etcd.Options{Endpoints: cluster.Endpoints(), CompactInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// fill writes about n keys of many shapes: empty and large values, updated and
// deleted ones, with and without a time to live.
func fill(t *testing.T, b storage.Backend, n int) {
	t.Helper()
	for i := range n {
		key := fmt.Sprintf("%spods/ns-%d/pod-%04d", storage.Root, i%7, i)
		value := bytes.Repeat([]byte{byte(i)}, i*13%900)
		if i == n/2 {
			value = bytes.Repeat([]byte("large"), 200<<10/5)
		}
		ttl := time.Duration(0)
		if i%11 == 1 {
			ttl = time.Hour + time.Duration(i)*time.Second
		}
		kv, err := b.Create(t.Context(), key, value, ttl)
		if err == nil && i%5 == 1 {
			kv, err = b.Update(t.Context(), key, append(value, 'u'), kv.ModRevision, ttl)
		}
		if err == nil && i%9 == 8 {
			_, _, err = b.Delete(t.Context(), key, kv.ModRevision)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// state returns what is ours in a store, and its revision.
func state(t *testing.T, b storage.Backend) ([]storage.KeyValue, int64) {
	t.Helper()
	page, err := b.List(context.Background(), scope(b), storage.ListOptions{Expiry: true})
	if err != nil {
		t.Fatal(err)
	}
	return page.Items, page.Revision
}

// contents returns keys and values alone.
func contents(t *testing.T, b storage.Backend) map[string]string {
	t.Helper()
	items, _ := state(t, b)
	m := map[string]string{}
	for _, kv := range items {
		m[kv.Key] = string(kv.Value)
	}
	return m
}

// diff returns the first difference of two lists of keys.
func diff(got, want []storage.KeyValue) error {
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		if g.Key != w.Key || !bytes.Equal(g.Value, w.Value) || g.CreateRevision != w.CreateRevision ||
			g.ModRevision != w.ModRevision || !g.Expires.Equal(w.Expires) {
			return fmt.Errorf("got %q (%d bytes, %d/%d, %v), want %q (%d bytes, %d/%d, %v)",
				g.Key, len(g.Value), g.CreateRevision, g.ModRevision, g.Expires, w.Key, len(w.Value), w.CreateRevision, w.ModRevision, w.Expires)
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("got %d keys, want %d", len(got), len(want))
	}
	return nil
}

// save returns a snapshot of a store.
func save(t *testing.T, b storage.Backend) ([]byte, Summary) {
	t.Helper()
	var buf bytes.Buffer
	s, err := Save(t.Context(), b, &buf, nil)
	if err != nil {
		t.Fatal(err)
	}
	if int64(buf.Len()) != s.Bytes {
		t.Errorf("%d bytes were written, the summary says %d", buf.Len(), s.Bytes)
	}
	return buf.Bytes(), s
}

func writeFile(t *testing.T, b []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "snapshot")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// shared hides that a store is embedded: it is then read in pages, and only
// what is below storage.Root is ours.
type shared struct{ storage.Backend }

// TestPagesAreAll has stores around the sizes of a page.
func TestPagesAreAll(t *testing.T) {
	for _, n := range []int{0, 1, firstPageKeys - 1, firstPageKeys, firstPageKeys + 1, 3*firstPageKeys + 5} {
		b := openEngine(t, "")
		want := map[string]string{}
		for i := range n {
			key := fmt.Sprintf("%s%05d", storage.Root, i)
			want[key] = key
			if _, err := b.Create(t.Context(), key, []byte(key), 0); err != nil {
				t.Fatal(err)
			}
		}
		v, err := openView(t.Context(), shared{b}, 0)
		if err != nil {
			t.Fatal(err)
		}
		// What comes later is not seen.
		if _, err := b.Create(t.Context(), storage.Root+"later", nil, 0); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		var keys []string
		for kv, err := range v.all(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			got[kv.Key] = string(kv.Value)
			keys = append(keys, kv.Key)
		}
		if !maps.Equal(got, want) || !slices.IsSorted(keys) || len(keys) != n {
			t.Errorf("%d keys of %d were read", len(got), n)
		}
	}
}
