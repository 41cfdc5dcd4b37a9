package storagetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apikeel/kelson/storage"
)

func listChecks() []check {
	return []check{
		{name: "prefixes", run: checkPrefixes},
		{name: "pages", run: checkPages},
		{name: "whole", run: checkWhole, own: true},
		{name: "revisions", run: checkRevisions},
		{name: "future", run: checkFuture},
		{name: "pinned", run: checkPinned},
		{name: "snapshot", run: checkSnapshot},
		{name: "bytes", run: checkPageBytes},
		{name: "scan", run: checkScan},
		{name: "values", run: checkOldValues, own: true},
	}
}

// trickyKeys are near each other in ways that a careless bound gets wrong.
func trickyKeys() []string {
	return []string{"a", "a/", "a/b", "a/b/c", "a/c", "a0", "ab", "a\xff", "a\xffz", "a\xff\xff", "b", "b/\x01", "\xff", "\xff\xff", "\xff\xffa"}
}

// checkPrefixes: a list has the keys that begin with the prefix, in the order
// of their bytes.
func checkPrefixes(e *env) error {
	w := e.writer(&history{})
	for _, key := range trickyKeys() {
		if err := w.put(e.key(key), key); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		prefix string
		want   []string
	}{
		{"a", []string{"a", "a/", "a/b", "a/b/c", "a/c", "a0", "ab", "a\xff", "a\xffz", "a\xff\xff"}},
		{"a/", []string{"a/", "a/b", "a/b/c", "a/c"}},
		{"a/b", []string{"a/b", "a/b/c"}},
		{"a/b/", []string{"a/b/c"}},
		{"a/b/c", []string{"a/b/c"}},
		{"a/b/cd", nil},
		{"a\xff", []string{"a\xff", "a\xffz", "a\xff\xff"}},
		{"a\xff\xff", []string{"a\xff\xff"}},
		{"b", []string{"b", "b/\x01"}},
		{"\xff", []string{"\xff", "\xff\xff", "\xff\xffa"}},
		{"\xff\xff", []string{"\xff\xff", "\xff\xffa"}},
		{"z", nil},
		{"", []string{"a", "a/", "a/b", "a/b/c", "a/c", "a0", "ab", "a\xff", "a\xffz", "a\xff\xff", "b", "b/\x01", "\xff", "\xff\xff", "\xff\xffa"}},
	} {
		want := make([]storage.KeyValue, len(c.want))
		for i, key := range c.want {
			want[i] = w.keys[e.key(key)]
		}
		page, err := e.b.List(e.ctx, e.key(c.prefix), storage.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %q: %w", c.prefix, err)
		}
		count, _, err := e.b.Count(e.ctx, e.key(c.prefix))
		if err != nil {
			return fmt.Errorf("count %q: %w", c.prefix, err)
		}
		if err := diffKVs(fmt.Sprintf("list %q", c.prefix), page.Items, want); err != nil {
			return err
		}
		if page.More || int(count) != len(want) {
			return fmt.Errorf("list %q: more is %t, count %d, want %d", c.prefix, page.More, count, len(want))
		}
	}
	return nil
}

