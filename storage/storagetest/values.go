package storagetest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/apikeel/kelson/storage"
)

// checkOldValues: a value can be read by the revision of its write as long as it is the
// current one or in the history, also when that is compacted past its write.
func checkOldValues(e *env) error {
	if !storage.HasValues(e.b) {
		return nil
	}
	const versions = 4
	w, key := e.writer(&history{}), e.key("a")
	var written []int64
	for i := range versions {
		if err := w.put(key, fmt.Sprint("v", i)); err != nil {
			return err
		}
		written = append(written, w.keys[key].ModRevision)
		if err := w.put(e.key("other"), fmt.Sprint(i)); err != nil { // so that revisions have gaps
			return err
		}
	}
	read := func(when string, i int, want error) error {
		value, err := storage.ReadValue(e.ctx, e.b, key, written[i])
		if !errors.Is(err, want) || err == nil && string(value) != fmt.Sprint("v", i) {
			return fmt.Errorf("%s: got value %q and error %v of version %d, want v%d and %v", when, value, err, i, i, want)
		}
		return nil
	}
	for i := range versions {
		if err := read("all there", i, nil); err != nil {
			return err
		}
	}
	if _, err := storage.ReadValue(e.ctx, e.b, key, written[1]-1); !errors.Is(err, storage.ErrCompacted) {
		return fmt.Errorf("got error %v for the revision of another key, want ErrCompacted", err)
	}
	if _, err := storage.ReadValue(e.ctx, e.b, e.key("none"), written[1]); !errors.Is(err, storage.ErrCompacted) {
		return fmt.Errorf("got error %v for a key that never was, want ErrCompacted", err)
	}
	// Version 1 is the current one at this revision.
	if err := e.b.Compact(e.ctx, written[2]-1); err != nil {
		return err
	}
	for i := 1; i < versions; i++ {
		if err := read("compacted", i, nil); err != nil {
			return err
		}
	}
	if err := read("compacted", 0, storage.ErrCompacted); err != nil {
		return err
	}
	if err := w.remove(key); err != nil {
		return err
	}
	if err := read("deleted", versions-1, nil); err != nil {
		return err
	}
	// A version that is older than the compaction, and was the current one then.
	gone := e.key("gone")
	if err := w.put(gone, "v0"); err != nil {
		return err
	}
	key, written = gone, []int64{w.keys[gone].ModRevision}
	for range 3 {
		if err := w.put(e.key("other"), "later"); err != nil {
			return err
		}
	}
	if err := e.b.Compact(e.ctx, w.keys[e.key("other")].ModRevision); err != nil {
		return err
	}
	if err := w.remove(gone); err != nil {
		return err
	}
	return read("compacted, then deleted", 0, nil)
}

// checkPageBytes: pages that are limited by bytes have all keys together, each once.
func checkPageBytes(e *env) error {
	const keys, size = 40, 1000
	w := e.writer(&history{})
	for i := range keys {
		if err := w.put(e.key(fmt.Sprintf("%02d", i)), strings.Repeat("x", size)); err != nil {
			return err
		}
	}
	opts := storage.ListOptions{MaxBytes: 7*size - size/2}
	seen, pages := 0, 0
	for {
		page, err := e.b.List(e.ctx, e.key(""), opts)
		if err != nil {
			return err
		}
		for _, kv := range page.Items {
			if want := e.key(fmt.Sprintf("%02d", seen)); kv.Key != want {
				return fmt.Errorf("got key %q, want %q", kv.Key, want)
			}
			seen++
		}
		pages++
		if !page.More {
			break
		}
		if len(page.Items) < 7 {
			return fmt.Errorf("got a page of %d items that is not the last, want at least 7", len(page.Items))
		}
		opts.Revision, opts.Start = page.Revision, storage.NextKey(page.Items[len(page.Items)-1].Key)
	}
	if seen != keys || pages > keys/7+1 {
		return fmt.Errorf("got %d keys in %d pages, want %d in at most %d", seen, pages, keys, keys/7+1)
	}
	return nil
}
