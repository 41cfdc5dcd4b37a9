package controller

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/internal/loopback"
)

// Lifetime of certificates; the minimum a request can ask for; by how much notBefore is
// backdated; and the lifetime from which notAfter is backdated too.
const (
	certificateLife     = 365 * 24 * time.Hour
	certificateMinimum  = 10 * time.Minute
	certificateBackdate = 5 * time.Minute
	certificateShort    = 8 * time.Hour
)

// onRequests calls work for every CertificateSigningRequest without a certificate.
func onRequests(env *Env, work func(ctx context.Context, kind *Kind, r *certificatesv1.CertificateSigningRequest) error) Observer {
	return onEach(env, 2, certificatesv1.GroupName, "certificatesigningrequests", func(ctx context.Context, key named) error {
		kind := env.Kind("certificates.k8s.io/v1", "CertificateSigningRequest")
		var r certificatesv1.CertificateSigningRequest
		if err := env.Get(ctx, kind, "", key.name, &r); err != nil || len(r.Status.Certificate) > 0 {
			return ignoreNotFound(err)
		}
		return mapOutdated(work(ctx, kind, &r))
	})
}

func has(r *certificatesv1.CertificateSigningRequest, condition certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == condition })
}

// Approving approves CertificateSigningRequests of kubelets for client certificates, if
// a SubjectAccessReview allows the requester.
func Approving() Controller {
	return Controller{Name: "certificatesigningrequest-approving-controller", Alias: "csrapproving", Account: "certificate-controller", Start: func(env *Env) Observer {
		return onRequests(env, func(ctx context.Context, kind *Kind, r *certificatesv1.CertificateSigningRequest) error {
			if has(r, certificatesv1.CertificateApproved) || has(r, certificatesv1.CertificateDenied) || r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
				return nil
			}
			request, err := parseRequest(r.Spec.Request)
			if err != nil || kubeletClient(request, r.Spec.Usages) != nil {
				return nil // left for manual approval
			}
			type right struct{ subresource, message string }
			rights := []right{{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."}}
			if r.Spec.Username == request.Subject.CommonName {
				rights = slices.Insert(rights, 0, right{"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."})
			}
			for _, right := range rights {
				ok, err := env.allowed(ctx, r, right.subresource)
				if err != nil {
					return err
				}
				if !ok {
					continue
				}
				r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
					Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: right.message,
				})
				return env.Update(ctx, kind, "", r.Name, "approval", r, nil)
			}
			return nil
		})
	}}
}

// allowed asks by a SubjectAccessReview whether the requester may have the certificate.
func (e *Env) allowed(ctx context.Context, r *certificatesv1.CertificateSigningRequest, subresource string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range r.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	review := authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: r.Spec.Username, UID: r.Spec.UID, Groups: r.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: certificatesv1.GroupName, Resource: "certificatesigningrequests", Subresource: subresource, Verb: "create", Version: "*",
			},
		},
	}
	reviews := &Kind{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews", Kind: "SubjectAccessReview"}
	err := e.do(ctx, loopback.Call{Method: "POST", Path: path(reviews, "", ""), Body: &review, Into: &review})
	return review.Status.Allowed, err
}

// Signing signs approved CertificateSigningRequests of the built-in signers. sign
// issues a certificate for a public key, as PEM.
func Signing(sign func(template *x509.Certificate, key any) ([]byte, error)) Controller {
	return Controller{Name: "certificatesigningrequest-signing-controller", Alias: "csrsigning", Account: "certificate-controller", Start: func(env *Env) Observer {
		return onRequests(env, func(ctx context.Context, kind *Kind, r *certificatesv1.CertificateSigningRequest) error {
			if !has(r, certificatesv1.CertificateApproved) || has(r, certificatesv1.CertificateDenied) || has(r, certificatesv1.CertificateFailed) {
				return nil
			}
			check := signers()[r.Spec.SignerName]
			if check == nil {
				return nil
			}
			request, err := parseRequest(r.Spec.Request)
			if err != nil {
				return err
			}
			if err := check(request, r.Spec.Usages); err != nil {
				r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
					Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure",
					Message: err.Error(), LastUpdateTime: metav1.NewTime(env.Now()),
				})
			} else if r.Status.Certificate, err = signRequest(request, r, time.Now(), sign); err != nil { // real time: certificate validity does not follow Env.Now
				return err
			}
			return env.Update(ctx, kind, "", r.Name, "status", r, nil)
		})
	}}
}

// signers returns the built-in signers, each with its check of a request.
func signers() map[string]func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error {
	return map[string]func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error{
		certificatesv1.KubeletServingSignerName:             kubeletServing,
		certificatesv1.KubeAPIServerClientKubeletSignerName: kubeletClient,
		certificatesv1.KubeAPIServerClientSignerName:        apiClient,
		"kubernetes.io/legacy-unknown":                      func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error { return nil },
	}
}

