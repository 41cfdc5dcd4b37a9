package managedfields

import (
	"fmt"
	"sync"
)

// walk compares two objects in one pass over both. The result is a tree of nodes: an
// added or changed field has the flag member, a removed one the flag removed.
// structured-merge-diff's Compare has three sets for them.
type walk struct {
	frames []*frame // one for each depth, reused
	slab   []node
	kids   []*node
	err    error

	// What slab and kids are the rest of, for reuse.
	nodeSlabs slabs[node]
	kidSlabs  slabs[*node]
}

// slabs are slices of one size, of which the first are in use.
type slabs[T any] struct {
	all  [][]T
	used int
}

// next returns the next slab, and makes it if there is none.
func (s *slabs[T]) next(size int) []T {
	if s.used == len(s.all) {
		s.all = append(s.all, make([]T, size))
	}
	s.used++
	return s.all[s.used-1]
}

// reset clears all slabs, so that they can be used again.
func (s *slabs[T]) reset() {
	for _, slab := range s.all[:s.used] {
		clear(slab)
	}
	s.used = 0
}

// walks are walks that are reused: objects of one template have equal sets, and a set that
// is in the cache needs no tree of its own.
var walks = sync.Pool{New: func() any { return new(walk) }}

// maxReused is how many slabs a walk may have that is kept for reuse: those of 2,048 fields.
const maxReused = 64

// reuse gives the walk and all nodes that it has made to the next one. Nobody may have
// any of them.
func (w *walk) reuse() {
	if w.err != nil || len(w.nodeSlabs.all) > maxReused || len(w.kidSlabs.all) > maxReused {
		return
	}
	w.nodeSlabs.reset()
	w.kidSlabs.reset()
	for _, f := range w.frames {
		f.node, f.step, f.own, f.ignore = nil, nil, step{}, nil
	}
	w.slab, w.kids = nil, nil
	walks.Put(w)
}

// frame is the position of the walk. Its node is made only if a difference is found.
type frame struct {
	up    *frame
	depth int
	step  *step
	own   step // step points here if it is not that of a planField
	node  *node
	// ignore is the tree of fields below that are not compared.
	ignore *node
}

// start returns the frame of the root.
func (w *walk) start(ignore *node) *frame {
	if len(w.frames) == 0 {
		w.frames = append(make([]*frame, 0, 16), &frame{})
	}
	w.frames[0].node, w.frames[0].ignore = &node{}, ignore
	return w.frames[0]
}

func (w *walk) alloc() *node {
	if len(w.slab) == 0 {
		w.slab = w.nodeSlabs.next(32)
	}
	n := &w.slab[0]
	w.slab = w.slab[1:]
	return n
}

// node returns the node of a frame, and makes it and its parents if they are missing.
func (w *walk) node(f *frame) *node {
	if f.node != nil {
		return f.node
	}
	up := w.node(f.up)
	i := len(up.kids)
	if i > 0 && up.kids[i-1].step.compare(f.step) >= 0 {
		f.node = up.childIn(*f.step, w.alloc)
		return f.node
	}
	if up.kids == nil {
		const few = 4
		if len(w.kids) < few {
			w.kids = w.kidSlabs.next(16 * few)
		}
		up.kids, w.kids = w.kids[:0:few], w.kids[few:]
	}
	f.node = w.alloc()
	f.node.step = *f.step
	up.kids = append(up.kids, f.node)
	return f.node
}

// mark sets flags on the field. The root is not a field.
func (w *walk) mark(f *frame, which flags) {
	if f.up != nil {
		w.node(f).flags |= which
	}
}

// below returns the frame of a child; it is valid until the next call for the same
// depth. It is nil if the child is ignored.
func (w *walk) below(f *frame, s step) *frame {
	ignore, ignored := f.ignores(&s)
	if ignored {
		return nil
	}
	child := w.enter(f, ignore)
	child.own = s
	child.step = &child.own
	return child
}

// belowField is below for the step of a plan field, which is not copied.
func (w *walk) belowField(f *frame, field *planField) *frame {
	ignore, ignored := f.ignores(&field.step)
	if ignored {
		return nil
	}
	child := w.enter(f, ignore)
	child.step = &field.step
	return child
}

func (f *frame) ignores(s *step) (below *node, all bool) {
	if f.ignore == nil {
		return nil, false
	}
	below = f.ignore.get(s)
	return below, below != nil && below.flags&member != 0
}

// enter returns the frame of the next depth.
func (w *walk) enter(f *frame, ignore *node) *frame {
	depth := f.depth + 1
	if depth == len(w.frames) {
		w.frames = append(w.frames, &frame{up: f, depth: depth})
	}
	child := w.frames[depth]
	child.node, child.ignore = nil, ignore
	return child
}

func (w *walk) fail(f *frame, err error) {
	if w.err == nil {
		w.err = fmt.Errorf("%s: %w", f.path(), err)
	}
}

func (f *frame) path() string {
	if f.up == nil {
		return ""
	}
	return f.up.path() + f.step.element().String()
}
