package certificates

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

const (
	maxUID = 128
	// maxKey bounds keys, proofs of possession and stub requests, in bytes.
	maxKey   = 10 << 10
	maxChain = 100 << 10

	minExpiration        = 60 * 60
	maxExpiration        = 91 * 24 * 60 * 60
	maxClusterExpiration = 24 * 60 * 60
)

type podRequest = certificatesv1beta1.PodCertificateRequest

// PodRequests defines podcertificaterequests. Only the status changes, once, by users that may
// sign for the signer.
func PodRequests(maySign func(ctx context.Context, signer string) bool) resource.Definition {
	status := resource.Rules[*podRequest]{
		RequireVersion: true,
		PrepareUpdate: func(_ context.Context, r, old *podRequest) {
			r.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: func(ctx context.Context, r, old *podRequest) field.ErrorList {
			if len(apivalidation.ValidateObjectMetaUpdate(&r.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))) > 0 {
				return nil // reported already
			}
			req := request.From(ctx)
			if errs := validatePodRequestStatus(r, old, req.Received); len(errs) > 0 {
				return errs
			}
			if signer := old.Spec.SignerName; !equality.Semantic.DeepEqual(r.Status, old.Status) && !maySign(ctx, signer) {
				return field.ErrorList{field.Forbidden(field.NewPath("spec", "signerName"), fmt.Sprintf("User %q is not permitted to \"sign\" for signer %q", req.User.Name, signer))}
			}
			return nil
		},
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	spec := certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()
	return resource.Definition{
		Group:      certificatesv1.GroupName,
		Resource:   "podcertificaterequests",
		Gate:       "PodCertificateRequest",
		Kind:       "PodCertificateRequest",
		Namespaced: true,
		StorageKey: "podcertificaterequests",
		Hub:        "v1beta1",
		Versions:   podRequestVersions(),
		Strategy: resource.Rules[*podRequest]{
			RequireVersion: true,
			PrepareCreate: func(_ context.Context, r *podRequest) {
				r.Status = certificatesv1beta1.PodCertificateRequestStatus{}
			},
			PrepareUpdate: func(_ context.Context, r, old *podRequest) { r.Status = old.Status },
			Validate:      func(_ context.Context, r *podRequest) field.ErrorList { return validatePodRequest(&r.Spec) },
			ValidateUpdate: func(_ context.Context, r, old *podRequest) field.ErrorList {
				if equality.Semantic.DeepEqual(r.Spec, old.Spec) {
					return nil
				}
				return field.ErrorList{field.Invalid(field.NewPath("spec"), printedSpec(&r.Spec), apivalidation.FieldImmutableErrorMsg)}
			},
		}.Strategy(),
		Subresources:     []resource.Subresource{{Name: "status", Part: &status}},
		NoNamespaceField: true,
		Fields: []resource.Field{
			resource.FieldFunc("spec.signerName", func(r *podRequest) string { return r.Spec.SignerName }),
			resource.FieldFunc("spec.podName", func(r *podRequest) string { return r.Spec.PodName }),
			resource.FieldFunc("spec.nodeName", func(r *podRequest) string { return string(r.Spec.NodeName) }),
		},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "PodName", Type: "string", Description: spec["podName"]},
			{Name: "ServiceAccountName", Type: "string", Description: spec["serviceAccountName"]},
			{Name: "NodeName", Type: "string", Description: spec["nodeName"]},
			{Name: "SignerName", Type: "string", Description: spec["signerName"]},
			{Name: "State", Type: "string", Description: "Is the request Pending, Issued, Denied, or Failed?"},
			{Name: "UnverifiedUserAnnotations", Type: "string", Description: spec["unverifiedUserAnnotations"]},
		},
		Cells: resource.CellsFunc(func(r *podRequest) []any {
			state := "Pending"
			for _, c := range r.Status.Conditions {
				switch c.Type {
				case issued, denied, failed:
					state = c.Type
				}
			}
			return []any{
				r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(r.Spec.NodeName), r.Spec.SignerName, state,
				labels.FormatLabels(r.Spec.UnverifiedUserAnnotations),
			}
		}),
	}
}

