package managedfields

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/merge"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/apikeel/kelson/resource"
)

// DecodePatch reads an apply configuration in YAML or JSON.
func DecodePatch(data []byte) (*unstructured.Unstructured, error) {
	if _, err := yaml.ToJSON(data); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
	}
	patch := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal(data, &patch.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	return patch, nil
}

// CheckPatch returns what is wrong with an apply configuration under strict
// field validation, such as a field that is given twice. Servers ask after a
// successful Apply: with Strict the request is refused with StrictError, with
// Warn it is a warning.
func CheckPatch(data []byte) error {
	return yaml.UnmarshalStrict(data, &map[string]any{})
}

// StrictError is the answer to an apply that CheckPatch finds fault with.
func StrictError(err error) *apierrors.StatusError {
	return apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
}

// internal is an error that kube-apiserver has no better code for.
func internal(format string, args ...any) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: fmt.Sprintf(format, args...),
	}}
}

// Apply merges a configuration into the live object, nil if there is none, for
// manager. It changes neither, and returns an object of the hub with
// managedFields set. Errors are statuses; one of conflicts has a cause for each
// field that another manager owns, and does not occur with force.
func (m *Manager) Apply(live resource.Object, patch *unstructured.Unstructured, manager string, force bool, now time.Time) (resource.Object, error) {
	if kind := patch.GroupVersionKind(); kind != m.opts.Kind {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid object type: %v", kind))
	}
	created := live == nil
	if created {
		empty, err := m.toHub(m.opts.New())
		if err != nil {
			return nil, internal("failed to create new object: %v", err)
		}
		live = empty
	}
	entries, err := m.opts.Cache.decodeEntries(live.GetManagedFields())
	if err != nil {
		return nil, internal("failed to decode managed fields: %v", err)
	}
	if len(entries) == 0 && !created {
		if entries, err = m.track(nil, live, nil, beforeFirstApply, now); err != nil {
			return nil, internal("failed to create manager for existing fields: %v", err)
		}
	}
	if patch.GetManagedFields() != nil {
		return nil, apierrors.NewBadRequest("metadata.managedFields must be nil")
	}
	if manager == "" {
		manager = unknownManager
	}
	a := &application{
		m: m, live: live, patch: patch, entries: entries, now: now,
		who: owner{manager: manager, operation: metav1.ManagedFieldsOperationApply, subresource: m.opts.Subresource},
	}
	a.types, _ = m.opts.Cache.kind(m.opts.Types, m.opts.Kind)
	if a.prepare() {
		if !created && a.confirm() {
			return a.unchanged(), nil
		}
		if obj, ok := a.change(force); ok {
			return obj, nil
		}
	}
	return a.run(force)
}

// application is one run of Apply.
type application struct {
	m       *Manager
	live    resource.Object // in the hub's version
	patch   *unstructured.Unstructured
	entries []entry
	who     owner
	now     time.Time

	types *kindType
	// fields that the applier will own, and what it owned before, if anything.
	fields *node
	last   *entry
	// before is the live object in the version of the request, by fields.
	before *typed.TypedValue
}

// prepare computes what the applier will own, for the two ways to do without
// the library. It is false if they cannot be taken: if owners know the object
// in other versions, or if the configuration has less in it than last time, so
// that something may have to be removed.
func (a *application) prepare() bool {
	m := a.m
	if a.types == nil || m.only != nil || a.who.manager == kubectl && lastApplied(a.live) != "" {
		return false
	}
	for i := range a.entries {
		e := &a.entries[i]
		if e.version != m.version || m.reconciled(*e) != e.set.tree {
			return false
		}
		if e.owner == a.who {
			a.last = e
		}
	}
	w := &walk{}
	root := w.start(nil)
	w.own(a.types.typ, a.patch.Object, root)
	if w.err != nil {
		return false
	}
	a.fields = root.node.without(m.ignore).minus(m.strip, member)
	return a.last == nil || a.last.set.tree.within(a.fields)
}

