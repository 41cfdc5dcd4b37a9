package core

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// mountOptionsAnnotation is the deprecated annotation for spec.mountOptions.
const mountOptionsAnnotation = corev1.MountOptionAnnotation

// volumeAttributes is the gate of the VolumeAttributesClasses of volumes and claims.
const volumeAttributes = "VolumeAttributesClass"

// checkAttributesGate refuses a change of the class while the gate is disabled.
func checkAttributesGate(ctx context.Context, e *rules.Errors, class, old *string) {
	if !ptr.Equal(class, old) && !features.From(ctx).Enabled(volumeAttributes) {
		e.Forbidden(field.NewPath("spec", "volumeAttributesClassName"), "update is forbidden when the VolumeAttributesClass feature gate is disabled")
	}
}

// PersistentVolumes defines persistentvolumes.
func PersistentVolumes() resource.Definition {
	return resource.Definition{
		Resource:   "persistentvolumes",
		Kind:       "PersistentVolume",
		ShortNames: []string{"pv"},
		GatedFields: []resource.GatedField{
			{Path: "spec.volumeAttributesClassName", Gate: volumeAttributes},
		},
		Versions: []resource.Version{resource.VersionOf[corev1.PersistentVolume, corev1.PersistentVolumeList]("v1", podspec.DefaultPersistentVolume)},
		Strategy: resource.Rules[*corev1.PersistentVolume]{
			NameOnUpdate:  true,
			ReturnDeleted: true,
			PrepareCreate: func(ctx context.Context, pv *corev1.PersistentVolume) {
				pv.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: receivedTime(ctx)}
			},
			PrepareUpdate: func(_ context.Context, pv, old *corev1.PersistentVolume) { pv.Status = old.Status },
			Validate: func(_ context.Context, pv *corev1.PersistentVolume) field.ErrorList {
				return validatePersistentVolume(pv, nil)
			},
			ValidateUpdate: func(ctx context.Context, pv, old *corev1.PersistentVolume) field.ErrorList {
				return append(validatePersistentVolume(pv, old), validatePersistentVolumeUpdate(ctx, pv, old)...)
			},
			Warnings: func(_ context.Context, pv, _ *corev1.PersistentVolume) []string { return persistentVolumeWarnings(pv) },
		}.Strategy(),
		Subresources: []resource.Subresource{{
			Name: "status",
			Part: new(resource.Rules[*corev1.PersistentVolume]{
				PrepareUpdate: func(ctx context.Context, pv, old *corev1.PersistentVolume) {
					pv.Spec = old.Spec
					is, was := &pv.Status, &old.Status
					switch {
					case is.Phase == was.Phase && is.LastPhaseTransitionTime == nil:
						is.LastPhaseTransitionTime = was.LastPhaseTransitionTime
					case is.Phase != was.Phase && (is.LastPhaseTransitionTime == nil || is.LastPhaseTransitionTime.Equal(was.LastPhaseTransitionTime)):
						is.LastPhaseTransitionTime = receivedTime(ctx)
					}
				},
				ValidateUpdate: func(context.Context, *corev1.PersistentVolume, *corev1.PersistentVolume) field.ErrorList { return nil },
			}.Strategy()),
		}},
		Columns: persistentVolumeColumns(),
		Cells:   resource.CellsFunc(persistentVolumeCells),
	}
}

// receivedTime returns the time at which the request was received.
func receivedTime(ctx context.Context) *metav1.Time {
	return &metav1.Time{Time: request.From(ctx).Received}
}