// podRequestVersions returns the served version and the older one that is stored, which has
// another form of the proof of possession.
func podRequestVersions() []resource.Version {
	seconds := func(field **int32) {
		if *field == nil {
			*field = new(int32(86400))
		}
	}
	v1 := resource.VersionOf[certificatesv1.PodCertificateRequest, certificatesv1.PodCertificateRequestList]("v1",
		func(r *certificatesv1.PodCertificateRequest) { seconds(&r.Spec.MaxExpirationSeconds) })
	v1.ToHub = func(obj resource.Object) (resource.Object, error) {
		r := obj.(*certificatesv1.PodCertificateRequest)
		return &podRequest{
			TypeMeta: r.TypeMeta, ObjectMeta: r.ObjectMeta, Status: certificatesv1beta1.PodCertificateRequestStatus(r.Status),
			Spec: certificatesv1beta1.PodCertificateRequestSpec{
				SignerName: r.Spec.SignerName, PodName: r.Spec.PodName, PodUID: r.Spec.PodUID,
				ServiceAccountName: r.Spec.ServiceAccountName, ServiceAccountUID: r.Spec.ServiceAccountUID,
				NodeName: r.Spec.NodeName, NodeUID: r.Spec.NodeUID, MaxExpirationSeconds: r.Spec.MaxExpirationSeconds,
				StubPKCS10Request: r.Spec.StubPKCS10Request, UnverifiedUserAnnotations: r.Spec.UnverifiedUserAnnotations,
			},
		}, nil
	}
	v1.FromHub = func(obj resource.Object) (resource.Object, error) {
		r := obj.(*podRequest)
		return &certificatesv1.PodCertificateRequest{
			TypeMeta: r.TypeMeta, ObjectMeta: r.ObjectMeta, Status: certificatesv1.PodCertificateRequestStatus(r.Status),
			Spec: certificatesv1.PodCertificateRequestSpec{
				SignerName: r.Spec.SignerName, PodName: r.Spec.PodName, PodUID: r.Spec.PodUID,
				ServiceAccountName: r.Spec.ServiceAccountName, ServiceAccountUID: r.Spec.ServiceAccountUID,
				NodeName: r.Spec.NodeName, NodeUID: r.Spec.NodeUID, MaxExpirationSeconds: r.Spec.MaxExpirationSeconds,
				StubPKCS10Request: r.Spec.StubPKCS10Request, UnverifiedUserAnnotations: r.Spec.UnverifiedUserAnnotations,
			},
		}, nil
	}
	v1.Keep = func(hub, before resource.Object) {
		r, old := &hub.(*podRequest).Spec, &before.(*podRequest).Spec
		//lint:ignore SA1019 clients still use the older form
		r.PKIXPublicKey, r.ProofOfPossession = old.PKIXPublicKey, old.ProofOfPossession
	}
	v1beta1 := resource.VersionOf[podRequest, certificatesv1beta1.PodCertificateRequestList]("v1beta1",
		func(r *podRequest) { seconds(&r.Spec.MaxExpirationSeconds) })
	v1beta1.Off = true
	v1beta1.Deprecation = resource.Deprecation(new(podRequest), certificatesv1beta1.SchemeGroupVersion.WithKind("PodCertificateRequest"))
	return []resource.Version{v1, v1beta1}
}

// printedSpec returns a spec as error messages print it.
func printedSpec(s *certificatesv1beta1.PodCertificateRequestSpec) any {
	return struct {
		SignerName                                                                string
		PodName, PodUID, ServiceAccountName, ServiceAccountUID, NodeName, NodeUID any
		MaxExpirationSeconds                                                      *int32
		PKIXPublicKey, ProofOfPossession, StubPKCS10Request                       []byte
		UnverifiedUserAnnotations                                                 map[string]string
	}{
		s.SignerName, s.PodName, s.PodUID, s.ServiceAccountName, s.ServiceAccountUID, s.NodeName, s.NodeUID, s.MaxExpirationSeconds,
		//lint:ignore SA1019 clients still use the older form
		s.PKIXPublicKey, s.ProofOfPossession, s.StubPKCS10Request, s.UnverifiedUserAnnotations,
	}
}

