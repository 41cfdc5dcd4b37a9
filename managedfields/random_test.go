package managedfields

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	stock "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/resource"
)

var (
	podKind        = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	deploymentKind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	configMapKind  = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
)

// stockManager returns the manager of apimachinery for the same requests.
func stockManager(t testing.TB, opts Options) *stock.FieldManager {
	t.Helper()
	filters := map[fieldpath.APIVersion]fieldpath.Filter{}
	if len(opts.Scope.Except) > 0 {
		set := fieldpath.NewSet()
		for _, path := range opts.Scope.Except {
			var p fieldpath.Path
			for _, name := range strings.Split(path, ".") {
				p = append(p, fieldpath.FieldNameElement(name))
			}
			set.Insert(p)
		}
		filters[fieldpath.APIVersion(opts.Kind.GroupVersion().String())] = fieldpath.NewExcludeSetFilter(set)
	}
	if len(opts.Scope.Only) > 0 {
		var matchers []*fieldpath.SetMatcher
		for _, path := range opts.Scope.Only {
			var parts []any
			for _, name := range strings.Split(path, ".") {
				if name == "*" {
					parts = append(parts, fieldpath.MatchAnyPathElement())
				} else {
					parts = append(parts, name)
				}
			}
			matchers = append(matchers, fieldpath.MakePrefixMatcherOrDie(parts...))
		}
		filters[fieldpath.APIVersion(opts.Kind.GroupVersion().String())] = fieldpath.NewIncludeMatcherFilter(matchers...)
	}
	var converter stock.TypeConverter
	var objects interface {
		runtime.ObjectConvertor
		runtime.ObjectCreater
		runtime.ObjectDefaulter
	}
	build := stock.NewDefaultFieldManager
	if opts.Types == nil {
		converter, objects, build = stock.NewDeducedTypeConverter(), looseObjects{}, stock.NewDefaultCRDFieldManager
	} else {
		converter, objects = applyconfigurations.NewTypeConverter(scheme.Scheme), scheme.Scheme
	}
	m, err := build(converter, objects, objects, objects, opts.Kind, opts.Kind.GroupVersion(), opts.Subresource, filters)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// looseObjects are unstructured objects of one version.
type looseObjects struct{}

func (looseObjects) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	return newLoose(kind), nil
}
func (looseObjects) Default(runtime.Object)                     {}
func (looseObjects) Convert(in, out, context interface{}) error { return nil }
func (looseObjects) ConvertFieldLabel(_ schema.GroupVersionKind, l, v string) (string, string, error) {
	return l, v, nil
}
func (looseObjects) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

func newLoose(kind schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(kind)
	return u
}

func goOptions(kind schema.GroupVersionKind) Options {
	return Options{Types: &Builtin{}, Kind: kind, New: func() resource.Object {
		obj, err := scheme.Scheme.New(kind)
		if err != nil {
			panic(err)
		}
		obj.GetObjectKind().SetGroupVersionKind(kind)
		return obj.(resource.Object)
	}}
}

var oldTime = metav1.NewTime(time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC))

// describe returns managedFields as text, with times as old or new.
func describe(entries []metav1.ManagedFieldsEntry) string {
	var b strings.Builder
	for _, e := range entries {
		when := "new"
		if e.Time == nil {
			when = "none"
		} else if e.Time.Equal(&oldTime) {
			when = "old"
		}
		fmt.Fprintf(&b, "%s %s %s %q %s %s %s\n", e.Manager, e.Operation, e.APIVersion, e.Subresource, when, e.FieldsType, e.FieldsV1.GetRawString())
	}
	return b.String()
}

func age(obj resource.Object) {
	entries := obj.GetManagedFields()
	for i := range entries {
		entries[i].Time = &oldTime
	}
	obj.SetManagedFields(entries)
}

// filler makes random objects, of words so few that keys are often the same.
type filler struct{ *rand.Rand }

