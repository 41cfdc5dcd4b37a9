package match

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/resource"
)

// Write is a write with cached results of matching. It belongs to one goroutine.
type Write struct {
	*admission.Attributes
	// Scratch is for package expression.
	Scratch any

	objects admission.Objects
	changes int // how often Replace was called

	known     []*Form
	namespace *corev1.Namespace
	missing   error         // error of reading the namespace
	labels    labels.Labels // of the namespace
}

// Form is a write in one of the versions in which its resource is served. Objects are
// converted on first use.
type Form struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind

	w       *Write
	version *resource.Version
	made    bool  // object, old and err are set
	err     error // of converting them
	object  runtime.Object
	old     runtime.Object
	values  [2]ref.Val
	kept    map[schema.GroupVersionResource]ref.Val
}

// New returns a write of which nothing is known yet.
func New(a *admission.Attributes, objects admission.Objects) *Write {
	return &Write{Attributes: a, objects: objects}
}

// forms returns the forms of the resource; the first is that of the request.
func (w *Write) forms() []*Form {
	if w.known != nil {
		return w.known
	}
	served := w.Served
	w.known = append(w.known, &Form{w: w, Resource: served.GroupVersionResource(), Kind: w.Kind, version: served.Version})
	for i := range served.Definition.Versions {
		v := &served.Definition.Versions[i]
		if v.Off || v == served.Version {
			continue
		}
		gv := schema.GroupVersion{Group: v.Group, Version: v.Name}
		if gv.Group == "" {
			gv.Group = served.Definition.Group
		}
		kind := w.Kind
		if !w.ofOwnKind() {
			kind = gv.WithKind(served.Definition.Kind)
		}
		w.known = append(w.known, &Form{w: w, Resource: gv.WithResource(served.Definition.Resource), Kind: kind, version: v})
	}
	return w.known
}

// ofOwnKind reports whether the object is not of the resource's kind, but of a
// subresource's kind or options.
func (w *Write) ofOwnKind() bool { return w.Kind != w.Served.GroupVersionKind() }

// find returns the form that one of the rules matches: that of the request before all
// others, earlier rules before later.
func (w *Write) find(rules []rule, equivalent, names bool) *Form {
	if len(rules) == 0 {
		return nil
	}
	asked := w.Served.GroupVersionResource()
	for i := range rules {
		if rules[i].matches(w.Attributes, asked, names) {
			return w.forms()[0]
		}
	}
	if !equivalent || len(w.Served.Definition.Versions) == 1 {
		return nil
	}
	for i := range rules {
		for _, f := range w.forms()[1:] {
			if rules[i].matches(w.Attributes, f.Resource, names) {
				return f
			}
		}
	}
	return nil
}

// InterruptIfBusy interrupts the write if an error of reading, converting or decoding an object says that
// the server is short of memory.
func (w *Write) InterruptIfBusy(err error) {
	if errors.Is(err, budget.ErrBusy) {
		w.Interrupt(err)
	}
}

// Changes returns how often the object of the write was replaced.
func (w *Write) Changes() int { return w.changes }

// Objects returns the new and the old object with kind and apiVersion set, nil for a missing
// one. They must not be changed. A conversion that has failed is not tried again until Replace.
func (f *Form) Objects() (object, old runtime.Object, err error) {
	if !f.made {
		f.made = true
		if f.object, f.err = f.convert(f.w.Object); f.err == nil {
			f.old, f.err = f.convert(f.w.Old)
		}
		f.w.InterruptIfBusy(f.err)
	}
	return f.object, f.old, f.err
}

func (f *Form) convert(obj runtime.Object) (runtime.Object, error) {
	if obj == nil || reflect.ValueOf(obj).IsNil() {
		return nil, nil
	}
	if o, ok := obj.(resource.Object); ok && !f.w.ofOwnKind() {
		converted, err := f.fromWritten(o)
		if err != nil {
			return nil, fmt.Errorf("convert to %s: %w", f.Kind, err)
		}
		obj = converted
	}
	return WithKind(obj, f.Kind), nil
}