// checkPages: start, limit, count and keys-only in all combinations, now and
// in the past, first by hand and then against the model.
func checkPages(e *env) error {
	t, err := e.twin()
	if err != nil {
		return err
	}
	for _, key := range trickyKeys() {
		if err := t.create(e.key(key), []byte(key)); err != nil {
			return err
		}
	}
	full := t.m.revision
	for _, key := range []string{"a/b", "b", "\xff"} {
		if err := t.delete(e.key(key), t.m.keys[e.key(key)].ModRevision); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		prefix, start   string
		limit           int
		first           string
		n               int
		more            bool
		remaining       int64
		revision        int64
		outside, hidden bool
	}{
		{prefix: "a/", n: 3, first: "a/"},
		{prefix: "a/", n: 1, limit: 1, first: "a/", more: true, remaining: 2},
		{prefix: "a/", n: 3, limit: 3, first: "a/"},
		{prefix: "a/", n: 3, limit: 4, first: "a/"},
		{prefix: "a/", start: "a/b", n: 2, first: "a/b/c"},
		{prefix: "a/", start: "a/b", n: 3, first: "a/b", revision: full},
		{prefix: "a/", start: storage.NextKey("a/b"), n: 2, first: "a/b/c", revision: full},
		{prefix: "a/", start: "a/b", n: 2, limit: 2, first: "a/b", more: true, remaining: 1, revision: full},
		{prefix: "a/", start: "a/zzz", n: 0, limit: 1},
		{prefix: "a/", start: "a", outside: true},
		{prefix: "a/", start: "b", outside: true},
		{prefix: "a/", start: "a0", outside: true},
		{prefix: "a/", n: 3, first: "a/", hidden: true},
		{prefix: "a/", start: "a/b\x00\x00", n: 2, limit: 2, first: "a/b/c", revision: full},
		{prefix: "a/", start: "a/b\x00a", n: 1, limit: 1, first: "a/b/c", more: true, remaining: 1, revision: full},
		{prefix: "a/", start: "a/b\x00\xff", n: 2, first: "a/b/c", revision: full},
	} {
		opts := storage.ListOptions{Limit: c.limit, Count: true, KeysOnly: c.hidden, Revision: t.rev(c.revision)}
		if c.start != "" {
			opts.Start = e.key(c.start)
		}
		what := fmt.Sprintf("list %q %+v", c.prefix, opts)
		page, err := e.b.List(e.ctx, e.key(c.prefix), opts)
		if c.outside {
			if err := fails(what, err, storage.ErrInvalidKey); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if len(page.Items) != c.n || page.More != c.more || page.Remaining != c.remaining {
			return fmt.Errorf("%s: %d keys, more is %t, %d remain", what, len(page.Items), page.More, page.Remaining)
		}
		if c.n > 0 && (page.Items[0].Key != e.key(c.first) || (len(page.Items[0].Value) == 0) != c.hidden) {
			return fmt.Errorf("%s: first is %s", what, show(page.Items[0]))
		}
	}
	for _, prefix := range []string{"", "a", "a/", "a\xff", "\xff", "z"} {
		starts := append([]string{""}, trickyKeys()...)
		for _, start := range starts {
			for i, opts := range []storage.ListOptions{
				{Limit: 1, Count: true}, {Limit: 2}, {Limit: 5, KeysOnly: true}, {Count: true, Revision: full}, {Limit: 3, Revision: full - 4},
			} {
				if start != "" && !strings.HasPrefix(start, prefix) {
					continue
				}
				if start != "" {
					opts.Start = e.key(start)
				}
				if i%2 == 1 && start != "" {
					opts.Start = storage.NextKey(opts.Start)
				}
				if err := t.list(e.key(prefix), opts); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// checkWhole: the empty prefix is that of every key.
func checkWhole(e *env) error {
	h := &history{}
	w := e.writer(h)
	for _, key := range []string{"/", "a", "/registry", "/registry/x", "\xff", "\x01", "z/z"} {
		if err := w.put(key, key); err != nil {
			return err
		}
	}
	if err := w.remove("a"); err != nil {
		return err
	}
	want := stateAt(h.log(), "", w.last)
	page, err := e.b.List(e.ctx, "", storage.ListOptions{})
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	count, _, err := e.b.Count(e.ctx, "")
	if err != nil || int(count) != len(want) {
		return fmt.Errorf("count is %d, want %d, error %v", count, len(want), err)
	}
	f, err := e.follow("", 1)
	if err != nil {
		return err
	}
	defer f.w.Close()
	return errors.Join(diffKVs("list", page.Items, want), f.matches(h.log(), 1))
}

// checkRevisions: every past state can be read, whatever came after.
func checkRevisions(e *env) error {
	h := &history{}
	w := e.writer(h)
	rng := e.rand(0)
	first, err := e.revision()
	if err != nil {
		return err
	}
	for range e.times(80, 1000) {
		if err := w.any(rng, e.prefix, 8); err != nil {
			return err
		}
	}
	log := h.log()
	for rev := first; rev <= w.last; rev++ {
		page, err := e.list(rev)
		if err != nil {
			return err
		}
		if page.Revision != rev {
			return fmt.Errorf("list at %d says that it was read at %d", rev, page.Revision)
		}
		if err := diffKVs(fmt.Sprintf("list at %d", rev), page.Items, stateAt(log, e.prefix, rev)); err != nil {
			return err
		}
	}
	return nil
}

// checkFuture: a list does not wait for a revision.
func checkFuture(e *env) error {
	kv, err := e.b.Create(e.ctx, e.key("a"), nil, 0)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	for _, ahead := range []int64{1, 1000, 1 << 40} {
		_, err := e.b.List(e.ctx, e.prefix, storage.ListOptions{Revision: kv.ModRevision + ahead})
		if err := fails(fmt.Sprintf("list %d ahead", ahead), err, storage.ErrFutureRevision); err != nil {
			return err
		}
	}
	return nil
}

// checkPinned: pages at one revision make up the state of that revision, while
// writers change everything.
func checkPinned(e *env) error {
	h := e.churn(3, e.times(150, 2000), func(i, round int, w *writer) error {
		return w.any(e.rand(1000*i+round), e.key(fmt.Sprintf("%d-", i)), 10)
	})
	defer h.stop()
	type walk struct {
		revision int64
		items    []storage.KeyValue
	}
	var walks []walk
	rng := e.rand(-1)
	for h.allow(15) {
		opts := storage.ListOptions{Limit: 1 + rng.IntN(7)}
		var all walk
		for {
			page, err := e.b.List(e.ctx, e.prefix, opts)
			if err != nil {
				return fmt.Errorf("list %+v: %w", opts, err)
			}
			all.items = append(all.items, page.Items...)
			all.revision = page.Revision
			if opts.Revision > 0 && page.Revision != opts.Revision {
				return fmt.Errorf("page at %d says that it was read at %d", opts.Revision, page.Revision)
			}
			if !page.More {
				break
			}
			if len(page.Items) != opts.Limit {
				return fmt.Errorf("page of %d has %d keys, and there are more", opts.Limit, len(page.Items))
			}
			opts.Revision = page.Revision
			opts.Start = storage.NextKey(page.Items[len(page.Items)-1].Key)
		}
		walks = append(walks, all)
	}
	if err := h.wait(); err != nil {
		return err
	}
	log := h.log()
	for _, w := range walks {
		if err := diffKVs(fmt.Sprintf("pages at %d", w.revision), w.items, stateAt(log, e.prefix, w.revision)); err != nil {
			return err
		}
	}
	return nil
}

// checkSnapshot: a list while writers write is the state of one revision: the
// one that it names. Every writer counts up in its first key before it does in
// its second, so that no state ever had the second ahead.
func checkSnapshot(e *env) error {
	const writers = 4
	h := e.churn(writers, e.times(100, 2000), func(i, round int, w *writer) error {
		// Far apart in the order of keys, with others in between.
		key := e.key(fmt.Sprintf("%d-%d", round%2, i))
		return w.put(key, fmt.Sprintf("%08d", round/2))
	})
	defer h.stop()
	var pages []storage.Page
	var last int64
	for h.allow(15) {
		page, err := e.list(0)
		if err != nil {
			return err
		}
		if page.Revision < last {
			return fmt.Errorf("list at %d after one at %d", page.Revision, last)
		}
		last = page.Revision
		values := map[string]string{}
		for _, kv := range page.Items {
			values[kv.Key] = string(kv.Value)
			if kv.ModRevision > page.Revision {
				return fmt.Errorf("list at %d has %s", page.Revision, show(kv))
			}
		}
		for i := range writers {
			first, second := values[e.key(fmt.Sprintf("0-%d", i))], values[e.key(fmt.Sprintf("1-%d", i))]
			if second > first {
				return fmt.Errorf("list at %d has %q in the key written first, %q in the one written after", page.Revision, first, second)
			}
		}
		pages = append(pages, page)
	}
	if err := h.wait(); err != nil {
		return err
	}
	log := h.log()
	for _, page := range pages {
		again, err := e.list(page.Revision)
		if err != nil {
			return err
		}
		if err := errors.Join(
			diffKVs(fmt.Sprintf("list at %d", page.Revision), page.Items, stateAt(log, e.prefix, page.Revision)),
			diffKVs(fmt.Sprintf("list at %d, again", page.Revision), again.Items, page.Items)); err != nil {
			return err
		}
	}
	if !slices.IsSortedFunc(pages, func(a, b storage.Page) int { return int(a.Revision - b.Revision) }) {
		return errors.New("lists went back in time")
	}
	return nil
}

// checkScan: a scan shows the pages of a list, and ends with the error of who looks.
func checkScan(e *env) error {
	w := e.writer(&history{})
	for i := range 20 {
		if err := w.put(e.key(fmt.Sprintf("k%02d", i)), fill(fmt.Sprint(i), 100+1000*(i%3))); err != nil {
			return err
		}
	}
	for _, opts := range []storage.ListOptions{{}, {Limit: 7}, {Limit: 20}, {MaxBytes: 3000}, {KeysOnly: true, Count: true, Limit: 3}, {Start: e.key("k05"), Limit: 30}} {
		want, err := e.b.List(e.ctx, e.key("k"), opts)
		if err != nil {
			return err
		}
		var items []storage.KeyValue
		got, err := storage.Scan(e.ctx, e.b, e.key("k"), opts, func(kv *storage.KeyValue) error {
			item := *kv
			item.Value = bytes.Clone(kv.Value) // which is not valid later
			items = append(items, item)
			return nil
		})
		if err != nil {
			return err
		}
		if err := diffKVs(fmt.Sprintf("scan with %+v", opts), items, want.Items); err != nil {
			return err
		}
		if len(got.Items) != 0 || got.More != want.More || got.Remaining != want.Remaining || got.Revision < want.Items[0].ModRevision {
			return fmt.Errorf("scan with %+v: got %+v, want no items, more %t and %d remaining", opts, got, want.More, want.Remaining)
		}
	}
	enough, seen := errors.New("enough"), 0
	_, err := storage.Scan(e.ctx, e.b, e.key("k"), storage.ListOptions{}, func(*storage.KeyValue) error {
		seen++
		return enough
	})
	if !errors.Is(err, enough) || seen != 1 {
		return fmt.Errorf("got error %v after %d items, want the one that the first item was answered with", err, seen)
	}
	return nil
}
