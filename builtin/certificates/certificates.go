// Package certificates is the API group certificates.k8s.io: requests for
// certificates, by anybody or for a pod, and the bundles of certificates to
// trust. Signing is the business of controllers.
package certificates

import (
	"context"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/apikeel/kelson/resource"
)

// Config is what the group needs from outside.
type Config struct {
	// MaySign reports whether who asks may act for a signer, which the status of
	// a pod's request is about. Nil allows everyone.
	MaySign func(ctx context.Context, signer string) bool
}

// Group returns the group.
func Group(cfg Config) resource.Group {
	if cfg.MaySign == nil {
		cfg.MaySign = func(context.Context, string) bool { return true }
	}
	return resource.Group{Name: certificatesv1.GroupName, Resources: []resource.Definition{
		SigningRequests(),
		TrustBundles(),
		PodRequests(cfg.MaySign),
	}}
}

// ofKubernetes reports whether a signer is one of Kubernetes itself.
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
