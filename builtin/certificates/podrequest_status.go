package certificates

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/mail"
	"strings"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	issued = certificatesv1beta1.PodCertificateRequestConditionTypeIssued
	denied = certificatesv1beta1.PodCertificateRequestConditionTypeDenied
	failed = certificatesv1beta1.PodCertificateRequestConditionTypeFailed
)

// outcome returns the condition that ended a request, "" if it has not ended.
func outcome(r *podRequest) string {
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case issued, denied, failed:
			if c.Status == metav1.ConditionTrue {
				return c.Type
			}
		}
	}
	return ""
}

// validatePodRequestStatus allows a request to end once.
func validatePodRequestStatus(r, old *podRequest, now time.Time) field.ErrorList {
	path := field.NewPath("status")
	var errs field.ErrorList
	for i, c := range r.Status.Conditions {
		// As in kube-apiserver, the index is a path element of its own.
		path := path.Child("conditions", fmt.Sprintf("[%d]", i))
		switch c.Type {
		case issued, denied, failed:
			if i > 0 && hasOutcome(r.Status.Conditions[:i]) {
				errs = append(errs, field.Invalid(path.Child("type"), c.Type, `There may be at most one condition with type "Issued", "Denied", or "Failed"`))
			}
			if c.Status != metav1.ConditionTrue {
				errs = append(errs, field.NotSupported(path.Child("status"), c.Status, []metav1.ConditionStatus{metav1.ConditionTrue}))
			}
		default:
			errs = append(errs, field.NotSupported(path.Child("type"), c.Type, []string{issued, denied, failed}))
		}
	}
	errs = append(errs, metavalidation.ValidateConditions(r.Status.Conditions, path.Child("conditions"))...)
	if len(errs) > 0 {
		return errs
	}
	same := func(want certificatesv1beta1.PodCertificateRequestStatus, detail string) field.ErrorList {
		if equality.Semantic.DeepEqual(r.Status, want) {
			return nil
		}
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, detail)}
	}
	if outcome(old) != "" {
		return same(old.Status, "immutable after PodCertificateRequest is issued, denied, or failed")
	}
	switch outcome(r) {
	case denied, failed:
		return same(certificatesv1beta1.PodCertificateRequestStatus{Conditions: r.Status.Conditions},
			"non-condition status fields must be empty when denying or failing the PodCertificateRequest")
	case issued:
		return validateIssued(r, old, now)
	}
	return same(old.Status, `status is immutable unless transitioning to "Issued", "Denied", or "Failed"`)
}

func hasOutcome(conditions []metav1.Condition) bool {
	for _, c := range conditions {
		switch c.Type {
		case issued, denied, failed:
			return true
		}
	}
	return false
}

