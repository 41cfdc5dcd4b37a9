package podspec

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/rules"
)

// ClaimAllowances lists the rules that validation of a claim spec leaves out,
// because the old version already breaks them.
type ClaimAllowances struct {
	// SelectorValues accepts values in the selector that are not label values.
	SelectorValues bool
	// SourceGroups accepts API groups of data sources that are not DNS subdomains.
	SourceGroups bool
}

// ValidateClaimTemplate returns everything that is wrong with the template of a
// volume claim.
func ValidateClaimTemplate(t *corev1.PersistentVolumeClaimTemplate, p *field.Path) field.ErrorList {
	return append(rules.ValidateTemplateMeta(&t.ObjectMeta, childOf(p, "metadata")), ValidateClaimSpec(&t.Spec, childOf(p, "spec"), ClaimAllowances{})...)
}

// ValidateClaimSpec returns everything that is wrong with the spec of a volume
// claim.
func ValidateClaimSpec(spec *corev1.PersistentVolumeClaimSpec, p *field.Path, allow ClaimAllowances) field.ErrorList {
	var e rules.Errors
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod}
	mp := childOf(p, "accessModes")
	if len(spec.AccessModes) == 0 {
		e.Required(mp, "at least 1 access mode is required")
	}
	if spec.Selector != nil {
		opts := metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: allow.SelectorValues}
		e.Add(metavalidation.ValidateLabelSelector(spec.Selector, opts, childOf(p, "selector"))...)
	}
	others := false
	for _, mode := range spec.AccessModes {
		rules.OneOf(&e, mp, mode, modes...)
		others = others || mode != corev1.ReadWriteOncePod && slices.Contains(modes, mode)
	}
	if others && slices.Contains(spec.AccessModes, corev1.ReadWriteOncePod) {
		e.Forbidden(mp, "may not use ReadWriteOncePod with other access modes")
	}

	rp := entryOf(childOf(p, "resources"), string(corev1.ResourceStorage))
	if size, ok := spec.Resources.Requests[corev1.ResourceStorage]; !ok {
		e.Required(rp, "")
	} else if size.Sign() <= 0 {
		e.Invalid(rp, size.String(), "must be greater than zero")
	}
	className := func(name *string, p *field.Path) {
		if name != nil && *name != "" {
			e.DNSSubdomain(p, *name)
		}
	}
	className(spec.StorageClassName, childOf(p, "storageClassName"))
	rules.OneOfPointer(&e, childOf(p, "volumeMode"), spec.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)

	source, ref := spec.DataSource, spec.DataSourceRef
	if source != nil {
		checkDataSource(&e, source.APIGroup, source.Kind, source.Name, childOf(p, "dataSource"), allow)
	}
	if ref != nil {
		checkDataSource(&e, ref.APIGroup, ref.Kind, ref.Name, childOf(p, "dataSourceRef"), allow)
		if ns := ptr.Deref(ref.Namespace, ""); ns != "" {
			e.InvalidEach(childOf(p, "dataSourceRef", "namespace"), ns, apivalidation.ValidateNamespaceName(ns, false))
		}
	}
	if source != nil && ref != nil {
		switch {
		case ptr.Deref(ref.Namespace, "") != "":
			e.Invalid(p, childOf(p, "dataSource"), "may not be specified when dataSourceRef.namespace is specified")
		case !ptr.Equal(source.APIGroup, ref.APIGroup) || source.Kind != ref.Kind || source.Name != ref.Name:
			e.Invalid(p, childOf(p, "dataSource"), "must match dataSourceRef")
		}
	}
	className(spec.VolumeAttributesClassName, childOf(p, "volumeAttributesClassName"))
	return field.ErrorList(e)
}

func checkDataSource(e *rules.Errors, apiGroup *string, kind, name string, p *field.Path, allow ClaimAllowances) {
	e.NotEmpty(childOf(p, "name"), name)
	e.NotEmpty(childOf(p, "kind"), kind)
	group := ptr.Deref(apiGroup, "")
	if group == "" && kind != "PersistentVolumeClaim" {
		e.Invalid(p, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup")
	}
	if group != "" && !allow.SourceGroups {
		e.DNSSubdomain(childOf(p, "apiGroup"), group)
	}
}

// ClaimWarnings returns warnings for sizes that are not a whole number of bytes.
func ClaimWarnings(spec *corev1.PersistentVolumeClaimSpec, p *field.Path) []string {
	var w []string
	w = appendFraction(w, spec.Resources.Requests, corev1.ResourceStorage, childOf(p, "resources", "requests"))
	return appendFraction(w, spec.Resources.Limits, corev1.ResourceStorage, childOf(p, "resources", "limits"))
}