func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// kubelet checks a request of a kubelet, in the order of kube-controller-manager. names
// are the errors of its subjectAltNames and common name, "" for none.
func kubelet(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage, purpose certificatesv1.KeyUsage, names ...string) error {
	if !slices.Equal(r.Subject.Organization, []string{"system:nodes"}) {
		return errors.New("subject organization is not system:nodes")
	}
	for _, wrong := range names {
		if wrong != "" {
			return errors.New(wrong)
		}
	}
	const signature, encipherment = certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment
	got := slices.Compact(slices.Sorted(slices.Values(usages)))
	want := slices.Sorted(slices.Values([]certificatesv1.KeyUsage{signature, encipherment, purpose}))
	without := slices.Sorted(slices.Values([]certificatesv1.KeyUsage{signature, purpose}))
	if !slices.Equal(got, want) && !slices.Equal(got, without) {
		return fmt.Errorf("usages did not match %v", want)
	}
	return nil
}

// unless returns text if ok is false.
func unless(ok bool, text string) string {
	if ok {
		return ""
	}
	return text
}

func isNode(r *x509.CertificateRequest) string {
	return unless(strings.HasPrefix(r.Subject.CommonName, "system:node:"), "subject common name does not begin with system:node:")
}

func noEmail(r *x509.CertificateRequest) string {
	return unless(len(r.EmailAddresses) == 0, "Email subjectAltNames are not allowed")
}

func noURI(r *x509.CertificateRequest) string {
	return unless(len(r.URIs) == 0, "URI subjectAltNames are not allowed")
}

func kubeletClient(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	return kubelet(r, usages, certificatesv1.UsageClientAuth,
		unless(len(r.DNSNames) == 0, "DNS subjectAltNames are not allowed"), noEmail(r),
		unless(len(r.IPAddresses) == 0, "IP subjectAltNames are not allowed"), noURI(r), isNode(r))
}

func kubeletServing(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	return kubelet(r, usages, certificatesv1.UsageServerAuth,
		unless(len(r.DNSNames)+len(r.IPAddresses) > 0, "DNS or IP subjectAltName is required"), noEmail(r), noURI(r), isNode(r))
}

func apiClient(_ *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	for _, u := range usages {
		switch u {
		case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth:
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", u)
		}
	}
	if !slices.Contains(usages, certificatesv1.UsageClientAuth) {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return nil
}

// signRequest issues the certificate that a request asks for.
func signRequest(request *x509.CertificateRequest, r *certificatesv1.CertificateSigningRequest, now time.Time, sign func(*x509.Certificate, any) ([]byte, error)) ([]byte, error) {
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("unable to verify certificate request signature: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, err
	}
	life := certificateLife
	if s := r.Spec.ExpirationSeconds; s != nil {
		life = min(life, max(certificateMinimum, time.Duration(*s)*time.Second))
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: request.Subject, BasicConstraintsValid: true,
		DNSNames: request.DNSNames, IPAddresses: request.IPAddresses, EmailAddresses: request.EmailAddresses, URIs: request.URIs,
		NotBefore: now.Add(-certificateBackdate), NotAfter: now.Add(life),
	}
	if life >= certificateShort {
		template.NotAfter = template.NotAfter.Add(-certificateBackdate)
	}
	for _, u := range r.Spec.Usages {
		if usage, ok := keyUsages()[u]; ok {
			template.KeyUsage |= usage
		} else if usage, ok := extendedUsages()[u]; ok {
			if !slices.Contains(template.ExtKeyUsage, usage) {
				template.ExtKeyUsage = append(template.ExtKeyUsage, usage)
			}
		} else {
			return nil, fmt.Errorf("unrecognized usage values: %q", u)
		}
	}
	slices.Sort(template.ExtKeyUsage)
	return sign(template, request.PublicKey)
}

func keyUsages() map[certificatesv1.KeyUsage]x509.KeyUsage {
	return map[certificatesv1.KeyUsage]x509.KeyUsage{
		certificatesv1.UsageSigning:           x509.KeyUsageDigitalSignature,
		certificatesv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
		certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
		certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
		certificatesv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
		certificatesv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
		certificatesv1.UsageCertSign:          x509.KeyUsageCertSign,
		certificatesv1.UsageCRLSign:           x509.KeyUsageCRLSign,
		certificatesv1.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
		certificatesv1.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
	}
}

func extendedUsages() map[certificatesv1.KeyUsage]x509.ExtKeyUsage {
	return map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
		certificatesv1.UsageAny:             x509.ExtKeyUsageAny,
		certificatesv1.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
		certificatesv1.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
		certificatesv1.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
		certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
		certificatesv1.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
		certificatesv1.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
		certificatesv1.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
		certificatesv1.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
		certificatesv1.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
		certificatesv1.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
		certificatesv1.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
		certificatesv1.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
	}
}
