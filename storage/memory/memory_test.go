package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/storagetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func subject() storagetest.Subject {
	return storagetest.Subject{Open: func(t testing.TB) storage.Backend {
		s := New(Options{})
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}}
}

func TestSuite(t *testing.T) { storagetest.Run(t, subject()) }

// TestSuiteLazily: values that are made when they are read are like any others.
func TestSuiteLazily(t *testing.T) {
	storagetest.Run(t, storagetest.Subject{Open: func(t testing.TB) storage.Backend {
		return lazily{subject().Open(t).(*Store)}
	}})
}

// lazily creates keys with CreateLazy.
type lazily struct{ *Store }

func (l lazily) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	if ttl > 0 {
		return l.Store.Create(ctx, key, value, ttl)
	}
	kept := bytes.Clone(value)
	revision, err := l.CreateLazy(ctx, key, len(kept), func() []byte { return bytes.Clone(kept) })
	if err == nil {
		return storage.KeyValue{Key: key, Value: value, CreateRevision: revision, ModRevision: revision}, nil
	}
	there, _ := l.Get(ctx, key)
	return there, err
}

func TestLong(t *testing.T) {
	if !testsize.Long() {
		t.Skip("set KELSON_LONG=1 to run the long suite")
	}
	storagetest.RunLong(t, subject())
}

func Benchmark(b *testing.B) { storagetest.Benchmark(b, subject()) }

// write creates keys with a prefix, and updates each once.
func write(t *testing.T, s *Store, prefix string, many int) {
	t.Helper()
	for i := range many {
		kv, err := s.Create(t.Context(), fmt.Sprintf("/%s%d", prefix, i), []byte("1"), 0)
		if err == nil {
			_, err = s.Update(t.Context(), kv.Key, []byte("2"), kv.ModRevision, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestHistoryEndsWithAge: what is older than the age of history is dropped, and what
// is younger is not, also if nobody writes.
func TestHistoryEndsWithAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{HistoryAge: time.Minute})
		defer s.Close()
		write(t, s, "a", 3) // revisions 2 to 7
		time.Sleep(50 * time.Second)
		write(t, s, "b", 1) // 8 and 9
		if _, err := s.Watch(t.Context(), "/", 1); err != nil {
			t.Errorf("a watch of what is 50 s old: %v", err)
		}
		time.Sleep(30 * time.Second)
		if _, err := s.Watch(t.Context(), "/", 1); !errors.Is(err, storage.ErrCompacted) {
			t.Errorf("a watch of what is 80 s old: got %v, want %v", err, storage.ErrCompacted)
		}
		if _, err := s.Watch(t.Context(), "/", 7); err != nil {
			t.Errorf("a watch of what is 30 s old: %v", err)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		s.mu.Lock()
		if len(s.log) != 1 || s.trimmer != nil {
			t.Errorf("at rest: got %d events and a timer: %v, want the last event and none", len(s.log), s.trimmer != nil)
		}
		s.mu.Unlock()
		page, err := s.List(t.Context(), "/", storage.ListOptions{})
		if err != nil || len(page.Items) != 4 {
			t.Errorf("got %d keys, %v, want 4", len(page.Items), err)
		}
		// Four bytes of each key and its value, and of what the last event replaced.
		if want := int64(4 * (4 + 1)); s.bytes != want {
			t.Errorf("got a size of %d, want %d", s.bytes, want)
		}
	})
}

// TestHistoryEndsWithCount: writes bound the history by themselves.
func TestHistoryEndsWithCount(t *testing.T) {
	s := New(Options{HistoryCount: 16})
	defer s.Close()
	write(t, s, "a", 100)
	if got := len(s.log); got > 18 {
		t.Errorf("got %d events, want at most 18", got)
	}
	if _, err := s.List(t.Context(), "/", storage.ListOptions{Revision: s.revision - 15}); err != nil {
		t.Error(err)
	}
}

// TestIdleStoreHasNoGoroutines: neither watchers nor keys that expire have one.
func TestIdleStoreHasNoGoroutines(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s := New(Options{})
	defer s.Close()
	if _, err := s.Create(t.Context(), "/a", nil, time.Hour); err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(context.Background(), "/", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	goleak.VerifyNone(t, before)
}

// TestSizeIsBounded: past the limit creates are refused; what is there can be changed
// and deleted, and when its history is gone there is room again.
func TestSizeIsBounded(t *testing.T) {
	s := New(Options{SizeLimit: 1 << 20})
	defer s.Close()
	var kv storage.KeyValue
	var err error
	created := 0
	for ; err == nil && created < 100; created++ {
		kv.Key = fmt.Sprintf("/%d", created)
		_, err = s.Create(t.Context(), kv.Key, make([]byte, 100<<10), 0)
	}
	if !errors.Is(err, storage.ErrNoSpace) || created != 12 {
		t.Fatalf("got %v at the %dth key of 100 KB, want %v at the 12th", err, created, storage.ErrNoSpace)
	}
	if kv, err = s.Get(t.Context(), "/0"); err == nil {
		kv, err = s.Update(t.Context(), kv.Key, []byte("small"), kv.ModRevision, 0)
	}
	if err == nil {
		_, _, err = s.Delete(t.Context(), kv.Key, kv.ModRevision)
	}
	if err == nil {
		var revision int64
		if revision, err = s.Revision(t.Context()); err == nil {
			err = s.Compact(t.Context(), revision)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "/0", []byte("again"), 0); err != nil {
		t.Errorf("got %v after something was deleted, want no error", err)
	}
}

// TestReplacedKeysDoNotWaitToExpire: a key with a ttl that is written again and again
// leaves nothing behind, and ends when its newest ttl says.
func TestReplacedKeysDoNotWaitToExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{HistoryAge: time.Second})
		defer s.Close()
		for _, key := range []string{"/kept", "/gone", "/deleted", "/last"} {
			kv, err := s.Create(t.Context(), key, []byte("0"), time.Hour)
			for range 10 {
				if err == nil {
					kv, err = s.Update(t.Context(), key, []byte("1"), kv.ModRevision, time.Hour)
				}
			}
			switch {
			case err != nil:
			case key == "/kept":
				_, err = s.Update(t.Context(), key, []byte("2"), kv.ModRevision, 0)
			case key == "/gone":
				_, err = s.Update(t.Context(), key, []byte("2"), kv.ModRevision, time.Minute)
			case key == "/deleted":
				_, _, err = s.Delete(t.Context(), key, kv.ModRevision)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		s.mu.Lock()
		waiting := len(s.expiring)
		s.mu.Unlock()
		if waiting != 2 {
			t.Errorf("got %d versions that wait to expire, want those of 2 keys", waiting)
		}
		for _, step := range []struct {
			after time.Duration
			want  int64
		}{{30 * time.Second, 3}, {time.Minute, 2}, {2 * time.Hour, 1}} {
			time.Sleep(step.after)
			synctest.Wait()
			if n, _, err := s.Count(t.Context(), "/"); err != nil || n != step.want {
				t.Errorf("got %d keys, %v after %v more, want %d", n, err, step.after, step.want)
			}
		}
	})
}
