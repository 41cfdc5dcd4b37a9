package match

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/resource"
)

// Index finds those of many criteria that may be about a write without asking
// each of them every time: it remembers the answers for a kind of write.
type Index[T any] struct {
	items    []T
	criteria func(T) *Criteria

	known sync.Map // indexKey → *indexed[T]
}

type indexKey struct {
	operation   admission.Operation
	resource    schema.GroupVersionResource
	subresource string
	ofCluster   bool
}

// indexed holds for a definition: another version of a custom resource may come
// and be equivalent.
type indexed[T any] struct {
	def   *resource.Definition
	items []T
}

// NewIndex makes an index of items, which keep their order.
func NewIndex[T any](items []T, criteria func(T) *Criteria) *Index[T] {
	return &Index[T]{items: items, criteria: criteria}
}

// For returns the items that may be about a write.
func (x *Index[T]) For(w *Write) []T {
	if x == nil || len(x.items) == 0 {
		return nil
	}
	key := indexKey{w.Operation, w.Served.GroupVersionResource(), w.Subresource, w.Namespace == ""}
	if known, ok := x.known.Load(key); ok && known.(*indexed[T]).def == w.Served.Definition {
		return known.(*indexed[T]).items
	}
	found := &indexed[T]{def: w.Served.Definition}
	for _, item := range x.items {
		if x.criteria(item).mayMatch(w) {
			found.items = append(found.items, item)
		}
	}
	x.known.Store(key, found)
	return found.items
}

// All returns all items.
func (x *Index[T]) All() []T {
	if x == nil {
		return nil
	}
	return x.items
}