// validatePersistentVolumeUpdate checks that the immutable fields of a volume are unchanged.
func validatePersistentVolumeUpdate(ctx context.Context, pv, old *corev1.PersistentVolume) field.ErrorList {
	var e rules.Errors
	is, was := pv.Spec.PersistentVolumeSource, old.Spec.PersistentVolumeSource
	// controllerExpandSecretRef can be added later.
	if is.CSI != nil && was.CSI != nil && was.CSI.ControllerExpandSecretRef == nil {
		is.CSI = is.CSI.DeepCopy()
		is.CSI.ControllerExpandSecretRef = nil
	}
	if !equality.Semantic.DeepEqual(is, was) {
		e.Forbidden(field.NewPath("spec", "persistentvolumesource"),
			"spec.persistentvolumesource is immutable after creation\n"+diff.Diff(rules.GoForm(was), rules.GoForm(is)))
	}
	e.Add(rules.ValidateImmutable(pv.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	if old.Spec.NodeAffinity != nil && !features.From(ctx).Enabled("MutablePVNodeAffinity") {
		checkVolumeAffinityUpdate(&e, pv.Spec.NodeAffinity, old.Spec.NodeAffinity, field.NewPath("nodeAffinity"))
	}
	checkAttributesGate(ctx, &e, pv.Spec.VolumeAttributesClassName, old.Spec.VolumeAttributesClassName)
	if old.Spec.VolumeAttributesClassName != nil && pv.Spec.VolumeAttributesClassName == nil {
		e.Forbidden(field.NewPath("spec", "volumeAttributesClassName"), "update from non-nil value to nil is forbidden")
	}
	return field.ErrorList(e)
}

// checkVolumeAffinityUpdate checks that the node affinity is unchanged, except that
// deprecated label names may be replaced by current ones.
func checkVolumeAffinityUpdate(e *rules.Errors, is, was *corev1.VolumeNodeAffinity, p *field.Path) {
	same := is.DeepCopy()
	if same != nil && same.Required != nil && was.Required != nil && len(same.Required.NodeSelectorTerms) == len(was.Required.NodeSelectorTerms) {
		old := func(after, before []corev1.NodeSelectorRequirement) {
			for j := range min(len(before), len(after)) {
				if newNodeLabel(before[j].Key) == after[j].Key {
					after[j].Key = before[j].Key
				}
			}
		}
		for i, term := range was.Required.NodeSelectorTerms {
			old(same.Required.NodeSelectorTerms[i].MatchExpressions, term.MatchExpressions)
			old(same.Required.NodeSelectorTerms[i].MatchFields, term.MatchFields)
		}
	}
	if !equality.Semantic.DeepEqual(same, was) {
		e.Invalid(p, rules.GoForm(is), apivalidation.FieldImmutableErrorMsg+", except for updating from beta label to GA")
	}
}

// newNodeLabel returns the current name of a deprecated node label, and "" for others. A key
// that is left empty in an update counts as unchanged.
func newNodeLabel(key string) string {
	switch key {
	case corev1.LabelFailureDomainBetaZone:
		return corev1.LabelTopologyZone
	case corev1.LabelFailureDomainBetaRegion:
		return corev1.LabelTopologyRegion
	case "beta.kubernetes.io/os":
		return corev1.LabelOSStable
	case "beta.kubernetes.io/arch":
		return corev1.LabelArchStable
	case corev1.LabelInstanceType:
		return corev1.LabelInstanceTypeStable
	}
	return ""
}

// persistentVolumeWarnings returns warnings about deprecated and removed features.
func persistentVolumeWarnings(pv *corev1.PersistentVolume) []string {
	var w []string
	spec, p := &pv.Spec, field.NewPath("spec")
	w = appendOldAnnotation(w, pv.Annotations, corev1.BetaStorageClassAnnotation, `deprecated since v1.8; use "storageClassName" attribute instead`)
	w = appendOldAnnotation(w, pv.Annotations, mountOptionsAnnotation, `deprecated since v1.31; use "mountOptions" attribute instead`)
	if spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		w = append(w, fmt.Sprintf("%s: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
			p.Child("persistentVolumeReclaimPolicy")))
	}
	if a := spec.NodeAffinity; a != nil && a.Required != nil {
		for i, t := range a.Required.NodeSelectorTerms {
			for j, x := range t.MatchExpressions {
				if m := podspec.OldNodeLabel(x.Key); m != "" {
					w = append(w, fmt.Sprintf("%s: %s is %s",
						p.Child("nodeAffinity", "required", "nodeSelectorTerms").Index(i).Child("matchExpressions").Index(j).Child("key"), x.Key, m))
				}
			}
		}
	}
	old := func(set bool, name, since string) {
		if set {
			w = append(w, fmt.Sprintf("%s: deprecated in %s", p.Child(name), since))
		}
	}
	old(spec.CephFS != nil, "cephfs", "v1.28, non-functional in v1.31+")
	old(spec.PhotonPersistentDisk != nil, "photonPersistentDisk", "v1.11, non-functional in v1.16+")
	old(spec.ScaleIO != nil, "scaleIO", "v1.16, non-functional in v1.22+")
	old(spec.StorageOS != nil, "storageOS", "v1.22, non-functional in v1.25+")
	old(spec.Glusterfs != nil, "glusterfs", "v1.25, non-functional in v1.26+")
	old(spec.RBD != nil, "rbd", "v1.28, non-functional in v1.31+")
	return w
}

func appendOldAnnotation(w []string, annotations map[string]string, key, message string) []string {
	if _, ok := annotations[key]; ok {
		return append(w, fmt.Sprintf("%s: %s", field.NewPath("metadata", "annotations").Key(key), message))
	}
	return w
}

func persistentVolumeColumns() []resource.Column {
	spec, status := corev1.PersistentVolumeSpec{}.SwaggerDoc(), corev1.PersistentVolumeStatus{}.SwaggerDoc()
	return []resource.Column{
		rules.NameColumn(),
		{Name: "Capacity", Type: "string", Description: spec["capacity"]},
		{Name: "Access Modes", Type: "string", Description: spec["accessModes"]},
		{Name: "Reclaim Policy", Type: "string", Description: spec["persistentVolumeReclaimPolicy"]},
		{Name: "Status", Type: "string", Description: status["phase"]},
		{Name: "Claim", Type: "string", Description: spec["claimRef"]},
		{Name: "StorageClass", Type: "string", Description: "StorageClass of the pv"},
		{Name: "VolumeAttributesClass", Type: "string", Description: "VolumeAttributesClass of the pv"},
		{Name: "Reason", Type: "string", Description: status["reason"]},
		rules.AgeColumn(),
		{Name: "VolumeMode", Type: "string", Priority: 1, Description: spec["volumeMode"]},
	}
}

func persistentVolumeCells(pv *corev1.PersistentVolume) []any {
	size := pv.Spec.Capacity[corev1.ResourceStorage]
	phase := string(pv.Status.Phase)
	if pv.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	claim := ""
	if ref := pv.Spec.ClaimRef; ref != nil {
		claim = ref.Namespace + "/" + ref.Name
	}
	return []any{
		pv.Name, size.String(), accessModesCell(pv.Spec.AccessModes), string(pv.Spec.PersistentVolumeReclaimPolicy), phase, claim,
		storageClass(pv.Annotations, pv.Spec.StorageClassName), ptr.Deref(pv.Spec.VolumeAttributesClassName, "<unset>"),
		pv.Status.Reason, resource.Since(pv.CreationTimestamp.Time), string(ptr.Deref(pv.Spec.VolumeMode, "<unset>")),
	}
}

// storageClass returns the class in the beta annotation, or else in the field.
func storageClass(annotations map[string]string, name string) string {
	if class, ok := annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return name
}

func accessModesCell(modes []corev1.PersistentVolumeAccessMode) string {
	var short []string
	for _, m := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{
		{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"},
	} {
		if slices.Contains(modes, m.mode) {
			short = append(short, m.short)
		}
	}
	return strings.Join(short, ",")
}
