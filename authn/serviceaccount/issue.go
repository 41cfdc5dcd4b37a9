package serviceaccount

import (
	"crypto"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// boundClaims are the claims of a bound token besides the registered ones.
type boundClaims struct {
	Kubernetes kubernetesClaims `json:"kubernetes.io"`
}

type kubernetesClaims struct {
	Namespace      string     `json:"namespace,omitempty"`
	ServiceAccount reference  `json:"serviceaccount"`
	Pod            *reference `json:"pod,omitempty"`
	Secret         *reference `json:"secret,omitempty"`
	Node           *reference `json:"node,omitempty"`
	Validating     *reference `json:"validatingwebhookconfiguration,omitempty"`
	Mutating       *reference `json:"mutatingwebhookconfiguration,omitempty"`
	// Attestations are what the server vouches for, by kind.
	Attestations map[string]authenticationv1.AttestationValue `json:"attestations,omitempty"`
	WarnAfter    *jwt.NumericDate                             `json:"warnafter,omitempty"`
}

// admissionReviewGroups is the attestation of the API group whose objects the bearer of a
// token may send to a webhook.
const admissionReviewGroups = authenticationv1.AttestationAdmissionReviewAPIGroups

// isForWebhook reports whether a token is bound to the configuration of webhooks.
func (c *kubernetesClaims) isForWebhook() bool { return c.Validating != nil || c.Mutating != nil }

// reference identifies an object by name and UID, so that an object that is created
// again does not match.
type reference struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

func refer(obj metav1.Object) *reference {
	return &reference{Name: obj.GetName(), UID: string(obj.GetUID())}
}

// Issuer issues tokens. The zero value is not usable.
type Issuer struct {
	name     string
	signer   jose.Signer
	external Signer // signs instead of signer if it is not nil
	// Now returns the time; NewIssuer sets time.Now.
	Now func() time.Time
}

// NewIssuer returns an issuer that signs with a private key.
func NewIssuer(name string, key crypto.Signer) (*Issuer, error) {
	public, err := publicKey(key.Public())
	if err != nil {
		return nil, err
	}
	alg := jose.SignatureAlgorithm(public.Algorithm)
	private := public
	private.Key = key
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: private}, nil)
	if err != nil {
		return nil, err
	}
	return &Issuer{name: name, signer: signer, Now: time.Now}, nil
}

// Signer signs claims in JSON and returns the token.
type Signer interface {
	Sign(claims []byte) (token string, err error)
}

// NewExternalIssuer returns an issuer that signs with a Signer.
func NewExternalIssuer(name string, signer Signer) *Issuer {
	return &Issuer{name: name, external: signer, Now: time.Now}
}

// claimsOnly is a jose.Signer that only captures the payload.
type claimsOnly []byte

var errNotSigned = errors.New("not signed")

// Sign implements jose.Signer.
func (c *claimsOnly) Sign(payload []byte) (*jose.JSONWebSignature, error) {
	*c = payload
	return nil, errNotSigned
}

// Options implements jose.Signer.
func (c *claimsOnly) Options() jose.SignerOptions { return jose.SignerOptions{} }

// publicClaims are the claims of every JWT. Audience is always an array, as readers of
// kube-apiserver's tokens expect it; jwt.Claims makes a string of a single audience.
type publicClaims struct {
	jwt.Claims
	Audience []string `json:"aud,omitempty"`
}

// Issue signs a bound token and returns it with its ID. bound are the objects that the
// token is bound to: a pod and, if known, its node; or a secret; or a node; or a
// configuration of webhooks, with attestations. warnAfter, if not zero, is when the
// client should have replaced the token.
func (i *Issuer) Issue(account *corev1.ServiceAccount, bound []metav1.Object, audiences []string, attestations map[string]authenticationv1.AttestationValue, lifetime, warnAfter time.Duration) (token, id string, err error) {
	now := i.Now()
	id = uuid.NewString()
	public := publicClaims{Audience: audiences, Claims: jwt.Claims{
		Issuer:    i.name,
		Subject:   userPrefix + account.Namespace + ":" + account.Name,
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now),
		Expiry:    jwt.NewNumericDate(now.Add(lifetime)),
		ID:        id,
	}}
	private := boundClaims{kubernetesClaims{Namespace: account.Namespace, ServiceAccount: *refer(account), Attestations: attestations}}
	for _, obj := range bound {
		switch obj.(type) {
		case *corev1.Pod:
			private.Kubernetes.Pod = refer(obj)
		case *corev1.Node:
			private.Kubernetes.Node = refer(obj)
		case *corev1.Secret:
			private.Kubernetes.Secret = refer(obj)
		case *admissionregistrationv1.ValidatingWebhookConfiguration:
			private.Kubernetes.Validating = refer(obj)
		case *admissionregistrationv1.MutatingWebhookConfiguration:
			private.Kubernetes.Mutating = refer(obj)
		default:
			return "", "", fmt.Errorf("a token cannot be bound to a %T", obj)
		}
	}
	if warnAfter != 0 {
		private.Kubernetes.WarnAfter = jwt.NewNumericDate(now.Add(warnAfter))
	}
	if i.external != nil {
		var claims claimsOnly
		if _, err := jwt.Signed(&claims).Claims(private).Claims(public).Serialize(); !errors.Is(err, errNotSigned) {
			return "", "", err
		}
		token, err = i.external.Sign(claims)
		return token, id, err
	}
	token, err = jwt.Signed(i.signer).Claims(private).Claims(public).Serialize()
	return token, id, err
}

// IssueLegacy signs the token for a secret of a service account.
func IssueLegacy(key crypto.Signer, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	i, err := NewIssuer(legacyIssuer, key)
	if err != nil {
		return "", err
	}
	return jwt.Signed(i.signer).Claims(legacyClaims{
		Account: account.Name, UID: string(account.UID), Secret: secret.Name, Namespace: account.Namespace,
	}).Claims(jwt.Claims{
		Issuer: legacyIssuer, Subject: userPrefix + account.Namespace + ":" + account.Name,
	}).Serialize()
}