// fromWritten converts an object of the write to the version of the form, toWritten the
// other way.
func (f *Form) fromWritten(obj resource.Object) (resource.Object, error) {
	served := f.w.Served
	switch def := served.Definition; {
	case def.Between != nil && f.version != served.Version:
		return def.Between(obj, f.version.Name)
	case def.Between == nil && f.version.FromHub != nil && f.version != def.HubVersion():
		return f.version.FromHub(obj)
	}
	return obj, nil
}

func (f *Form) toWritten(obj resource.Object) (resource.Object, error) {
	served := f.w.Served
	switch def := served.Definition; {
	case def.Between != nil && f.version != served.Version:
		return def.Between(obj, served.Version.Name)
	case def.Between == nil && f.version.ToHub != nil && f.version != def.HubVersion():
		hub, err := f.version.ToHub(obj)
		if before, ok := f.w.Object.(resource.Object); err == nil && ok && f.version.Keep != nil {
			f.version.Keep(hub, before)
		}
		return hub, err
	}
	return obj, nil
}

// WithKind returns a shallow copy of an object with kind and apiVersion set.
func WithKind(obj runtime.Object, kind schema.GroupVersionKind) runtime.Object {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if u.GroupVersionKind() == kind {
			return &unstructured.Unstructured{Object: u.Object}
		}
		same := make(map[string]any, len(u.Object)+2)
		for k, v := range u.Object {
			same[k] = v
		}
		same["apiVersion"], same["kind"] = kind.GroupVersion().String(), kind.Kind
		return &unstructured.Unstructured{Object: same}
	}
	same := reflect.New(reflect.TypeOf(obj).Elem())
	same.Elem().Set(reflect.ValueOf(obj).Elem())
	out := same.Interface().(runtime.Object)
	out.GetObjectKind().SetGroupVersionKind(kind)
	return out
}

// Values returns the objects as CEL values.
func (f *Form) Values() (object, old ref.Val, err error) {
	if f.values[0] == nil {
		object, old, err := f.Objects()
		if err != nil {
			return nil, nil, err
		}
		f.values = [2]ref.Val{Value(object), Value(old)}
	}
	return f.values[0], f.values[1], nil
}

// MapValues returns the objects as CEL maps.
func (f *Form) MapValues() (object, old ref.Val, err error) {
	values := [2]ref.Val{types.NullValue, types.NullValue}
	objects := [2]runtime.Object{}
	if objects[0], objects[1], err = f.Objects(); err != nil {
		return nil, nil, err
	}
	for i, obj := range objects {
		if obj == nil {
			continue
		}
		if _, ok := obj.(*unstructured.Unstructured); !ok {
			fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
			if err != nil {
				return nil, nil, err
			}
			obj = &unstructured.Unstructured{Object: fields}
		}
		values[i] = Value(obj)
	}
	return values[0], values[1], nil
}

// Kept returns a value that is made once for the write and does not depend on the objects.
func (f *Form) Kept(key schema.GroupVersionResource, make func() ref.Val) ref.Val {
	v := f.kept[key]
	if v == nil {
		v = make()
		if f.kept == nil {
			f.kept = map[schema.GroupVersionResource]ref.Val{}
		}
		f.kept[key] = v
	}
	return v
}

// Value returns an object as a CEL value.
func Value(obj runtime.Object) ref.Val {
	switch o := obj.(type) {
	case nil:
		return types.NullValue
	case *unstructured.Unstructured:
		return types.DefaultTypeAdapter.NativeToValue(o.Object)
	}
	return common.SchemalessTypedToVal(obj)
}

