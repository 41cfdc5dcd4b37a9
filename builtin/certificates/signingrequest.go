package certificates

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// legacySigner is the default signer of an older version.
const legacySigner = "kubernetes.io/legacy-unknown"

type signingRequest = certificatesv1.CertificateSigningRequest

// SigningRequests defines certificatesigningrequests. The spec is immutable; approval and
// status are subresources. issued is Config.Issued.
func SigningRequests(issued func(signer string, honored bool)) resource.Definition {
	main := resource.Rules[*signingRequest]{
		ValidateName:  rules.AnyName,
		PrepareCreate: func(ctx context.Context, r *signingRequest) { stampUser(r, request.From(ctx).User) },
		PrepareUpdate: func(_ context.Context, r, old *signingRequest) { r.Spec, r.Status = old.Spec, old.Status },
		Validate:      func(_ context.Context, r *signingRequest) field.ErrorList { return validateRequest(r, nil) },
		ValidateUpdate: func(_ context.Context, r, old *signingRequest) field.ErrorList {
			return append(validateRequest(r, old), validateRequestChange(r, old, false, false)...)
		},
	}.Strategy()
	main.Resets = []string{"spec", "status"}

	approval := resource.Rules[*signingRequest]{
		PrepareUpdate: func(ctx context.Context, r, old *signingRequest) {
			conditions := r.Status.Conditions
			stampConditions(conditions, old, request.From(ctx).Received)
			r.Spec, r.Status = old.Spec, old.Status
			r.Status.Conditions = conditions
		},
		ValidateUpdate: func(_ context.Context, r, old *signingRequest) field.ErrorList {
			return append(validateRequest(r, old), validateRequestChange(r, old, true, false)...)
		},
	}.Strategy()
	approval.Resets = []string{"spec", "status.certificate"}

	status := resource.Rules[*signingRequest]{
		Begin: noteIssued(issued),
		PrepareUpdate: func(ctx context.Context, r, old *signingRequest) {
			r.Spec = old.Spec
			keepConditions(r, old, certificatesv1.CertificateApproved)
			keepConditions(r, old, certificatesv1.CertificateDenied)
			stampConditions(r.Status.Conditions, old, request.From(ctx).Received)
		},
		ValidateUpdate: func(_ context.Context, r, old *signingRequest) field.ErrorList {
			return append(validateRequest(r, old), validateRequestChange(r, old, false, true)...)
		},
	}.Strategy()
	status.Resets = []string{"spec", "status.conditions"}

	spec := certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()
	return resource.Definition{
		Group:      certificatesv1.GroupName,
		Resource:   "certificatesigningrequests",
		Kind:       "CertificateSigningRequest",
		ShortNames: []string{"csr"},
		StorageKey: "certificatesigningrequests",
		Versions: []resource.Version{
			resource.VersionOf[signingRequest, certificatesv1.CertificateSigningRequestList]("v1", nil),
		},
		Old:      []resource.Version{resource.OldVersion[certificatesv1beta1.CertificateSigningRequest](certificatesv1beta1.SchemeGroupVersion, defaultOldRequest, nil)},
		Strategy: main,
		Subresources: []resource.Subresource{
			{Name: "approval", NoTable: true, Part: &approval},
			{Name: "status", Part: &status},
		},
		Fields: []resource.Field{
			resource.FieldFunc("spec.signerName", func(r *signingRequest) string { return r.Spec.SignerName }),
		},
		Columns: []resource.Column{
			rules.NameColumn(),
			rules.AgeColumn(),
			{Name: "SignerName", Type: "string", Description: signerColumn},
			{Name: "Requestor", Type: "string", Description: "Base64-encoded PKCS#10 CSR data"},
			{Name: "RequestedDuration", Type: "string", Description: spec["expirationSeconds"]},
			{Name: "Condition", Type: "string", Description: "Conditions applied to the request, such as approval or denial."},
		},
		Cells: resource.CellsFunc(func(r *signingRequest) []any {
			asked := "<none>"
			if s := r.Spec.ExpirationSeconds; s != nil {
				asked = duration.HumanDuration(time.Duration(*s) * time.Second)
			}
			return []any{r.Name, resource.Since(r.CreationTimestamp.Time), orNone(r.Spec.SignerName), r.Spec.Username, asked, requestState(r)}
		}),
	}
}

