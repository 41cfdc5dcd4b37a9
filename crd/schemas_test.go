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
		compiled, hash, err := s.get(&schemaText{json: text})
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
