package match

import (
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// Decode decodes an object of the form from JSON. strict refuses unknown fields; otherwise
// they are dropped.
func (f *Form) Decode(text []byte, strict bool) (runtime.Object, error) {
	var kind metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &kind); err != nil {
		return nil, fmt.Errorf("couldn't get version/kind; json parse error: %w", err)
	}
	obj, _ := f.Empty()
	_, loose := obj.(*unstructured.Unstructured)
	if !loose && kind.Kind == "" {
		kind.Kind = f.Kind.Kind // the Go type determines the kind
	}
	if !loose && kind.APIVersion == "" {
		kind.APIVersion = f.Kind.GroupVersion().String()
	}
	switch {
	case kind.Kind == "":
		return nil, runtime.NewMissingKindErr(string(text))
	case kind.GroupVersionKind() != f.Kind:
		return nil, fmt.Errorf("%s cannot become %s", f.Kind, kind.GroupVersionKind())
	}
	var into any = obj
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u.Object = nil
		into = &u.Object
	}
	if !strict {
		return obj, kjson.UnmarshalCaseSensitivePreserveInts(text, into)
	}
	unknown, err := kjson.UnmarshalStrict(text, into)
	if err != nil {
		return nil, err
	}
	if len(unknown) > 0 {
		return nil, runtime.NewStrictDecodingError(unknown)
	}
	return obj, nil
}

const (
	maxOperations = 10_000
	// maxPatched bounds the size in bytes of a patched object.
	maxPatched = 16 << 20
)

// Apply applies a JSON patch. Repeated copy operations can blow an object up, so the size
// is checked after each operation.
func Apply(text []byte, patch jsonpatch.Patch) ([]byte, error) {
	if len(patch) > maxOperations {
		return nil, fmt.Errorf("a patch cannot have more than %d operations, but has %d", maxOperations, len(patch))
	}
	for start := 0; start < len(patch); {
		end := start
		for end < len(patch) && patch[end].Kind() != "copy" {
			end++
		}
		end = min(end+1, len(patch))
		var err error
		if text, err = patch[start:end].Apply(text); err != nil {
			return nil, err
		}
		if len(text) > maxPatched {
			return nil, fmt.Errorf("a patch makes an object larger than %d bytes", maxPatched)
		}
		start = end
	}
	return text, nil
}