// noteIssued returns a Rules.Begin that calls issued for the writes that add a certificate;
// it is nil if issued is.
func noteIssued(issued func(signer string, honored bool)) func(ctx context.Context, r, old *signingRequest) (func(resource.Outcome), error) {
	if issued == nil {
		return nil
	}
	return func(_ context.Context, r, old *signingRequest) (func(resource.Outcome), error) {
		asked, signer := old.Spec.ExpirationSeconds, old.Spec.SignerName
		if asked == nil || len(old.Status.Certificate) > 0 || len(r.Status.Certificate) == 0 {
			return func(resource.Outcome) {}, nil
		}
		chain := r.Status.Certificate
		return func(became resource.Outcome) {
			if became == resource.Written {
				issued(signer, isHonored(time.Duration(*asked)*time.Second, chain))
			}
		}, nil
	}
}

// isHonored reports whether the first certificate is valid for the duration that was asked
// for, give or take a twentieth of it and what signers date back for clocks that are late.
func isHonored(asked time.Duration, chain []byte) bool {
	block, _ := pem.Decode(chain)
	if block == nil {
		return false
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return false
	}
	const datedBack = 5 * time.Minute
	return (asked - certificate.NotAfter.Sub(certificate.NotBefore)).Abs() < datedBack+asked/20
}

// defaultOldRequest sets the defaults of v1beta1; v1 requires the fields.
func defaultOldRequest(r *signingRequest) {
	if r.Spec.Usages == nil {
		r.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment}
	}
	if r.Spec.SignerName == "" {
		r.Spec.SignerName = oldSigner(&r.Spec)
	}
	for i := range r.Status.Conditions {
		if c := &r.Status.Conditions[i]; c.Status == "" {
			c.Status = corev1.ConditionTrue
		}
	}
}

// oldSigner returns the signer of a request of v1beta1 that names none.
func oldSigner(spec *certificatesv1.CertificateSigningRequestSpec) string {
	csr, err := parseRequest(spec.Request)
	if err != nil || !slices.Equal(csr.Subject.Organization, []string{"system:nodes"}) || !strings.HasPrefix(csr.Subject.CommonName, "system:node:") ||
		len(csr.EmailAddresses) > 0 || len(csr.URIs) > 0 {
		return legacySigner
	}
	uses := func(auth certificatesv1.KeyUsage) bool {
		usages := slices.Clone(spec.Usages)
		slices.Sort(usages)
		usages = slices.DeleteFunc(slices.Compact(usages), func(u certificatesv1.KeyUsage) bool { return u == certificatesv1.UsageKeyEncipherment })
		want := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, auth}
		slices.Sort(want)
		return slices.Equal(usages, want)
	}
	switch named := len(csr.DNSNames) > 0 || len(csr.IPAddresses) > 0; {
	case !named && uses(certificatesv1.UsageClientAuth):
		return certificatesv1.KubeAPIServerClientKubeletSignerName
	case named && uses(certificatesv1.UsageServerAuth):
		return certificatesv1.KubeletServingSignerName
	}
	return legacySigner
}

// signerColumn is the column description of an older version.
const signerColumn = "Requested signer for the request. It is a qualified name in the form: `scope-hostname.io/name`. If empty, it will be defaulted:\n" +
	" 1. If it's a kubelet client certificate, it is assigned\n    \"kubernetes.io/kube-apiserver-client-kubelet\".\n" +
	" 2. If it's a kubelet serving certificate, it is assigned\n    \"kubernetes.io/kubelet-serving\".\n" +
	" 3. Otherwise, it is assigned \"kubernetes.io/legacy-unknown\".\n" +
	"Distribution of trust for signers happens out of band. You can select on this field using `spec.signerName`."

// stampUser sets the requester, whatever the client sends.
func stampUser(r *signingRequest, u request.User) {
	r.Spec.Username, r.Spec.UID, r.Spec.Groups, r.Spec.Extra = u.Name, u.UID, u.Groups, nil
	if len(u.Extra) > 0 {
		r.Spec.Extra = map[string]certificatesv1.ExtraValue{}
		for key, values := range u.Extra {
			r.Spec.Extra[key] = values
		}
	}
	r.Status = certificatesv1.CertificateSigningRequestStatus{}
}

// conditionsOf returns the indexes of the conditions of a type.
func conditionsOf(r *signingRequest, t certificatesv1.RequestConditionType) []int {
	var at []int
	for i, c := range r.Status.Conditions {
		if c.Type == t {
			at = append(at, i)
		}
	}
	return at
}

