package serviceaccount

import (
	"context"
	"crypto"
	"encoding/base64"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const issuerName = "https://kubernetes.default.svc.cluster.local"

// objects are live objects by resource, namespace and name.
type objects struct {
	byKey  map[string]metav1.Object
	labels map[string]string
}

func (o *objects) get(resource, namespace, name string) (metav1.Object, error) {
	if obj := o.byKey[resource+"/"+namespace+"/"+name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
}

func (o *objects) ServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	obj, err := o.get("serviceaccounts", namespace, name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.ServiceAccount), nil
}

func (o *objects) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	obj, err := o.get("secrets", namespace, name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Secret), nil
}

func (o *objects) Pod(_ context.Context, namespace, name string) (metav1.Object, error) {
	return o.get("pods", namespace, name)
}

func (o *objects) Node(_ context.Context, name string) (metav1.Object, error) {
	return o.get("nodes", "", name)
}

func (o *objects) WebhookConfiguration(_ context.Context, resource, name string) (metav1.Object, error) {
	return o.get(resource, "", name)
}

func (o *objects) Exists(_ context.Context, ref Reference) bool {
	_, err := o.get(ref.Resource, ref.Namespace, ref.Name)
	return err == nil
}

func (o *objects) LabelSecret(_ context.Context, namespace, name string, uid types.UID, key, value string) error {
	o.labels[namespace+"/"+name+"/"+string(uid)+"/"+key] = value
	return nil
}

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid")}
}

// world is a service account with a pod, a node and a secret, an issuer and a
// verifier who share a key.
type world struct {
	*objects
	now      time.Time
	account  *corev1.ServiceAccount
	pod      *corev1.Pod
	node     *corev1.Node
	secret   *corev1.Secret
	key      crypto.Signer
	issuer   *Issuer
	verifier *Verifier
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		now:     time.Now(),
		account: &corev1.ServiceAccount{ObjectMeta: meta("ns", "sa")},
		pod:     &corev1.Pod{ObjectMeta: meta("ns", "pod")},
		node:    &corev1.Node{ObjectMeta: meta("", "node")},
		secret:  &corev1.Secret{ObjectMeta: meta("ns", "secret"), Type: corev1.SecretTypeServiceAccountToken},
	}
	w.objects = &objects{labels: map[string]string{}, byKey: map[string]metav1.Object{
		"serviceaccounts/ns/sa": w.account, "pods/ns/pod": w.pod, "nodes//node": w.node, "secrets/ns/secret": w.secret,
	}}
	var err error
	if w.key, err = NewKey(); err != nil {
		t.Fatal(err)
	}
	w.issuer = mustIssuer(t, issuerName, w.key)
	w.issuer.Now = func() time.Time { return w.now }
	w.verifier = &Verifier{
		Issuers: []string{issuerName, "https://old"}, Audiences: []string{issuerName, "api"}, Objects: w.objects,
		Now: func() time.Time { return w.now },
	}
	w.verifier.SetKeys(mustKeys(t, w.key))
	return w
}

