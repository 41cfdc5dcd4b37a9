package schema

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/crd/cel"
	"github.com/apikeel/kelson/internal/boundedregexp"
)

// ValidateDefaults returns the errors of the defaults in the schema of a resource: they
// must be valid, and free of unknown fields if pruned is set.
func ValidateDefaults(ctx context.Context, path *field.Path, props *apiextensions.JSONSchemaProps, pruned bool) field.ErrorList {
	root := *props
	root.XEmbeddedResource = true
	patterns := boundedregexp.NewSet()
	n, err := compile(&root, patterns, 0)
	if err != nil {
		return field.ErrorList{field.Invalid(path, "", err.Error())}
	}
	work := boundedregexp.NewWork(ctx, boundedregexp.MaxWork)
	d := &defaultCheck{ctx: ctx, pruned: pruned, check: cel.Check{Budget: cel.Budget}, explainer: explainer{patterns, work}}
	d.schema(path, &root, n, enclosingResource{})
	return d.errs
}

// PrunedDefaults reports whether the defaults of a schema have no unknown fields.
func PrunedDefaults(props *apiextensions.JSONSchemaProps) bool {
	n, err := compile(props, boundedregexp.NewSet(), 0)
	return err == nil && prunedDefaults(n)
}

func prunedDefaults(n *node) bool {
	if n == nil || !n.defaults {
		return true
	}
	if n.fallback != nil && !isPruned(n) {
		return false
	}
	for _, below := range n.properties {
		if !prunedDefaults(below) {
			return false
		}
	}
	return prunedDefaults(n.items) && prunedDefaults(n.additional)
}

func isPruned(n *node) bool {
	kept := runtime.DeepCopyJSONValue(n.fallback)
	(&pruner{}).value(kept, n)
	return reflect.DeepEqual(kept, n.fallback)
}

// defaultCheck validates the defaults of a schema.
type defaultCheck struct {
	ctx    context.Context
	pruned bool
	check  cel.Check
	errs   field.ErrorList
	explainer
}

// enclosingResource is the innermost resource that a schema is in.
type enclosingResource struct {
	root *node
	// wrap puts a value at its place in an otherwise empty resource.
	wrap func(v any) any
	// meta says that the schema is inside of metadata of the resource.
	meta bool
}

func (d *defaultCheck) schema(path *field.Path, p *apiextensions.JSONSchemaProps, n *node, in enclosingResource) {
	if n == nil || !n.defaults || d.check.Budget < 0 {
		return
	}
	if n.embedded {
		in = enclosingResource{root: n, wrap: func(v any) any { return v }}
	}
	if n.fallback != nil {
		d.fallback(path.Child("default"), p, n, in)
	}
	if n.items != nil {
		next := in
		next.wrap = func(v any) any { return in.wrap([]any{v}) }
		d.schema(path.Child("items"), p.Items.Schema, n.items, next)
	}
	for _, name := range slices.Sorted(maps.Keys(n.properties)) {
		below := p.Properties[name]
		next := in
		next.wrap = func(v any) any { return in.wrap(map[string]any{name: v}) }
		next.meta = in.meta || n.embedded && isMeta(name)
		d.schema(path.Child("properties").Key(name), &below, n.properties[name], next)
	}
}

// defaultRules is how many bytes of compiled rules are kept while one default is checked.
const defaultRules = 16 << 20

// fallback checks one default.
func (d *defaultCheck) fallback(path *field.Path, p *apiextensions.JSONSchemaProps, n *node, in enclosingResource) {
	v := runtime.DeepCopyJSONValue(n.fallback)
	if in.meta {
		obj, ok := in.wrap(runtime.DeepCopyJSONValue(v)).(map[string]any)
		if !ok {
			return
		}
		for name, value := range map[string]any{"apiVersion": "validation/v1", "kind": "Validation"} {
			if _, ok := obj[name]; !ok {
				obj[name] = value
			}
		}
		if err := (&coercer{}).object(nil, obj, in.root, true); err != nil {
			d.errs = append(d.errs, field.Invalid(path, v, fmt.Sprintf("must result in valid metadata: %v", err)))
			return
		}
		if errs := validateResources(nil, obj, in.root); len(errs) > 0 {
			d.errs = append(d.errs, field.Invalid(path, v, fmt.Sprintf("must result in valid metadata: %v", errs.ToAggregate())))
			return
		}
	} else {
		if d.pruned && !isPruned(n) {
			d.errs = append(d.errs, field.Invalid(path, v, "must not have unknown fields"))
		}
		if err := (&coercer{}).value(path, v, n); err != nil {
			d.errs = append(d.errs, err)
			return
		}
		if errs := validateResources(path, v, n); len(errs) > 0 {
			d.errs = append(d.errs, errs...)
			return
		}
	}
	if n.bare || !n.holds(v, d.work) {
		// Validated as written: unlike for values, unknown formats count here.
		schema, err := openAPI(p)
		if err != nil {
			d.errs = append(d.errs, field.Invalid(path, "", err.Error()))
			return
		}
		if errs := d.explain(path, schema, v, nil); len(errs) > 0 {
			d.errs = append(d.errs, errs...)
			return
		}
	}
	if !n.ruled {
		return
	}
	// Rules see it as an unchanged value and as a new one.
	rules := cel.NewRules(cel.NewType(p, n == in.root), defaultRules)
	errs := rules.Validate(d.ctx, path, v, v, nil, &d.check)
	if len(errs) == 0 {
		errs = rules.Validate(d.ctx, path, v, nil, nil, &d.check)
	}
	d.errs = append(d.errs, errs...)
}