// confirm handles the most frequent apply of controllers, the one that changes
// nothing since all that it says is so already. Nobody is in conflict, and only
// the applier's own entry can change. It is false if that is not certain.
func (a *application) confirm() bool {
	live, err := a.m.convert(a.live, a.m.opts.Kind.GroupVersion())
	if err != nil {
		return false
	}
	config := make(map[string]any, len(a.patch.Object))
	for k, v := range a.patch.Object {
		if k != "apiVersion" && k != "kind" {
			config[k] = v
		}
	}
	if u, ok := live.(*unstructured.Unstructured); ok {
		if !holdsLoose(a.types.typ, u.Object, config) {
			return false
		}
	} else if !holds(a.types.plan(live), goOperand(live), config) {
		return false
	}
	a.own(nil)
	return true
}

// own gives the fields of the configuration to the applier.
func (a *application) own(when *metav1.Time) {
	cache := a.m.opts.Cache
	switch {
	case a.last == nil && !a.fields.empty():
		a.entries = append(a.entries, entry{owner: a.who, version: a.m.version, set: cache.encoded(a.fields), time: when})
		return
	case a.last == nil:
		return
	case !a.fields.within(a.last.set.tree):
		a.last.set = cache.encoded(a.fields)
	}
	if when != nil {
		a.last.time = when
	}
}

// change merges a configuration that takes nothing back, so that the outcome
// does not depend on the owners. It is false if there is more to it.
func (a *application) change(force bool) (resource.Object, bool) {
	m := a.m
	before, err := m.fieldsOf(a.live)
	if err != nil {
		return nil, false
	}
	var mg merger
	after, _ := mg.merge(a.types.typ, loose{before, true}, loose{a.patch.Object, true}).(map[string]any)
	if mg.err != nil {
		return nil, false
	}
	w := &walk{}
	root := w.start(m.ignore)
	w.diffLoose(a.types.typ, loose{before, true}, loose{after, true}, root)
	if w.err != nil {
		return nil, false
	}
	left := make([]*node, len(a.entries))
	for i := range a.entries {
		e := &a.entries[i]
		if e.owner == a.who {
			continue
		}
		if left[i] = e.set.tree.minus(root.node, touched); left[i] != e.set.tree && !force {
			return nil, false
		}
	}
	if equalAny(before, after) {
		a.own(nil)
		return a.unchanged(), true
	}
	obj, err := a.objectOf(after)
	if err != nil {
		return nil, false
	}
	kept := make([]entry, 0, len(a.entries)+1)
	for i, e := range a.entries {
		switch {
		case e.owner == a.who:
			kept = append(kept, e)
			a.last = &kept[len(kept)-1]
		case left[i].empty():
		case left[i] != e.set.tree:
			e.set = m.opts.Cache.encoded(left[i])
			kept = append(kept, e)
		default:
			kept = append(kept, e)
		}
	}
	a.entries = kept
	a.own(stamp(a.now))
	obj.SetManagedFields(encodeEntries(a.entries))
	return obj, true
}

func (a *application) unchanged() resource.Object {
	obj := a.live.DeepCopyObject().(resource.Object)
	obj.SetManagedFields(encodeEntries(a.entries))
	return obj
}

