package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// PersistentVolumeClaims defines persistentvolumeclaims.
func PersistentVolumeClaims() resource.Definition {
	return resource.Definition{
		Resource:     "persistentvolumeclaims",
		Kind:         "PersistentVolumeClaim",
		ShortNames:   []string{"pvc"},
		Namespaced:   true,
		ReadDefaults: true, // status.phase
		GatedFields: []resource.GatedField{
			{Path: "status.healthStatus", Gate: "CSIVolumeHealth"},
			{Path: "spec.volumeAttributesClassName", Gate: volumeAttributes},
			{Path: "status.currentVolumeAttributesClassName", Gate: volumeAttributes},
			{Path: "status.modifyVolumeStatus", Gate: volumeAttributes},
		},
		Versions: []resource.Version{resource.VersionOf[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList]("v1", func(c *corev1.PersistentVolumeClaim) {
			podspec.DefaultClaimSpec(&c.Spec)
			rules.Default(&c.Status.Phase, corev1.ClaimPending)
			rules.RoundUp(c.Status.Capacity)
			rules.RoundUp(c.Status.AllocatedResources)
		})},
		Strategy: resource.Rules[*corev1.PersistentVolumeClaim]{
			NameOnUpdate:  true,
			ReturnDeleted: true,
			PrepareCreate: func(ctx context.Context, c *corev1.PersistentVolumeClaim) {
				c.Status = corev1.PersistentVolumeClaimStatus{}
				dropClaimFields(ctx, &c.Spec, nil)
				matchDataSources(&c.Spec)
			},
			PrepareUpdate: func(ctx context.Context, c, old *corev1.PersistentVolumeClaim) {
				c.Status = old.Status
				dropClaimFields(ctx, &c.Spec, &old.Spec)
				matchDataSources(&c.Spec)
				// A claim from before dataSourceRef existed is not changed by defaulting it.
				matchDataSources(&old.Spec)
			},
			Validate: func(_ context.Context, c *corev1.PersistentVolumeClaim) field.ErrorList {
				return podspec.ValidateClaimSpec(&c.Spec, field.NewPath("spec"), podspec.ClaimAllowances{})
			},
			ValidateUpdate: func(ctx context.Context, c, old *corev1.PersistentVolumeClaim) field.ErrorList {
				return append(podspec.ValidateClaimSpec(&c.Spec, field.NewPath("spec"), claimAllowances(&old.Spec)), validateClaimUpdate(ctx, c, old)...)
			},
			Warnings: func(_ context.Context, c, _ *corev1.PersistentVolumeClaim) []string {
				w := appendOldAnnotation(nil, c.Annotations, corev1.BetaStorageClassAnnotation, `deprecated since v1.8; use "storageClassName" attribute instead`)
				return append(w, podspec.ClaimWarnings(&c.Spec, field.NewPath("spec"))...)
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{
			Name: "status",
			Part: new(resource.Rules[*corev1.PersistentVolumeClaim]{
				PrepareUpdate: func(_ context.Context, c, old *corev1.PersistentVolumeClaim) { c.Spec = old.Spec },
				ValidateUpdate: func(ctx context.Context, c, old *corev1.PersistentVolumeClaim) field.ErrorList {
					return append(validateClaimStatus(c), declaredStatus().Judge(ctx, &c.Status, &old.Status, field.NewPath("status"))...)
				},
			}.Strategy()),
		}},
		Columns: claimColumns(),
		Cells:   resource.CellsFunc(claimCells),
	}
}

// dropClaimFields clears data sources in other namespaces if their gate is disabled, and
// data sources of unsupported kinds, unless the old claim has them.
func dropClaimFields(ctx context.Context, spec, old *corev1.PersistentVolumeClaimSpec) {
	ref := spec.DataSourceRef
	if !features.From(ctx).Enabled("CrossNamespaceVolumeDataSource") && ref != nil && ptr.Deref(ref.Namespace, "") != "" && (old == nil || old.DataSourceRef == nil) {
		spec.DataSourceRef = nil
	}
	if spec.DataSource == nil || spec.DataSourceRef != nil || old != nil && (old.DataSource != nil || old.DataSourceRef != nil) {
		return
	}
	switch group := ptr.Deref(spec.DataSource.APIGroup, ""); {
	case spec.DataSource.Kind == "PersistentVolumeClaim" && group == "":
	case spec.DataSource.Kind == "VolumeSnapshot" && group == "snapshot.storage.k8s.io":
	default:
		spec.DataSource = nil
	}
}

// matchDataSources copies dataSource to dataSourceRef or the other way.
func matchDataSources(spec *corev1.PersistentVolumeClaimSpec) {
	clone := func(group *string) *string {
		if group == nil {
			return nil
		}
		return ptr.To(*group)
	}
	switch source, ref := spec.DataSource, spec.DataSourceRef; {
	case source != nil && ref == nil:
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: clone(source.APIGroup), Kind: source.Kind, Name: source.Name}
	case source == nil && ref != nil && ptr.Deref(ref.Namespace, "") == "":
		spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: clone(ref.APIGroup), Kind: ref.Kind, Name: ref.Name}
	}
}

