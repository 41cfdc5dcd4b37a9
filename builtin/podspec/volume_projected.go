package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
)

// Limits of the lifetime of a pod certificate, in seconds.
const (
	minCertificateSeconds        = 60 * 60
	maxCertificateSeconds        = 91 * 24 * 60 * 60
	maxClusterCertificateSeconds = 24 * 60 * 60
)

// checkFiles validates the fields that secret, config map and projected volumes
// share: the default mode and owner, and keys with their paths.
func checkFiles(e *rules.Errors, mode *int32, user *int64, items []corev1.KeyToPath, p *field.Path) {
	checkFileMode(e, mode, childOf(p, "defaultMode"))
	e.UserID(childOf(p, "defaultUser"), user)
	for i := range items {
		checkKeyToPath(e, &items[i], itemOf(childOf(p, "items"), i))
	}
}

func checkFileMode(e *rules.Errors, mode *int32, p *field.Path) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		e.Invalid(p, *mode, "must be a number between 0 and 0777 (octal), both inclusive")
	}
}

func checkKeyToPath(e *rules.Errors, k *corev1.KeyToPath, p *field.Path) {
	e.NotEmpty(childOf(p, "key"), k.Key)
	e.NotEmpty(childOf(p, "path"), k.Path)
	checkFilePath(e, k.Path, childOf(p, "path"))
	checkFileMode(e, k.Mode, childOf(p, "mode"))
	e.UserID(childOf(p, "user"), k.User)
}

// checkDownwardFile validates a file of a downward API volume. Its errors have
// the path of the volume, not of the file, as in Kubernetes.
func checkDownwardFile(e *rules.Errors, f *corev1.DownwardAPIVolumeFile, p *field.Path) {
	e.NotEmpty(childOf(p, "path"), f.Path)
	checkFilePath(e, f.Path, childOf(p, "path"))
	switch {
	case f.FieldRef != nil:
		checkFieldRef(e, f.FieldRef, childOf(p, "fieldRef"),
			"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid")
		if f.ResourceFieldRef != nil {
			e.Invalid(p, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		}
	case f.ResourceFieldRef != nil:
		checkResourceFieldRef(e, f.ResourceFieldRef, true, childOf(p, "resourceFieldRef"))
	default:
		e.Required(p, "one of fieldRef and resourceFieldRef is required")
	}
	checkFileMode(e, f.Mode, childOf(p, "mode"))
	e.UserID(childOf(p, "user"), f.User)
}

func checkProjected(e *rules.Errors, v *corev1.ProjectedVolumeSource, p *field.Path, allow *Allowances) {
	checkFiles(e, v.DefaultMode, v.DefaultUser, nil, p)
	seen := sets.New[string]()
	// take reports a path that another file has, for the whole volume.
	take := func(path string, source any) {
		if seen.Has(path) {
			e.Invalid(p, source, "conflicting duplicate paths")
		}
		seen.Insert(path)
	}
	items := func(name string, items []corev1.KeyToPath, sp *field.Path) {
		e.NotEmpty(childOf(sp, "name"), name)
		for i := range items {
			checkKeyToPath(e, &items[i], itemOf(childOf(sp, "items"), i))
			if items[i].Path != "" {
				take(items[i].Path, name)
			}
		}
	}
	for i := range v.Sources {
		s, sp := &v.Sources[i], itemOf(childOf(p, "sources"), i)
		found := 0
		if s.Secret != nil {
			found++
			items(s.Secret.Name, s.Secret.Items, childOf(sp, "secret"))
		}
		if s.ConfigMap != nil {
			found++
			items(s.ConfigMap.Name, s.ConfigMap.Items, childOf(sp, "configMap"))
		}
		if s.DownwardAPI != nil {
			found++
			for j := range s.DownwardAPI.Items {
				f := &s.DownwardAPI.Items[j]
				checkDownwardFile(e, f, childOf(sp, "downwardAPI"))
				if f.Path != "" {
					take(f.Path, f.Path)
				}
			}
		}
		if t := s.ServiceAccountToken; t != nil {
			found++
			checkTokenProjection(e, t, p, childOf(sp, "serviceAccountToken"), allow)
		}
		if b := s.ClusterTrustBundle; b != nil {
			found++
			checkTrustBundle(e, b, childOf(sp, "clusterTrustBundle"))
			take(b.Path, b.Path)
		}
		if c := s.PodCertificate; c != nil {
			found++
			checkPodCertificate(e, c, childOf(sp, "podCertificate"), take)
		}
		if found > 1 {
			e.Forbidden(sp, "may not specify more than 1 volume type per source")
		}
	}
}

// checkTokenProjection validates a service account token projection. An invalid
// path is reported at the path of the volume, as in Kubernetes.
func checkTokenProjection(e *rules.Errors, t *corev1.ServiceAccountTokenProjection, volume, p *field.Path, allow *Allowances) {
	if s, ep := t.ExpirationSeconds, childOf(p, "expirationSeconds"); s == nil {
		e.Required(ep, "")
	} else if *s < 10*60 {
		e.Invalid(ep, *s, "may not specify a duration less than 10 minutes")
	} else if *s > 1<<32 {
		e.Invalid(ep, *s, "may not specify a duration larger than 2^32 seconds")
	}
	if e.NotEmpty(childOf(volume, "path"), t.Path) && !allow.tokenPaths {
		checkFilePath(e, t.Path, childOf(volume, "path"))
	}
	e.UserID(childOf(p, "user"), t.User)
}

func checkTrustBundle(e *rules.Errors, b *corev1.ClusterTrustBundleProjection, p *field.Path) {
	switch {
	case b.Name != nil && b.SignerName != nil:
		e.Invalid(p, rules.GoForm(b), "only one of name and signerName may be used")
	case b.Name != nil:
		if *b.Name == "" {
			e.Required(childOf(p, "name"), "must be a valid object name")
		}
		for _, m := range trustBundleNameProblems(*b.Name) {
			e.Invalid(childOf(p, "name"), *b.Name, fmt.Sprintf("not a valid clustertrustbundlename: %v", m))
		}
		if b.LabelSelector != nil {
			e.Invalid(childOf(p, "labelSelector"), b.LabelSelector, "labelSelector must be unset if name is specified")
		}
	case b.SignerName != nil:
		if *b.SignerName == "" {
			e.Required(childOf(p, "signerName"), "must be a valid signer name")
		}
		e.Add(rules.ValidateSignerName(*b.SignerName, childOf(p, "signerName"))...)
		e.Add(metavalidation.ValidateLabelSelector(b.LabelSelector, metavalidation.LabelSelectorValidationOptions{}, childOf(p, "labelSelector"))...)
	default:
		e.Required(p, "either name or signerName must be specified")
	}
	e.NotEmpty(childOf(p, "path"), b.Path)
	e.UserID(childOf(p, "user"), b.User)
	checkFilePath(e, b.Path, childOf(p, "path"))
}

// trustBundleNameProblems returns what is wrong with the name of a cluster trust
// bundle. The part up to the last colon is the name of its signer, if it has one.
func trustBundleNameProblems(name string) []string {
	if i := strings.LastIndex(name, ":"); i >= 0 {
		signer := strings.ReplaceAll(name[:i], ":", "/")
		if prefix := strings.ReplaceAll(signer, "/", ":") + ":"; !strings.HasPrefix(name, prefix) {
			return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, prefix)}
		}
		name = name[i+1:]
	}
	return apivalidation.NameIsDNSSubdomain(name, false)
}

