package transfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage"
)

// TestEtcdAndBack moves a store from the engine to etcd, and from there back,
// by copy and by snapshot.
func TestEtcdAndBack(t *testing.T) {
	old := openEngine(t, "")
	fill(t, old, 400)
	want := contents(t, old)
	middle := openEtcd(t)
	var last Progress
	s, err := Copy(t.Context(), old, middle, CopyOptions{Progress: func(p Progress) { last = p }})
	if err != nil {
		t.Fatal(err)
	}
	n := int64(len(want))
	if s.Keys != n || s.Skipped != 0 || s.Expired != 0 || !last.Verifying || last.Keys != n || last.Total != n || last.Bytes != s.Bytes {
		t.Errorf("%d keys: %+v, %+v", n, s, last)
	}
	if !maps.Equal(contents(t, middle), want) {
		t.Error("etcd has other keys than the engine")
	}
	sameTTL(t, old, middle)

	for name, move := range map[string]func(dir string) (Summary, error){
		"copy": func(dir string) (Summary, error) {
			return CopyToFolder(t.Context(), middle, dir, CopyOptions{})
		},
		"snapshot": func(dir string) (Summary, error) {
			file, _ := save(t, middle)
			return Restore(t.Context(), writeFile(t, file), dir, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			s, err := move(dir)
			if err != nil {
				t.Fatal(err)
			}
			e := openEngine(t, dir)
			if !maps.Equal(contents(t, e), want) {
				t.Error("the engine has other keys than etcd")
			}
			sameTTL(t, middle, e)
			got, revision := state(t, e)
			items, current := state(t, middle)
			if revision != current || s.Revision != current || s.Keys != n {
				t.Errorf("revision %d, summary %+v, want %d and %d keys", revision, s, current, n)
			}
			for i := range min(len(got), len(items)) {
				if err := sameRevisions(items[i], got[i]); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// sameTTL checks that keys have about the same time left in two stores.
func sameTTL(t *testing.T, a, b storage.Backend) {
	t.Helper()
	as, _ := state(t, a)
	bs, _ := state(t, b)
	if len(as) != len(bs) {
		t.Fatalf("%d and %d keys", len(as), len(bs))
	}
	n := 0
	for i := range as {
		ea, eb := as[i].Expires, bs[i].Expires
		if ea.IsZero() != eb.IsZero() || eb.Sub(ea).Abs() > 20*time.Second {
			t.Errorf("%s expires at %v and at %v", as[i].Key, ea, eb)
		}
		if !ea.IsZero() {
			n++
		}
	}
	if n == 0 {
		t.Error("no key expires")
	}
}

func TestCopyEngineToFolder(t *testing.T) {
	old := openEngine(t, "")
	fill(t, old, 300)
	if _, err := old.Create(t.Context(), "elsewhere", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	want, revision := state(t, old)
	dir := filepath.Join(t.TempDir(), "store")
	if _, err := CopyToFolder(t.Context(), old, dir, CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := CopyToFolder(t.Context(), old, dir, CopyOptions{}); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("into a folder in use: %v", err)
	}
	got, at := state(t, openEngine(t, dir))
	if err := diff(got, want); err != nil || at != revision {
		t.Errorf("at revision %d of %d: %v", at, revision, err)
	}
}

// TestCopyToFolderLeavesNothing interrupts a copy in both of its parts.
func TestCopyToFolderLeavesNothing(t *testing.T) {
	old := openEngine(t, "")
	fill(t, old, 300)
	for _, verifying := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		dir := filepath.Join(t.TempDir(), "store")
		_, err := CopyToFolder(ctx, old, dir, CopyOptions{Progress: func(p Progress) {
			if p.Verifying == verifying && p.Keys == 10 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("verifying %v: %v", verifying, err)
		}
		if names, _ := os.ReadDir(filepath.Dir(dir)); len(names) > 0 {
			t.Errorf("verifying %v: it leaves %v", verifying, names)
		}
	}
}

func TestResume(t *testing.T) {
	for name, open := range map[string]func(*testing.T) storage.Backend{
		"engine": func(t *testing.T) storage.Backend { return openEngine(t, "") },
		"etcd":   func(t *testing.T) storage.Backend { return openEtcd(t) },
	} {
		t.Run(name, func(t *testing.T) {
			from, to := openEngine(t, ""), open(t)
			fill(t, from, 300)
			want := contents(t, from)
			ctx, cancel := context.WithCancel(t.Context())
			_, err := Copy(ctx, from, to, CopyOptions{Writers: 4, Progress: func(p Progress) {
				if p.Keys == 100 {
					cancel()
				}
			}})
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("interrupted copy: %v", err)
			}
			if _, err := Copy(t.Context(), from, to, CopyOptions{}); err == nil || !strings.Contains(err.Error(), "resume") {
				t.Errorf("into what an interrupted copy left: %v", err)
			}
			s, err := Copy(t.Context(), from, to, CopyOptions{Resume: true})
			if err != nil || !maps.Equal(contents(t, to), want) {
				t.Errorf("resumed: %v", err)
			}
			if s.Skipped < 100 || s.Skipped >= s.Keys || s.Keys != int64(len(want)) {
				t.Errorf("%+v", s)
			}
			if s, err = Copy(t.Context(), from, to, CopyOptions{Resume: true}); err != nil || s.Skipped != s.Keys {
				t.Errorf("resumed when complete: %+v, %v", s, err)
			}
		})
	}
}

// TestCopyRefuses has targets that differ from what a copy would make of them.
func TestCopyRefuses(t *testing.T) {
	from := openEngine(t, "")
	fill(t, from, 100)
	items, _ := state(t, from)
	first, last := items[0].Key, items[len(items)-1].Key
	for name, c := range map[string]struct{ key, value, want string }{
		"value":  {first, "other", first},
		"before": {"/registry/a", "", "/registry/a"},
		"middle": {first + "x", "", first + "x"},
		"after":  {last + "x", "", last + "x"},
	} {
		to := openEngine(t, "")
		if _, err := to.Create(t.Context(), c.key, []byte(c.value), 0); err != nil {
			t.Fatal(err)
		}
		_, err := Copy(t.Context(), from, to, CopyOptions{Resume: true})
		if err == nil || !strings.Contains(err.Error(), `"`+c.want+`"`) {
			t.Errorf("%s: %v", name, err)
		}
	}

	if _, err := from.Create(t.Context(), "outside", nil, 0); err != nil {
		t.Fatal(err)
	}
	_, err := Copy(t.Context(), from, shared{openEngine(t, "")}, CopyOptions{})
	if err == nil || !strings.Contains(err.Error(), `"outside"`) {
		t.Errorf("a key that the target could share with others: %v", err)
	}
	if _, err := Copy(t.Context(), from, openEngine(t, ""), CopyOptions{Writers: -1}); err == nil {
		t.Error("a negative number of writers was accepted")
	}
}

// altered is a store that changes or loses a key on the way in.
type altered struct {
	storage.Backend
	key  string
	lose bool
}

func (a altered) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	if key == a.key {
		if a.lose {
			return storage.KeyValue{Key: key}, nil
		}
		value = append(bytes.Clone(value), '!')
	}
	return a.Backend.Create(ctx, key, value, ttl)
}

func TestVerificationFinds(t *testing.T) {
	from := openEngine(t, "")
	fill(t, from, 100)
	items, _ := state(t, from)
	for _, i := range []int{0, len(items) / 2, len(items) - 1} {
		for _, lose := range []bool{false, true} {
			_, err := Copy(t.Context(), from, altered{openEngine(t, ""), items[i].Key, lose}, CopyOptions{})
			if err == nil || !strings.Contains(err.Error(), "comparing: \""+items[i].Key+"\"") {
				t.Errorf("key %d, lost %v: %v", i, lose, err)
			}
		}
	}
}

// stale is a store whose keys should have expired, as one that has been asleep.
type stale struct{ storage.Backend }

func (s stale) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	page, err := s.Backend.List(ctx, prefix, opts)
	for i := range page.Items {
		if !page.Items[i].Expires.IsZero() {
			page.Items[i].Expires = time.Now().Add(-time.Second)
		}
	}
	return page, err
}

// TestExpiredKeysStayAway has keys whose time came before they were copied:
// they must not be copied without any time to live.
func TestExpiredKeysStayAway(t *testing.T) {
	from := openEngine(t, "")
	fill(t, from, 100)
	to := openEngine(t, "")
	s, err := Copy(t.Context(), stale{from}, to, CopyOptions{})
	if err != nil || s.Expired == 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	items, _ := state(t, to)
	if int64(len(items)) != s.Keys-s.Expired {
		t.Errorf("%d keys, %+v", len(items), s)
	}
	dir := filepath.Join(t.TempDir(), "store")
	if _, err := CopyToFolder(t.Context(), stale{from}, dir, CopyOptions{}); err != nil {
		t.Error(err)
	}
}

// TestCompactedWhileReading has a history that ends before the reading does.
func TestCompactedWhileReading(t *testing.T) {
	from := openEngine(t, "")
	fill(t, from, 3*firstPageKeys)
	compact := func() {
		kv, err := from.Create(t.Context(), storage.Root+"more", nil, 0)
		if err == nil {
			err = from.Compact(t.Context(), kv.ModRevision)
		}
		if err == nil {
			_, _, err = from.Delete(t.Context(), kv.Key, kv.ModRevision)
		}
		if err != nil {
			t.Error(err)
		}
	}
	_, err := Save(t.Context(), shared{from}, io.Discard, func(keys, _ int64) {
		if keys == 5 {
			compact()
		}
	})
	if !errors.Is(err, storage.ErrCompacted) || !strings.Contains(err.Error(), "try again") {
		t.Errorf("save: %v", err)
	}
	// The engine itself does not mind.
	if _, err := Save(t.Context(), from, io.Discard, func(keys, _ int64) {
		if keys == 5 {
			compact()
		}
	}); err != nil {
		t.Errorf("save of the engine: %v", err)
	}
	_, err = Copy(t.Context(), from, openEngine(t, ""), CopyOptions{Progress: func(p Progress) {
		if p.Keys == 5 && !p.Verifying {
			compact()
		}
	}})
	if !errors.Is(err, storage.ErrCompacted) {
		t.Errorf("copy: %v", err)
	}
}
