package plugin

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"reflect"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/builtin/certificates"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

const (
	certificatesGroup = "certificates.k8s.io"
	signingRequests   = "certificatesigningrequests"
)

// signerPlugin is the common part of the certificate plugins.
type signerPlugin struct {
	base
	authorize Authorize
}

// may reports whether the user may use a signer: this one, or all of its domain.
func (p *signerPlugin) may(ctx context.Context, a *admission.Attributes, verb, signer string) bool {
	for _, name := range certificates.SignerNames(signer) {
		allowed, _, _ := p.authorize(ctx, &a.Request.User, request.Info{
			IsResource: true, Verb: verb, Group: certificatesGroup, Version: "*", Resource: "signers", Name: name,
		})
		if allowed {
			return true
		}
	}
	return false
}

func onSubresource(name string) func(t admission.Target) bool {
	return func(t admission.Target) bool {
		return t.Group == certificatesGroup && t.Resource == signingRequests && t.Subresource == name && t.Operation == admission.Update
	}
}

// certificateApproval is CertificateApproval: approving requires the verb approve on the
// signer.
type certificateApproval struct{ signerPlugin }

func newCertificateApproval(b *builder) admission.Plugin {
	return &certificateApproval{signerPlugin{base{"CertificateApproval", onSubresource("approval")}, b.Authorize}}
}

// Validate implements admission.Validator.
func (p *certificateApproval) Validate(ctx context.Context, a *admission.Attributes) error {
	csr, ok := a.Old.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return a.Forbidden(fmt.Errorf("expected type CertificateSigningRequest, got: %T", a.Old))
	}
	if !p.may(ctx, a, "approve", csr.Spec.SignerName) {
		return a.Forbidden(fmt.Errorf("user not permitted to approve requests with signerName %q", csr.Spec.SignerName))
	}
	return nil
}

// certificateSigning is CertificateSigning: signing requires the verb sign on the signer.
type certificateSigning struct{ signerPlugin }

func newCertificateSigning(b *builder) admission.Plugin {
	return &certificateSigning{signerPlugin{base{"CertificateSigning", onSubresource("status")}, b.Authorize}}
}

// Validate implements admission.Validator.
func (p *certificateSigning) Validate(ctx context.Context, a *admission.Attributes) error {
	old, was := a.Old.(*certificatesv1.CertificateSigningRequest)
	csr, ok := a.Object.(*certificatesv1.CertificateSigningRequest)
	if !ok || !was {
		return a.Forbidden(fmt.Errorf("expected type CertificateSigningRequest, got: %T", a.Object))
	}
	if reflect.DeepEqual(old.Status.Certificate, csr.Status.Certificate) && equality.Semantic.DeepEqual(old.Status.Conditions, csr.Status.Conditions) {
		return nil
	}
	if !p.may(ctx, a, "sign", old.Spec.SignerName) {
		return a.Forbidden(fmt.Errorf("user not permitted to sign requests with signerName %q", old.Spec.SignerName))
	}
	return nil
}

// trustBundleAttest is ClusterTrustBundleAttest: a ClusterTrustBundle of a signer requires
// the verb attest on the signer.
type trustBundleAttest struct{ signerPlugin }

func newTrustBundleAttest(b *builder) admission.Plugin {
	return &trustBundleAttest{signerPlugin{base{"ClusterTrustBundleAttest",
		on(certificatesGroup, "clustertrustbundles", admission.Create, admission.Update)}, b.Authorize}}
}

// Validate implements admission.Validator.
func (p *trustBundleAttest) Validate(ctx context.Context, a *admission.Attributes) error {
	signer := ""
	switch bundle := a.Object.(type) {
	case *certificatesv1beta1.ClusterTrustBundle:
		signer = bundle.Spec.SignerName
	case *certificatesv1.ClusterTrustBundle:
		signer = bundle.Spec.SignerName
	}
	if signer == "" || a.Operation == admission.Update && onlyCollects(a) || p.may(ctx, a, "attest", signer) {
		return nil
	}
	return a.Forbidden(fmt.Errorf("user not permitted to attest for signerName %q", signer))
}

// onlyCollects reports whether an update changes only metadata that the garbage collector
// changes.
func onlyCollects(a *admission.Attributes) bool {
	obj, ok := a.Object.(resource.Object)
	old, was := a.Old.(metav1.Object)
	if !ok || !was {
		return false
	}
	next := obj.DeepCopyObject().(resource.Object)
	next.SetOwnerReferences(old.GetOwnerReferences())
	next.SetFinalizers(old.GetFinalizers())
	next.SetSelfLink(old.GetSelfLink())
	next.SetManagedFields(old.GetManagedFields())
	return equality.Semantic.DeepEqual(next, old)
}

// subjectRestriction is CertificateSubjectRestriction: client certificates must not be for
// system:masters.
type subjectRestriction struct{ base }

func newSubjectRestriction(*builder) admission.Plugin {
	return subjectRestriction{base{"CertificateSubjectRestriction", on(certificatesGroup, signingRequests, admission.Create)}}
}

// Validate implements admission.Validator.
func (subjectRestriction) Validate(_ context.Context, a *admission.Attributes) error {
	csr, ok := a.Object.(*certificatesv1.CertificateSigningRequest)
	if !ok || csr.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	parsed, err := parseRequest(csr.Spec.Request)
	if err != nil {
		return a.Forbidden(fmt.Errorf("failed to parse CSR: %w", err))
	}
	if slices.Contains(parsed.Subject.Organization, mastersGroup) {
		return a.Forbidden(fmt.Errorf("use of %s signer with system:masters group is not allowed", certificatesv1.KubeAPIServerClientSignerName))
	}
	return nil
}

const mastersGroup = "system:masters"

// parseRequest decodes a PEM certificate request.
func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}