// claimAllowances returns what validation tolerates because the old claim has it.
func claimAllowances(old *corev1.PersistentVolumeClaimSpec) podspec.ClaimAllowances {
	return podspec.ClaimAllowances{
		SelectorValues: len(metavalidation.ValidateLabelSelector(old.Selector, metavalidation.LabelSelectorValidationOptions{}, nil)) > 0,
		SourceGroups:   old.DataSource != nil && old.DataSource.APIGroup != nil || old.DataSourceRef != nil && old.DataSourceRef.APIGroup != nil,
	}
}

// validateClaimUpdate allows the changes that a claim can take: it is bound once; a bound
// claim can grow and change its VolumeAttributesClass.
func validateClaimUpdate(ctx context.Context, c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	var e rules.Errors
	p := field.NewPath("spec")
	is, was := c.Spec.DeepCopy(), old.Spec.DeepCopy()
	if was.VolumeName == "" {
		was.VolumeName = is.VolumeName
	}
	// The beta annotation for the class can be replaced by the field, and a claim
	// without a class can get one.
	before, hadClass := old.Annotations[corev1.BetaStorageClassAnnotation]
	after, hasClass := c.Annotations[corev1.BetaStorageClassAnnotation]
	named := was.StorageClassName == nil && is.StorageClassName != nil && (!hadClass || *is.StorageClassName == before)
	if named {
		is.StorageClassName = nil
	}
	if (!named || !hadClass || hasClass) && after != before {
		e.Invalid(field.NewPath("metadata", "annotations", corev1.BetaStorageClassAnnotation), after, apivalidation.FieldImmutableErrorMsg)
	}
	if c.Status.Phase == corev1.ClaimBound {
		if is.Resources.Requests != nil {
			is.Resources.Requests[corev1.ResourceStorage] = was.Resources.Requests[corev1.ResourceStorage]
		}
		is.VolumeAttributesClassName = was.VolumeAttributesClassName
	}
	if !equality.Semantic.DeepEqual(is, was) {
		e.Forbidden(p, "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n"+
			diff.Diff(rules.GoForm(was), rules.GoForm(is)))
	}
	size, oldSize, have := c.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage], old.Status.Capacity[corev1.ResourceStorage]
	if size.Cmp(oldSize) < 0 && size.Cmp(have) <= 0 {
		e.Forbidden(p.Child("resources", "requests", "storage"), "field can not be less than status.capacity")
	}
	e.Add(rules.ValidateImmutable(c.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)

	class := c.Spec.VolumeAttributesClassName
	checkAttributesGate(ctx, &e, class, old.Spec.VolumeAttributesClassName)
	if old.Status.CurrentVolumeAttributesClassName != nil && !ptr.Equal(class, old.Spec.VolumeAttributesClassName) {
		if class == nil {
			e.Forbidden(p.Child("volumeAttributesClassName"), "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil")
		} else if *class == "" {
			e.Forbidden(p.Child("volumeAttributesClassName"), "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil")
		}
	}
	return field.ErrorList(e)
}