// run merges with the library.
func (a *application) run(force bool) (resource.Object, error) {
	m := a.m
	if a.types == nil {
		return nil, internal("failed to create typed patch object (%s): no corresponding type for %v", describeObject(a.patch), m.opts.Kind)
	}
	config, err := a.types.parseable.FromUnstructured(a.patch.Object)
	if err != nil {
		return nil, internal("failed to create typed patch object (%s): %v", describeObject(a.patch), err)
	}
	fields, err := m.fieldsOf(a.live)
	if err != nil {
		return nil, internal("failed to convert live object (%s) to proper version: %v", describeObject(a.live), err)
	}
	if a.before, err = a.types.parseable.FromUnstructured(fields, typed.AllowDuplicates); err != nil {
		return nil, internal("failed to create typed live object (%s): %v", describeObject(a.live), err)
	}
	result, entries, err := a.merge(config, force)
	var conflicts merge.Conflicts
	if errors.As(err, &conflicts) && a.who.manager == kubectl {
		if conflicts = a.withoutLastApplied(conflicts); len(conflicts) == 0 {
			result, entries, err = a.merge(config, true)
		} else {
			err = conflicts
		}
	}
	if errors.As(err, &conflicts) {
		return nil, a.conflictError(conflicts)
	}
	if err != nil {
		return nil, internal("%v", err)
	}
	obj, err := a.object(result)
	if err != nil {
		return nil, err
	}
	if a.who.manager == kubectl && lastApplied(obj) != "" {
		if err := setLastApplied(obj, a.patch); err != nil {
			return nil, internal("failed to build last-applied annotation: %v", err)
		}
	}
	obj.SetManagedFields(encodeEntries(entries))
	return obj, nil
}

// merge runs the library's algorithm. The result is nil if the object does not
// change.
func (a *application) merge(config *typed.TypedValue, force bool) (*typed.TypedValue, []entry, error) {
	m := a.m
	sets, times := fieldpath.ManagedFields{}, map[string]entry{}
	for _, e := range a.entries {
		id := e.id()
		sets[id] = fieldpath.NewVersionedSet(e.set.fields(), fieldpath.APIVersion(e.version), e.applied())
		times[id] = e
	}
	updater := merge.Updater{Converter: &converter{m}, IgnoreFilter: map[fieldpath.APIVersion]fieldpath.Filter{}}
	if m.filter != nil {
		updater.IgnoreFilter[fieldpath.APIVersion(m.version)] = m.filter
		for _, e := range a.entries {
			updater.IgnoreFilter[fieldpath.APIVersion(e.version)] = m.filter
		}
	}
	who := a.who.id()
	result, sets, err := updater.Apply(a.before, config, fieldpath.APIVersion(m.version), sets, who, force)
	if err != nil {
		return nil, nil, err
	}
	entries := make([]entry, 0, len(sets))
	for id, set := range sets {
		e, known := times[id]
		if !known {
			e = entry{owner: a.who}
		}
		if id == who && result != nil {
			e.time = stamp(a.now)
		}
		e.version = string(set.APIVersion())
		if id == who {
			if tree := treeOf(set.Set()).minus(m.strip, member); tree.empty() {
				continue
			} else if !known || !tree.within(e.set.tree) || !e.set.tree.within(tree) {
				e.set = m.opts.Cache.encoded(tree)
			}
		} else if set.Set() != e.set.fields() {
			e.set = m.opts.Cache.encoded(treeOf(set.Set()))
		}
		entries = append(entries, e)
	}
	return result, entries, nil
}

// object makes an object of the hub from the result of a merge.
func (a *application) object(result *typed.TypedValue) (resource.Object, error) {
	if result == nil {
		return a.live.DeepCopyObject().(resource.Object), nil
	}
	fields, ok := result.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, internal("failed to convert new typed object (%s) to object: not an object", describeObject(a.patch))
	}
	return a.objectOf(fields)
}

func (a *application) objectOf(fields map[string]any) (resource.Object, error) {
	m := a.m
	obj, err := objectOf(m.opts.New(), fields)
	if err != nil {
		return nil, internal("failed to convert new object (%s) to proper version: %v", describeObject(a.patch), err)
	}
	if m.opts.Default != nil {
		m.opts.Default(obj)
	}
	if obj, err = m.toHub(obj); err != nil {
		return nil, internal("failed to convert to unversioned (%s): %v", describeObject(a.patch), err)
	}
	return obj, nil
}

