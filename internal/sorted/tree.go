// Package sorted has a set of items that is sorted by their keys, can be copied at no cost,
// and knows how many items lie before a key.
package sorted

import "slices"

const (
	// maxItems is how many items a node has at most.
	maxItems = 63
	// minItems is how many it has before it is joined with its neighbour. Nodes at the
	// right edge have fewer.
	minItems = 16
	// edgeItems is how many stay on the left where a node at the right edge is divided.
	// Items that are added in order leave full nodes behind.
	edgeItems = 60
)

// Tree is a B-tree of items with different keys. Those who read it may be many at a time;
// who changes it must be alone. A clone is another tree: it may be read while the tree that
// it is of is changed, and the other way round.
type Tree[K, T any] struct {
	key     func(T) K
	compare func(a, b K) int
	root    *node[T]
	// owner is that of the nodes that no clone has. Others are copied before they change.
	owner *owner
}

// owner has a size, as those of two trees must have different addresses.
type owner struct{ _ byte }

// node is a leaf, without children, or has a child before, between and after its items.
type node[T any] struct {
	owner    *owner
	items    []T
	children []*node[T]
	size     int // items in it and below
}

// New returns a tree without items. key returns the key of an item, which never changes.
func New[K, T any](key func(T) K, compare func(a, b K) int) *Tree[K, T] {
	return &Tree[K, T]{key: key, compare: compare, owner: new(owner)}
}

// Len returns the number of items.
func (t *Tree[K, T]) Len() int {
	if t.root == nil {
		return 0
	}
	return t.root.size
}

// Clone returns a tree with the same items, in constant time. Both trees copy what they
// change from now on, so the caller must be alone with the tree, as if it changed it.
func (t *Tree[K, T]) Clone() *Tree[K, T] {
	other := *t
	t.owner, other.owner = new(owner), new(owner)
	return &other
}

// search returns the place of the first item of a node whose key is not less than key, and
// whether it is key.
func (t *Tree[K, T]) search(n *node[T], key K) (int, bool) {
	low, high := 0, len(n.items)
	for low < high {
		middle := int(uint(low+high) >> 1)
		switch c := t.compare(t.key(n.items[middle]), key); {
		case c == 0:
			return middle, true
		case c < 0:
			low = middle + 1
		default:
			high = middle
		}
	}
	return low, false
}

// Get returns the item with a key.
func (t *Tree[K, T]) Get(key K) (item T, ok bool) {
	for n := t.root; n != nil; {
		i, found := t.search(n, key)
		if found {
			return n.items[i], true
		}
		if n.children == nil {
			break
		}
		n = n.children[i]
	}
	return item, false
}

// Last returns the item with the greatest key.
func (t *Tree[K, T]) Last() (item T, ok bool) {
	n := t.root
	if n == nil {
		return item, false
	}
	for n.children != nil {
		n = n.children[len(n.children)-1]
	}
	return n.items[len(n.items)-1], true
}

// Rank returns how many items have keys that are less than key.
func (t *Tree[K, T]) Rank(key K) (rank int) {
	for n := t.root; n != nil; {
		i, found := t.search(n, key)
		rank += i
		if n.children == nil {
			break
		}
		for _, child := range n.children[:i] {
			rank += child.size
		}
		if found {
			return rank + n.children[i].size
		}
		n = n.children[i]
	}
	return rank
}

// All calls yield for all items in the order of their keys, until it returns false.
func (t *Tree[K, T]) All(yield func(T) bool) {
	if t.root != nil {
		t.root.each(yield)
	}
}

func (n *node[T]) each(yield func(T) bool) bool {
	if n.children == nil {
		for _, item := range n.items {
			if !yield(item) {
				return false
			}
		}
		return true
	}
	for i, child := range n.children {
		if !child.each(yield) || i < len(n.items) && !yield(n.items[i]) {
			return false
		}
	}
	return true
}

// From calls yield for the items whose keys are not less than key, in order, until it
// returns false.
func (t *Tree[K, T]) From(key K, yield func(T) bool) {
	if t.root != nil {
		t.from(t.root, key, yield)
	}
}

func (t *Tree[K, T]) from(n *node[T], key K, yield func(T) bool) bool {
	i, found := t.search(n, key)
	if n.children != nil && !found && !t.from(n.children[i], key, yield) {
		return false
	}
	for ; i < len(n.items); i++ {
		if !yield(n.items[i]) || n.children != nil && !n.children[i+1].each(yield) {
			return false
		}
	}
	return true
}

// Set adds an item, in place of the one with the same key, which it returns.
func (t *Tree[K, T]) Set(item T) (old T, replaced bool) {
	if t.root == nil {
		t.root = &node[T]{owner: t.owner}
	}
	root := t.own(&t.root)
	if old, replaced = t.set(root, t.key(item), item); len(root.items) > maxItems {
		t.root = &node[T]{owner: t.owner, children: []*node[T]{root}, size: root.size}
		t.divide(t.root, 0)
	}
	return old, replaced
}

