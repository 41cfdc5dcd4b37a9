package store

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/apikeel/kelson/storage"
)

// Few objects, those of a small namespace or a page of a list, are read from the backend as long
// as the cache of their resource is not loaded: after a start the first reader of a page need not
// wait for a million objects.
const (
	// fewBelow is how many objects a reader of those below a prefix reads at most, or of a page of
	// them, and fewBytes what they take.
	fewBelow, fewBytes = 500, 2 << 20
	// maxBehind is how many pages it is kept of what is behind them. To count countedPage objects
	// is a read of a page more.
	maxBehind, countedPage = 16, 50_000
)

// errMany: the objects that a reader wants are too many, or too large, to be read without the cache.
var errMany = errors.New("too many objects")

// SnapshotBelow returns the state of the objects whose keys begin with prefix; what it says of
// others is not to be used. If they are few and the cache is not loaded, they are read from the
// backend: who wants those of a namespace need not wait for all others.
func (r *Resource) SnapshotBelow(ctx context.Context, prefix string, read Read) (*Snapshot, error) {
	if prefix != r.prefix && !r.loaded.Load() && read.Exact == 0 && read.AtLeast == 0 && r.loadBeside(ctx) {
		s, err := r.readFew(ctx, prefix, storage.ListOptions{Limit: fewBelow})
		if err != nil && !errors.Is(err, errMany) || err == nil && !s.more {
			return s, err
		}
	}
	return r.Snapshot(ctx, read)
}

// SnapshotPage is SnapshotBelow for who wants a page: no more than a few of the objects, from a key on, or
// from the first if start is empty. Then there may be no others in the snapshot, and Following tells of them.
func (r *Resource) SnapshotPage(ctx context.Context, prefix, start string, few int, read Read) (*Snapshot, error) {
	if read == (Read{Exact: read.Exact}) && r.store.values != nil && !r.loaded.Load() && r.pages.Add(1) <= fewGets {
		s, err := r.DirectPage(ctx, prefix, start, few, read.Exact)
		if !errors.Is(err, errMany) {
			return s, err
		}
	}
	return r.SnapshotBelow(ctx, prefix, read)
}

// DirectPage is SnapshotPage without the cache. It fails if the page is not small. One is read at a time:
// nobody holds memory for it.
func (r *Resource) DirectPage(ctx context.Context, prefix, start string, few int, revision int64) (*Snapshot, error) {
	if few > fewBelow {
		return nil, errMany
	}
	if err := r.paging.lock(ctx); err != nil {
		return nil, err
	}
	defer r.paging.unlock()
	at := slices.IndexFunc(r.behind, func(b behind) bool { return b.revision == revision && b.start == start && b.prefix == prefix })
	s, err := r.readFew(ctx, prefix, storage.ListOptions{Start: start, Limit: few, Revision: revision, Count: at < 0})
	if err != nil || !s.more {
		return s, err
	}
	if at >= 0 {
		s.following = r.behind[at].objects - s.Len()
	} else {
		r.pages.Add(int64(s.following / countedPage))
	}
	if len(r.behind) == maxBehind {
		r.behind = slices.Delete(r.behind, 0, 1)
	}
	last, _ := s.tree.Last()
	r.behind = append(r.behind, behind{prefix, storage.NextKey(last.Key), s.Revision, s.following})
	return s, nil
}

// behind is how many objects below a prefix are behind a page, from a key on, at a revision. The next page need
// not count them, which takes the longer the more they are.
type behind struct {
	prefix, start string
	revision      int64
	objects       int
}

// readFew reads the first of the objects below a prefix. The error is errMany if they take too much
// memory.
func (r *Resource) readFew(ctx context.Context, prefix string, opts storage.ListOptions) (*Snapshot, error) {
	s := &Snapshot{part: true}
	g := gathering{Resource: r, made: r.keptBy(s), tree: newTree()}
	opts.MaxBytes = fewBytes
	page, err := r.store.scan(ctx, prefix, opts, g.add)
	switch {
	case err != nil:
		return nil, err
	case len(g.unreadable) > 0:
		return nil, g.unreadable
	case page.More && (g.seen < opts.Limit || len(g.out) > 0): // or how many follow is not known
		return nil, errMany
	}
	s.out = g.out
	s.tree, s.Revision = g.tree, cmp.Or(opts.Revision, page.Revision)
	s.more, s.following = page.More, int(page.Remaining)
	return s, nil
}

// Following returns how many objects come after a page and are not in the snapshot, and whether there are
// some, whatever was counted.
func (s *Snapshot) Following() (n int, some bool) { return s.following, s.more }
