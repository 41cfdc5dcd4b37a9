package managedfields

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/merge"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/resource"
)

// internal makes the 500 error that kube-apiserver returns where it has no better code. An error
// that says more than that (isOurs) is returned as it is.
func internal(format string, args ...any) error {
	for _, arg := range args {
		if err, ok := arg.(error); ok && isOurs(err) {
			return err
		}
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: fmt.Sprintf(format, args...),
	}}
}

// isOurs reports whether an error is not for structured-merge-diff or 500 to wrap: budget.ErrBusy
// (the request is to be sent again) and errUnsorted.
func isOurs(err error) bool { return errors.Is(err, budget.ErrBusy) || errors.Is(err, errUnsorted) }

// Apply merges an apply configuration into the live object, nil if there is none, for
// manager. It changes neither argument, and returns an object of the hub version with
// managedFields set. Errors are API statuses, or budget.ErrBusy from Options.Convert; a
// conflict error has a cause for each field that another manager owns. With force there
// are no conflicts.
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
	entries, err := m.opts.Cache.decodeEntries(resource.ManagedFields(live))
	if err != nil {
		return nil, internal("failed to decode managed fields: %v", err)
	}
	if len(entries) == 0 && m.opts.CustomScale {
		return nil, internal("failed to create manager for existing fields: failed to convert live object (/; %v) to proper version: %v", m.opts.Kind, m.noVersion(m.opts.Hub))
	}
	if len(entries) == 0 && !created {
		if entries, err = m.track(nil, live, nil, beforeFirstApply, now); err != nil {
			return nil, internal("failed to create manager for existing fields: %v", m.schemaError(live, err))
		}
	}
	if resource.ManagedFields(patch) != nil {
		return nil, apierrors.NewBadRequest("metadata.managedFields must be nil")
	}
	if manager == "" {
		manager = unknownManager
	}
	a := &application{
		m: m, live: live, created: created, patch: patch, entries: entries, now: now,
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

// schemaError replaces an error of tracking ownership with the message that kube-apiserver
// has for an object that does not match its schema.
func (m *Manager) schemaError(obj resource.Object, err error) error {
	types, ok := m.opts.Cache.kind(m.opts.Types, m.opts.Kind)
	fields, ferr := m.fieldsOf(obj)
	if !ok || ferr != nil {
		return err
	}
	if _, terr := types.parse(fields, typed.AllowDuplicates); terr != nil {
		return fmt.Errorf("failed to convert new object (%v/%v; %v) to smd typed: %w", obj.GetNamespace(), obj.GetName(), m.opts.Kind, terr)
	}
	return err
}

// application is one run of Apply.
type application struct {
	m       *Manager
	live    resource.Object // in the hub version
	created bool            // live is empty
	patch   *unstructured.Unstructured
	entries []entry
	who     owner
	now     time.Time

	types *kindType
	// fields that the applier will own; last is its entry before, nil if it had none.
	fields *node
	last   *entry
	// before is the live object in the version of the request.
	before *typed.TypedValue
}

func (a *application) unchanged() resource.Object {
	obj := a.live.DeepCopyObject().(resource.Object)
	resource.SetManagedFields(obj, encodeEntries(a.entries))
	return obj
}

// run merges with structured-merge-diff.
func (a *application) run(force bool) (resource.Object, error) {
	m := a.m
	if a.types == nil {
		return nil, internal("failed to create typed patch object (%s): no corresponding type for %v", describeObject(a.patch), m.opts.Kind)
	}
	config, err := a.types.parse(a.patch.Object)
	if err != nil {
		return nil, internal("failed to create typed patch object (%s): %v", describeObject(a.patch), err)
	}
	fields, err := m.fieldsOf(a.live)
	if err != nil {
		return nil, internal("failed to convert live object (%s) to proper version: %v", describeObject(a.live), err)
	}
	if a.before, err = a.types.parse(fields, typed.AllowDuplicates); err != nil {
		return nil, internal("failed to create typed live object (%v/%v; %v): %v", a.live.GetNamespace(), a.live.GetName(), m.opts.Kind, err)
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
	resource.SetManagedFields(obj, encodeEntries(entries))
	return obj, nil
}

// merge runs the algorithm of structured-merge-diff. The result is nil if the object
// does not change.
func (a *application) merge(config *typed.TypedValue, force bool) (*typed.TypedValue, []entry, error) {
	m := a.m
	sets, times := fieldpath.ManagedFields{}, map[string]entry{}
	for _, e := range a.entries {
		id := e.id()
		sets[id] = fieldpath.NewVersionedSet(e.set.fields(), fieldpath.APIVersion(e.version), e.applied())
		times[id] = e
	}
	filters := map[fieldpath.APIVersion]fieldpath.Filter{}
	if m.filter != nil {
		filters[fieldpath.APIVersion(m.version)] = m.filter
		for _, e := range a.entries {
			if m.scoped(e.version) {
				filters[fieldpath.APIVersion(e.version)] = m.filter
			}
		}
	}
	convert := &converter{m: m}
	builder := merge.UpdaterBuilder{Converter: convert, IgnoreFilter: filters}
	updater := builder.BuildUpdater()
	who := a.who.id()
	result, sets, err := updater.Apply(a.before, config, fieldpath.APIVersion(m.version), sets, who, force)
	if err != nil && convert.err != nil {
		return nil, nil, convert.err
	}
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
			} else if !known || !tree.within(e.set.tree()) || !e.set.tree().within(tree) {
				e.set = m.opts.Cache.encoded(tree)
			}
		} else if set.Set() != e.set.fields() {
			e.set = m.opts.Cache.encoded(treeOf(set.Set()))
		}
		entries = append(entries, e)
	}
	return result, entries, nil
}

