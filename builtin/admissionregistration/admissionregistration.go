// Package admissionregistration is the API group admissionregistration.k8s.io: webhook
// configurations and admission policies. Start at Group and Config. Package admission applies
// them; policycel compiles their expressions for both.
package admissionregistration

import (
	"context"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// Config are the dependencies of the group.
type Config struct {
	// Params checks whether the writer of a policy with paramKind, or of a binding with
	// paramRef, may read the parameters. Its error is reported to the client. Nil allows
	// everyone.
	Params func(ctx context.Context, obj resource.Object) error
	// Expressions compiles CEL; nil creates an Environment for the group.
	Expressions *policycel.Environment
	// Manifests says that the objects come from static manifests, whose names have a
	// reserved suffix.
	Manifests bool
}

// Group returns the group.
func Group(cfg Config) resource.Group {
	if cfg.Params == nil {
		cfg.Params = func(context.Context, resource.Object) error { return nil }
	}
	if cfg.Expressions == nil {
		cfg.Expressions = new(policycel.Environment)
	}
	return resource.Group{Name: admissionv1.GroupName, Resources: []resource.Definition{
		MutatingPolicies(cfg),
		MutatingPolicyBindings(cfg),
		MutatingWebhooks(cfg),
		ValidatingPolicies(cfg),
		ValidatingPolicyBindings(cfg),
		ValidatingWebhooks(cfg),
	}}
}

// manifestGate is the feature gate of static manifests.
const manifestGate = "ManifestBasedAdmissionControlConfig"

// define makes a definition with the rules that all kinds share, such as that names with the
// suffix of static manifests are refused.
func define[T, L any, P interface {
	*T
	resource.Object
}, PL interface {
	*L
	runtime.Object
}](cfg Config, name, kind string, defaults func(P), rules resource.Rules[P]) resource.Definition {
	const reserved = ".static.k8s.io"
	text := fmt.Sprintf("names ending with %q are reserved for static manifest-based configurations and cannot be managed via the API", reserved)
	rules.RequireVersion, rules.NameOnUpdate = true, true
	validate, warnings := rules.Validate, rules.Warnings
	rules.Validate = func(ctx context.Context, obj P) field.ErrorList {
		errs := validate(ctx, obj)
		if !cfg.Manifests && features.From(ctx).Enabled(manifestGate) && strings.HasSuffix(obj.GetName(), reserved) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), obj.GetName(), text))
		}
		return errs
	}
	rules.Warnings = func(ctx context.Context, obj, old P) []string {
		var out []string
		if (old != nil || !features.From(ctx).Enabled(manifestGate)) && strings.HasSuffix(obj.GetName(), reserved) {
			out = append(out, "metadata.name: "+text)
		}
		if warnings != nil {
			out = append(out, warnings(ctx, obj, old)...)
		}
		return out
	}
	return resource.Definition{
		Group:      admissionv1.GroupName,
		Resource:   name,
		Kind:       kind,
		Categories: []string{"api-extensions"},
		StorageKey: name,
		Versions:   []resource.Version{resource.VersionOf[T, L, P, PL]("v1", defaults)},
		Strategy:   rules.Strategy(),
	}
}

// supported checks that a value is one of known.
func supported[T ~string](value T, path *field.Path, known ...T) field.ErrorList {
	if slices.Contains(known, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, known)}
}

// supportedIfSet is supported for a value that may be left out.
func supportedIfSet[T ~string](value *T, path *field.Path, known ...T) field.ErrorList {
	if value == nil {
		return nil
	}
	return supported(*value, path, known...)
}
