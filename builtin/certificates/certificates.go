// Package certificates is the API group certificates.k8s.io: CertificateSigningRequests,
// PodCertificateRequests and ClusterTrustBundles. Start at Group and Config. Signing is done by
// controllers.
package certificates

import (
	"context"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/apikeel/kelson/resource"
)

// Config are the dependencies of the group.
type Config struct {
	// MaySign reports whether the user may sign for a signer, for writes of the status of
	// a PodCertificateRequest. Nil allows everyone.
	MaySign func(ctx context.Context, signer string) bool
	// Issued is called when a CertificateSigningRequest that asks for a duration has got its
	// certificate, with whether that is of about the duration. It may be nil.
	Issued func(signer string, honored bool)
}

// Group returns the group.
func Group(cfg Config) resource.Group {
	if cfg.MaySign == nil {
		cfg.MaySign = func(context.Context, string) bool { return true }
	}
	return resource.Group{Name: certificatesv1.GroupName, Resources: []resource.Definition{
		SigningRequests(cfg.Issued),
		TrustBundles(),
		PodRequests(cfg.MaySign),
	}}
}

// SignerNames returns the names under which a permission to use a signer may be granted:
// its own, and the one that stands for all signers of its domain.
func SignerNames(signer string) []string {
	domain, _, _ := strings.Cut(signer, "/")
	return []string{signer, domain + "/*"}
}

// ofKubernetes reports whether a signer is in a kubernetes.io domain.
func ofKubernetes(signer string) bool {
	host, _, _ := strings.Cut(signer, "/")
	return host == "kubernetes.io" || strings.HasSuffix(host, ".kubernetes.io")
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}
