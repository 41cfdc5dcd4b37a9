package managedfields

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	stock "k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/resource"
)

// bothApply runs the same apply with the two managers and compares the outcome.
func bothApply(t *testing.T, ours *Manager, theirs *stock.FieldManager, live resource.Object, patch *unstructured.Unstructured, manager string, force bool) (resource.Object, error) {
	t.Helper()
	before := ours.opts.New()
	if live != nil {
		before = live.DeepCopyObject().(resource.Object)
	}
	snapshot := text(live)
	want, wantErr := theirs.Apply(before, patch.DeepCopy(), manager, force)
	got, gotErr := ours.Apply(live, patch, manager, force, time.Now())
	context := func() string { return fmt.Sprintf("live %s\npatch %s", text(live), text(patch)) }
	if text(live) != snapshot {
		t.Fatalf("live was changed to %s\n%s", text(live), context())
	}
	if (wantErr != nil) != (gotErr != nil) {
		t.Fatalf("their error %v\nours %v\n%s", wantErr, gotErr, context())
	}
	if wantErr != nil {
		if w, g := errorText(wantErr), errorText(gotErr); w != g {
			t.Fatalf("their error %s\nours %s\n%s", w, g, context())
		}
		return nil, gotErr
	}
	w, g := want.(resource.Object), got
	if a, b := describe(w.GetManagedFields()), describe(g.GetManagedFields()); a != b {
		t.Fatalf("got\n%swant\n%s%s", b, a, context())
	}
	stripped := func(obj resource.Object) string {
		obj = obj.DeepCopyObject().(resource.Object)
		obj.SetManagedFields(nil)
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		return text(obj)
	}
	if a, b := stripped(w), stripped(g); a != b {
		t.Fatalf("got %s\nwant %s\n%s", b, a, context())
	}
	return got, nil
}

// errorText is an error with its lines sorted, since the order of managers is
// random in apimachinery.
func errorText(err error) string {
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Code != 409 {
		// Of several errors in an object one is named, whichever comes first in a map.
		message, _, _ := strings.Cut(err.Error(), "): ")
		return message
	}
	lines := strings.Split(status.Status().Message, "\n")
	for _, c := range status.Status().Details.Causes {
		lines = append(lines, fmt.Sprint(c))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// scale is how many random lives a test plays; many more if they are asked for.
func scale(n int) int {
	return testsize.Pick(max(1, n/4), n, n*10)
}

// partial removes random parts of a random value.
func (r filler) partial(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			e := v[k]
			if e == nil || r.IntN(4) == 0 {
				delete(v, k)
			} else {
				v[k] = r.partial(e)
			}
		}
	case []any:
		for i := range v {
			v[i] = r.partial(v[i])
		}
	}
	return v
}

func fieldsFor(t *testing.T, obj runtime.Object) map[string]any {
	t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	if err := utiljson.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestApplyLikeStock plays random lives of objects with appliers and updaters.
func TestApplyLikeStock(t *testing.T) {
	applied, conflicts, refused, same := 0, 0, 0, 0
	for _, kind := range []schema.GroupVersionKind{podKind, deploymentKind, configMapKind, {Version: "v1", Kind: "Service"}} {
		t.Run(kind.Kind, func(t *testing.T) {
			for seed := range randomtest.Seeds(t, scale(12)) {
				opts := goOptions(kind)
				switch seed % 4 {
				case 1:
					opts.Scope.Except = []string{"status"}
				case 2:
					opts.Scope.Except, opts.Subresource = []string{"spec"}, "status"
				}
				r := filler{randomtest.Rand(seed, 9)}
				ours, err := New(opts)
				if err != nil {
					t.Fatal(err)
				}
				theirs := stockManager(t, opts)
				var live resource.Object
				for i := range 16 {
					if live != nil {
						live.SetUID("u")
						live.GetObjectKind().SetGroupVersionKind(kind)
						age(live)
					}
					manager := []string{"m1", "m2", "kubectl"}[r.IntN(3)]
					if live != nil && i%4 == 3 {
						next := live.DeepCopyObject().(resource.Object)
						r.change(reflect.ValueOf(next).Elem(), 8)
						next.SetUID("u")
						if annotations := next.GetAnnotations(); annotations != nil && r.IntN(2) == 0 {
							annotations[lastAppliedAnnotation] = text(live)
						}
						next.GetObjectKind().SetGroupVersionKind(kind)
						live = both(t, ours, theirs, live, next, manager)
						continue
					}
					if live != nil && i == 5 {
						live.SetManagedFields(nil)
					}
					var fields map[string]any
					if live != nil && r.IntN(2) == 0 {
						fields = r.partial(fieldsFor(t, live)).(map[string]any)
					} else {
						random := opts.New()
						r.fill(reflect.ValueOf(random).Elem(), 9)
						fields = r.partial(fieldsFor(t, random)).(map[string]any)
					}
					patch := &unstructured.Unstructured{Object: fields}
					meta, _ := fields["metadata"].(map[string]any)
					if meta == nil {
						meta = map[string]any{}
						fields["metadata"] = meta
					}
					for _, name := range []string{"managedFields", "uid", "ownerReferences"} {
						delete(meta, name)
					}
					patch.SetGroupVersionKind(kind)
					patch.SetName("x")
					got, err := bothApply(t, ours, theirs, live, patch, manager, r.IntN(2) == 0)
					switch {
					case apierrors.IsConflict(err):
						conflicts++
					case err != nil:
						refused++
					default:
						applied++
						live = got
						live.SetUID("u")
						age(live)
						again, err := bothApply(t, ours, theirs, live, patch, manager, false)
						if err == nil && text(again) == text(live) {
							same++
						}
					}
				}
			}
		})
	}
	t.Logf("%d applied (%d of them again without a change), %d conflicts, %d refused", applied, same, conflicts, refused)
}

func TestLooseApplyLikeStock(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Thing"}
	for seed := range randomtest.Seeds(t, scale(100)) {
		r := filler{randomtest.Rand(seed, 10)}
		opts := Options{Kind: kind, New: func() resource.Object { return newLoose(kind) }}
		ours, err := New(opts)
		if err != nil {
			t.Fatal(err)
		}
		theirs := stockManager(t, opts)
		var live resource.Object
		for range 8 {
			patch := newLoose(kind)
			patch.SetName("x")
			for _, name := range []string{"spec", "data"} {
				if r.IntN(4) > 0 {
					patch.Object[name] = r.loose(3)
				}
			}
			if live != nil {
				live.SetUID("u")
				age(live)
			}
			if got, err := bothApply(t, ours, theirs, live, patch, fmt.Sprintf("m%d", r.IntN(2)), r.IntN(2) == 0); err == nil {
				live = got
			}
		}
	}
}
