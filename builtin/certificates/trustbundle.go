package certificates

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1alpha1 "k8s.io/api/certificates/v1alpha1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

const maxBundle = 1 << 20

type trustBundle = certificatesv1beta1.ClusterTrustBundle

// TrustBundles defines clustertrustbundles.
func TrustBundles() resource.Definition {
	return resource.Definition{
		Group:      certificatesv1.GroupName,
		Resource:   "clustertrustbundles",
		Gate:       "ClusterTrustBundle",
		Kind:       "ClusterTrustBundle",
		StorageKey: "clustertrustbundles",
		Hub:        "v1beta1",
		Versions:   trustBundleVersions(),
		Strategy: resource.Rules[*trustBundle]{
			RequireVersion: true,
			// The name rule depends on the signer.
			JudgesMetadata: true,
			Validate: func(_ context.Context, b *trustBundle) field.ErrorList {
				return append(validateBundle(b, false), validateAnchors(b.Spec.TrustBundle)...)
			},
			ValidateUpdate: func(_ context.Context, b, old *trustBundle) field.ErrorList {
				errs := validateBundle(b, true)
				// An unchanged bundle is not parsed again: newer Go may refuse it.
				if b.Spec.TrustBundle != old.Spec.TrustBundle {
					errs = append(errs, validateAnchors(b.Spec.TrustBundle)...)
				}
				return append(errs, apivalidation.ValidateImmutableField(b.Spec.SignerName, old.Spec.SignerName, field.NewPath("spec", "signerName"))...)
			},
		}.Strategy(),
		Fields: []resource.Field{
			resource.FieldFunc("spec.signerName", func(b *trustBundle) string { return b.Spec.SignerName }),
		},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "SignerName", Type: "string", Description: certificatesv1.ClusterTrustBundleSpec{}.SwaggerDoc()["signerName"]},
		},
		Cells: resource.CellsFunc(func(b *trustBundle) []any { return []any{b.Name, orNone(b.Spec.SignerName)} }),
	}
}

// trustBundleVersions returns the served version and older ones, of which one is the storage
// version. They have the same fields.
func trustBundleVersions() []resource.Version {
	const kind = "ClusterTrustBundle"
	v1beta1 := resource.VersionOf[trustBundle, certificatesv1beta1.ClusterTrustBundleList]("v1beta1", nil)
	v1beta1.Off = true
	v1beta1.Deprecation = resource.Deprecation(new(trustBundle), certificatesv1beta1.SchemeGroupVersion.WithKind(kind))
	return []resource.Version{
		resource.AlikeVersion[certificatesv1.ClusterTrustBundle, certificatesv1.ClusterTrustBundleList, trustBundle](
			certificatesv1.SchemeGroupVersion.WithKind(kind), nil, nil, nil),
		v1beta1,
		resource.AlikeVersion[certificatesv1alpha1.ClusterTrustBundle, certificatesv1alpha1.ClusterTrustBundleList, trustBundle](
			certificatesv1alpha1.SchemeGroupVersion.WithKind(kind), nil, nil, nil),
	}
}

func validateBundle(b *trustBundle, update bool) field.ErrorList {
	// On update only the name is checked here; package rest checks the rest.
	meta := b.ObjectMeta
	if update {
		meta = metav1.ObjectMeta{Name: b.Name, GenerateName: b.GenerateName}
	}
	errs := apivalidation.ValidateObjectMeta(&meta, false, func(name string, prefix bool) []string {
		return bundleNameProblems(name, b.Spec.SignerName, prefix)
	}, field.NewPath("metadata"))
	if b.Spec.SignerName != "" {
		errs = append(errs, rules.ValidateSignerName(b.Spec.SignerName, field.NewPath("spec", "signerName"))...)
	}
	return errs
}

// bundleNameProblems checks that the name has the prefix of the signer, if there is one.
func bundleNameProblems(name, signer string, prefix bool) []string {
	if signer == "" {
		if strings.Contains(name, ":") {
			return []string{`ClusterTrustBundle without signer name must not have ":" in its name`}
		}
		return apivalidation.NameIsDNSSubdomain(name, prefix)
	}
	first := strings.ReplaceAll(signer, "/", ":") + ":"
	rest, ok := strings.CutPrefix(name, first)
	if !ok {
		return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, first)}
	}
	return apivalidation.NameIsDNSSubdomain(rest, prefix)
}

// validateAnchors checks for CA certificates without duplicates.
func validateAnchors(text string) field.ErrorList {
	path := field.NewPath("spec", "trustBundle")
	if len(text) > maxBundle {
		return field.ErrorList{field.TooLong(path, "", maxBundle)}
	}
	var errs field.ErrorList
	bad := func(format string, args ...any) {
		errs = append(errs, field.Invalid(path, "<value omitted>", fmt.Sprintf(format, args...)))
	}
	var anchors []string
	places := map[string][]int{}
	block, rest := pem.Decode([]byte(text))
	for i := 0; block != nil; i++ {
		if block.Type != "CERTIFICATE" {
			bad("entry %d has bad block type: %v", i, block.Type)
		} else if len(block.Headers) > 0 {
			bad("entry %d has PEM block headers", i)
		} else if cert, err := x509.ParseCertificate(block.Bytes); err != nil {
			bad("entry %d does not parse as X.509", i)
		} else if !cert.IsCA {
			bad("entry %d does not have the CA bit set", i)
		} else if !cert.BasicConstraintsValid {
			bad("entry %d has invalid basic constraints", i)
		} else {
			anchor := string(block.Bytes)
			if places[anchor] == nil {
				anchors = append(anchors, anchor)
			}
			places[anchor] = append(places[anchor], i)
		}
		block, rest = pem.Decode(rest)
	}
	if len(errs) > 0 {
		return errs
	}
	if len(anchors) == 0 {
		bad("at least one trust anchor must be provided")
	}
	for _, a := range anchors {
		if len(places[a]) > 1 {
			bad("duplicate trust anchor (indices %v)", places[a])
		}
	}
	return errs
}
