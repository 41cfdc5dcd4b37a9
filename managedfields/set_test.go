package managedfields

import (
	"fmt"
	"slices"
	"testing"
)

// TestMembersOfDeepTrees: every node is visited once. Twice would be 2^200 visits here.
func TestMembersOfDeepTrees(t *testing.T) {
	tree := &node{step: step{name: "leaf"}, flags: removed}
	kept := &node{step: step{name: "kept"}, flags: member}
	for range 200 {
		tree = &node{step: step{name: "below"}, kids: []*node{tree, kept}}
	}
	depth, got := 0, tree.members()
	for ; len(got.kids) == 2; got = got.kids[0] {
		depth++
	}
	if depth != 199 || len(got.kids) != 1 || got.kids[0] != kept {
		t.Errorf("got %d levels with two nodes and %d nodes at the end, want 199 and the one that is kept", depth, len(got.kids))
	}
}

// TestChildrenOutOfOrder adds children in any order, some again: they are kept in the order
// of their steps, each once.
func TestChildrenOutOfOrder(t *testing.T) {
	n := &node{}
	const count = 1000
	for i := range 3 * count {
		name := fmt.Sprintf("%04d", i*7919%count)
		if got := n.child(step{name: name}); got.step.name != name {
			t.Fatalf("child %s is %s", name, got.step.name)
		}
	}
	if len(n.kids) != count || !slices.IsSortedFunc(n.kids, func(a, b *node) int { return a.step.compare(&b.step) }) {
		t.Errorf("%d children are %d, not in order", count, len(n.kids))
	}
}