var words = []string{"a", "b", "app", "x.example.com/y", `q"uo\te`, "<&>", "ü", "", "long-name-0123456789"}

func (r filler) word() string { return words[r.IntN(len(words))] }

func (r filler) fill(v reflect.Value, depth int) {
	switch p := v.Addr().Interface().(type) {
	case *metav1.Time:
		*p = metav1.NewTime(time.Unix(int64(r.IntN(5))*1000, 0))
		if r.IntN(4) == 0 {
			*p = metav1.Time{}
		}
		return
	case *metav1.MicroTime:
		*p = metav1.NewMicroTime(time.Unix(int64(r.IntN(5))*1000, 1000))
		return
	case *apiresource.Quantity:
		*p = apiresource.MustParse([]string{"1", "1000m", "500m", "2Gi", "0"}[r.IntN(5)])
		return
	case *intstr.IntOrString:
		*p = intstr.FromInt32(int32(r.IntN(3)))
		if r.IntN(2) == 0 {
			*p = intstr.FromString("http")
		}
		return
	case *metav1.FieldsV1, *[]metav1.ManagedFieldsEntry:
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(r.word())
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(int64(r.IntN(4)))
	case reflect.Pointer:
		v.SetZero()
		if r.IntN(3) == 0 && depth > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			r.fill(v.Elem(), depth-1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && (r.IntN(2) == 0 || v.Type().Field(i).Anonymous) {
				r.fill(v.Field(i), depth-1)
			}
		}
	case reflect.Slice:
		v.SetZero()
		if n := r.IntN(5) - 1; n >= 0 && depth > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				r.fill(v.Index(i), depth-1)
			}
		}
	case reflect.Map:
		v.SetZero()
		if n := r.IntN(4) - 1; n >= 0 && depth > 0 {
			v.Set(reflect.MakeMap(v.Type()))
			for range n {
				key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				r.fill(key, depth-1)
				r.fill(elem, depth-1)
				v.SetMapIndex(key, elem)
			}
		}
	}
}

// change fills a few places of a value anew.
func (r filler) change(v reflect.Value, depth int) {
	if r.IntN(12) == 0 {
		r.fill(v, depth)
		return
	}
	switch v.Addr().Interface().(type) {
	case *metav1.Time, *metav1.MicroTime, *apiresource.Quantity, *intstr.IntOrString:
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && r.IntN(3) == 0 {
				r.change(v.Field(i), depth-1)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			r.change(v.Index(i), depth-1)
		}
		if n := v.Len(); n > 1 && r.IntN(4) == 0 {
			reflect.Swapper(v.Interface())(0, n-1)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			r.change(v.Elem(), depth-1)
		}
	}
}

// loose makes a random unstructured value.
func (r filler) loose(depth int) any {
	if depth > 0 {
		switch r.IntN(4) {
		case 0:
			m := map[string]any{}
			for range r.IntN(4) {
				m[r.word()] = r.loose(depth - 1)
			}
			return m
		case 1:
			l := []any{}
			for range r.IntN(4) {
				l = append(l, r.loose(depth-1))
			}
			return l
		}
	}
	switch r.IntN(6) {
	case 0:
		return nil
	case 1:
		return int64(r.IntN(3))
	case 2:
		return float64(r.IntN(3)) / 2
	case 3:
		return r.IntN(2) == 0
	}
	return r.word()
}

// both runs the same update with the two managers and compares the outcome,
// which it returns.
func both(t *testing.T, ours *Manager, theirs *stock.FieldManager, live, new resource.Object, manager string) resource.Object {
	t.Helper()
	before := ours.opts.New()
	if live != nil {
		before = live.DeepCopyObject().(resource.Object)
	}
	reference := new.DeepCopyObject().(resource.Object)
	want, wantErr := theirs.Update(before, reference, manager)
	got, gotErr := ours.Update(live, new, manager, time.Now())
	if (wantErr != nil) != (gotErr != nil) {
		t.Fatalf("their error %v, ours %v\nlive %s\nnew %s", wantErr, gotErr, text(live), text(new))
	}
	tally.runs++
	if wantErr != nil {
		tally.errors++
		return got
	}
	tally.bytes += len(text(got.GetManagedFields()))
	w, g := describe(want.(resource.Object).GetManagedFields()), describe(got.GetManagedFields())
	if w != g {
		t.Fatalf("got\n%swant\n%slive %s\nnew %s", g, w, text(live), text(new))
	}
	return got
}

