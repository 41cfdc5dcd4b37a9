package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/resource"
)

// AnyName is the rule for names that are judged elsewhere.
func AnyName(string, bool) []string { return nil }

// ValidateLongName judges the name of a new object where it is declared that it is a
// DNS name; that there is none is said in any case.
func ValidateLongName(name string) field.ErrorList {
	if name == "" {
		return nil
	}
	return resource.Declared(Invalid(field.NewPath("metadata", "name"), name, content.IsDNS1123Subdomain(name))...)
}

// DefaultProbeProtocols has requests of probes and hooks that do not say which
// protocol they speak say so.
func DefaultProbeProtocols(spec *corev1.PodSpec) {
	eachContainer(spec, nil, func(c *corev1.Container, _ *field.Path) {
		for _, get := range httpGets(c) {
			if get.Protocol == nil {
				get.Protocol = new(corev1.HTTPProtocolHTTP1)
			}
		}
	})
}

// ValidateLimits judges amounts of resources as the limits of a container.
func ValidateLimits(limits corev1.ResourceList, path *field.Path) field.ErrorList {
	var e problems
	checkResources(&e, &corev1.ResourceRequirements{Limits: limits}, checkContainerResourceName, nil, path, &allowances{})
	return field.ErrorList(e)
}

// DefaultInlineVolume fills in what the source of a volume in another object
// may leave out.
func DefaultInlineVolume(spec *corev1.PersistentVolumeSpec) {
	pv := corev1.PersistentVolume{Spec: *spec}
	defaultPersistentVolume(&pv)
	pv.Spec.PersistentVolumeReclaimPolicy, pv.Spec.VolumeMode = spec.PersistentVolumeReclaimPolicy, spec.VolumeMode
	*spec = pv.Spec
}

// ValidateInlineVolume judges a volume that is part of another object: one of a
// driver, which nobody can claim.
func ValidateInlineVolume(spec *corev1.PersistentVolumeSpec, p *field.Path) field.ErrorList {
	var e problems
	const inline = " in the context of inline volumes"
	forbid := func(name string, set bool) {
		if set {
			e.forbidden(p.Child(name), "may not be specified"+inline)
		}
	}
	forbid("claimRef", spec.ClaimRef != nil)
	forbid("capacity", len(spec.Capacity) > 0)
	if spec.CSI == nil {
		e.required(p.Child("csi"), "has to be specified"+inline)
	}
	checkAccessModes(&e, spec.AccessModes, "", p.Child("accessModes"))
	if policy := spec.PersistentVolumeReclaimPolicy; policy != "" && policy != corev1.PersistentVolumeReclaimRetain {
		e.forbidden(p.Child("persistentVolumeReclaimPolicy"), "may only be "+string(corev1.PersistentVolumeReclaimRetain)+inline)
	}
	forbid("nodeAffinity", spec.NodeAffinity != nil)
	checkPersistentSource(&e, &corev1.PersistentVolume{Spec: *spec}, p)
	forbid("storageClassName", spec.StorageClassName != "")
	if mode := spec.VolumeMode; mode != nil && *mode != corev1.PersistentVolumeFilesystem {
		e.forbidden(p.Child("volumeMode"), "may not specify volumeMode other than "+string(corev1.PersistentVolumeFilesystem)+inline)
	}
	return field.ErrorList(e)
}
