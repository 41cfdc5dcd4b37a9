package storagetest

import (
	"errors"
	"fmt"

	"github.com/apikeel/kelson/storage"
)

func compactChecks() []check {
	return []check{
		{name: "bounds", run: checkCompactBounds},
		{name: "keeps", run: checkCompactKeeps},
		{name: "current", run: checkCompactCurrent},
		{name: "busy", run: checkCompactBusy},
		{name: "present", run: checkCompactPresent},
	}
}

// write does n random writes with a twin on 6 keys.
func (t *twin) write(n int) error {
	rng := t.e.rand(len(t.revs))
	for range n {
		key := t.e.key(fmt.Sprint(rng.IntN(6)))
		cur, ok := t.m.keys[key]
		var err error
		switch {
		case !ok:
			err = t.create(key, fmt.Appendf(nil, "%d", rng.Int64()))
		case rng.IntN(3) == 0:
			err = t.delete(key, cur.ModRevision)
		default:
			err = t.update(key, fmt.Appendf(nil, "%d", rng.Int64()), cur.ModRevision)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkCompactBounds: what can be compacted, and where history ends then.
func checkCompactBounds(e *env) error {
	t, err := e.twin()
	if err != nil {
		return err
	}
	if err := t.write(20); err != nil {
		return err
	}
	for _, c := range []struct {
		compact int64 // in revisions of the model, which is at 21
		want    error
		oldest  int64
	}{
		{22, storage.ErrFutureRevision, 1},
		{1000, storage.ErrFutureRevision, 1},
		{10, nil, 10},
		{10, storage.ErrCompacted, 10},
		{9, storage.ErrCompacted, 10},
		{2, storage.ErrCompacted, 10},
		{11, nil, 11},
		{20, nil, 20},
		{22, storage.ErrFutureRevision, 20},
	} {
		what := fmt.Sprintf("compact %d of 21", c.compact)
		if err := e.b.Compact(e.ctx, t.rev(c.compact)); !errors.Is(err, c.want) {
			return fmt.Errorf("%s: error is %v, want %v", what, err, c.want)
		}
		if err := agree(what+" (model)", t.m.Compact(t.ctx, c.compact), c.want); err != nil {
			return err
		}
		_, err := e.b.List(e.ctx, e.prefix, storage.ListOptions{Revision: t.rev(c.oldest)})
		if err != nil {
			return fmt.Errorf("%s: list at the oldest revision: %w", what, err)
		}
		for rev := int64(2); rev < c.oldest; rev++ {
			_, err := e.b.List(e.ctx, e.prefix, storage.ListOptions{Revision: t.rev(rev), Limit: 1})
			if err := fails(fmt.Sprintf("%s: list at %d", what, rev), err, storage.ErrCompacted); err != nil {
				return err
			}
		}
		s, err := e.b.Status(e.ctx)
		if err != nil {
			return fmt.Errorf("status: %w", err)
		}
		if c.oldest > 1 && s.CompactRevision != 0 && s.CompactRevision != t.rev(c.oldest) {
			return fmt.Errorf("%s: status says that %d is the oldest revision, want %d", what, s.CompactRevision, t.rev(c.oldest))
		}
	}
	return t.everything()
}

// checkCompactKeeps: compaction removes nothing but history: existing keys stay,
// deleted keys stay deleted, and later history is kept.
func checkCompactKeeps(e *env) error {
	t, err := e.twin()
	if err != nil {
		return err
	}
	for range e.times(6, 40) {
		if err := t.write(12); err != nil {
			return err
		}
		if err := t.compact((t.m.compacted + t.m.revision + 1) / 2); err != nil {
			return err
		}
		for i := range 6 {
			if err := t.get(e.key(fmt.Sprint(i))); err != nil {
				return err
			}
		}
		if err := errors.Join(t.count(e.prefix), t.everything()); err != nil {
			return err
		}
	}
	return nil
}

// checkCompactCurrent: the current revision can be compacted, after a put and
// after a delete. It can be read then, and nothing else.
func checkCompactCurrent(e *env) error {
	t, err := e.twin()
	if err != nil {
		return err
	}
	a, b := e.key("a"), e.key("b")
	guard := func(key string) int64 { return t.m.keys[key].ModRevision }
	for i, write := range []func() error{
		func() error { return t.create(a, []byte("1")) },
		func() error { return t.create(b, []byte("1")) },
		func() error { return t.update(a, []byte("2"), guard(a)) },
		func() error { return t.delete(a, guard(a)) },
		func() error { return t.create(a, []byte("3")) },
		func() error { return t.delete(b, guard(b)) },
		func() error { return t.delete(a, guard(a)) },
	} {
		if err := write(); err != nil {
			return err
		}
		if err := errors.Join(
			t.compact(t.m.revision), t.everything(), t.get(a), t.get(b),
			t.list(e.prefix, storage.ListOptions{}),
			t.list(e.prefix, storage.ListOptions{Revision: t.m.revision - 1}),
			t.list(e.prefix, storage.ListOptions{Revision: t.m.revision + 1}),
			t.compact(t.m.revision), t.compact(t.m.revision+1)); err != nil {
			return fmt.Errorf("write %d: %w", i, err)
		}
	}
	return nil
}

// checkCompactBusy: while others write and compact, a list at a revision is
// right or says that the revision is gone, and a watch that keeps up sees all.
func checkCompactBusy(e *env) error {
	after, err := e.revision()
	if err != nil {
		return err
	}
	f, err := e.follow(e.prefix, after)
	if err != nil {
		return err
	}
	defer f.w.Close()
	h := e.churn(3, e.times(150, 2000), func(i, round int, w *writer) error {
		return w.any(e.rand(1000*i+round), e.key(fmt.Sprintf("%d-", i)), 5)
	})
	defer h.stop()
	rng := e.rand(-1)
	var pages []storage.Page
	compacted := after
	for h.allow(15) {
		page, err := e.list(0)
		if err != nil {
			return err
		}
		// The watch is beyond this revision before it is compacted.
		if err := f.until(page.Revision); err != nil {
			return err
		}
		if page.Revision <= compacted {
			continue
		}
		old := compacted + rng.Int64N(page.Revision-compacted)
		err = together(2, func(i int) error {
			if i == 0 {
				return e.b.Compact(e.ctx, page.Revision)
			}
			past, err := e.list(old)
			if err == nil {
				pages = append(pages, past)
			} else if !errors.Is(err, storage.ErrCompacted) {
				return err
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("compact %d, list at %d: %w", page.Revision, old, err)
		}
		compacted = page.Revision
		pages = append(pages, page)
	}
	if err := h.wait(); err != nil {
		return err
	}
	log := h.log()
	for _, page := range pages {
		if err := diffKVs(fmt.Sprintf("list at %d", page.Revision), page.Items, stateAt(log, e.prefix, page.Revision)); err != nil {
			return err
		}
	}
	return f.matches(log, after)
}

// checkCompactPresent: reads of the current revision never fail with ErrCompacted, and
// a key that always exists is always found, however close behind the writers history is
// compacted.
func checkCompactPresent(e *env) error {
	const keys = 3
	w := e.writer(&history{})
	for i := range keys {
		if err := w.put(e.key(fmt.Sprint(i)), "first"); err != nil {
			return err
		}
	}
	h := e.churn(keys, e.times(120, 5000), func(i, round int, mine *writer) error {
		key := e.key(fmt.Sprint(i))
		if round == 0 {
			mine.keys[key] = w.keys[key]
		}
		return mine.put(key, fmt.Sprint(round))
	})
	defer h.stop()
	err := together(5, func(i int) error {
		defer h.quit() // if one fails, the others stop
		writes := 0
		if i == 2 {
			writes = 10 // the slowest sets the pace
		}
		for h.allow(writes) {
			var err error
			switch i {
			case 0, 1:
				_, err = e.b.Get(e.ctx, e.key(fmt.Sprint(i)))
			case 2:
				var page storage.Page
				if page, err = e.list(0); err == nil && len(page.Items) != keys {
					err = fmt.Errorf("list at %d has %d keys, want %d", page.Revision, len(page.Items), keys)
				}
			case 3:
				var n int64
				if n, _, err = e.b.Count(e.ctx, e.prefix); err == nil && n != keys {
					err = fmt.Errorf("count is %d, want %d", n, keys)
				}
			case 4:
				var rev int64
				if rev, err = e.revision(); err == nil {
					err = e.b.Compact(e.ctx, rev)
				}
				if errors.Is(err, storage.ErrCompacted) {
					err = nil // nothing was written since
				}
			}
			if err != nil {
				return fmt.Errorf("reader %d: %w", i, err)
			}
		}
		return nil
	})
	return errors.Join(err, h.wait())
}