// objectOf fills an empty object with fields. They are copied.
func objectOf(empty resource.Object, fields map[string]any) (resource.Object, error) {
	if u, ok := empty.(*unstructured.Unstructured); ok {
		u.Object = runtime.DeepCopyJSON(fields)
		return u, nil
	}
	return empty, runtime.DefaultUnstructuredConverter.FromUnstructured(fields, empty)
}

// fieldsOf returns an object of the hub in the version of the request, by
// fields. They may be shared with the object and must not be changed.
func (m *Manager) fieldsOf(obj resource.Object) (map[string]any, error) {
	obj, err := m.convert(obj, m.opts.Kind.GroupVersion())
	if err != nil {
		return nil, err
	}
	return fieldsIn(obj, m.opts.Kind)
}

func fieldsIn(obj resource.Object, kind schema.GroupVersionKind) (map[string]any, error) {
	var fields map[string]any
	if u, ok := obj.(*unstructured.Unstructured); ok {
		fields = make(map[string]any, len(u.Object))
		for k, v := range u.Object {
			fields[k] = v
		}
	} else {
		var err error
		if fields, err = runtime.DefaultUnstructuredConverter.ToUnstructured(obj); err != nil {
			return nil, err
		}
	}
	fields["apiVersion"], fields["kind"] = kind.ToAPIVersionAndKind()
	if meta, ok := fields["metadata"].(map[string]any); ok && meta["managedFields"] != nil {
		rest := make(map[string]any, len(meta))
		for k, v := range meta {
			if k != "managedFields" {
				rest[k] = v
			}
		}
		fields["metadata"] = rest
	}
	return fields, nil
}

// describeObject names an object in an error.
func describeObject(obj resource.Object) string {
	return fmt.Sprintf("%v/%v; %v", obj.GetNamespace(), obj.GetName(), obj.GetObjectKind().GroupVersionKind())
}

// converter is how the library gets an object in another version.
type converter struct{ m *Manager }

// Convert implements merge.Converter.
func (c *converter) Convert(object *typed.TypedValue, version fieldpath.APIVersion) (*typed.TypedValue, error) {
	m := c.m
	to, err := schema.ParseGroupVersion(string(version))
	if err != nil {
		return object, err
	}
	fields, ok := object.AsValue().Unstructured().(map[string]any)
	if !ok {
		return object, errors.New("not an object")
	}
	apiVersion, _ := fields["apiVersion"].(string)
	if apiVersion == string(version) {
		return object, nil
	}
	from, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return object, err
	}
	kind := to.WithKind(m.opts.Kind.Kind)
	types, ok := m.opts.Cache.kind(m.opts.Types, kind)
	if !ok {
		return object, ErrNoVersion
	}
	empty, err := m.emptyIn(from)
	if err != nil {
		return object, err
	}
	obj, err := objectOf(empty, fields)
	if err != nil {
		return object, err
	}
	if from != m.opts.Hub {
		if obj, err = m.opts.Convert(obj, m.opts.Hub); err != nil {
			return object, err
		}
	}
	if obj, err = m.convert(obj, to); err != nil {
		return object, err
	}
	if fields, err = fieldsIn(obj, kind); err != nil {
		return object, err
	}
	return types.parseable.FromUnstructured(fields)
}

// IsMissingVersionError implements merge.Converter.
func (c *converter) IsMissingVersionError(err error) bool { return errors.Is(err, ErrNoVersion) }

// emptyIn returns an empty object of a version.
func (m *Manager) emptyIn(gv schema.GroupVersion) (resource.Object, error) {
	if gv == m.opts.Kind.GroupVersion() {
		return m.opts.New(), nil
	}
	hub, err := m.toHub(m.opts.New())
	if err != nil {
		return nil, err
	}
	obj, err := m.convert(hub, gv)
	if err != nil {
		return nil, err
	}
	return reflect.New(reflect.TypeOf(obj).Elem()).Interface().(resource.Object), nil
}