// object makes an object of the hub version from the result of a merge.
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
	if m.opts.CustomScale {
		return nil, internal("failed to convert new object (%s) to proper version: %v", describeObject(a.patch), m.noVersion(m.opts.Hub))
	}
	obj, err := objectOf(m.opts.New(), fields)
	if err != nil {
		return nil, internal("failed to convert new object (%s) to proper version: unable to convert unstructured object to %v: %v", describeObject(a.patch), m.opts.Kind, err)
	}
	if m.opts.Default != nil {
		m.opts.Default(obj)
	}
	if obj, err = m.toHub(obj); err != nil {
		return nil, internal("failed to convert to unversioned (%s): %v", describeObject(a.patch), err)
	}
	return obj, nil
}

// objectOf sets the fields of an empty object to a copy of fields.
func objectOf(empty resource.Object, fields map[string]any) (resource.Object, error) {
	if u, ok := empty.(*unstructured.Unstructured); ok {
		u.Object = runtime.DeepCopyJSON(fields)
		return u, nil
	}
	return empty, runtime.DefaultUnstructuredConverter.FromUnstructured(fields, empty)
}

// fieldsOf returns an object of the hub as a map in the version of the request. The map
// may share memory with the object and must not be changed.
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

// converter converts objects between versions for structured-merge-diff.
type converter struct {
	m *Manager
	// err is the error of a conversion that isOurs. The library returns it without what it wraps.
	err error
}

// Convert implements merge.Converter.
func (c *converter) Convert(object *typed.TypedValue, version fieldpath.APIVersion) (*typed.TypedValue, error) {
	out, err := c.convert(object, version)
	if isOurs(err) {
		c.err = err
	}
	return out, err
}

func (c *converter) convert(object *typed.TypedValue, version fieldpath.APIVersion) (*typed.TypedValue, error) {
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
	if !ok || to.Group != m.opts.Kind.Group {
		return object, m.noVersion(to)
	}
	empty, err := m.emptyIn(from)
	if err != nil {
		return object, err
	}
	obj, err := objectOf(empty, fields)
	if err != nil {
		return object, fmt.Errorf("unable to convert unstructured object to %v: %w", from.WithKind(m.opts.Kind.Kind), err)
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
	return types.parse(fields)
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
