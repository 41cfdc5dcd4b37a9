package transfer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/storage"
)

// TestSaveWhileWriting saves a store under writers that write pairs of keys,
// the left one first. The snapshot must be what the store's history says it
// was at the snapshot's revision, and no pair may be torn the other way round.
func TestSaveWhileWriting(t *testing.T) {
	t.Run("engine", func(t *testing.T) { testSaveWhileWriting(t, openEngine(t, t.TempDir())) })
	t.Run("etcd", func(t *testing.T) { testSaveWhileWriting(t, openEtcd(t)) })
}

func testSaveWhileWriting(t *testing.T, b storage.Backend) {
	const writers, pairs = 4, 60
	begin, err := b.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ws, seed := make([]*pairWriter, writers), randomtest.Seed(t, 1)
	for i := range ws {
		ws[i] = &pairWriter{b: b, rng: randomtest.Rand(seed, uint64(i)), name: fmt.Sprint(i), revisions: map[string]int64{}}
		for p := range pairs {
			if err := ws[i].write(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	written := make(chan struct{})
	var wg sync.WaitGroup
	for _, w := range ws {
		wg.Go(func() {
			for ctx.Err() == nil {
				// The pair under way is finished, so that the writer knows how
				// it ended.
				if err := w.write(t.Context(), w.rng.IntN(pairs)); err != nil {
					t.Error(err)
					return
				}
				select {
				case written <- struct{}{}:
				case <-ctx.Done():
				}
			}
		})
	}
	// The stream goes on only as others write.
	var buf bytes.Buffer
	overtaken := 0
	s, err := Save(t.Context(), b, writerFunc(func(p []byte) (int, error) {
		for range 2 * writers {
			<-written
			overtaken++
		}
		return buf.Write(p)
	}), nil)
	stop()
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if overtaken < 10 {
		t.Errorf("only %d pairs were written during the save of %d bytes", overtaken, buf.Len())
	}

	var got []storage.KeyValue
	values := map[string]string{}
	r, err := NewReader(&buf)
	for err == nil {
		var kv storage.KeyValue
		if kv, err = r.Next(); err == nil {
			kv.Value = bytes.Clone(kv.Value)
			got = append(got, kv)
			values[kv.Key] = number(kv.Value)
		}
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	for key, left := range values {
		if right, ok := strings.CutSuffix(key, "left"); ok {
			if v := values[right+"right"]; v > left {
				t.Errorf("%s is at %s, its right one at %s", key, left, v)
			}
		}
	}
	if err := diff(got, replay(t, b, begin, s.Revision)); err != nil {
		t.Errorf("the snapshot of revision %d is not what the history says: %v", s.Revision, err)
	}
}

// pairWriter is for one goroutine.
type pairWriter struct {
	b         storage.Backend
	rng       *rand.Rand
	name      string
	n         int
	revisions map[string]int64
}

// write raises both keys of a pair to the writer's next number.
func (w *pairWriter) write(ctx context.Context, pair int) error {
	w.n++
	for _, side := range []string{"left", "right"} {
		key := fmt.Sprintf("%spairs/%s/%03d-%s", storage.Root, w.name, pair, side)
		value := []byte(fmt.Sprintf("%08d", w.n) + strings.Repeat(".", w.rng.IntN(1500)))
		var kv storage.KeyValue
		var err error
		if rev := w.revisions[key]; rev == 0 {
			kv, err = w.b.Create(ctx, key, value, 0)
		} else {
			kv, err = w.b.Update(ctx, key, value, rev, 0)
		}
		if err != nil {
			return err
		}
		w.revisions[key] = kv.ModRevision
	}
	return nil
}

func number(value []byte) string { return string(value[:8]) }

// replay returns the keys at a revision, made from the events since another.
func replay(t *testing.T, b storage.Backend, after, revision int64) []storage.KeyValue {
	t.Helper()
	w, err := b.Watch(t.Context(), storage.Root, after)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := b.Progress(t.Context()); err != nil {
		t.Fatal(err)
	}
	keys := map[string]storage.KeyValue{}
	for done := false; !done; {
		batch, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range batch.Events {
			switch {
			case ev.KV.ModRevision > revision:
			case ev.Op == storage.Deleted:
				delete(keys, ev.KV.Key)
			default:
				keys[ev.KV.Key] = ev.KV
			}
		}
		done = batch.Revision >= revision
	}
	items := make([]storage.KeyValue, 0, len(keys))
	for _, kv := range keys {
		items = append(items, kv)
	}
	slices.SortFunc(items, func(a, b storage.KeyValue) int { return strings.Compare(a.Key, b.Key) })
	return items
}
