package managedfields

import "testing"

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