func mustIssuer(t *testing.T, name string, key crypto.Signer) *Issuer {
	t.Helper()
	i, err := NewIssuer(name, key)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func mustKeys(t *testing.T, keys ...any) *Keys {
	t.Helper()
	k, err := NewKeys(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (w *world) token(t *testing.T, bound ...metav1.Object) string {
	t.Helper()
	return w.tokenFor(t, []string{issuerName}, bound...)
}

func (w *world) tokenFor(t *testing.T, audiences []string, bound ...metav1.Object) string {
	t.Helper()
	token, _, err := w.issuer.Issue(w.account, bound, audiences, nil, time.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func deleted(at time.Time) *metav1.Time { return &metav1.Time{Time: at} }

func TestBoundTokens(t *testing.T) {
	elsewhere, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		// make returns a token and may change the world after it is made.
		make      func(t *testing.T, w *world) string
		audiences []string
		extra     map[string]string // of a user that is accepted, without the prefix
		err       string
		unknown   bool // neither accepted nor an error
	}{
		{name: "plain", make: func(t *testing.T, w *world) string { return w.token(t) }, extra: map[string]string{}},
		{name: "pod", make: func(t *testing.T, w *world) string { return w.token(t, w.pod) },
			extra: map[string]string{"pod-name": "pod", "pod-uid": "pod-uid"}},
		{name: "pod on a node that is gone", make: func(t *testing.T, w *world) string {
			token := w.token(t, w.pod, w.node)
			delete(w.byKey, "nodes//node")
			return token
		}, extra: map[string]string{"pod-name": "pod", "pod-uid": "pod-uid", "node-name": "node", "node-uid": "node-uid"}},
		{name: "node", make: func(t *testing.T, w *world) string { return w.token(t, w.node) },
			extra: map[string]string{"node-name": "node", "node-uid": "node-uid"}},
		{name: "secret", make: func(t *testing.T, w *world) string { return w.token(t, w.secret) }, extra: map[string]string{}},
		{name: "a minute late", make: func(t *testing.T, w *world) string {
			token := w.token(t)
			w.now = w.now.Add(time.Hour + 59*time.Second)
			return token
		}, extra: map[string]string{}},
		{name: "old issuer", make: func(t *testing.T, w *world) string {
			w.issuer.name = "https://old"
			return w.token(t)
		}, extra: map[string]string{}},
		{name: "audience asked for", make: func(t *testing.T, w *world) string { return w.tokenFor(t, []string{"vault", "x"}) },
			audiences: []string{"vault"}, extra: map[string]string{}},

		{name: "expired", make: func(t *testing.T, w *world) string {
			token := w.token(t)
			w.now = w.now.Add(time.Hour + 2*time.Minute)
			return token
		}, err: "service account token has expired"},
		{name: "not yet valid", make: func(t *testing.T, w *world) string {
			token := w.token(t)
			w.now = w.now.Add(-2 * time.Minute)
			return token
		}, err: "service account token is not valid yet"},
		{name: "wrong audience", make: func(t *testing.T, w *world) string { return w.tokenFor(t, []string{"vault", "x"}) },
			err: `token audiences ["vault" "x"] is invalid for the target audiences ["` + issuerName + `" "api"]`},
		{name: "wrong audience asked for", make: func(t *testing.T, w *world) string { return w.token(t) }, audiences: []string{"other"},
			err: `token audiences ["` + issuerName + `"] is invalid for the target audiences ["other"]`},
		{name: "wrong issuer", make: func(t *testing.T, w *world) string {
			w.issuer.name = "https://elsewhere"
			return w.token(t)
		}, unknown: true},
		{name: "wrong key", make: func(t *testing.T, w *world) string {
			w.issuer = mustIssuer(t, issuerName, elsewhere)
			return w.token(t)
		}, err: "invalid signature, no keys found"},
		{name: "wrong key under the right name", make: func(t *testing.T, w *world) string {
			public, err := publicKey(w.key.Public())
			if err != nil {
				t.Fatal(err)
			}
			signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: elsewhere, KeyID: public.KeyID}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			w.issuer.signer = signer
			return w.token(t)
		}, err: "go-jose/go-jose: error in cryptographic primitive"},
		{name: "alg none", make: func(t *testing.T, w *world) string {
			return unsigned(t, w.token(t), `{"alg":"none"}`)
		}, unknown: true},
		{name: "alg HMAC with the public key", make: func(t *testing.T, w *world) string {
			return unsigned(t, w.token(t), `{"alg":"HS256"}`) + "abcd"
		}, unknown: true},
		{name: "truncated signature", make: func(t *testing.T, w *world) string {
			token := w.token(t)
			return token[:len(token)-4]
		}, err: "go-jose/go-jose: error in cryptographic primitive"},
		{name: "truncated payload", make: func(t *testing.T, w *world) string {
			token := w.token(t)
			return token[:strings.LastIndexByte(token, '.')]
		}, unknown: true},
		{name: "changed payload", make: func(t *testing.T, w *world) string {
			parts := strings.Split(w.token(t), ".")
			data, _ := base64.RawURLEncoding.DecodeString(parts[1])
			parts[1] = base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(data), `"name":"sa"`, `"name":"admin"`, 1)))
			return strings.Join(parts, ".")
		}, err: "go-jose/go-jose: error in cryptographic primitive"},
		{name: "not a token", make: func(*testing.T, *world) string { return "a.b.c" }, unknown: true},
		{name: "JSON form", make: func(*testing.T, *world) string { return `{"payload":"x.y.z"}` }, unknown: true},

		{name: "account deleted", make: func(t *testing.T, w *world) string {
			token := w.token(t)
			delete(w.byKey, "serviceaccounts/ns/sa")
			return token
		}, err: `serviceaccounts "sa" not found`},
		{name: "account made anew", make: func(t *testing.T, w *world) string {
			token := w.token(t)
			w.account.UID = "new"
			return token
		}, err: "service account UID (new) does not match claim (sa-uid)"},
		{name: "account being deleted", make: func(t *testing.T, w *world) string {
			w.account.DeletionTimestamp = deleted(w.now.Add(-2 * time.Minute))
			return w.token(t)
		}, err: "service account ns/sa has been deleted"},
		{name: "account being deleted since a moment", make: func(t *testing.T, w *world) string {
			w.account.DeletionTimestamp = deleted(w.now.Add(-30 * time.Second))
			return w.token(t)
		}, extra: map[string]string{}},
		{name: "pod deleted", make: func(t *testing.T, w *world) string {
			token := w.token(t, w.pod)
			delete(w.byKey, "pods/ns/pod")
			return token
		}, err: "service account token has been invalidated"},
		{name: "pod being deleted", make: func(t *testing.T, w *world) string {
			w.pod.DeletionTimestamp = deleted(w.now.Add(-2 * time.Minute))
			return w.token(t, w.pod)
		}, err: "service account token has been invalidated"},
		{name: "pod made anew", make: func(t *testing.T, w *world) string {
			token := w.token(t, w.pod)
			w.pod.UID = "new"
			return token
		}, err: "pod UID (new) does not match service account pod ref claim (pod-uid)"},
		{name: "secret deleted", make: func(t *testing.T, w *world) string {
			token := w.token(t, w.secret)
			delete(w.byKey, "secrets/ns/secret")
			return token
		}, err: "service account token has been invalidated"},
		{name: "secret made anew", make: func(t *testing.T, w *world) string {
			token := w.token(t, w.secret)
			w.secret.UID = "new"
			return token
		}, err: "secret UID (new) does not match service account secret ref claim (secret-uid)"},
		{name: "node deleted", make: func(t *testing.T, w *world) string {
			token := w.token(t, w.node)
			delete(w.byKey, "nodes//node")
			return token
		}, err: "service account token has been invalidated"},
		{name: "node made anew", make: func(t *testing.T, w *world) string {
			token := w.token(t, w.node)
			w.node.UID = "new"
			return token
		}, err: "node UID (new) does not match service account node ref claim (node-uid)"},
		{name: "webhook", make: func(t *testing.T, w *world) string {
			token, err := jwt.Signed(w.issuer.signer).Claims(boundClaims{kubernetesClaims{
				Namespace: "ns", ServiceAccount: *refer(w.account), Validating: &reference{Name: "hook"},
			}}).Claims(jwt.Claims{Issuer: issuerName, Audience: []string{"api"}}).Serialize()
			if err != nil {
				t.Fatal(err)
			}
			return token
		}, err: `feature gate "APIServerWebhookAuthenticationToken" is disabled, but token is webhook bound`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			got, err := w.verifier.Verify(t.Context(), test.make(t, w), test.audiences)
			if test.err != "" || test.unknown {
				if got != nil || fmt.Sprint(err) != cmpOr(test.err, "<nil>") {
					t.Fatalf("got %+v, error %v, want error %q", got, err, test.err)
				}
				return
			}
			if err != nil || got == nil {
				t.Fatalf("got %+v, error %v", got, err)
			}
			want := map[string][]string{credentialID: got.User.Extra[credentialID]}
			if !strings.HasPrefix(want[credentialID][0], "JTI=") {
				t.Errorf("credential ID %q", want[credentialID])
			}
			for k, v := range test.extra {
				want[extraPrefix+k] = []string{v}
			}
			u := got.User
			if u.Name != "system:serviceaccount:ns:sa" || u.UID != "sa-uid" ||
				!reflect.DeepEqual(u.Groups, []string{"system:serviceaccounts", "system:serviceaccounts:ns"}) || !reflect.DeepEqual(u.Extra, want) {
				t.Errorf("user %+v, want extra %v", u, want)
			}
			if got.Expires.IsZero() || len(got.Audiences) == 0 {
				t.Errorf("expires %v, audiences %v", got.Expires, got.Audiences)
			}
		})
	}
}