// own makes a node that the tree may change of one that a clone may have.
func (t *Tree[K, T]) own(at **node[T]) *node[T] {
	n := *at
	if n.owner == t.owner {
		return n
	}
	room := min(len(n.items)+len(n.items)/4, maxItems) + 1
	n = &node[T]{owner: t.owner, size: n.size, items: append(make([]T, 0, room), n.items...), children: n.children}
	if n.children != nil {
		n.children = append(make([]*node[T], 0, room+1), n.children...)
	}
	*at = n
	return n
}

// set is Set below a node that the tree owns. The node may have one item too many after it.
func (t *Tree[K, T]) set(n *node[T], key K, item T) (old T, replaced bool) {
	i, found := t.search(n, key)
	if found {
		old, n.items[i] = n.items[i], item
		return old, true
	}
	if n.children == nil {
		n.items = slices.Insert(n.items, i, item)
	} else {
		child := t.own(&n.children[i])
		if old, replaced = t.set(child, key, item); replaced {
			return old, true
		}
		if len(child.items) > maxItems {
			t.divide(n, i)
		}
	}
	n.size++
	return old, false
}

// divide makes two of a child that has one item too many. The tree owns both nodes.
func (t *Tree[K, T]) divide(n *node[T], i int) {
	left := n.children[i]
	at := len(left.items) / 2
	if i == len(n.items) {
		at = edgeItems
	}
	right := &node[T]{owner: t.owner, items: append(make([]T, 0, maxItems+1), left.items[at+1:]...)}
	if left.children != nil {
		right.children = append(make([]*node[T], 0, maxItems+2), left.children[at+1:]...)
		left.children = slices.Delete(left.children, at+1, len(left.children))
	}
	middle := left.items[at]
	left.items = slices.Delete(left.items, at, len(left.items))
	right.count()
	left.size -= right.size + 1
	n.items = slices.Insert(n.items, i, middle)
	n.children = slices.Insert(n.children, i+1, right)
}

// count computes the size.
func (n *node[T]) count() {
	n.size = len(n.items)
	for _, child := range n.children {
		n.size += child.size
	}
}

// Delete removes the item with a key, and returns it.
func (t *Tree[K, T]) Delete(key K) (item T, ok bool) {
	if item, ok = t.Get(key); !ok {
		return item, false
	}
	root := t.own(&t.root)
	t.remove(root, key)
	if len(root.items) == 0 {
		t.root = nil
		if root.children != nil {
			t.root = root.children[0]
		}
	}
	return item, true
}

// remove removes an item that there is below a node that the tree owns.
func (t *Tree[K, T]) remove(n *node[T], key K) {
	i, found := t.search(n, key)
	n.size--
	switch {
	case n.children == nil:
		n.items = slices.Delete(n.items, i, i+1)
		return
	case found:
		n.items[i] = t.removeLast(t.own(&n.children[i]))
	default:
		t.remove(t.own(&n.children[i]), key)
	}
	t.balance(n, i)
}

// removeLast removes the last item below a node that the tree owns.
func (t *Tree[K, T]) removeLast(n *node[T]) T {
	n.size--
	if n.children == nil {
		item := n.items[len(n.items)-1]
		n.items = slices.Delete(n.items, len(n.items)-1, len(n.items))
		return item
	}
	i := len(n.children) - 1
	item := t.removeLast(t.own(&n.children[i]))
	t.balance(n, i)
	return item
}

// balance joins a child that has few items with its neighbour, or lets both have as many.
func (t *Tree[K, T]) balance(n *node[T], i int) {
	if len(n.children[i].items) >= minItems {
		return
	}
	i = max(i-1, 0)
	left, right := t.own(&n.children[i]), t.own(&n.children[i+1])
	items := append(append(left.items, n.items[i]), right.items...)
	children := append(left.children, right.children...)
	if len(items) <= maxItems {
		left.size += 1 + right.size
		left.items, left.children = items, children
		n.items = slices.Delete(n.items, i, i+1)
		n.children = slices.Delete(n.children, i+1, i+2)
		return
	}
	at := len(items) / 2
	n.items[i] = items[at]
	right.items = append(make([]T, 0, maxItems+1), items[at+1:]...)
	if children != nil {
		right.children = append(make([]*node[T], 0, maxItems+2), children[at+1:]...)
		children = append(make([]*node[T], 0, maxItems+2), children[:at+1]...)
	}
	left.items, left.children = append(make([]T, 0, maxItems+1), items[:at]...), children
	left.count()
	right.count()
}
