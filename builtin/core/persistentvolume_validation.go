package core

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
)

// validatePersistentVolume validates a volume. Errors that the old volume, nil on create,
// has too are tolerated.
func validatePersistentVolume(pv, old *corev1.PersistentVolume) field.ErrorList {
	var e rules.Errors
	spec, p := &pv.Spec, field.NewPath("spec")
	podspec.CheckAccessModes(&e, spec.AccessModes, "", p.Child("accessModes"))
	cp := p.Child("capacity")
	if len(spec.Capacity) == 0 {
		e.Required(cp, "")
	}
	if _, ok := spec.Capacity[corev1.ResourceStorage]; !ok || len(spec.Capacity) > 1 {
		e.Add(field.NotSupported(cp, spec.Capacity, []corev1.ResourceName{corev1.ResourceStorage}))
	}
	for _, name := range rules.SortedResourceNames(spec.Capacity) {
		checkBasicQuantity(&e, spec.Capacity, name, cp)
		if size := spec.Capacity[name]; size.Sign() <= 0 {
			e.Invalid(cp.Key(string(name)), size.String(), "must be greater than zero")
		}
	}
	rp := p.Child("persistentVolumeReclaimPolicy")
	if policy := spec.PersistentVolumeReclaimPolicy; policy != "" {
		rules.OneOf(&e, rp, policy, corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain)
	}
	if a := spec.NodeAffinity; a != nil {
		if a.Required != nil {
			podspec.CheckNodeSelector(&e, a.Required, p.Child("nodeAffinity", "required"), badVolumeAffinity(old))
		} else {
			e.Required(p.Child("nodeAffinity", "required"), "must specify required node constraints")
		}
	}
	podspec.CheckPersistentVolumeSource(&e, pv, p)
	if s := spec.HostPath; s != nil && path.Clean(s.Path) == "/" && spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		e.Forbidden(rp, "may not be 'recycle' for a hostPath mount of '/'")
	}
	if spec.StorageClassName != "" {
		e.DNSSubdomain(p.Child("storageClassName"), spec.StorageClassName)
	}
	rules.OneOfPointer(&e, p.Child("volumeMode"), spec.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	if class := spec.VolumeAttributesClassName; class != nil {
		if *class == "" {
			e.Required(p.Child("volumeAttributesClassName"), "an empty string is disallowed")
		} else {
			e.DNSSubdomain(p.Child("volumeAttributesClassName"), *class)
		}
		if spec.CSI == nil {
			e.Required(p.Child("csi"), "has to be specified when using volumeAttributesClassName")
		}
	}
	if _, ok := pv.Annotations[mountOptionsAnnotation]; ok && !takesMountOptions(&spec.PersistentVolumeSource) {
		e.Forbidden(field.NewPath("metadata", "annotations", mountOptionsAnnotation), "may not specify mount options for this volume type")
	}
	return field.ErrorList(e)
}

func badVolumeAffinity(old *corev1.PersistentVolume) bool {
	if old == nil || old.Spec.NodeAffinity == nil || old.Spec.NodeAffinity.Required == nil {
		return false
	}
	for _, t := range old.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, x := range t.MatchExpressions {
			for _, value := range x.Values {
				if len(validation.IsValidLabelValue(value)) > 0 {
					return true
				}
			}
		}
	}
	return false
}

func takesMountOptions(s *corev1.PersistentVolumeSource) bool {
	return s.GCEPersistentDisk != nil || s.AWSElasticBlockStore != nil || s.Glusterfs != nil || s.NFS != nil || s.RBD != nil ||
		s.Quobyte != nil || s.ISCSI != nil || s.Cinder != nil || s.CephFS != nil || s.AzureFile != nil || s.VsphereVolume != nil ||
		s.AzureDisk != nil || s.PhotonPersistentDisk != nil
}
