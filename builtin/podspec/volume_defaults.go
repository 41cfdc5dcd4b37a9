package podspec

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/builtin/rules"
)

// defaultVolume sets the defaults of a volume of a pod; a volume without a source
// becomes an emptyDir.
func defaultVolume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if s := v.Image; s != nil {
		defaultPullPolicy(&s.PullPolicy, s.Reference)
	}
	if s := v.HostPath; s != nil {
		rules.DefaultPointer(&s.Type, corev1.HostPathUnset)
	}
	if s := v.Secret; s != nil {
		rules.DefaultPointer(&s.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if s := v.ConfigMap; s != nil {
		rules.DefaultPointer(&s.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if s := v.DownwardAPI; s != nil {
		rules.DefaultPointer(&s.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultDownwardFiles(s.Items)
	}
	if s := v.Projected; s != nil {
		rules.DefaultPointer(&s.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
		for i := range s.Sources {
			if d := s.Sources[i].DownwardAPI; d != nil {
				defaultDownwardFiles(d.Items)
			}
			if t := s.Sources[i].ServiceAccountToken; t != nil {
				rules.DefaultPointer(&t.ExpirationSeconds, int64(time.Hour/time.Second))
			}
		}
	}
	if s := v.ISCSI; s != nil {
		rules.Default(&s.ISCSIInterface, "default")
	}
	if s := v.RBD; s != nil {
		rules.Default(&s.RBDPool, "rbd")
		rules.Default(&s.RadosUser, "admin")
		rules.Default(&s.Keyring, "/etc/ceph/keyring")
	}
	if s := v.AzureDisk; s != nil {
		rules.DefaultPointer(&s.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		rules.DefaultPointer(&s.FSType, "ext4")
		rules.DefaultPointer(&s.ReadOnly, false)
		rules.DefaultPointer(&s.Kind, corev1.AzureSharedBlobDisk)
	}
	if s := v.ScaleIO; s != nil {
		rules.Default(&s.StorageMode, "ThinProvisioned")
		rules.Default(&s.FSType, "xfs")
	}
	if s := v.Ephemeral; s != nil && s.VolumeClaimTemplate != nil {
		DefaultClaimSpec(&s.VolumeClaimTemplate.Spec)
	}
}

// DefaultClaimSpec sets the defaults of the spec of a volume claim.
func DefaultClaimSpec(spec *corev1.PersistentVolumeClaimSpec) {
	rules.DefaultPointer(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	rules.RoundUp(spec.Resources.Limits)
	rules.RoundUp(spec.Resources.Requests)
}

func defaultDownwardFiles(files []corev1.DownwardAPIVolumeFile) {
	for i := range files {
		if f := files[i].FieldRef; f != nil {
			rules.Default(&f.APIVersion, "v1")
		}
	}
}