// Replace makes obj, an object of the form, the object of the write. The caller must not use
// obj afterwards.
func (f *Form) Replace(obj runtime.Object) error {
	w := f.w
	if o, ok := obj.(resource.Object); ok && !w.ofOwnKind() {
		converted, err := f.toWritten(o)
		if err != nil {
			w.InterruptIfBusy(err)
			return err
		}
		obj = converted
	}
	w.keepOwners(obj)
	kind := w.Object.GetObjectKind().GroupVersionKind()
	into, from := reflect.ValueOf(w.Object), reflect.ValueOf(obj)
	if into.Type() != from.Type() {
		return fmt.Errorf("%T is no %T", obj, w.Object)
	}
	into.Elem().Set(from.Elem())
	if _, ok := w.Object.(*unstructured.Unstructured); !ok {
		w.Object.GetObjectKind().SetGroupVersionKind(kind)
	}
	for _, f := range w.known {
		f.made, f.object, f.old, f.values = false, nil, nil, [2]ref.Val{}
	}
	w.labels = nil // labels may be those of the object itself
	w.changes++
	return nil
}

// keepOwners restores managedFields that a plugin has made invalid.
func (w *Write) keepOwners(obj runtime.Object) {
	before, ok := w.Object.(metav1.Object)
	after, same := obj.(metav1.Object)
	if !ok || !same {
		return
	}
	if err := managedfields.ValidateManagedFields(after.GetManagedFields()); err != nil {
		after.SetManagedFields(before.GetManagedFields())
		w.Request.Warn(fmt.Sprintf(".metadata.managedFields was in an invalid state after admission; "+
			"this could be caused by an outdated mutating admission controller; please fix your requests: %v", err))
	}
}

// Empty returns an empty object of the form, and its defaulting function.
func (f *Form) Empty() (obj runtime.Object, defaults func(runtime.Object)) {
	w := f.w
	if w.ofOwnKind() {
		return reflect.New(reflect.TypeOf(w.Object).Elem()).Interface().(runtime.Object), func(runtime.Object) {}
	}
	return f.version.New(), func(obj runtime.Object) {
		if f.version.Default != nil {
			f.version.Default(obj.(resource.Object))
		}
	}
}

// Prune removes fields that the version of the form does not have.
func (f *Form) Prune(obj runtime.Object) error {
	if o, ok := obj.(resource.Object); ok && f.version.Prune != nil && !f.w.ofOwnKind() {
		_, err := f.version.Prune(o, resource.PruneSent)
		return err
	}
	return nil
}

// NamespaceObject returns the namespace of the write; nil if the write has none or is of a
// namespace itself.
func (w *Write) NamespaceObject(ctx context.Context) (*corev1.Namespace, error) {
	if w.Namespace == "" || w.Kind == corev1.SchemeGroupVersion.WithKind("Namespace") {
		return nil, nil
	}
	return w.inNamespace(ctx)
}

func (w *Write) inNamespace(ctx context.Context) (*corev1.Namespace, error) {
	if w.namespace == nil && w.missing == nil {
		obj, err := w.objects.Get(ctx, "", "namespaces", "", w.Namespace)
		if apierrors.IsNotFound(err) {
			obj, err = w.objects.GetNewest(ctx, "", "namespaces", "", w.Namespace)
		}
		if err != nil {
			w.missing = err
		} else {
			w.namespace = obj.(*corev1.Namespace)
		}
	}
	return w.namespace, w.missing
}

func (w *Write) namespaceLabels(ctx context.Context) (labels.Labels, error) {
	if w.labels != nil {
		return w.labels, nil
	}
	set, err := w.findLabels(ctx)
	if err == nil {
		w.labels = set
	}
	return set, err
}

func (w *Write) findLabels(ctx context.Context) (labels.Set, error) {
	if w.Served.Definition.Resource == "namespaces" && w.Subresource == "" && (w.Operation == admission.Create || w.Operation == admission.Update) {
		// The stored namespace may be outdated or missing.
		if m, ok := w.Object.(metav1.Object); ok {
			return m.GetLabels(), nil
		}
	}
	ns, err := w.inNamespace(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return nil, err
	case err != nil:
		return nil, InternalError(err)
	}
	return ns.Labels, nil
}
