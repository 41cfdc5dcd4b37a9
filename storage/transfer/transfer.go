// Package transfer moves whole stores: into a snapshot file and back, and from
// one backend to another.
//
//	Save          a store, also one in use, to a stream
//	Reader        a stream, record by record; Verify reads it to its end
//	Restore       a snapshot file to a folder of the embedded engine
//	Copy          a store into another that is open
//	CopyToFolder  a store to a folder of the embedded engine
//
// Whatever is read is read at one revision. FORMAT.md describes the file.
//
// # What belongs to a store
//
// An embedded store is ours as a whole. An etcd may have other users, and even
// kube-apiserver keeps a key of its own in it: of any other backend, only what
// lies below storage.Root is read, counted and compared.
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

// dumper is a store in this process, which can be read at one revision however
// long that takes.
type dumper interface {
	Dump(ctx context.Context, yield func(storage.KeyValue) error) (int64, error)
}

// scope returns the prefix of the keys of a store that are ours.
func scope(b storage.Backend) string {
	if _, ok := b.(dumper); ok {
		return ""
	}
	return storage.Root
}

// Bounds of a page: few keys at first, then as many as make a good message at
// the size that those before had. Every page costs etcd a count of the keys
// after it, and whoever reads it the memory for all of it.
const (
	firstPageKeys = 64
	maxPageKeys   = 1000
	pageBytes     = 4 << 20
)

// view is a store at a revision, read in pages.
type view struct {
	b        storage.Backend
	prefix   string
	revision int64 // 0 until the first page has been read
	first    storage.Page
}

// look begins to read a store at a revision, zero being the current one.
func look(ctx context.Context, b storage.Backend, revision int64) (*view, error) {
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

// all returns the keys in order. It can be called once.
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