// validateIssued validates the certificate chain of a request, and the times that the status
// repeats from it. Only the first error is returned.
func validateIssued(r, old *podRequest, now time.Time) field.ErrorList {
	s, path := &r.Status, field.NewPath("status")
	chain := path.Child("certificateChain")
	one := func(path *field.Path, value any, detail string) field.ErrorList {
		return field.ErrorList{field.Invalid(path, value, detail)}
	}
	if len(s.CertificateChain) > maxChain {
		return field.ErrorList{field.TooLong(chain, s.CertificateChain, maxChain)}
	}
	block, rest := pem.Decode([]byte(s.CertificateChain))
	if block == nil {
		return one(chain, s.CertificateChain, "issued certificate chain must contain at least one certificate")
	}
	if block.Type != "CERTIFICATE" {
		return one(chain, s.CertificateChain, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return one(chain, s.CertificateChain, "leaf certificate does not parse as valid X.509")
	}
	errs := validateNames(leaf, chain)
	public, wrong := requestedKey(&old.Spec)
	if wrong != nil {
		return append(errs, wrong)
	}
	if key, ok := public.(interface{ Equal(crypto.PublicKey) bool }); ok && !key.Equal(leaf.PublicKey) {
		return append(errs, one(chain, s.CertificateChain, "leaf certificate was not issued to the requested public key")...)
	}
	const consistent = "must be present and consistent with the issued certificate"
	if s.NotBefore == nil {
		errs = append(errs, field.Required(path.Child("notBefore"), consistent))
	}
	if s.NotAfter == nil {
		errs = append(errs, field.Required(path.Child("notAfter"), consistent))
	}
	if s.BeginRefreshAt == nil {
		errs = append(errs, field.Required(path.Child("beginRefreshAt"), "must be present and in the range [notbefore+10min, notafter-10min]"))
	}
	if len(errs) > 0 {
		return errs
	}
	notBefore, notAfter, refresh := s.NotBefore.Time, s.NotAfter.Time, s.BeginRefreshAt.Time
	lifetime := leaf.NotAfter.Sub(leaf.NotBefore)
	switch limit := *r.Spec.MaxExpirationSeconds; {
	case !notBefore.Equal(leaf.NotBefore):
		return one(path.Child("notBefore"), notBefore, "must be set to the NotBefore time encoded in the leaf certificate")
	case notBefore.Sub(now).Abs() >= 5*time.Minute:
		return one(path.Child("notBefore"), notBefore, "must be set to within 5 minutes of kube-apiserver's current time")
	case !notAfter.Equal(leaf.NotAfter):
		return one(path.Child("notAfter"), notAfter, "must be set to the NotAfter time encoded in the leaf certificate")
	case lifetime < time.Hour:
		return one(chain, lifetime, "leaf certificate lifetime must be >= 1 hour")
	case lifetime > time.Duration(limit)*time.Second:
		return one(chain, lifetime, fmt.Sprintf("leaf certificate lifetime must be <= spec.maxExpirationSeconds (%v)", limit))
	case refresh.Before(notBefore.Add(10 * time.Minute)):
		return one(path.Child("beginRefreshAt"), refresh, "must be at least 10 minutes after status.notBefore")
	case refresh.After(notAfter.Add(-10 * time.Minute)):
		return one(path.Child("beginRefreshAt"), refresh, "must be at least 10 minutes before status.notAfter")
	}
	for block, rest = pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return one(chain, s.CertificateChain, "issued certificate chain must consist entirely of CERTFICATE PEM blocks")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return one(chain, s.CertificateChain, "intermediate certificate does not parse as valid X.509")
		}
	}
	return nil
}

func validateNames(leaf *x509.Certificate, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range leaf.DNSNames {
		if name == "" {
			errs = append(errs, field.Invalid(path, name, "leaf certificate should not contain empty DNSName"))
		}
		if strings.Contains(name, "..") {
			errs = append(errs, field.Invalid(path, name, "leaf certificate's DNSName should not contain '..'"))
		}
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
			errs = append(errs, field.Invalid(path, name, "leaf certificate's DNSName should not start or end with '.'"))
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			errs = append(errs, field.Invalid(path, address, "leaf certificate should not contain invalid EmailAddress"))
		}
	}
	return errs
}

// requestedKey returns the public key of the request.
func requestedKey(spec *certificatesv1beta1.PodCertificateRequestSpec) (any, *field.Error) {
	path := field.NewPath("spec")
	if len(spec.StubPKCS10Request) > 0 {
		r, err := x509.ParseCertificateRequest(spec.StubPKCS10Request)
		if err != nil {
			return nil, field.Invalid(path.Child("stubPKCS10Request"), field.OmitValueType{}, "must be a valid PKCS#10 CSR")
		}
		return r.PublicKey, nil
	}
	//lint:ignore SA1019 clients still use the older form
	key, err := x509.ParsePKIXPublicKey(spec.PKIXPublicKey)
	if err != nil {
		return nil, field.Invalid(path.Child("pkixPublicKey"), field.OmitValueType{}, "must be a valid PKIX-serialized public key")
	}
	return key, nil
}
