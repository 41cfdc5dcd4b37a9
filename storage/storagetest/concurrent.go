package storagetest

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/apikeel/kelson/storage"
)

// checkCounter: guarded updates of one key by many lose none.
func checkCounter(e *env) error {
	clients, rounds := 8, e.times(25, 300)
	key := e.key("counter")
	if _, err := e.b.Create(e.ctx, key, []byte("0"), 0); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	h := &history{}
	err := together(clients, func(i int) error {
		cur, err := e.b.Get(e.ctx, key)
		if err != nil {
			return fmt.Errorf("get: %w", err)
		}
		for done := 0; done < rounds; {
			n, err := strconv.Atoi(string(cur.Value))
			if err != nil {
				return fmt.Errorf("counter: %w", err)
			}
			kv, err := e.b.Update(e.ctx, key, []byte(strconv.Itoa(n+1)), cur.ModRevision, 0)
			switch {
			case err == nil:
				h.add(storage.Event{Op: storage.Updated, KV: kv, Prev: cur})
				done++
			case !errors.Is(err, storage.ErrConflict):
				return fmt.Errorf("update: %w", err)
			case kv.ModRevision <= cur.ModRevision:
				return fmt.Errorf("conflict with %s, which is not newer than %s", show(kv), show(cur))
			}
			cur = kv
		}
		return nil
	})
	if err != nil {
		return err
	}
	kv, err := e.b.Get(e.ctx, key)
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	if string(kv.Value) != strconv.Itoa(clients*rounds) {
		return fmt.Errorf("counter is %s after %d increments", kv.Value, clients*rounds)
	}
	return h.unique()
}

// checkOneCreates: of many that create a key one succeeds, and the others are
// told of that one.
func checkOneCreates(e *env) error {
	for round := range e.times(20, 200) {
		key := e.key(fmt.Sprint(round))
		seen := make([]storage.KeyValue, 6)
		wins := make([]bool, len(seen))
		err := together(len(seen), func(i int) error {
			kv, err := e.b.Create(e.ctx, key, []byte{byte(i)}, 0)
			if err != nil && !errors.Is(err, storage.ErrExists) {
				return fmt.Errorf("create: %w", err)
			}
			seen[i], wins[i] = kv, err == nil
			return nil
		})
		if err != nil {
			return err
		}
		won := -1
		for i := range seen {
			if wins[i] && won >= 0 {
				return fmt.Errorf("both %s and %s were created", show(seen[won]), show(seen[i]))
			}
			if wins[i] {
				won = i
			}
		}
		if won < 0 {
			return errors.New("nobody created the key")
		}
		for i := range seen {
			if err := diffKV("key in the way", seen[i], seen[won]); err != nil {
				return err
			}
		}
		if seen[won].Value[0] != byte(won) {
			return errors.New("the winner's value is another's")
		}
	}
	return nil
}

// checkOneDeletes: of many that delete a key one succeeds.
func checkOneDeletes(e *env) error {
	for range e.times(20, 200) {
		kv, err := e.b.Create(e.ctx, e.key("x"), nil, 0)
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		results := make([]error, 6)
		together(len(results), func(i int) error {
			_, _, results[i] = e.b.Delete(e.ctx, kv.Key, kv.ModRevision)
			return nil
		})
		wins := 0
		for _, err := range results {
			if err == nil {
				wins++
			} else if !errors.Is(err, storage.ErrNotFound) {
				return fmt.Errorf("delete: %w", err)
			}
		}
		if wins != 1 {
			return fmt.Errorf("%d deleted the key", wins)
		}
	}
	return nil
}

// checkReadYourWrites: what was acknowledged to one is seen by all, in every
// way of reading, while others write.
func checkReadYourWrites(e *env) error {
	return together(6, func(i int) error {
		e := e.below(fmt.Sprint(i))
		h := &history{}
		w := e.writer(h)
		rng := e.rand(i)
		for range e.times(25, 300) {
			if err := w.any(rng, e.prefix, 4); err != nil {
				return err
			}
			// Another goroutine reads: a store may not rely on who asks.
			if err := together(1, func(int) error { return e.sees(w) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// sees returns an error unless all reads show what w has written last.
func (e *env) sees(w *writer) error {
	rev, err := e.revision()
	if err != nil {
		return err
	}
	count, countRev, err := e.b.Count(e.ctx, e.prefix)
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	page, err := e.list(0)
	if err != nil {
		return err
	}
	if rev < w.last || countRev < rev || page.Revision < countRev {
		return fmt.Errorf("acknowledged %d, then read the revision as %d, in a count %d, in a list %d", w.last, rev, countRev, page.Revision)
	}
	if int(count) != len(w.keys) || len(page.Items) != len(w.keys) {
		return fmt.Errorf("%d keys are there, count says %d, list has %d", len(w.keys), count, len(page.Items))
	}
	for _, kv := range page.Items {
		got, err := e.b.Get(e.ctx, kv.Key)
		if err != nil {
			return fmt.Errorf("get: %w", err)
		}
		if err := errors.Join(diffKV("list", kv, w.keys[kv.Key]), diffKV("get", got, w.keys[kv.Key])); err != nil {
			return err
		}
	}
	for _, ev := range w.h.log() {
		if _, there := w.keys[ev.KV.Key]; there {
			continue
		}
		if _, err := e.b.Get(e.ctx, ev.KV.Key); !errors.Is(err, storage.ErrNotFound) {
			return fmt.Errorf("get of deleted %q: error %v", ev.KV.Key, err)
		}
	}
	return nil
}