// holds reports whether merging a configuration into a value is certain to
// leave the value as it is. It is not for null, nor for an empty map or list if
// the value is not empty: whoever owns an empty map owns none of the fields in
// it, and may lose it with them.
func holds(p *plan, v operand, config any) bool {
	if p == nil || p.t == nil || config == nil {
		return false
	}
	for p.kind == planPointer {
		v = deref(v)
		p = p.element()
	}
	if v = nulled(p, v); !v.set() {
		return false
	}
	if isEmpty(config) && p.kind != planGeneric {
		return isEmptyGo(p, v.v)
	}
	switch p.kind {
	case planStruct:
		fields, ok := config.(map[string]any)
		if !ok || p.t.fields.atomic {
			break
		}
		n := 0
		for _, f := range p.fields {
			want, ok := fields[f.JsonName]
			if !ok {
				continue
			}
			n++
			if !holds(f.of(p), operand{v: f.get(v.v)}, want) {
				return false
			}
		}
		return n == len(fields)
	case planStringMap:
		fields, ok := config.(map[string]any)
		if !ok || p.t.fields.atomic {
			break
		}
		have := v.v.Interface().(map[string]string)
		for name, want := range fields {
			if value, ok := have[name]; !ok || want != any(value) {
				return false
			}
		}
		return true
	case planString:
		return config == any(v.v.String())
	case planBool:
		return config == any(v.v.Bool())
	case planInt:
		return equalAny(v.v.Int(), config)
	case planList:
		list, ok := config.([]any)
		if !ok || p.t.list.atomic {
			break
		}
		have, err := p.items(v.v, v.v.Len())
		elem := p.element()
		return err == nil && holdsItems(p.t, have, list, func(i int, want any) bool {
			return holds(elem, operand{v: v.v.Index(i)}, want)
		})
	}
	u, err := p.unstructured(v.v)
	return err == nil && holdsLoose(p.t, u, config)
}

// isEmpty reports whether a value is a map or list without content.
func isEmpty(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// isEmptyGo is isEmpty for a value of Go that is not null.
func isEmptyGo(p *plan, v reflect.Value) bool {
	switch p.kind {
	case planStruct:
		return !slices.ContainsFunc(p.fields, func(f *planField) bool { return f.get(v).IsValid() })
	case planMap, planStringMap, planList:
		return v.Len() == 0
	}
	return false
}

// holdsItems is holds for lists whose items have identities. The order counts.
func holdsItems(t *typ, have []listItem, config []any, item func(i int, want any) bool) bool {
	last := -1
	for _, want := range config {
		keys, err := t.itemKeys(want)
		if err != nil {
			return false
		}
		at, found := slices.BinarySearchFunc(have, keys, func(i listItem, k []keyVal) int { return compareKeys(i.keys, k) })
		if !found || at+1 < len(have) && compareKeys(have[at+1].keys, keys) == 0 {
			return false
		}
		if have[at].index <= last || !item(have[at].index, want) {
			return false
		}
		last = have[at].index
	}
	return true
}

// holdsLoose is holds for unstructured values.
func holdsLoose(t *typ, v, config any) bool {
	if t == nil || v == nil || config == nil || isEmpty(config) && !isEmpty(v) {
		return false
	}
	switch want := config.(type) {
	case map[string]any:
		have, ok := v.(map[string]any)
		if !ok || t.fields == nil {
			return false
		}
		if t.fields.atomic {
			break
		}
		for name, w := range want {
			value, ok := have[name]
			if !ok || !holdsLoose(t.field(name), value, w) {
				return false
			}
		}
		return true
	case []any:
		have, ok := v.([]any)
		if !ok || t.list == nil {
			return false
		}
		if t.list.atomic {
			break
		}
		items, err := t.items(have)
		elem := t.item()
		return err == nil && holdsItems(t, items, want, func(i int, w any) bool { return holdsLoose(elem, have[i], w) })
	}
	return equalAny(v, config)
}