func validatePodRequest(spec *certificatesv1beta1.PodCertificateRequestSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := rules.ValidateSignerName(spec.SignerName, path.Child("signerName"))
	annotations := path.Child("unverifiedUserAnnotations")
	for key := range spec.UnverifiedUserAnnotations {
		errs = append(errs, validation.IsDomainPrefixedKey(annotations, strings.ToLower(key))...)
	}
	if apivalidation.ValidateAnnotationsSize(spec.UnverifiedUserAnnotations) != nil {
		errs = append(errs, field.TooLong(annotations, "", apivalidation.TotalAnnotationSizeLimitB))
	}
	named := func(who, name string, shown any, uid string) {
		errs = append(errs, rules.Invalid(path.Child(who+"Name"), shown, apivalidation.NameIsDNSSubdomain(name, false))...)
		switch path := path.Child(who + "UID"); {
		case uid == "":
			errs = append(errs, field.Invalid(path, uid, "must not be empty"))
		case len(uid) > maxUID:
			errs = append(errs, field.TooLong(path, uid, maxUID))
		}
	}
	named("pod", spec.PodName, spec.PodName, string(spec.PodUID))
	named("serviceAccount", spec.ServiceAccountName, spec.ServiceAccountName, string(spec.ServiceAccountUID))
	named("node", string(spec.NodeName), spec.NodeName, string(spec.NodeUID))

	if spec.MaxExpirationSeconds == nil {
		return append(errs, field.Required(path.Child("maxExpirationSeconds"), "must be set"))
	}
	limit := int32(maxExpiration)
	if ofKubernetes(spec.SignerName) {
		limit = maxClusterExpiration
	}
	if s := *spec.MaxExpirationSeconds; s < minExpiration || s > limit {
		errs = append(errs, field.Invalid(path.Child("maxExpirationSeconds"), s, fmt.Sprintf("must be in the range [%d, %d]", minExpiration, limit)))
	}
	//lint:ignore SA1019 clients still use the older form
	stub, key, proof := spec.StubPKCS10Request, spec.PKIXPublicKey, spec.ProofOfPossession
	var err *field.Error
	switch {
	case len(stub) > 0 && len(key) == 0 && len(proof) == 0:
		err = checkStub(stub, path.Child("stubPKCS10Request"))
	case len(stub) == 0 && len(key) > 0 && len(proof) > 0:
		err = checkProof(key, proof, string(spec.PodUID), path)
	default:
		err = field.Invalid(path, field.OmitValueType{}, "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set")
	}
	if err != nil {
		errs = append(errs, err)
	}
	return errs
}

// checkStub validates a stub PKCS#10 request, which carries only a key and its proof.
func checkStub(stub []byte, path *field.Path) *field.Error {
	if len(stub) > maxKey {
		return field.TooLong(path, stub, maxKey)
	}
	r, err := x509.ParseCertificateRequest(stub)
	if err != nil {
		return field.Invalid(path, field.OmitValueType{}, "must be a valid PKCS#10 CSR")
	}
	if err := checkKey(r.PublicKey, field.OmitValueType{}, "P256, P384, or P521", path); err != nil {
		return err
	}
	if r.CheckSignature() != nil {
		return field.Invalid(path, field.OmitValueType{}, "invalid signature")
	}
	return nil
}

// checkProof validates a key, and the signature of the pod's UID that proves its possession.
func checkProof(key, proof []byte, uid string, spec *field.Path) *field.Error {
	path, proofPath := spec.Child("pkixPublicKey"), spec.Child("proofOfPossession")
	if len(key) > maxKey {
		return field.TooLong(path, key, maxKey)
	}
	if len(proof) > maxKey {
		return field.TooLong(proofPath, proof, maxKey)
	}
	public, err := x509.ParsePKIXPublicKey(key)
	if err != nil {
		return field.Invalid(path, key, "must be a valid PKIX-serialized public key")
	}
	if err := checkKey(public, key, "P256 or P384", path); err != nil {
		return err
	}
	hash, ok := sha256.Sum256([]byte(uid)), false
	switch public := public.(type) {
	case ed25519.PublicKey:
		ok = ed25519.Verify(public, []byte(uid), proof)
	case *ecdsa.PublicKey:
		ok = ecdsa.VerifyASN1(public, hash[:], proof)
	case *rsa.PublicKey:
		ok = rsa.VerifyPSS(public, crypto.SHA256, hash[:], proof, nil) == nil
	}
	if !ok {
		return field.Invalid(proofPath, field.OmitValueType{}, "could not verify proof-of-possession signature")
	}
	return nil
}

// checkKey validates type and size of a key; shown is what an error prints of it.
func checkKey(key any, shown any, curves string, path *field.Path) *field.Error {
	switch key := key.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if c := key.Curve; c != elliptic.P256() && c != elliptic.P384() && c != elliptic.P521() {
			return field.Invalid(path, "curve "+c.Params().Name, "elliptic public keys must use curve "+curves)
		}
	case *rsa.PublicKey:
		if bits := key.Size() * 8; bits != 3072 && bits != 4096 {
			return field.Invalid(path, fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096")
		}
	default:
		return field.Invalid(path, shown, "unknown public key type; supported types are Ed25519, ECDSA, and RSA")
	}
	return nil
}
