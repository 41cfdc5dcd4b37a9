package crd

import (
	"encoding/json"
	"fmt"
	"testing"
)

// TestSchemasBound checks that schemas which take much memory are not all kept.
func TestSchemasBound(t *testing.T) {
	var s schemas
	for i := range 40 {
		rules := make([]any, 200)
		for n := range rules {
			rules[n] = map[string]any{"rule": fmt.Sprint("self != ", i, n)}
		}
		text, err := json.Marshal(map[string]any{"type": "object", "x-kubernetes-validations": rules})
		if err != nil {
			t.Fatal(err)
		}
		compiled, hash, err := s.get(&schemaText{json: text}, maxWeight)
		if err != nil {
			t.Fatal(err)
		}
		if again := s.find(hash); again != compiled {
			t.Fatal("the last schema is not kept")
		}
	}
	if s.weight > maxWeight || s.weight < maxWeight/2 || len(s.byHash) != s.recent.Len() {
		t.Errorf("%d schemas of %d bytes are kept", len(s.byHash), s.weight)
	}
}

// TestRulesOfOneSchemaLeaveRoomForOthers has a schema whose rules would take more than all schemas
// may: it keeps a part of them, and drops none of the other schemas.
func TestRulesOfOneSchemaLeaveRoomForOthers(t *testing.T) {
	const bound = 32 << 20
	var s schemas
	compile := func(rules int) [32]byte {
		list := make([]any, rules)
		for n := range list {
			list[n] = map[string]any{"rule": fmt.Sprint("self != ", n)}
		}
		text, err := json.Marshal(map[string]any{"type": "object", "x-kubernetes-validations": list})
		if err != nil {
			t.Fatal(err)
		}
		_, hash, err := s.get(&schemaText{json: text}, bound)
		if err != nil {
			t.Fatal(err)
		}
		return hash
	}
	small := compile(10)
	compile(40_000)
	if s.find(small) == nil {
		t.Error("the small schema was dropped")
	}
	if s.weight > bound {
		t.Errorf("the schemas weigh %d, want at most %d", s.weight, bound)
	}
}