func validateClaimStatus(c *corev1.PersistentVolumeClaim) field.ErrorList {
	var e rules.Errors
	status, p := &c.Status, field.NewPath("status")
	if len(c.Spec.AccessModes) == 0 {
		e.Required(field.NewPath("Spec", "accessModes"), "")
	}
	for _, name := range rules.SortedResourceNames(status.Capacity) {
		checkBasicQuantity(&e, status.Capacity, name, p.Child("capacity"))
	}
	if status.HealthStatus != nil {
		checkHealthConditions(&e, status.HealthStatus.HealthConditions, p.Child("healthStatus", "healthConditions"))
	}
	rp := p.Child("allocatedResourceStatuses")
	for name, resize := range status.AllocatedResourceStatuses {
		checkClaimResource(&e, name, rp)
		switch resize {
		case corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
			corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress, corev1.PersistentVolumeClaimNodeResizeInfeasible:
		default:
			// The path in the message is the resource, not its status.
			e.Add(field.NotSupported(rp, name, []corev1.ClaimResourceStatus{
				corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
				corev1.PersistentVolumeClaimNodeResizeInProgress, corev1.PersistentVolumeClaimNodeResizeInfeasible, corev1.PersistentVolumeClaimNodeResizePending,
			}))
		}
	}
	ap := p.Child("allocatedResources")
	for _, name := range rules.SortedResourceNames(status.AllocatedResources) {
		if checkClaimResource(&e, name, ap) && checkBasicQuantity(&e, status.AllocatedResources, name, ap) {
			rules.CheckQuantity(&e, corev1.ResourceStorage, status.AllocatedResources[name], ap.Key(string(name)))
		}
	}
	return field.ErrorList(e)
}

// checkClaimResource checks that a resource name is storage or a domain-prefixed name, and
// reports whether it is.
func checkClaimResource(e *rules.Errors, name corev1.ResourceName, p *field.Path) bool {
	if messages := validation.IsQualifiedName(string(name)); len(messages) > 0 {
		e.InvalidEach(p, string(name), messages)
		return false
	}
	if rules.IsNativeResource(name) && name != corev1.ResourceStorage {
		e.Add(field.NotSupported(p, string(name), []corev1.ResourceName{corev1.ResourceStorage}))
		return false
	}
	return true
}

// checkBasicQuantity checks that a quantity is not negative.
func checkBasicQuantity(e *rules.Errors, list corev1.ResourceList, name corev1.ResourceName, p *field.Path) bool {
	q := list[name]
	if q.Value() < 0 {
		e.Invalid(p.Key(string(name)), q.Value(), "must be a valid resource quantity")
	}
	return q.Value() >= 0
}

func claimColumns() []resource.Column {
	spec, status := corev1.PersistentVolumeClaimSpec{}.SwaggerDoc(), corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()
	return []resource.Column{
		rules.NameColumn(),
		{Name: "Status", Type: "string", Description: status["phase"]},
		{Name: "Volume", Type: "string", Description: spec["volumeName"]},
		{Name: "Capacity", Type: "string", Description: status["capacity"]},
		{Name: "Access Modes", Type: "string", Description: status["accessModes"]},
		{Name: "StorageClass", Type: "string", Description: "StorageClass of the pvc"},
		{Name: "VolumeAttributesClass", Type: "string", Description: "VolumeAttributesClass of the pvc"},
		rules.AgeColumn(),
		{Name: "VolumeMode", Type: "string", Priority: 1, Description: spec["volumeMode"]},
	}
}

func claimCells(c *corev1.PersistentVolumeClaim) []any {
	phase, capacity, modes := string(c.Status.Phase), "", ""
	if c.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if c.Spec.VolumeName != "" {
		size := c.Status.Capacity[corev1.ResourceStorage]
		capacity, modes = size.String(), accessModesCell(c.Status.AccessModes)
	}
	return []any{
		c.Name, phase, c.Spec.VolumeName, capacity, modes, storageClass(c.Annotations, ptr.Deref(c.Spec.StorageClassName, "")),
		ptr.Deref(c.Spec.VolumeAttributesClassName, "<unset>"), resource.Since(c.CreationTimestamp.Time), string(ptr.Deref(c.Spec.VolumeMode, "<unset>")),
	}
}
