package resource

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/features"
)

// WithGates returns groups whose kinds obey feature gates: the functions of their
// strategies find the gates in their context, and GatedFields are dropped if their
// gates are disabled. Kinds that are behind a disabled gate are still there;
// ServedWith leaves them out.
func WithGates(groups []Group, gates features.Gates) ([]Group, error) {
	out := slices.Clone(groups)
	for i := range out {
		out[i].Resources = slices.Clone(out[i].Resources)
		for j := range out[i].Resources {
			d := &out[i].Resources[j]
			fields, err := d.disabledFields(gates)
			if err != nil {
				return nil, err
			}
			d.Strategy.obey(gates, fields)
			d.Subresources = slices.Clone(d.Subresources)
			for k := range d.Subresources {
				if part := d.Subresources[k].Part; part != nil {
					own := *part
					own.obey(gates, fields)
					d.Subresources[k].Part = &own
				}
			}
		}
	}
	return out, nil
}

// ServedWith returns groups without the kinds that are behind disabled gates.
func ServedWith(groups []Group, gates features.Gates) []Group {
	out := slices.Clone(groups)
	for i := range out {
		out[i].Resources = slices.DeleteFunc(slices.Clone(out[i].Resources), func(d Definition) bool {
			return d.Gate != "" && !gates.Enabled(d.Gate)
		})
	}
	return out
}

// obey has the functions of a strategy obey gates; fields are those that the disabled
// ones of them leave out.
func (s *Strategy) obey(gates features.Gates, fields []fieldPath) {
	create, update := s.PrepareCreate, s.PrepareUpdate
	if len(fields) > 0 {
		s.PrepareCreate = func(ctx context.Context, obj Object) {
			if create != nil {
				create(ctx, obj)
			}
			dropFields(obj, nil, fields)
		}
		s.PrepareUpdate = func(ctx context.Context, obj, old Object) {
			if update != nil {
				update(ctx, obj, old)
			}
			dropFields(obj, old, fields)
		}
	}
	if gates.AreDefault() {
		return // as in a context without gates
	}
	if f := s.PrepareCreate; f != nil {
		s.PrepareCreate = func(ctx context.Context, obj Object) { f(features.With(ctx, gates), obj) }
	}
	if f := s.PrepareUpdate; f != nil {
		s.PrepareUpdate = func(ctx context.Context, obj, old Object) { f(features.With(ctx, gates), obj, old) }
	}
	if f := s.Validate; f != nil {
		s.Validate = func(ctx context.Context, obj Object) field.ErrorList { return f(features.With(ctx, gates), obj) }
	}
	if f := s.ValidateUpdate; f != nil {
		s.ValidateUpdate = func(ctx context.Context, obj, old Object) field.ErrorList {
			return f(features.With(ctx, gates), obj, old)
		}
	}
	if f := s.Warnings; f != nil {
		s.Warnings = func(ctx context.Context, obj, old Object) []string { return f(features.With(ctx, gates), obj, old) }
	}
}

// fieldPath is the way to a field of an object, one step a struct.
type fieldPath struct {
	object reflect.Type // that the way is in: other types do not have the field
	steps  []fieldStep
}

type fieldStep struct {
	index []int // as reflect has it
	list  bool  // the way goes on in each item of the field
}

// disabledFields returns the fields whose gates are disabled.
func (d *Definition) disabledFields(gates features.Gates) (fields []fieldPath, err error) {
	for _, f := range d.GatedFields {
		path, err := d.fieldPath(f.Path)
		if err != nil {
			return nil, fmt.Errorf("%s: gated field %s: %w", d.Resource, f.Path, err)
		}
		if !gates.Enabled(f.Gate) {
			fields = append(fields, path)
		}
	}
	return fields, nil
}

// fieldPath finds a field in the type of the hub version.
func (d *Definition) fieldPath(text string) (path fieldPath, _ error) {
	hub := d.HubVersion()
	if hub == nil {
		return path, fmt.Errorf("there is no version %q", d.Hub)
	}
	t := reflect.TypeOf(hub.New())
	path.object = t
	for name := range strings.SplitSeq(text, ".") {
		name, list := strings.CutSuffix(name, "[]")
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return path, fmt.Errorf("%s is no struct", t)
		}
		all := reflect.VisibleFields(t)
		at := slices.IndexFunc(all, func(f reflect.StructField) bool {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return tag == name
		})
		if at < 0 {
			return path, fmt.Errorf("%s has no field %s", t, name)
		}
		f := all[at]
		if list && f.Type.Kind() != reflect.Slice {
			return path, fmt.Errorf("%s is no list", name)
		}
		path.steps = append(path.steps, fieldStep{f.Index, list})
		if t = f.Type; list {
			t = t.Elem()
		}
	}
	return path, nil
}

// dropFields clears fields, but for those that the old object, if there is one, has
// set: what is stored stays. An object of another type, as some subresources have, is
// left alone.
func dropFields(obj, old Object, fields []fieldPath) {
	for _, path := range fields {
		if reflect.TypeOf(obj) != path.object {
			continue
		}
		used := false
		if old != nil {
			visitFields(reflect.ValueOf(old), path.steps, func(f reflect.Value) { used = used || !f.IsZero() })
		}
		if !used {
			visitFields(reflect.ValueOf(obj), path.steps, func(f reflect.Value) { f.SetZero() })
		}
	}
}

// visitFields calls visit for every field in v that the steps lead to.
func visitFields(v reflect.Value, steps []fieldStep, visit func(reflect.Value)) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	at := v.FieldByIndex(steps[0].index)
	switch {
	case len(steps) == 1:
		visit(at)
	case steps[0].list:
		for i := range at.Len() {
			visitFields(at.Index(i), steps[1:], visit)
		}
	default:
		visitFields(at, steps[1:], visit)
	}
}
