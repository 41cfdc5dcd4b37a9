package storage

import (
	"context"
	"math"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// Limits of attachment metadata and error messages, in bytes.
const (
	maxAttachmentSize = 256 << 10
	maxMessage        = 1024
)

// VolumeAttachments defines volumeattachments.
func VolumeAttachments() resource.Definition {
	status := resource.Rules[*storagev1.VolumeAttachment]{
		RequireVersion: true,
		NameOnUpdate:   true,
		PrepareUpdate: func(_ context.Context, a, old *storagev1.VolumeAttachment) {
			a.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&a.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: validateAttachmentUpdate,
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	spec, source := storagev1.VolumeAttachmentSpec{}.SwaggerDoc(), storagev1.VolumeAttachmentSource{}.SwaggerDoc()
	return resource.Definition{
		Group:      storagev1.GroupName,
		Resource:   "volumeattachments",
		Kind:       "VolumeAttachment",
		StorageKey: "volumeattachments",
		GatedFields: []resource.GatedField{
			{Path: "status.attachError.errorCode", Gate: "MutableCSINodeAllocatableCount"},
			{Path: "status.detachError.errorCode", Gate: "MutableCSINodeAllocatableCount"},
		},
		Versions: append([]resource.Version{resource.VersionOf[storagev1.VolumeAttachment, storagev1.VolumeAttachmentList]("v1", defaultAttachment)}, oldVolumeAttachments()...),
		Strategy: resource.Rules[*storagev1.VolumeAttachment]{
			RequireVersion: true,
			NameOnUpdate:   true,
			ReturnDeleted:  true,
			PrepareCreate:  func(_ context.Context, a *storagev1.VolumeAttachment) { a.Status = storagev1.VolumeAttachmentStatus{} },
			PrepareUpdate:  func(_ context.Context, a, old *storagev1.VolumeAttachment) { a.Status = old.Status },
			Validate: func(ctx context.Context, a *storagev1.VolumeAttachment) field.ErrorList {
				return append(validateAttacher(ctx, a.Spec.Attacher), validateAttachment(a)...)
			},
			ValidateUpdate: validateAttachmentUpdate,
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Attacher", Type: "string", Format: "name", Description: spec["attacher"]},
			{Name: "PV", Type: "string", Description: source["persistentVolumeName"]},
			{Name: "Node", Type: "string", Description: spec["nodeName"]},
			{Name: "Attached", Type: "boolean", Description: storagev1.VolumeAttachmentStatus{}.SwaggerDoc()["attached"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(a *storagev1.VolumeAttachment) []any {
			return []any{a.Name, a.Spec.Attacher, valueOr(a.Spec.Source.PersistentVolumeName, ""), a.Spec.NodeName, a.Status.Attached, resource.Since(a.CreationTimestamp.Time)}
		}),
	}
}

func defaultAttachment(a *storagev1.VolumeAttachment) {
	if inline := a.Spec.Source.InlineVolumeSpec; inline != nil {
		podspec.DefaultInlineVolume(inline)
	}
}

// validateAttachmentUpdate validates a change, which must not be one of the spec.
func validateAttachmentUpdate(_ context.Context, a, old *storagev1.VolumeAttachment) field.ErrorList {
	errs := append(validateDriverName(a.Spec.Attacher, field.NewPath("spec", "attacher")), validateAttachment(a)...)
	if !equality.Semantic.DeepEqual(a.Spec, old.Spec) {
		errs = append(errs, resource.ImmutableValue(field.NewPath("spec"), rules.GoForm(a.Spec))...)
	}
	return errs
}

// validateAttacher validates the attacher of a new attachment.
func validateAttacher(ctx context.Context, name string) field.ErrorList {
	path, op := field.NewPath("spec", "attacher"), operation.Operation{Type: operation.Create}
	if name == "" {
		return resource.DeclaredBeta(field.Required(path, ""))
	}
	//lint:ignore SA1019 the names of drivers have always been so
	errs := append(validate.LongNameCaseless(ctx, op, path, &name, nil), validate.MaxLength(ctx, op, path, &name, nil, maxDriverName)...)
	return resource.BetaInstead(errs, validateDriverName(name, path))
}

func validateAttachment(a *storagev1.VolumeAttachment) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "source")
	const one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	switch s := a.Spec.Source; {
	case s.InlineVolumeSpec == nil && s.PersistentVolumeName == nil:
		errs = append(errs, field.Required(path, one))
	case s.InlineVolumeSpec != nil && s.PersistentVolumeName != nil:
		errs = append(errs, field.Forbidden(path, one))
	case s.InlineVolumeSpec != nil:
		errs = append(errs, podspec.ValidateInlineVolume(s.InlineVolumeSpec, path.Child("inlineVolumeSpec"))...)
	case *s.PersistentVolumeName == "":
		errs = append(errs, field.Required(path.Child("persistentVolumeName"), "must specify non empty persistentVolumeName"))
	}
	errs = append(errs, rules.Invalid(field.NewPath("spec", "nodeName"), a.Spec.NodeName, apivalidation.NameIsDNSSubdomain(a.Spec.NodeName, false))...)

	status := field.NewPath("status")
	size := 0
	for key, value := range a.Status.AttachmentMetadata {
		size += len(key) + len(value)
	}
	if size > maxAttachmentSize {
		errs = append(errs, field.TooLong(status.Child("attachmentMetadata"), "", maxAttachmentSize))
	}
	errs = append(errs, validateVolumeError(a.Status.AttachError, status.Child("attachError"))...)
	errs = append(errs, validateVolumeError(a.Status.DetachError, status.Child("detachError"))...)
	if v := a.Spec.Source.PersistentVolumeName; v != nil {
		errs = append(errs, rules.Invalid(path.Child("persistentVolumeName"), *v, apivalidation.NameIsDNSSubdomain(*v, false))...)
	}
	return errs
}

func validateVolumeError(e *storagev1.VolumeError, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if e != nil && len(e.Message) > maxMessage {
		errs = append(errs, field.TooLong(path.Child("message"), "", maxMessage))
	}
	if e != nil && e.ErrorCode != nil && *e.ErrorCode < 0 {
		errs = append(errs, field.Invalid(path.Child("errorCode"), *e.ErrorCode, validation.InclusiveRangeError(0, math.MaxInt32)))
	}
	return errs
}
