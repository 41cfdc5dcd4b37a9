package plugin

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/builtin/podspec"
)

// usesSecrets reports whether a pod refers to a secret.
func usesSecrets(spec *corev1.PodSpec) (uses bool) {
	for _, ref := range spec.ImagePullSecrets {
		uses = uses || ref.Name != ""
	}
	for c := range podspec.Containers(spec) {
		for i := range c.EnvFrom {
			uses = uses || c.EnvFrom[i].SecretRef != nil && c.EnvFrom[i].SecretRef.Name != ""
		}
		for i := range c.Env {
			from := c.Env[i].ValueFrom
			uses = uses || from != nil && from.SecretKeyRef != nil && from.SecretKeyRef.Name != ""
		}
	}
	for i := range spec.Volumes {
		for _, name := range volumeSecrets(&spec.Volumes[i]) {
			uses = uses || name != ""
		}
	}
	return uses
}

// volumeSecrets returns the names of the secrets that a volume refers to.
func volumeSecrets(v *corev1.Volume) []string {
	local := func(ref *corev1.LocalObjectReference) []string {
		if ref == nil {
			return nil
		}
		return []string{ref.Name}
	}
	switch {
	case v.AzureFile != nil:
		return []string{v.AzureFile.SecretName}
	case v.CephFS != nil:
		return local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		return local(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		return local(v.FlexVolume.SecretRef)
	case v.Projected != nil:
		var names []string
		for i := range v.Projected.Sources {
			if s := v.Projected.Sources[i].Secret; s != nil {
				names = append(names, s.Name)
			}
		}
		return names
	case v.RBD != nil:
		return local(v.RBD.SecretRef)
	case v.Secret != nil:
		return []string{v.Secret.SecretName}
	case v.ScaleIO != nil:
		return local(v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		return local(v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		return local(v.StorageOS.SecretRef)
	case v.CSI != nil:
		return local(v.CSI.NodePublishSecretRef)
	}
	return nil
}

// usesConfigMaps reports whether a pod refers to a ConfigMap.
func usesConfigMaps(spec *corev1.PodSpec) (uses bool) {
	for c := range podspec.Containers(spec) {
		for i := range c.EnvFrom {
			uses = uses || c.EnvFrom[i].ConfigMapRef != nil && c.EnvFrom[i].ConfigMapRef.Name != ""
		}
		for i := range c.Env {
			from := c.Env[i].ValueFrom
			uses = uses || from != nil && from.ConfigMapKeyRef != nil && from.ConfigMapKeyRef.Name != ""
		}
	}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		uses = uses || v.ConfigMap != nil && v.ConfigMap.Name != ""
		if v.Projected != nil {
			for j := range v.Projected.Sources {
				m := v.Projected.Sources[j].ConfigMap
				uses = uses || m != nil && m.Name != ""
			}
		}
	}
	return uses
}

// references returns the resource of an API object that a pod refers to, "" if none.
func references(spec *corev1.PodSpec) (string, error) {
	switch {
	case spec.ServiceAccountName != "":
		return "serviceaccounts", nil
	case usesSecrets(spec):
		return "secrets", nil
	case usesConfigMaps(spec):
		return "configmaps", nil
	case len(spec.ResourceClaims) > 0:
		return "resourceclaims", nil
	}
	for i := range spec.Volumes {
		if what, err := volumeReferences(&spec.Volumes[i]); what != "" || err != nil {
			return what, err
		}
	}
	return "", nil
}

func volumeReferences(v *corev1.Volume) (string, error) {
	switch {
	case v.ConfigMap != nil:
		return "configmaps (via configmap volumes)", nil
	case v.Secret != nil:
		return "secrets (via secret volumes)", nil
	case v.CSI != nil:
		return "csidrivers (via CSI volumes)", nil
	case v.Glusterfs != nil:
		return "endpoints (via glusterFS volumes)", nil
	case v.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims", nil
	case v.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)", nil
	case v.AzureFile != nil:
		return "secrets (via azureFile volumes)", nil
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			if what, err := projectionReferences(&v.Projected.Sources[i], v.Name); what != "" || err != nil {
				return what, err
			}
		}
		return "", nil
	case v.VolumeSource == corev1.VolumeSource{}:
		return "", fmt.Errorf("unknown volume type for volume  %q", v.Name)
	}
	return "", nil
}

func projectionReferences(s *corev1.VolumeProjection, volume string) (string, error) {
	switch {
	case s.ConfigMap != nil:
		return "configmaps (via projected volumes)", nil
	case s.Secret != nil:
		return "secrets (via projected volumes)", nil
	case s.ServiceAccountToken != nil:
		return "serviceaccounts (via projected volumes)", nil
	case s.ClusterTrustBundle != nil:
		return "clustertrustbundles", nil
	case s.PodCertificate != nil:
		return "podcertificates", nil
	case s.DownwardAPI != nil:
		return "", nil
	}
	return "", fmt.Errorf("unknown source for projected volume %q", volume)
}