func checkPodCertificate(e *rules.Errors, c *corev1.PodCertificateProjection, p *field.Path, take func(string, any)) {
	e.Add(rules.ValidateSignerName(c.SignerName, childOf(p, "signerName"))...)
	for key := range c.UserAnnotations {
		e.Add(validation.IsDomainPrefixedKey(childOf(p, "userAnnotations"), strings.ToLower(key))...)
	}
	if apivalidation.ValidateAnnotationsSize(c.UserAnnotations) != nil {
		e.Add(field.TooLong(childOf(p, "userAnnotations"), "", apivalidation.TotalAnnotationSizeLimitB))
	}
	e.UserID(childOf(p, "user"), c.User)
	rules.OneOf(e, childOf(p, "keyType"), c.KeyType, "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
	if s, sp := c.MaxExpirationSeconds, childOf(p, "maxExpirationSeconds"); s != nil {
		limit := int32(maxCertificateSeconds)
		if host, _, _ := strings.Cut(c.SignerName, "/"); host == "kubernetes.io" || strings.HasSuffix(host, ".kubernetes.io") {
			limit = maxClusterCertificateSeconds
		}
		if *s < minCertificateSeconds {
			e.Invalid(sp, *s, fmt.Sprintf("if provided, maxExpirationSeconds must be >= %d", minCertificateSeconds))
		}
		if *s > limit {
			e.Invalid(sp, *s, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", limit))
		}
	}
	file := func(name, path string) {
		if path != "" {
			checkFilePath(e, path, childOf(p, name))
			take(path, path)
		}
	}
	file("credentialBundlePath", c.CredentialBundlePath)
	file("keyPath", c.KeyPath)
	file("certificateChainPath", c.CertificateChainPath)
	if c.CredentialBundlePath == "" && c.KeyPath == "" && c.CertificateChainPath == "" {
		e.Required(p, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
	}
}