// tally counts what the comparisons have seen, so that a test can tell whether it
// tests anything.
var tally struct{ runs, errors, bytes int }

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func logTally(t *testing.T) {
	t.Logf("%d updates, %d refused by both, %d bytes of managedFields", tally.runs, tally.errors, tally.bytes)
	if tally.errors*2 > tally.runs {
		t.Error("most updates were refused")
	}
}

// TestUpdateLikeStock plays random lives of objects on this package and on
// apimachinery's.
func TestUpdateLikeStock(t *testing.T) {
	scopes := []Scope{{}, {Except: []string{"status"}}, {Except: []string{"spec", "metadata.labels"}}, {Only: []string{"spec.containers.*.resources", "spec.volumes"}}}
	defer logTally(t)
	for _, kind := range []schema.GroupVersionKind{podKind, deploymentKind, configMapKind,
		{Version: "v1", Kind: "Node"}, {Version: "v1", Kind: "Service"}, {Version: "v1", Kind: "Secret"},
		{Group: "batch", Version: "v1", Kind: "CronJob"}, {Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
		{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}} {
		t.Run(kind.Kind, func(t *testing.T) {
			for seed := range randomtest.Seeds(t, scale(20)) {
				opts := goOptions(kind)
				opts.Scope = scopes[seed%uint64(len(scopes))]
				if seed%3 == 0 {
					opts.Subresource = "status"
				}
				r := filler{randomtest.Rand(seed, 7)}
				ours, err := New(opts)
				if err != nil {
					t.Fatal(err)
				}
				theirs := stockManager(t, opts)
				obj := opts.New()
				r.fill(reflect.ValueOf(obj).Elem(), 9)
				obj.GetObjectKind().SetGroupVersionKind(kind)
				obj.SetUID("")
				live := both(t, ours, theirs, nil, obj, "m0")
				live.SetUID("u")
				for i := range 14 {
					age(live)
					next := live.DeepCopyObject().(resource.Object)
					if i%5 != 4 {
						r.change(reflect.ValueOf(next).Elem(), 8)
					}
					next.GetObjectKind().SetGroupVersionKind(kind)
					next.SetUID("u")
					switch i % 4 {
					case 0:
						next.SetManagedFields(nil)
					case 3:
						next.SetResourceVersion(fmt.Sprint(i))
					}
					live = both(t, ours, theirs, live, next, fmt.Sprintf("m%d", r.IntN(13)))
					live.SetUID("u")
				}
			}
		})
	}
}

func TestLooseUpdateLikeStock(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Thing"}
	for seed := range randomtest.Seeds(t, scale(150)) {
		r := filler{randomtest.Rand(seed, 8)}
		opts := Options{Kind: kind, New: func() resource.Object { return newLoose(kind) }}
		ours, err := New(opts)
		if err != nil {
			t.Fatal(err)
		}
		theirs := stockManager(t, opts)
		random := func() *unstructured.Unstructured {
			u := newLoose(kind)
			u.SetName("x")
			for _, name := range []string{"spec", "status", "data"} {
				if r.IntN(4) > 0 {
					u.Object[name] = r.loose(4)
				}
			}
			return u
		}
		live := both(t, ours, theirs, nil, random(), "m0")
		for range 6 {
			live.SetUID(types.UID("u"))
			age(live)
			next := random()
			next.SetUID("u")
			live = both(t, ours, theirs, live, next, fmt.Sprintf("m%d", r.IntN(3)))
		}
	}
}
