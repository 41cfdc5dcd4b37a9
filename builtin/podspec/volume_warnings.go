package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// volumeWarnings returns warnings for volume types that are deprecated or no
// longer work.
func volumeWarnings(v *corev1.Volume, p *field.Path) []string {
	var w []string
	old := func(set bool, name, since string) {
		if set {
			w = append(w, fmt.Sprintf("%s: deprecated in %s", childOf(p, name), since))
		}
	}
	old(v.PhotonPersistentDisk != nil, "photonPersistentDisk", "v1.11, non-functional in v1.16+")
	old(v.GitRepo != nil, "gitRepo", "v1.11, and disabled by default in v1.33+")
	old(v.ScaleIO != nil, "scaleIO", "v1.16, non-functional in v1.22+")
	old(v.Flocker != nil, "flocker", "v1.22, non-functional in v1.25+")
	old(v.StorageOS != nil, "storageOS", "v1.22, non-functional in v1.25+")
	old(v.Quobyte != nil, "quobyte", "v1.22, non-functional in v1.25+")
	old(v.Glusterfs != nil, "glusterfs", "v1.25, non-functional in v1.26+")
	if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
		w = append(w, ClaimWarnings(&v.Ephemeral.VolumeClaimTemplate.Spec, childOf(p, "ephemeral", "volumeClaimTemplate", "spec"))...)
	}
	old(v.CephFS != nil, "cephfs", "v1.28, non-functional in v1.31+")
	old(v.RBD != nil, "rbd", "v1.28, non-functional in v1.31+")
	return w
}

// volumePath is the path of a file in a volume, and what the file is.
type volumePath struct{ path, source string }

func (v volumePath) String() string {
	if v.source == "" {
		return fmt.Sprintf("%q", v.path)
	}
	return fmt.Sprintf("%q (%s)", v.path, v.source)
}

// overlapWarnings returns warnings for files of a projected volume with the same
// path, or with a path inside of another.
func overlapWarnings(v *corev1.Volume) []string {
	var w []string
	overlaps := func(kind string, paths []volumePath) {
		for i, a := range paths {
			for _, b := range paths[:min(i, maxCompared)] {
				if len(w) < maxPairs && overlap(a, b) {
					w = append(w, fmt.Sprintf("volume %q (%s): overlapping paths: %s with %s", v.Name, kind, a, b))
				}
			}
		}
	}
	if s := v.ConfigMap; s != nil {
		overlaps(fmt.Sprintf("ConfigMap %q", s.Name), keyPaths(s.Items, ""))
	}
	if s := v.Secret; s != nil {
		overlaps(fmt.Sprintf("Secret %q", s.SecretName), keyPaths(s.Items, ""))
	}
	if s := v.DownwardAPI; s != nil {
		overlaps("DownwardAPI", downwardPaths(s.Items, ""))
	}
	if v.Projected == nil {
		return w
	}
	var paths []volumePath
	for i := range v.Projected.Sources {
		if v.Projected.Sources[i] == (corev1.VolumeProjection{}) {
			w = append(w, fmt.Sprintf("volume %q (Projected) has no sources provided", v.Name))
		}
		paths = append(paths, projectionPaths(&v.Projected.Sources[i])...)
	}
	overlaps("Projected", paths)
	return w
}

func overlap(a, b volumePath) bool {
	long, short := a.path, b.path
	if len(long) < len(short) {
		long, short = short, long
	}
	return short != "" && strings.HasPrefix(long, short) && (len(long) == len(short) || long[len(short)] == '/')
}

func keyPaths(items []corev1.KeyToPath, source string) []volumePath {
	var paths []volumePath
	for _, item := range items {
		paths = append(paths, volumePath{strings.TrimRight(item.Path, "/"), source})
	}
	return paths
}

func downwardPaths(files []corev1.DownwardAPIVolumeFile, source string) []volumePath {
	var paths []volumePath
	for _, f := range files {
		paths = append(paths, volumePath{strings.TrimRight(f.Path, "/"), source})
	}
	return paths
}

func projectionPaths(s *corev1.VolumeProjection) []volumePath {
	switch {
	case s.ConfigMap != nil && s.ConfigMap.Items != nil:
		return keyPaths(s.ConfigMap.Items, fmt.Sprintf("ConfigMap %q", s.ConfigMap.Name))
	case s.Secret != nil && s.Secret.Items != nil:
		return keyPaths(s.Secret.Items, fmt.Sprintf("Secret %q", s.Secret.Name))
	case s.DownwardAPI != nil && s.DownwardAPI.Items != nil:
		return downwardPaths(s.DownwardAPI.Items, "DownwardAPI")
	case s.ServiceAccountToken != nil:
		return []volumePath{{strings.TrimRight(s.ServiceAccountToken.Path, "/"), "ServiceAccountToken"}}
	case s.ClusterTrustBundle != nil:
		name := s.ClusterTrustBundle.Name
		if name == nil {
			name = s.ClusterTrustBundle.SignerName
		}
		if name == nil {
			return nil
		}
		return []volumePath{{strings.TrimRight(s.ClusterTrustBundle.Path, "/"), fmt.Sprintf("ClusterTrustBundle %q", *name)}}
	case s.PodCertificate != nil:
		return []volumePath{
			{strings.TrimRight(s.PodCertificate.CertificateChainPath, "/"), "PodCertificate chain"},
			{strings.TrimRight(s.PodCertificate.KeyPath, "/"), "PodCertificate key"},
			{strings.TrimRight(s.PodCertificate.CredentialBundlePath, "/"), "PodCertificate credential bundle"},
		}
	}
	return nil
}