// keepConditions restores the conditions of a type, unless their number has changed.
func keepConditions(r, old *signingRequest, t certificatesv1.RequestConditionType) {
	now, before := conditionsOf(r, t), conditionsOf(old, t)
	if len(now) != len(before) {
		return
	}
	for i, at := range before {
		r.Status.Conditions[now[i]] = old.Status.Conditions[at]
	}
}

// stampConditions sets missing times.
func stampConditions(conditions []certificatesv1.CertificateSigningRequestCondition, old *signingRequest, at time.Time) {
	now := metav1.NewTime(at)
	for i := range conditions {
		c := &conditions[i]
		if c.LastUpdateTime.IsZero() {
			c.LastUpdateTime = now
		}
		if !c.LastTransitionTime.IsZero() {
			continue
		}
		c.LastTransitionTime = now
		for _, o := range old.Status.Conditions {
			if o.Type == c.Type && o.Status == c.Status && !o.LastTransitionTime.IsZero() {
				c.LastTransitionTime = o.LastTransitionTime
				break
			}
		}
	}
}

func requestState(r *signingRequest) string {
	state := "Pending"
	if len(conditionsOf(r, certificatesv1.CertificateDenied)) > 0 {
		state = "Denied"
	} else if len(conditionsOf(r, certificatesv1.CertificateApproved)) > 0 {
		state = "Approved"
	}
	if len(conditionsOf(r, certificatesv1.CertificateFailed)) > 0 {
		state += ",Failed"
	}
	if len(r.Status.Certificate) > 0 {
		state += ",Issued"
	}
	return state
}

func knownUsages() []certificatesv1.KeyUsage {
	return []certificatesv1.KeyUsage{
		certificatesv1.UsageAny, certificatesv1.UsageCertSign, certificatesv1.UsageClientAuth, certificatesv1.UsageCodeSigning,
		certificatesv1.UsageContentCommitment, certificatesv1.UsageCRLSign, certificatesv1.UsageDataEncipherment,
		certificatesv1.UsageDecipherOnly, certificatesv1.UsageDigitalSignature, certificatesv1.UsageEmailProtection,
		certificatesv1.UsageEncipherOnly, certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel,
		certificatesv1.UsageIPsecUser, certificatesv1.UsageKeyAgreement, certificatesv1.UsageKeyEncipherment,
		certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC, certificatesv1.UsageOCSPSigning, certificatesv1.UsageSMIME,
		certificatesv1.UsageServerAuth, certificatesv1.UsageSigning, certificatesv1.UsageTimestamping,
	}
}

// validateRequest validates a request; errors that the old one, nil on create, has too are
// tolerated.
func validateRequest(r, old *signingRequest) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	if err := checkRequest(r.Spec.Request); err != nil {
		errs = append(errs, field.Invalid(path.Child("request"), r.Spec.Request, err.Error()))
	}
	if len(r.Spec.Usages) == 0 {
		errs = append(errs, field.Required(path.Child("usages"), ""))
	}
	unknown, duplicate := badUsages(r, path.Child("usages"))
	oldUnknown, oldDuplicate := badUsages(old, path)
	if len(oldUnknown) == 0 {
		errs = append(errs, unknown...)
	}
	if len(oldDuplicate) == 0 {
		errs = append(errs, duplicate...)
	}
	if r.Spec.SignerName == legacySigner && (old == nil || old.Spec.SignerName != legacySigner) {
		errs = append(errs, field.Invalid(path.Child("signerName"), r.Spec.SignerName, "the legacy signerName is not allowed via this API version"))
	} else {
		errs = append(errs, rules.ValidateSignerName(r.Spec.SignerName, path.Child("signerName"))...)
	}
	if s := r.Spec.ExpirationSeconds; s != nil && *s < 600 {
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), *s, "may not specify a duration less than 600 seconds (10 minutes)"))
	}
	errs = append(errs, validateRequestConditions(r, old)...)
	if old == nil || !bytes.Equal(r.Status.Certificate, old.Status.Certificate) && checkCertificates(old.Status.Certificate) == nil {
		if err := checkCertificates(r.Status.Certificate); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("status", "certificate"), "<certificate data>", err.Error()))
		}
	}
	return errs
}

