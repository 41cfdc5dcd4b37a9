package sorted

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
)

type item struct{ key, value int }

func newTree() *Tree[int, item] {
	return New(func(i item) int { return i.key }, cmp.Compare[int])
}

// model is what a tree should be: a sorted slice.
type model []item

func (m model) find(key int) (int, bool) {
	i := sort.Search(len(m), func(i int) bool { return m[i].key >= key })
	return i, i < len(m) && m[i].key == key
}

func (m *model) set(it item) {
	i, ok := m.find(it.key)
	if ok {
		(*m)[i] = it
		return
	}
	*m = slices.Insert(*m, i, it)
}

func (m *model) remove(key int) bool {
	i, ok := m.find(key)
	if ok {
		*m = slices.Delete(*m, i, i+1)
	}
	return ok
}

// check compares all that a tree tells with a model, and looks at the tree's nodes.
func check(t *testing.T, tree *Tree[int, item], want model, keys int) {
	t.Helper()
	if tree.Len() != len(want) {
		t.Fatalf("Len is %d, want %d", tree.Len(), len(want))
	}
	var got model
	tree.All(func(it item) bool { got = append(got, it); return true })
	if !slices.Equal(got, want) {
		t.Fatalf("All: got %v, want %v", got, want)
	}
	last, ok := tree.Last()
	if ok != (len(want) > 0) || ok && last != want[len(want)-1] {
		t.Fatalf("Last: got %v, %t", last, ok)
	}
	for range 20 {
		key := rand.IntN(keys+2) - 1
		at, exists := want.find(key)
		if rank := tree.Rank(key); rank != at {
			t.Fatalf("Rank(%d) is %d, want %d", key, rank, at)
		}
		if it, ok := tree.Get(key); ok != exists || ok && it != want[at] {
			t.Fatalf("Get(%d): got %v, %t", key, it, ok)
		}
		n := rand.IntN(5)
		got = nil
		tree.From(key, func(it item) bool { got = append(got, it); return len(got) <= n })
		if from := want[at:min(len(want), at+n+1)]; !slices.Equal(got, from) {
			t.Fatalf("From(%d): got %v, want %v", key, got, from)
		}
	}
	if tree.root != nil {
		checkNode(t, tree.root, true)
	}
}

// checkNode checks a node and those below, and returns the height.
func checkNode(t *testing.T, n *node[item], root bool) (height int) {
	t.Helper()
	size := len(n.items)
	if size == 0 || size > maxItems || n.children != nil && len(n.children) != size+1 {
		t.Fatalf("a node has %d items and %d children; it is the root: %t", size, len(n.children), root)
	}
	for i, child := range n.children {
		h := checkNode(t, child, false) + 1
		if i > 0 && h != height {
			t.Fatal("the children of a node are of different heights")
		}
		height, size = h, size+child.size
	}
	if size != n.size {
		t.Fatalf("a node says that it has %d items; it has %d", n.size, size)
	}
	return height
}

// TestRandom makes random changes of trees and their clones, and compares all of them with a
// sorted slice.
func TestRandom(t *testing.T) {
	for _, keys := range []int{3, 40, 300, 5000, 20_000} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			type pair struct {
				tree  *Tree[int, item]
				model model
			}
			all := []*pair{{newTree(), nil}}
			grows := true
			for round := range min(200, 4+200_000/keys) {
				p := all[rand.IntN(len(all))]
				if rand.IntN(3) == 0 {
					clone := &pair{p.tree.Clone(), slices.Clone(p.model)}
					if all = append(all, clone); len(all) > 4 {
						all = slices.Delete(all, 0, 1)
					}
				}
				if len(p.model) > keys*3/4 {
					grows = false
				} else if len(p.model) < keys/8 {
					grows = true
				}
				start := rand.IntN(keys)
				for i := range keys / 4 {
					key := rand.IntN(keys)
					if round%3 == 0 {
						key = (start + i) % keys // in order
					}
					if grows == (rand.IntN(8) > 0) {
						_, replaced := p.tree.Set(item{key, round})
						if _, exists := p.model.find(key); exists != replaced {
							t.Fatalf("Set(%d) tells that it replaced something: %t", key, replaced)
						}
						p.model.set(item{key, round})
					} else {
						_, ok := p.tree.Delete(key)
						if removed := p.model.remove(key); removed != ok {
							t.Fatalf("Delete(%d) tells %t", key, ok)
						}
					}
				}
				for _, p := range all {
					check(t, p.tree, p.model, keys)
				}
			}
		})
	}
}

// TestInOrder: items that are added in order leave full nodes behind.
func TestInOrder(t *testing.T) {
	tr, n := newTree(), 100_000
	for i := range n {
		tr.Set(item{key: i})
	}
	nodes := 0
	var count func(*node[item])
	count = func(at *node[item]) {
		nodes++
		for _, child := range at.children {
			count(child)
		}
	}
	count(tr.root)
	if each := n / nodes; each < edgeItems-2 {
		t.Errorf("%d items are in %d nodes, %d in each", n, nodes, each)
	}
	for i := range n {
		if _, ok := tr.Delete(i); !ok {
			t.Fatalf("item %d is not there", i)
		}
	}
	if tr.Len() != 0 || tr.root != nil {
		t.Errorf("%d items are left", tr.Len())
	}
}

type named struct {
	name string
	_    [20]int // as large as a record
}

func benchTree(n int) (*Tree[string, *named], []string) {
	t := New(func(i *named) string { return i.name }, cmp.Compare[string])
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("/registry/configmaps/default/config-%08d", i)
		t.Set(&named{name: names[i]})
	}
	return t, names
}

func BenchmarkTree(b *testing.B) {
	for _, n := range []int{2_000, 1_000_000} {
		t, names := benchTree(n)
		b.Run(fmt.Sprintf("Get/%d", n), func(b *testing.B) {
			for b.Loop() {
				t.Get(names[rand.IntN(n)])
			}
		})
		b.Run(fmt.Sprintf("Rank/%d", n), func(b *testing.B) {
			for b.Loop() {
				t.Rank(names[rand.IntN(n)])
			}
		})
		b.Run(fmt.Sprintf("Set/%d", n), func(b *testing.B) {
			for b.Loop() {
				t.Set(&named{name: names[rand.IntN(n)]})
			}
		})
		b.Run(fmt.Sprintf("CloneSet/%d", n), func(b *testing.B) {
			for b.Loop() {
				t.Clone()
				t.Set(&named{name: names[rand.IntN(n)]})
			}
		})
		b.Run(fmt.Sprintf("All/%d", n), func(b *testing.B) {
			for b.Loop() {
				t.All(func(*named) bool { return true })
			}
		})
	}
}