// TestTokensForWebhooks has tokens that are bound to configurations of webhooks end with
// them, and tell what they vouch for.
func TestTokensForWebhooks(t *testing.T) {
	w := newWorld(t)
	hooks := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta("", "hooks")}
	w.byKey["mutatingwebhookconfigurations//hooks"] = hooks
	issue := func(attestations map[string]authenticationv1.AttestationValue) string {
		token, _, err := w.issuer.Issue(w.account, []metav1.Object{hooks}, []string{"api"}, attestations, time.Hour, 0)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	token := issue(map[string]authenticationv1.AttestationValue{"admissionReviewAPIGroups": {"apps"}})
	refused := func(token, want string) {
		t.Helper()
		if got, err := w.verifier.Verify(t.Context(), token, nil); err == nil || err.Error() != want {
			t.Errorf("got %v, error %v, want error %s", got, err, want)
		}
	}
	refused(token, `feature gate "APIServerWebhookAuthenticationToken" is disabled, but token is webhook bound`)
	w.verifier.WebhookTokens = true
	got, err := w.verifier.Verify(t.Context(), token, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"authentication.kubernetes.io/mutatingwebhookconfiguration-name":    {"hooks"},
		"authentication.kubernetes.io/mutatingwebhookconfiguration-uid":     {"hooks-uid"},
		"attestation.authentication.kubernetes.io/admissionReviewAPIGroups": {"apps"},
		credentialID: got.User.Extra[credentialID],
	}
	if !reflect.DeepEqual(got.User.Extra, want) {
		t.Errorf("got extra %v, want %v", got.User.Extra, want)
	}
	if ref := (Reference{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations", Name: "hooks"}); !slices.Contains(got.Needs, ref) {
		t.Errorf("got %v, want %v among what the token needs", got.Needs, ref)
	}
	refused(issue(nil), `bound object was a webhook config, but "admissionReviewAPIGroups" attestation is missing`)
	hooks.UID = "new"
	refused(token, "MutatingWebhookConfiguration UID (new) does not match service account validating ref claim (hooks-uid)")
	delete(w.byKey, "mutatingwebhookconfigurations//hooks")
	refused(token, "service account token has been invalidated")
}

func cmpOr(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// unsigned returns a token with another header and no signature.
func unsigned(t *testing.T, token, header string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	return base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + parts[1] + "."
}

func TestWarnAfter(t *testing.T) {
	w := newWorld(t)
	token, id, err := w.issuer.Issue(w.account, []metav1.Object{w.pod}, []string{"api"}, nil, 365*24*time.Hour, time.Hour)
	if err != nil || id == "" {
		t.Fatal(id, err)
	}
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{time.Minute, ""}, {time.Hour + 30*time.Second, "subject: system:serviceaccount:ns:sa, seconds after warning threshold: 30"}} {
		start := w.now
		w.now = start.Add(step.after)
		got, err := w.verifier.Verify(t.Context(), token, nil)
		w.now = start
		if err != nil {
			t.Fatal(err)
		}
		if note := got.Annotations["authentication.k8s.io/stale-token"]; note != step.want {
			t.Errorf("after %v: annotation %q, want %q", step.after, note, step.want)
		}
	}
}

// TestAudienceIsAnArray: readers of kube-apiserver's tokens expect an array, also of one
// audience.
func TestAudienceIsAnArray(t *testing.T) {
	w := newWorld(t)
	token, _, err := w.issuer.Issue(w.account, nil, []string{"one"}, nil, time.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	claims, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil || !strings.Contains(string(claims), `"aud":["one"]`) {
		t.Errorf("got %s (%v), want the audience as an array", claims, err)
	}
}
