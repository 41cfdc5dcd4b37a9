package match

import (
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/resource"
)

// Index finds the items among many whose criteria may match a write. It caches the result
// for each kind of write.
type Index[T any] struct {
	items    []T
	criteria func(T) *Criteria
	needs    func(T) Needs

	known sync.Map // indexKey → *Found[T]
}

type indexKey struct {
	operation   admission.Operation
	resource    schema.GroupVersionResource
	subresource string
	ofCluster   bool
}

// Found are the items that may match a kind of write. It is immutable but for its counters.
type Found[T any] struct {
	Candidates []Candidate[T]
	rows       []row // parallel to Candidates
	paths      []path
	telling    atomic.Bool // a timer is set to report exclusions
	// def is the definition that the result is valid for: a new version of a custom
	// resource may be equivalent.
	def *resource.Definition
}

// Candidate is an item that may match a write.
type Candidate[T any] struct {
	Item     T
	criteria *Criteria
	// always is the index of the form, plus 1, in which it matches every write of the
	// kind; 0 if that depends on the write.
	always   int
	excluded func(op admission.Operation, n int)
}

// NewIndex makes an index of items, which keep their order. needs, which may be nil, is
// called for items that match every write of a kind.
func NewIndex[T any](items []T, criteria func(T) *Criteria, needs func(T) Needs) *Index[T] {
	return &Index[T]{items: items, criteria: criteria, needs: needs}
}

// For returns the items that may match a write.
func (x *Index[T]) For(w *Write) *Found[T] {
	if x == nil || len(x.items) == 0 {
		return &Found[T]{}
	}
	key := indexKey{w.Operation, w.Served.GroupVersionResource(), w.Subresource, w.Namespace == ""}
	if known, ok := x.known.Load(key); ok && known.(*Found[T]).def == w.Served.Definition {
		return known.(*Found[T])
	}
	found := &Found[T]{def: w.Served.Definition}
	for _, item := range x.items {
		criteria := x.criteria(item)
		if !criteria.mayMatch(w) {
			continue
		}
		c := Candidate[T]{Item: item, criteria: criteria, always: criteria.always(w)}
		var r row
		if c.always > 0 && x.needs != nil {
			needs := x.needs(item)
			r, c.excluded = found.row(c.always-1, needs.All), needs.Excluded
		}
		found.Candidates, found.rows = append(found.Candidates, c), append(found.rows, r)
	}
	x.known.Store(key, found)
	return found
}

// All returns all items.
func (x *Index[T]) All() []T {
	if x == nil {
		return nil
	}
	return x.items
}

// Only returns the items for which wanted is true.
func (f *Found[T]) Only(wanted func(T) bool) *Found[T] {
	out := &Found[T]{def: f.def, paths: f.paths}
	for i, c := range f.Candidates {
		if wanted(c.Item) {
			out.Candidates, out.rows = append(out.Candidates, c), append(out.rows, row{needs: f.rows[i].needs})
		}
	}
	return out
}

// Match is Criteria.Match.
func (c *Candidate[T]) Match(ctx context.Context, w *Write) (*Form, error) {
	if c.always > 0 {
		return w.forms()[c.always-1], nil
	}
	return c.criteria.Match(ctx, w)
}
