package core

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// defaultVolume fills in what a volume of a pod may leave out; one without a
// source is an empty directory.
func defaultVolume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if s := v.Image; s != nil {
		defaultPullPolicy(&s.PullPolicy, s.Reference)
	}
	if s := v.HostPath; s != nil {
		orPointer(&s.Type, corev1.HostPathUnset)
	}
	if s := v.Secret; s != nil {
		orPointer(&s.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if s := v.ConfigMap; s != nil {
		orPointer(&s.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if s := v.DownwardAPI; s != nil {
		orPointer(&s.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultDownwardFiles(s.Items)
	}
	if s := v.Projected; s != nil {
		orPointer(&s.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
		for i := range s.Sources {
			if d := s.Sources[i].DownwardAPI; d != nil {
				defaultDownwardFiles(d.Items)
			}
			if t := s.Sources[i].ServiceAccountToken; t != nil {
				orPointer(&t.ExpirationSeconds, int64(time.Hour/time.Second))
			}
		}
	}
	if s := v.ISCSI; s != nil {
		orDefault(&s.ISCSIInterface, "default")
	}
	if s := v.RBD; s != nil {
		orDefault(&s.RBDPool, "rbd")
		orDefault(&s.RadosUser, "admin")
		orDefault(&s.Keyring, "/etc/ceph/keyring")
	}
	if s := v.AzureDisk; s != nil {
		orPointer(&s.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		orPointer(&s.FSType, "ext4")
		orPointer(&s.ReadOnly, false)
		orPointer(&s.Kind, corev1.AzureSharedBlobDisk)
	}
	if s := v.ScaleIO; s != nil {
		orDefault(&s.StorageMode, "ThinProvisioned")
		orDefault(&s.FSType, "xfs")
	}
	if s := v.Ephemeral; s != nil && s.VolumeClaimTemplate != nil {
		DefaultClaimSpec(&s.VolumeClaimTemplate.Spec)
	}
}

// DefaultClaimSpec fills in what the specification of a volume claim may leave
// out.
func DefaultClaimSpec(spec *corev1.PersistentVolumeClaimSpec) {
	orPointer(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	roundUp(spec.Resources.Limits)
	roundUp(spec.Resources.Requests)
}

func defaultDownwardFiles(files []corev1.DownwardAPIVolumeFile) {
	for i := range files {
		if f := files[i].FieldRef; f != nil {
			orDefault(&f.APIVersion, "v1")
		}
	}
}

func orPointer[T any](p **T, value T) {
	if *p == nil {
		*p = ptr.To(value)
	}
}
