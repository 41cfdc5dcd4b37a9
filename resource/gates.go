package resource

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/features"
)

// WithGates returns a copy of groups whose kinds obey feature gates: the functions of
// their strategies and the actions of their subresources find the gates in their context, and GatedFields whose gates are
// disabled are dropped on writes. Kinds behind a disabled gate remain; ServedWith
// removes them.
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
			obeyGates(&d.Strategy, gates, fields)
			if len(fields) > 0 {
				d.Versions = slices.Clone(d.Versions)
				for k := range d.Versions {
					d.Versions[k].Default = defaultWithout(d.Versions[k].Default, fields)
				}
			}
			d.Subresources = slices.Clone(d.Subresources)
			for k := range d.Subresources {
				if part := d.Subresources[k].Part; part != nil {
					own := *part
					obeyGates(&own, gates, fields)
					d.Subresources[k].Part = &own
				}
				if act := d.Subresources[k].Action; act != nil && !gates.AreDefault() {
					d.Subresources[k].Action = func(ctx context.Context, target Target, body Object) (runtime.Object, error) {
						return act(features.With(ctx, gates), target, body)
					}
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

// obeyGates wraps the functions of a strategy: they find the gates in their context,
// PrepareCreate and PrepareUpdate drop fields, those whose gates are disabled, and
// validation is hand-written where rules are declared in beta and BetaRules is disabled.
func obeyGates(s *Strategy, gates features.Gates, fields [][]fieldPath) {
	create, update := s.PrepareCreate, s.PrepareUpdate
	if len(fields) > 0 {
		// Fields are dropped first, so that a field that does not count does not make a
		// new generation.
		s.PrepareCreate = func(ctx context.Context, obj Object) {
			dropFields(obj, nil, fields)
			if create != nil {
				create(ctx, obj)
			}
		}
		s.PrepareUpdate = func(ctx context.Context, obj, old Object) {
			dropFields(obj, old, fields)
			if update != nil {
				update(ctx, obj, old)
			}
		}
	}
	if gates.AreDefault() {
		return // a context without gates has the default ones
	}
	byBetaRules := gates.Enabled(BetaRules)
	choose := func(errs field.ErrorList) field.ErrorList {
		if byBetaRules {
			return errs
		}
		return dropBeta(errs)
	}
	if f := s.PrepareCreate; f != nil {
		s.PrepareCreate = func(ctx context.Context, obj Object) { f(features.With(ctx, gates), obj) }
	}
	if f := s.PrepareUpdate; f != nil {
		s.PrepareUpdate = func(ctx context.Context, obj, old Object) { f(features.With(ctx, gates), obj, old) }
	}
	if f := s.Begin; f != nil {
		s.Begin = func(ctx context.Context, obj, old Object) (func(Outcome), error) {
			return f(features.With(ctx, gates), obj, old)
		}
	}
	if f := s.Validate; f != nil {
		s.Validate = func(ctx context.Context, obj Object) field.ErrorList {
			return choose(f(features.With(ctx, gates), obj))
		}
	}
	if f := s.ValidateUpdate; f != nil {
		s.ValidateUpdate = func(ctx context.Context, obj, old Object) field.ErrorList {
			return choose(f(features.With(ctx, gates), obj, old))
		}
	}
	if f := s.Warnings; f != nil {
		s.Warnings = func(ctx context.Context, obj, old Object) []string { return f(features.With(ctx, gates), obj, old) }
	}
}

// defaultWithout returns defaults that leave fields alone: a feature that is disabled has
// no defaults. What a client has set stays until the object is prepared, so the client
// owns it.
func defaultWithout(defaults func(Object), fields [][]fieldPath) func(Object) {
	if defaults == nil {
		return nil
	}
	return func(obj Object) {
		var unset []fieldPath
		for _, path := range slices.Concat(fields...) {
			if reflect.TypeOf(obj) != path.object {
				continue
			}
			set := false
			visitFields(reflect.ValueOf(obj), path.steps, func(f reflect.Value) { set = set || !f.IsZero() })
			if !set {
				unset = append(unset, path)
			}
		}
		defaults(obj)
		for _, path := range unset {
			visitFields(reflect.ValueOf(obj), path.steps, func(f reflect.Value) { f.SetZero() })
		}
	}
}

// fieldPath is the path to a field of an object, one step for each struct.
type fieldPath struct {
	object reflect.Type // the type that the path starts in; objects of other types are left alone
	steps  []fieldStep
}

type fieldStep struct {
	index []int // of reflect.StructField
	list  bool  // the field is a slice; the next step is in each item
}

// disabledFields returns the fields whose gates are disabled, those of a feature together.
func (d *Definition) disabledFields(gates features.Gates) (fields [][]fieldPath, err error) {
	for _, f := range d.GatedFields {
		if gates.Enabled(f.Gate) {
			continue
		}
		var feature []fieldPath
		for text := range strings.FieldsSeq(f.Path) {
			path, err := d.fieldPath(text)
			if err != nil {
				return nil, fmt.Errorf("%s: gated field %s: %w", d.Resource, text, err)
			}
			feature = append(feature, path)
		}
		fields = append(fields, feature)
	}
	return fields, nil
}

// fieldPath resolves a GatedField.Path in the Go type of the hub version.
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
			return path, fmt.Errorf("%s is not a struct", t)
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
			return path, fmt.Errorf("%s is not a list", name)
		}
		path.steps = append(path.steps, fieldStep{f.Index, list})
		if t = f.Type; list {
			t = t.Elem()
		}
	}
	return path, nil
}

// dropFields clears the fields of features in obj, except those of features of which the
// old object, if there is one, has a field set. An obj of another type, such as the body of
// a subresource, is left alone.
func dropFields(obj, old Object, fields [][]fieldPath) {
	for _, feature := range fields {
		used := false
		for _, path := range feature {
			if old != nil && reflect.TypeOf(old) == path.object {
				visitFields(reflect.ValueOf(old), path.steps, func(f reflect.Value) { used = used || !f.IsZero() })
			}
		}
		for _, path := range feature {
			if !used && reflect.TypeOf(obj) == path.object {
				visitFields(reflect.ValueOf(obj), path.steps, func(f reflect.Value) { f.SetZero() })
			}
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
