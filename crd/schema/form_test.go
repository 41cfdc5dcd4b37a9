package schema

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/apikeel/kelson/internal/randomtest"
)

// What is said to be settled stays as it is when it is read; that it is said of
// ordinary objects is what it is for.
func TestSettled(t *testing.T) {
	props := &apiextensions.JSONSchemaProps{}
	if err := json.Unmarshal([]byte(`{"type":"object","properties":{
		"spec":{"type":"object","properties":{
			"a":{"type":"string","default":"x"},"n":{"type":"integer","nullable":true},"any":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
			"map":{"type":"object","additionalProperties":{"type":"object","properties":{"v":{"type":"string","default":"y"}}}},
			"open":{"type":"object","additionalProperties":true},
			"list":{"type":"array","items":{"type":"object","properties":{"k":{"type":"string"},"d":{"type":"integer","default":1}}}},
			"inner":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}}},
		"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"l":{"type":"array","x-kubernetes-preserve-unknown-fields":true,"items":{"type":"object"}}}}}}`), props); err != nil {
		t.Fatal(err)
	}
	s, err := Compile(props, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	ordinary := map[string]any{"apiVersion": "e/v1", "kind": "K", "metadata": map[string]any{
		"name": "n", "uid": "u", "generation": int64(1), "creationTimestamp": "2026-01-01T00:00:00Z", "labels": map[string]any{"a": "b"},
		"finalizers": []any{"x"}, "ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "P", "name": "p", "uid": "1", "controller": true}},
		"managedFields": []any{map[string]any{"manager": "m", "operation": "Update", "apiVersion": "e/v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:spec": map[string]any{}}}},
	}, "spec": map[string]any{"a": "1", "any": map[string]any{"b": []any{nil}}, "list": []any{map[string]any{"k": "k", "d": int64(2)}}, "map": map[string]any{"m": map[string]any{"v": "v"}}},
		"status": map[string]any{"other": []any{map[string]any{"x": nil}}}}
	if !s.Settled(ordinary) {
		t.Error("an ordinary object is not settled")
	}
	settledOnes := 0
	r := randomtest.From(t, 1)
	for range 5000 {
		obj := runtime.DeepCopyJSON(ordinary)
		for range 1 + r.IntN(3) {
			disturb(r, obj, 0)
		}
		if !s.Settled(obj) {
			continue
		}
		settledOnes++
		read := runtime.DeepCopyJSON(obj)
		s.Prune(read, false)
		if _, err := s.Coerce(read, true); err != nil {
			t.Fatalf("%v: %v", obj, err)
		}
		s.DropNulls(read)
		s.Default(read)
		if !reflect.DeepEqual(read, obj) {
			t.Fatalf("said to be settled:\n%v\nis read as\n%v", obj, read)
		}
	}
	t.Logf("%d settled", settledOnes)
}

// disturb changes something in an object.
func disturb(r *rand.Rand, v any, depth int) {
	odd := func() any {
		return []any{nil, "", "x", int64(0), int64(7), 1.5, true, []any{}, []any{nil}, map[string]any{}, map[string]any{"v": nil}, map[string]any{"k": "x", "zz": int64(1)},
			"2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00Z", map[string]any{"metadata": map[string]any{"labels": nil}, "kind": "K", "apiVersion": "v1"}}[r.IntN(17)]
	}
	names := []string{"a", "n", "any", "map", "open", "list", "inner", "spec", "status", "l", "v", "k", "d", "metadata", "name", "generateName", "labels", "annotations", "zz", "kind",
		"generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "ownerReferences", "finalizers", "time", "fieldsV1", "manager", "controller", "selfLink"}
	switch v := v.(type) {
	case map[string]any:
		for name, below := range v {
			if r.IntN(3) > 0 && depth < 6 {
				disturb(r, below, depth+1)
				return
			}
			if r.IntN(2) == 0 {
				delete(v, name)
			} else {
				v[name] = odd()
			}
			return
		}
		v[names[r.IntN(len(names))]] = odd()
	case []any:
		if len(v) > 0 {
			if i := r.IntN(len(v)); r.IntN(2) == 0 {
				disturb(r, v[i], depth+1)
			} else {
				v[i] = odd()
			}
		}
	}
	if m, ok := v.(map[string]any); ok && r.IntN(4) == 0 {
		m[names[r.IntN(len(names))]] = odd()
	}
}
