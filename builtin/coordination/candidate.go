package coordination

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1alpha2 "k8s.io/api/coordination/v1alpha2"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// candidate is the storage version of the kind.
type candidate = coordinationv1beta1.LeaseCandidate

// Candidates defines leasecandidates, for coordinated leader election.
func Candidates() resource.Definition {
	kind := coordinationv1beta1.SchemeGroupVersion.WithKind("LeaseCandidate")
	v1beta1 := resource.VersionOf[candidate, coordinationv1beta1.LeaseCandidateList](kind.Version, nil)
	v1beta1.Off = true
	v1beta1.Deprecation = resource.Deprecation(new(candidate), kind)
	return resource.Definition{
		Group:      coordinationv1.GroupName,
		Resource:   "leasecandidates",
		Kind:       kind.Kind,
		Namespaced: true,
		StorageKey: "leasecandidates",
		Versions: []resource.Version{
			v1beta1,
			resource.AlikeVersion[coordinationv1alpha2.LeaseCandidate, coordinationv1alpha2.LeaseCandidateList, candidate](
				coordinationv1alpha2.SchemeGroupVersion.WithKind(kind.Kind), nil, nil, nil),
		},
		Strategy: resource.Rules[*candidate]{
			CreateOnUpdate: true,
			RequireVersion: true,
			ValidateName:   func(name string, _ bool) []string { return validation.IsConfigMapKey(name) },
			Validate:       func(_ context.Context, c *candidate) field.ErrorList { return validateCandidate(&c.Spec) },
			ValidateUpdate: func(_ context.Context, c, old *candidate) field.ErrorList {
				return append(validateCandidate(&c.Spec),
					apivalidation.ValidateImmutableField(c.Spec.LeaseName, old.Spec.LeaseName, field.NewPath("spec", "leaseName"))...)
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "LeaseName", Type: "string", Description: coordinationv1alpha2.LeaseCandidateSpec{}.SwaggerDoc()["leaseName"]},
			{Name: "BinaryVersion", Type: "string"},
			{Name: "EmulationVersion", Type: "string"},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(c *candidate) []any {
			return []any{c.Name, c.Spec.LeaseName, c.Spec.BinaryVersion, c.Spec.EmulationVersion, resource.Since(c.CreationTimestamp.Time)}
		}),
	}
}

func validateCandidate(spec *coordinationv1beta1.LeaseCandidateSpec) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	if spec.LeaseName == "" {
		errs = append(errs, field.Required(path.Child("leaseName"), ""))
	}
	// A version that cannot be parsed counts as 0.0.0.
	zero := utilversion.MustParseSemantic("0.0.0")
	read := func(text, name string) *utilversion.Version {
		if rules.IsSemver(text) {
			if v, err := utilversion.ParseSemantic(text); err == nil {
				return v
			}
		}
		if text != "" {
			errs = append(errs, field.Invalid(path.Child(name), text, "must be a valid semantic version"))
		}
		return zero
	}
	emulated := read(spec.EmulationVersion, "emulationVersion")
	if spec.BinaryVersion == "" {
		errs = append(errs, field.Required(path.Child("binaryVersion"), ""))
	}
	binary := read(spec.BinaryVersion, "binaryVersion")
	if spec.BinaryVersion != "" && spec.EmulationVersion != "" && binary.LessThan(emulated) {
		errs = append(errs, field.Invalid(path.Child("binaryVersion"), spec.BinaryVersion, "must be greater than or equal to `emulationVersion`"))
	}
	if spec.Strategy == "" {
		return append(errs, field.Required(path.Child("strategy"), ""))
	}
	if spec.Strategy == coordinationv1.OldestEmulationVersion && emulated.EqualTo(zero) {
		errs = append(errs, field.Required(path.Child("emulationVersion"), "must be specified when `strategy` is 'OldestEmulationVersion'"))
	}
	return append(errs, validateStrategy(spec.Strategy, path.Child("strategy", "strategy"))...)
}
