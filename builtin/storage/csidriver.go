package storage

import (
	"context"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// Bounds of token lifetimes and republishing, in seconds.
const (
	minTokenSeconds  = 10 * 60
	maxTokenSeconds  = 1 << 32
	minUpdateSeconds = 10
)

const tokensInSecrets = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"

// CSIDrivers defines csidrivers.
func CSIDrivers() resource.Definition {
	doc := storagev1.CSIDriverSpec{}.SwaggerDoc()
	return resource.Definition{
		Group:      storagev1.GroupName,
		Resource:   "csidrivers",
		Kind:       "CSIDriver",
		StorageKey: "csidrivers",
		GatedFields: []resource.GatedField{
			{Path: "spec.nodeAllocatableUpdatePeriodSeconds", Gate: "MutableCSINodeAllocatableCount"},
			{Path: "spec.serviceAccountTokenInSecrets", Gate: "CSIServiceAccountTokenSecrets"},
			{Path: "spec.preventPodSchedulingIfMissing", Gate: "VolumeLimitScaling"},
		},
		Versions: append([]resource.Version{resource.VersionOf[storagev1.CSIDriver, storagev1.CSIDriverList]("v1", defaultDriver)}, oldCSIDrivers()...),
		Strategy: resource.Rules[*storagev1.CSIDriver]{
			RequireVersion: true,
			ReturnDeleted:  true,
			// The generation counts from the first change.
			PrepareUpdate: func(_ context.Context, d, old *storagev1.CSIDriver) {
				if !equality.Semantic.DeepEqual(d.Spec, old.Spec) {
					d.Generation = old.Generation + 1
				}
			},
			Validate: func(ctx context.Context, d *storagev1.CSIDriver) field.ErrorList { return validateDriver(ctx, &d.Spec) },
			ValidateUpdate: func(ctx context.Context, d, old *storagev1.CSIDriver) field.ErrorList {
				errs := validateDriver(ctx, &d.Spec)
				spec := field.NewPath("spec")
				errs = append(errs, apivalidation.ValidateImmutableField(d.Spec.AttachRequired, old.Spec.AttachRequired, spec.Child("attachedRequired"))...)
				return append(errs, apivalidation.ValidateImmutableField(d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes, spec.Child("volumeLifecycleModes"))...)
			},
			Warnings: func(ctx context.Context, d, old *storagev1.CSIDriver) []string {
				if !features.From(ctx).Enabled("CSIServiceAccountTokenSecrets") {
					return nil
				}
				changed := old == nil || !equality.Semantic.DeepEqual(d.Spec.TokenRequests, old.Spec.TokenRequests)
				if changed && len(d.Spec.TokenRequests) > 0 && d.Spec.ServiceAccountTokenInSecrets == nil {
					return []string{tokensInSecrets}
				}
				return nil
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "AttachRequired", Type: "boolean", Description: doc["attachRequired"]},
			{Name: "PodInfoOnMount", Type: "boolean", Description: doc["podInfoOnMount"]},
			{Name: "StorageCapacity", Type: "boolean", Description: doc["storageCapacity"]},
			{Name: "TokenRequests", Type: "string", Description: doc["tokenRequests"]},
			{Name: "RequiresRepublish", Type: "boolean", Description: doc["requiresRepublish"]},
			{Name: "Modes", Type: "string", Description: doc["volumeLifecycleModes"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(driverCells),
	}
}

func defaultDriver(d *storagev1.CSIDriver) {
	s := &d.Spec
	rules.DefaultPointer(&s.AttachRequired, true)
	rules.DefaultPointer(&s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	for _, no := range []**bool{&s.PodInfoOnMount, &s.StorageCapacity, &s.RequiresRepublish, &s.SELinuxMount, &s.PreventPodSchedulingIfMissing} {
		rules.DefaultPointer(no, false)
	}
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
}

func driverCells(d *storagev1.CSIDriver) []any {
	s := &d.Spec
	tokens, modes := "<unset>", make([]string, len(s.VolumeLifecycleModes))
	for i, m := range s.VolumeLifecycleModes {
		modes[i] = string(m)
	}
	if len(modes) == 0 {
		modes = []string{"<none>"}
	}
	if s.TokenRequests != nil {
		audiences := make([]string, len(s.TokenRequests))
		for i, t := range s.TokenRequests {
			audiences[i] = t.Audience
		}
		tokens = strings.Join(audiences, ",")
	}
	return []any{
		d.Name, valueOr(s.AttachRequired, true), valueOr(s.PodInfoOnMount, false), valueOr(s.StorageCapacity, false), tokens,
		valueOr(s.RequiresRepublish, false), strings.Join(modes, ","), resource.Since(d.CreationTimestamp.Time),
	}
}

func validateDriver(ctx context.Context, s *storagev1.CSIDriverSpec) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	required := func(name string, value *bool) {
		if value == nil {
			errs = append(errs, field.Required(path.Child(name), ""))
		}
	}
	required("attachedRequired", s.AttachRequired)
	required("podInfoOnMount", s.PodInfoOnMount)
	required("storageCapacity", s.StorageCapacity)
	policies := []storagev1.FSGroupPolicy{storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy}
	if p := s.FSGroupPolicy; p != nil && !slices.Contains(policies, *p) {
		errs = append(errs, field.NotSupported(path.Child("fsGroupPolicy"), *p, policies))
	}
	audiences := map[string]bool{}
	for i, t := range s.TokenRequests {
		at := path.Child("tokenRequests").Index(i)
		if audiences[t.Audience] {
			errs = append(errs, field.Duplicate(at.Child("audience"), t.Audience))
			continue
		}
		audiences[t.Audience] = true
		if e := t.ExpirationSeconds; e != nil && *e < minTokenSeconds {
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *e, "may not specify a duration less than 10 minutes"))
		} else if e != nil && *e > maxTokenSeconds {
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *e, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	modes := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	for _, m := range s.VolumeLifecycleModes {
		if !slices.Contains(modes, m) {
			errs = append(errs, field.NotSupported(path.Child("volumeLifecycleModes"), m, modes))
		}
	}
	required("seLinuxMount", s.SELinuxMount)
	if p := s.NodeAllocatableUpdatePeriodSeconds; p != nil && *p < minUpdateSeconds {
		errs = append(errs, field.Invalid(path.Child("nodeAllocatableUpdatePeriodSeconds"), *p, "must be greater than or equal to 10 seconds"))
	}
	if in := s.ServiceAccountTokenInSecrets; in != nil && len(s.TokenRequests) == 0 {
		errs = append(errs, field.Invalid(path.Child("serviceAccountTokenInSecrets"), *in, "serviceAccountTokenInSecrets is set but no tokenRequests are specified"))
	}
	if features.From(ctx).Enabled("VolumeLimitScaling") {
		required("preventPodSchedulingIfMissing", s.PreventPodSchedulingIfMissing)
	}
	return errs
}
