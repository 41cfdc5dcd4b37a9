// Package transfer copies whole stores: to a snapshot file and back, and from one
// backend to another. Start at Save and Restore, or at Copy. It never writes to the
// store that it reads.
//
//	Save          a store, also one in use, to a stream
//	Reader        a stream, record by record; Verify reads it to its end
//	Restore       a snapshot file to a folder of the embedded engine
//	Copy          a store into another that is open
//	CopyToFolder  a store to a folder of the embedded engine
//
// Whatever is read is read at one revision. FORMAT.md describes the file.
//
// # Which keys belong to a store
//
// An embedded store belongs to Kelson as a whole. An etcd may have other users, and
// even kube-apiserver keeps a key of its own outside its prefix. So of any other
// backend than the engine, only the keys below storage.Root are read, counted and
// compared.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/apikeel/kelson/storage"
)

// Summary says what was moved.
type Summary struct {
	// Revision at which the store was read.
	Revision int64
	// Keys is their number.
	Keys int64
	// Bytes is the length of a snapshot; for a copy, that of all keys and
	// values.
	Bytes int64
	// SHA256 is the hash in a snapshot's trailer; zero for a copy.
	SHA256 [32]byte
	// Skipped is how many of the keys a resumed copy found in the target.
	Skipped int64
	// Expired is how many of the keys went away by themselves before they
	// could be copied.
	Expired int64
}

// dumper is a backend that can be read at one revision however long it takes: the
// embedded engine.
type dumper interface {
	Dump(ctx context.Context, yield func(storage.KeyValue) error) (int64, error)
}

// scope returns the prefix of the keys that belong to a store.
func scope(b storage.Backend) string {
	if _, ok := b.(dumper); ok {
		return ""
	}
	return storage.Root
}

// Bounds of a page: few keys at first, then as many as give about pageBytes at the
// sizes seen so far. etcd counts the remaining keys for every page, so small pages are
// expensive; the reader holds a whole page in memory.
const (
	firstPageKeys = 64
	maxPageKeys   = 1000
	pageBytes     = 4 << 20
)

// view reads a store at one revision, in pages.
type view struct {
	b        storage.Backend
	prefix   string
	revision int64 // 0 until the first page was read at the current one
	first    storage.Page
}

// openView reads the first page of a store at a revision, zero being the current one, and
// returns the view.
func openView(ctx context.Context, b storage.Backend, revision int64) (*view, error) {
	v := &view{b: b, prefix: scope(b), revision: revision}
	page, err := v.page(ctx, "", firstPageKeys)
	if err != nil {
		return nil, err
	}
	v.first, v.revision = page, page.Revision
	return v, nil
}

func (v *view) page(ctx context.Context, start string, limit int) (storage.Page, error) {
	page, err := v.b.List(ctx, v.prefix, storage.ListOptions{Revision: v.revision, Start: start, Limit: limit, Expiry: true})
	if errors.Is(err, storage.ErrCompacted) {
		return page, fmt.Errorf("the store discarded revision %d while it was being read; try again when its history is not compacted so soon (%w)", v.revision, err)
	}
	return page, err
}

// all iterates over the keys in order. It can be called once.
func (v *view) all(ctx context.Context) iter.Seq2[storage.KeyValue, error] {
	return func(yield func(storage.KeyValue, error) bool) {
		page := v.first
		v.first = storage.Page{}
		for {
			size := 0
			for _, kv := range page.Items {
				size += len(kv.Key) + len(kv.Value)
				if !yield(kv, nil) {
					return
				}
			}
			n := len(page.Items)
			if !page.More || n == 0 {
				return
			}
			limit := min(max(pageBytes/max(size/n, 1), 1), maxPageKeys)
			var err error
			if page, err = v.page(ctx, storage.NextKey(page.Items[n-1].Key), limit); err != nil {
				yield(storage.KeyValue{}, err)
				return
			}
		}
	}
}
