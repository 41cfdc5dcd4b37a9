package match

import (
	"errors"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/jsonpatched"
)

// Decode decodes an object of the form from JSON. strict refuses unknown fields; otherwise
// they are dropped.
func (f *Form) Decode(text []byte, strict bool) (runtime.Object, error) {
	if m := f.w.Memory; m != nil {
		if err := m.HoldDecoded(text); err != nil {
			f.w.InterruptIfBusy(err)
			return nil, err
		}
	}
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

// Apply applies a JSON patch to the JSON of an object of the form, when there is memory for what that
// takes.
func (f *Form) Apply(text []byte, patch jsonpatch.Patch) ([]byte, error) {
	var hold func(bytes int64) error
	if f.w.Memory != nil {
		hold = f.w.Memory.HoldPatch
	}
	patched, err := jsonpatched.Apply(text, patch, hold)
	f.w.InterruptIfBusy(err)
	return patched, err
}

// InternalError returns an error of a Form as one of the API: an internal one, unless it is one already,
// or says that there is no memory.
func InternalError(err error) error {
	if _, ok := err.(apierrors.APIStatus); ok || errors.Is(err, budget.ErrBusy) {
		return err
	}
	return apierrors.NewInternalError(err)
}
