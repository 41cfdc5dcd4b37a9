package managedfields

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	stock "k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/resource"
)

func configMaps(t testing.TB, edit ...func(*Options)) *Manager {
	t.Helper()
	opts := goOptions(configMapKind)
	for _, e := range edit {
		e(&opts)
	}
	m, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func configMap(data ...string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm", UID: "u"}, Data: map[string]string{}}
	cm.GetObjectKind().SetGroupVersionKind(configMapKind)
	for i := 0; i < len(data); i += 2 {
		cm.Data[data[i]] = data[i+1]
	}
	return cm
}

func config(data ...string) *unstructured.Unstructured {
	values := map[string]any{}
	for i := 0; i < len(data); i += 2 {
		values[data[i]] = data[i+1]
	}
	u := newLoose(configMapKind)
	u.SetName("cm")
	u.Object["data"] = values
	return u
}

func mustUpdate(t *testing.T, m *Manager, live, new resource.Object, manager string) resource.Object {
	t.Helper()
	obj, err := m.Update(live, new, manager, oldTime.Time)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func TestManagedFieldsOfRequests(t *testing.T) {
	m := configMaps(t)
	live := mustUpdate(t, m, nil, configMap("a", "1"), "m1")
	own := `m1 Update v1 "" old FieldsV1 {"f:data":{".":{},"f:a":{}}}` + "\n"
	entry := func(edit func(*metav1.ManagedFieldsEntry)) []metav1.ManagedFieldsEntry {
		e := *live.GetManagedFields()[0].DeepCopy()
		edit(&e)
		return []metav1.ManagedFieldsEntry{e}
	}
	for name, c := range map[string]struct {
		in   []metav1.ManagedFieldsEntry
		want string
	}{
		"none":         {nil, own},
		"empty":        {[]metav1.ManagedFieldsEntry{}, ""},
		"one empty":    {[]metav1.ManagedFieldsEntry{{}}, ""},
		"no operation": {entry(func(e *metav1.ManagedFieldsEntry) { e.Operation = "" }), own},
		"no version":   {entry(func(e *metav1.ManagedFieldsEntry) { e.APIVersion = "" }), own},
		"other type":   {entry(func(e *metav1.ManagedFieldsEntry) { e.FieldsType = "FieldsV2" }), own},
		"not JSON":     {entry(func(e *metav1.ManagedFieldsEntry) { e.FieldsV1 = metav1.NewFieldsV1(`{"f:a"`) }), own},
		"other owner":  {entry(func(e *metav1.ManagedFieldsEntry) { e.Manager = "x" }), strings.Replace(own, "m1", "x", 1)},
		"lost version": {entry(func(e *metav1.ManagedFieldsEntry) { e.APIVersion = "v0" }), ""},
		"not as written": {entry(func(e *metav1.ManagedFieldsEntry) {
			e.FieldsV1 = metav1.NewFieldsV1(`{"f:data": {"f:a":{}, ".":null}}`)
		}), own},
	} {
		t.Run(name, func(t *testing.T) {
			next := live.DeepCopyObject().(resource.Object)
			next.SetManagedFields(c.in)
			reference := stockManager(t, m.opts).UpdateNoErrors(live.DeepCopyObject(), next.DeepCopyObject(), "m1")
			got := describe(mustUpdate(t, m, live, next, "m1").GetManagedFields())
			if got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
			if name != "lost version" {
				if want := describe(reference.(resource.Object).GetManagedFields()); want != got {
					t.Errorf("apimachinery has\n%s", want)
				}
			}
		})
	}
}

func TestUnchangedKeepsEverything(t *testing.T) {
	m := configMaps(t)
	live := mustUpdate(t, m, nil, configMap("a", "1"), "m1")
	next := configMap("a", "1")
	next.ResourceVersion, next.Generation = "7", 3
	obj, err := m.Update(live, next, "m2", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := describe(obj.GetManagedFields()), describe(live.GetManagedFields()); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestMisfitKeepsOwners(t *testing.T) {
	m, err := New(goOptions(podKind))
	if err != nil {
		t.Fatal(err)
	}
	live := mustUpdate(t, m, nil, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}}}, "m1")
	live.SetUID("u")
	next := live.DeepCopyObject().(*corev1.Pod)
	next.Spec.NodeName = "n"
	m.opts.Types = brokenTypes{}
	obj, err := m.Update(live, next, "m1", time.Now())
	if err == nil || describe(obj.GetManagedFields()) != describe(live.GetManagedFields()) {
		t.Errorf("error %v, owners\n%s", err, describe(obj.GetManagedFields()))
	}
}

// newThing returns a custom resource of a size.
func newThing(kind schema.GroupVersionKind, size string) *unstructured.Unstructured {
	u := newLoose(kind)
	u.SetName("x")
	u.Object["spec"] = map[string]any{"size": size}
	return u
}

// liveThing returns a custom resource of size 1 as it is stored, and its owners.
func liveThing(t *testing.T, m *Manager, kind schema.GroupVersionKind) (resource.Object, []metav1.ManagedFieldsEntry) {
	t.Helper()
	live := mustUpdate(t, m, nil, newThing(kind, "1"), "m1")
	live.SetUID("u")
	return live, live.GetManagedFields()
}

// An owner of a custom resource in a version that is gone makes applies fail, and
// other writes leave the owners alone.
func TestGoneVersion(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Thing"}
	m, err := New(Options{Kind: kind, New: func() resource.Object { return newLoose(kind) }, Convert: twoVersions, Custom: true})
	if err != nil {
		t.Fatal(err)
	}
	live, entries := liveThing(t, m, kind)
	entries[0].APIVersion = "example.com/v0"
	live.SetManagedFields(entries)
	const want = "request to convert CR to an invalid group/version: example.com/v0"
	if _, err := m.Apply(live, newThing(kind, "2"), "m2", true, time.Now()); err == nil || err.Error() != want {
		t.Errorf("apply: %v", err)
	}
	next := newThing(kind, "2")
	next.SetUID("u")
	obj, err := m.Update(live, next, "m2", time.Now())
	if err == nil || err.Error() != want || describe(obj.GetManagedFields()) != describe(entries) {
		t.Errorf("update: %v, owners\n%s", err, describe(obj.GetManagedFields()))
	}
}

// TestBusyConversion: a conversion for which the server has no memory fails the write, whichever of its
// conversions it is. The owners would be wrong for good, and the client can try again.
func TestBusyConversion(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Thing"}
	var left int // conversions for which there is memory
	m, err := New(Options{Kind: kind, New: func() resource.Object { return newLoose(kind) }, Custom: true,
		Convert: func(obj resource.Object, to schema.GroupVersion) (resource.Object, error) {
			if left == 0 {
				return nil, fmt.Errorf("webhook: %w", budget.ErrBusy)
			}
			left--
			return twoVersions(obj, to)
		}})
	if err != nil {
		t.Fatal(err)
	}
	live, entries := liveThing(t, m, kind)
	entries[0].APIVersion = "example.com/v2"
	entries[0].FieldsV1 = metav1.NewFieldsV1(`{"f:spec":{"f:length":{}}}`)
	live.SetManagedFields(entries)
	for name, write := range map[string]func() (resource.Object, error){
		"apply": func() (resource.Object, error) { return m.Apply(live, newThing(kind, "2"), "m2", true, time.Now()) },
		"apply with a conflict": func() (resource.Object, error) {
			return m.Apply(live, newThing(kind, "2"), "m2", false, time.Now())
		},
		"update": func() (resource.Object, error) {
			next := newThing(kind, "2")
			next.SetUID("u")
			return m.Update(live, next, "m2", time.Now())
		},
	} {
		const plenty = 100
		left = plenty
		if _, err := write(); errors.Is(err, budget.ErrBusy) || left == plenty {
			t.Fatalf("%s with memory: got %v and %d conversions, want some", name, err, plenty-left)
		}
		for memory := range plenty - left {
			left = memory
			if _, err := write(); !errors.Is(err, budget.ErrBusy) {
				t.Errorf("%s with memory for %d conversions: got %v, want ErrBusy", name, memory, err)
			}
		}
	}
}

// brokenTypes knows every kind as one without any field.
type brokenTypes struct{}

// Type implements Types.
func (brokenTypes) Type(schema.GroupVersionKind) (typed.ParseableType, bool) {
	name := "nothing"
	empty := smd.Atom{Map: &smd.Map{}}
	return typed.ParseableType{
		Schema:  &smd.Schema{Types: []smd.TypeDef{{Name: name, Atom: empty}}},
		TypeRef: smd.TypeRef{NamedType: &name},
	}, true
}

func TestApplyErrors(t *testing.T) {
	m := configMaps(t)
	live := mustUpdate(t, m, nil, configMap("a", "1"), "m1")
	withOwners := config("a", "1")
	withOwners.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "x"}})
	other := config("a", "1")
	other.SetAPIVersion("v9")
	number := config()
	number.Object["data"] = map[string]any{"a": int64(1)}
	unknown := config()
	unknown.Object["bogus"] = int64(1)
	for name, c := range map[string]struct {
		patch   *unstructured.Unstructured
		code    int32
		message string
	}{
		"owners":   {withOwners, 400, "metadata.managedFields must be nil"},
		"version":  {other, 400, "invalid object type: /v9, Kind=ConfigMap"},
		"number":   {number, 500, "failed to create typed patch object (/cm; /v1, Kind=ConfigMap): .data.a: expected string, got &value.valueUnstructured{Value:1}"},
		"unknown":  {unknown, 500, "failed to create typed patch object (/cm; /v1, Kind=ConfigMap): .bogus: field not declared in schema"},
		"conflict": {config("a", "2"), 409, `Apply failed with 1 conflict: conflict with "m1" using v1: .data.a`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := m.Apply(live, c.patch, "m2", false, time.Now())
			var status *apierrors.StatusError
			if !errors.As(err, &status) || status.ErrStatus.Code != c.code || status.ErrStatus.Message != c.message {
				t.Errorf("got %v", err)
			}
		})
	}
	for text, want := range map[string]string{
		`[]`: "error decoding patch: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go value of type map[string]interface {}",
		`{`:  "error decoding patch: error converting YAML to JSON: yaml: line 1: did not find expected node content",
	} {
		if _, err := DecodePatch([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := CheckPatch([]byte("a: 1\na: 2\n")); err == nil {
		t.Error("a field that is given twice is not found")
	}
}

func TestAncientChanges(t *testing.T) {
	m := configMaps(t)
	live := resource.Object(nil)
	for i := range 14 {
		data := []string{}
		for j := range i + 1 {
			data = append(data, fmt.Sprintf("k%02d", j), "v")
		}
		obj, err := m.Update(live, configMap(data...), fmt.Sprintf("m%02d", i), oldTime.Add(time.Duration(i)*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		live = obj
	}
	entries := live.GetManagedFields()
	if len(entries) != maxUpdaters {
		t.Fatalf("%d managers", len(entries))
	}
	if got, want := entries[0].FieldsV1.GetRawString(), `{"f:data":{".":{},"f:k00":{},"f:k01":{},"f:k02":{},"f:k03":{},"f:k04":{}}}`; entries[0].Manager != ancientChanges || got != want {
		t.Errorf("the oldest are %s with %s", entries[0].Manager, got)
	}
}

func TestKeepTimes(t *testing.T) {
	m := configMaps(t)
	live := mustUpdate(t, m, nil, configMap("a", "1"), "m1")
	for name, c := range map[string]struct {
		edit func(*corev1.ConfigMap)
		kept bool
	}{
		"nothing":  {func(*corev1.ConfigMap) {}, true},
		"kind":     {func(c *corev1.ConfigMap) { c.Kind, c.APIVersion = "ConfigMap", "v1" }, true},
		"nil maps": {func(c *corev1.ConfigMap) { c.BinaryData = map[string][]byte{} }, true},
		"data":     {func(c *corev1.ConfigMap) { c.Data["a"] = "2" }, false},
		"owner":    {func(c *corev1.ConfigMap) { c.ManagedFields[0].Manager = "m2" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			obj := live.DeepCopyObject().(*corev1.ConfigMap)
			obj.ManagedFields[0].Time = stamp(time.Now())
			c.edit(obj)
			KeepTimes(obj, live)
			if kept := obj.ManagedFields[0].Time.Equal(&oldTime); kept != c.kept {
				t.Errorf("kept: %v", kept)
			}
		})
	}
}

// TestProjectionLikeStock compares random owners before and after a write to a
// scale with apimachinery's ScaleHandler.
func TestProjectionLikeStock(t *testing.T) {
	gv := schema.GroupVersion{Group: "apps", Version: "v1"}
	mappings := stock.ResourcePathMappings{gv.String(): fieldpath.MakePathOrDie("spec", "replicas"), "apps/v2": fieldpath.MakePathOrDie("spec", "x"), "apps/v3": nil}
	p := &Projection{
		Paths: map[string]map[string]string{gv.String(): {"spec.replicas": "spec.replicas"}, "apps/v2": {"spec.x": "spec.replicas"}, "apps/v3": nil},
		Kind:  "autoscaling/v1", Version: gv.String(), Cache: &Cache{},
	}
	for seed := range randomtest.Seeds(t, 300) {
		r := randomtest.Rand(seed, 11)
		random := func(version string) (out []metav1.ManagedFieldsEntry) {
			for range r.IntN(4) {
				e := metav1.ManagedFieldsEntry{
					Manager: []string{"a", "b"}[r.IntN(2)], Operation: []metav1.ManagedFieldsOperationType{"Apply", "Update"}[r.IntN(2)],
					APIVersion: version, Subresource: []string{"", "scale"}[r.IntN(2)], FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1([]string{`{"f:spec":{"f:replicas":{}}}`, `{"f:spec":{"f:replicas":{},"f:x":{}}}`, `{"f:spec":{"f:x":{}}}`}[r.IntN(3)]),
				}
				if r.IntN(3) > 0 {
					e.Time = &oldTime
				}
				if r.IntN(6) == 0 {
					e.APIVersion = []string{"apps/v0", "apps/v2", "apps/v3"}[r.IntN(3)]
				}
				out = append(out, e)
			}
			return out
		}
		object, scale := random(gv.String()), random("autoscaling/v1")
		handler := stock.NewScaleHandler(object, gv, mappings)
		want, err := handler.ToSubresource()
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Project(object)
		if err != nil || describe(got) != describe(want) {
			t.Fatalf("%v: projected\n%swant\n%sfrom\n%s", err, describe(got), describe(want), describe(object))
		}
		if want, err = handler.ToParent(scale); err != nil {
			t.Fatal(err)
		}
		got, err = p.Restore(object, scale)
		if err != nil || sortedLines(describe(got)) != sortedLines(describe(want)) {
			t.Fatalf("%v: restored\n%swant\n%sfrom\n%swith\n%s", err, describe(got), describe(want), describe(object), describe(scale))
		}
	}
}

// sortedLines is for where the order of entries that sort alike is random in
// apimachinery.
func sortedLines(s string) string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// twoVersions convert between v1 and v2 of a kind, in which the field size of
// the spec has the name length.
func twoVersions(obj resource.Object, to schema.GroupVersion) (resource.Object, error) {
	u := obj.DeepCopyObject().(*unstructured.Unstructured)
	from := u.GroupVersionKind().GroupVersion()
	if to.Version != "v1" && to.Version != "v2" {
		return nil, ErrNoVersion
	}
	if from == to {
		return u, nil
	}
	u.SetGroupVersionKind(to.WithKind(u.GetKind()))
	if spec, ok := u.Object["spec"].(map[string]any); ok {
		names := map[string]string{"v1": "size", "v2": "length"}
		if v, ok := spec[names[from.Version]]; ok {
			delete(spec, names[from.Version])
			spec[names[to.Version]] = v
		}
	}
	return u, nil
}

// versionedObjects are twoVersions for apimachinery.
type versionedObjects struct{ looseObjects }

func (versionedObjects) ConvertToVersion(in runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	gv, ok := to.(schema.GroupVersion)
	if !ok {
		return in, nil
	}
	out, err := twoVersions(in.(resource.Object), gv)
	if errors.Is(err, ErrNoVersion) {
		return nil, runtime.NewNotRegisteredErrForTarget("test", nil, to)
	}
	return out, err
}

func TestVersionsLikeStock(t *testing.T) {
	hub := schema.GroupVersion{Group: "example.com", Version: "v1"}
	for seed := range randomtest.Seeds(t, scale(150)) {
		r := filler{randomtest.Rand(seed, 12)}
		ours, theirs := map[string]*Manager{}, map[string]*stock.FieldManager{}
		cache := &Cache{}
		for _, version := range []string{"v1", "v2"} {
			kind := schema.GroupVersionKind{Group: hub.Group, Version: version, Kind: "Thing"}
			var err error
			ours[version], err = New(Options{
				Kind: kind, Hub: hub, New: func() resource.Object { return newLoose(kind) }, Convert: twoVersions, Cache: cache,
			})
			if err != nil {
				t.Fatal(err)
			}
			o := versionedObjects{}
			theirs[version], err = stock.NewDefaultCRDFieldManager(stock.NewDeducedTypeConverter(), o, o, o, kind, hub, "", nil)
			if err != nil {
				t.Fatal(err)
			}
		}
		var live resource.Object
		for i := range 10 {
			version := []string{"v1", "v2"}[r.IntN(2)]
			kind := schema.GroupVersionKind{Group: hub.Group, Version: version, Kind: "Thing"}
			next := newLoose(kind)
			next.SetName("x")
			spec := map[string]any{}
			for _, name := range []string{"size", "length", "a", "b"} {
				if r.IntN(2) == 0 && (name != "size" || version == "v1") && (name != "length" || version == "v2") {
					spec[name] = r.word()
				}
			}
			if len(spec) > 0 {
				next.Object["spec"] = spec
			}
			if live != nil {
				live.SetUID("u")
				age(live)
				if r.IntN(8) == 0 {
					entries := live.GetManagedFields()
					if len(entries) > 0 {
						entries[0].APIVersion = "example.com/v0"
						live.SetManagedFields(entries)
					}
				}
			}
			manager := fmt.Sprintf("m%d", r.IntN(3))
			if i%3 == 2 || live == nil {
				obj, err := twoVersions(next, hub)
				if err != nil {
					t.Fatal(err)
				}
				if live != nil {
					obj.SetUID("u")
					live = both(t, ours[version], theirs[version], live, obj, manager)
				} else {
					reference := newLoose(hub.WithKind("Thing"))
					want, err := theirs[version].Update(reference, obj.DeepCopyObject(), manager)
					if err != nil {
						t.Fatal(err)
					}
					if live, err = ours[version].Update(nil, obj, manager, time.Now()); err != nil {
						t.Fatal(err)
					}
					if got, want := describe(live.GetManagedFields()), describe(want.(resource.Object).GetManagedFields()); got != want {
						t.Fatalf("got\n%swant\n%s", got, want)
					}
				}
				continue
			}
			if got, err := bothApply(t, ours[version], theirs[version], live, next, manager, r.IntN(2) == 0); err == nil {
				live = got
			}
		}
	}
}

// TestTogether runs managers that share a cache from several goroutines.
func TestTogether(t *testing.T) {
	all := scenes(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for _, s := range all {
				m, err := New(s.opts)
				if err != nil {
					t.Error(err)
					return
				}
				if s.patch != nil {
					_, err = m.Apply(s.live, s.patch, s.manager, false, oldTime.Time)
				} else {
					_, err = m.Update(s.live, s.new.DeepCopyObject().(resource.Object), s.manager, oldTime.Time)
				}
				if err != nil {
					t.Errorf("%s: %v", s.name, err)
				}
			}
		})
	}
	wg.Wait()
}