func badUsages(r *signingRequest, path *field.Path) (unknown, duplicate field.ErrorList) {
	if r == nil {
		return nil, nil
	}
	known, seen := knownUsages(), map[certificatesv1.KeyUsage]bool{}
	for i, u := range r.Spec.Usages {
		if !slices.Contains(known, u) {
			unknown = append(unknown, field.NotSupported(path.Index(i), u, known))
		}
		if seen[u] {
			duplicate = append(duplicate, field.Duplicate(path.Index(i), u))
		}
		seen[u] = true
	}
	return unknown, duplicate
}

func checkRequest(text []byte) error {
	r, err := parseRequest(text)
	if err != nil {
		return err
	}
	return r.CheckSignature()
}

func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// checkCertificates checks that a text is empty, or consists of PEM certificates only.
func checkCertificates(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	for n := 0; ; n++ {
		block, rest := pem.Decode(text)
		switch {
		case block == nil && n == 0:
			return errors.New("must contain at least one CERTIFICATE PEM block")
		case block == nil:
			return nil
		case block.Type != "CERTIFICATE":
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		case len(block.Headers) > 0:
			return errors.New("no PEM block headers are permitted")
		}
		certs, err := x509.ParseCertificates(block.Bytes)
		if err != nil {
			return err
		}
		if len(certs) == 0 {
			return errors.New("found CERTIFICATE PEM block containing 0 certificates")
		}
		text = rest
	}
}

func validateRequestConditions(r, old *signingRequest) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status", "conditions")
	allowEmpty, allowDuplicate, allowBoth := false, false, false
	if old != nil {
		seen := map[certificatesv1.RequestConditionType]bool{}
		for _, c := range old.Status.Conditions {
			allowDuplicate = allowDuplicate || seen[c.Type]
			seen[c.Type] = true
		}
		allowEmpty, allowBoth = seen[""], seen[certificatesv1.CertificateApproved] && seen[certificatesv1.CertificateDenied]
	}
	seen := map[certificatesv1.RequestConditionType]bool{}
	for i, c := range r.Status.Conditions {
		if c.Type == "" && !allowEmpty {
			errs = append(errs, field.Required(path.Index(i).Child("type"), ""))
		}
		states := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
		switch c.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			states = []corev1.ConditionStatus{corev1.ConditionTrue}
		}
		if c.Status == "" {
			errs = append(errs, field.Required(path.Index(i).Child("status"), ""))
		} else if !slices.Contains(states, c.Status) {
			errs = append(errs, field.NotSupported(path.Index(i).Child("status"), c.Status, states))
		}
		other := map[certificatesv1.RequestConditionType]certificatesv1.RequestConditionType{
			certificatesv1.CertificateApproved: certificatesv1.CertificateDenied, certificatesv1.CertificateDenied: certificatesv1.CertificateApproved,
		}[c.Type]
		if other != "" && seen[other] && !allowBoth {
			errs = append(errs, resource.HandWritten(field.Invalid(path, c.Type, "Approved and Denied conditions are mutually exclusive"))...)
		}
		if seen[c.Type] && !allowDuplicate {
			errs = append(errs, field.Duplicate(path.Index(i).Child("type"), c.Type))
		}
		seen[c.Type] = true
	}
	if !allowBoth && seen[certificatesv1.CertificateApproved] && seen[certificatesv1.CertificateDenied] {
		const approved, denied = `conditions[{"type": "Approved"}]`, `conditions[{"type": "Denied"}]`
		errs = append(errs, resource.BetaOnly(field.Invalid(path, "{"+approved+", "+denied+"}", "must specify at most one of: `"+approved+"`, `"+denied+"`"))...)
	}
	return errs
}

// validateRequestChange validates an update. decides allows the approval conditions to change,
// signs the certificate.
func validateRequestChange(r, old *signingRequest, decides, signs bool) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status", "conditions")
	for _, t := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		switch now, before := len(conditionsOf(r, t)), len(conditionsOf(old, t)); {
		case now < before:
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("updates may not remove a condition of type %q", t)))
		case now > before && !decides && t != certificatesv1.CertificateFailed:
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("updates may not add a condition of type %q", t)))
		}
	}
	if !bytes.Equal(r.Status.Certificate, old.Status.Certificate) {
		if !signs {
			errs = append(errs, field.Forbidden(field.NewPath("status", "certificate"), "updates may not set certificate content"))
		} else if len(old.Status.Certificate) > 0 {
			errs = append(errs, field.Forbidden(field.NewPath("status", "certificate"), "updates may not modify existing certificate content"))
		}
	}
	return errs
}
