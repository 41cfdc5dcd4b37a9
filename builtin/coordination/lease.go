package coordination

import (
	"context"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// CoordinatedLeaderElection is the feature gate of leader election by the server.
const CoordinatedLeaderElection = "CoordinatedLeaderElection"

// Leases defines leases.
func Leases() resource.Definition {
	return resource.Definition{
		Group:      coordinationv1.GroupName,
		Resource:   "leases",
		Kind:       "Lease",
		Namespaced: true,
		StorageKey: "leases",
		Versions: []resource.Version{{
			Name:    "v1",
			New:     func() resource.Object { return &coordinationv1.Lease{} },
			NewList: func() runtime.Object { return &coordinationv1.LeaseList{} },
		}},
		Old: []resource.Version{resource.OldVersion[coordinationv1beta1.Lease, coordinationv1.Lease](coordinationv1beta1.SchemeGroupVersion, nil, nil)},
		Strategy: resource.Rules[*coordinationv1.Lease]{
			CreateOnUpdate: true,
			RequireVersion: true,
			// Without the gate, strategy and preferredHolder are kept only if the old lease has
			// them.
			PrepareCreate: func(ctx context.Context, l *coordinationv1.Lease) {
				if !features.From(ctx).Enabled(CoordinatedLeaderElection) {
					l.Spec.Strategy, l.Spec.PreferredHolder = nil, nil
				}
			},
			PrepareUpdate: func(ctx context.Context, l, old *coordinationv1.Lease) {
				if features.From(ctx).Enabled(CoordinatedLeaderElection) {
					return
				}
				if old.Spec.Strategy == nil {
					l.Spec.Strategy = nil
				}
				if old.Spec.PreferredHolder == nil {
					l.Spec.PreferredHolder = nil
				}
			},
			Validate: func(_ context.Context, l *coordinationv1.Lease) field.ErrorList {
				return validateLease(&l.Spec, field.NewPath("spec"))
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Holder", Type: "string", Description: coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(l *coordinationv1.Lease) []any {
			holder := ""
			if l.Spec.HolderIdentity != nil {
				holder = *l.Spec.HolderIdentity
			}
			return []any{l.Name, holder, resource.Since(l.CreationTimestamp.Time)}
		}),
	}
}

func validateLease(spec *coordinationv1.LeaseSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if d := spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
	}
	if t := spec.LeaseTransitions; t != nil && *t < 0 {
		errs = append(errs, field.Invalid(path.Child("leaseTransitions"), *t, "must be greater than or equal to 0"))
	}
	if spec.Strategy != nil {
		errs = append(errs, validateStrategy(*spec.Strategy, path.Child("strategy", "strategy"))...)
	}
	if h := spec.PreferredHolder; h != nil && *h != "" && (spec.Strategy == nil || *spec.Strategy == "") {
		errs = append(errs, field.Forbidden(path.Child("preferredHolder"), "may only be specified if `strategy` is defined"))
	}
	return errs
}

// validateStrategy checks for OldestEmulationVersion, or a domain-prefixed name.
func validateStrategy(strategy coordinationv1.CoordinatedLeaseStrategy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	known := []coordinationv1.CoordinatedLeaseStrategy{coordinationv1.OldestEmulationVersion}
	if strings.Contains(string(strategy), "/") {
		for _, m := range validation.IsQualifiedName(string(strategy)) {
			errs = append(errs, field.Invalid(path, strategy, m))
		}
	} else if !slices.Contains(known, strategy) {
		errs = append(errs, field.NotSupported(path, strategy, known))
	}
	return errs
}
