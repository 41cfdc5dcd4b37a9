package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// accountTarget is a service account among other objects.
type accountTarget struct {
	resource.Target
	account *corev1.ServiceAccount
	others  map[string]resource.Object // by resource/namespace/name
}

func (t *accountTarget) Namespace() string { return t.account.Namespace }
func (t *accountTarget) Name() string      { return t.account.Name }

func (t *accountTarget) Get(context.Context) (resource.Object, error) { return t.account, nil }

func (t *accountTarget) Other(_, name string) (resource.Others, error) {
	return accountOthers{t: t, name: name}, nil
}

type accountOthers struct {
	resource.Others
	t    *accountTarget
	name string
}

func (o accountOthers) Get(_ context.Context, namespace, name string) (resource.Object, error) {
	if obj := o.t.others[o.name+"/"+namespace+"/"+name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource(o.name), name)
}

// issued is what the issuer was asked for.
type issued struct {
	bound               []string
	audiences           []string
	attestations        map[string]authenticationv1.AttestationValue
	lifetime, warnAfter time.Duration
	err                 error
}

func (i *issued) Issue(account *corev1.ServiceAccount, bound []metav1.Object, audiences []string, attestations map[string]authenticationv1.AttestationValue, lifetime, warnAfter time.Duration) (string, string, error) {
	i.bound = nil
	for _, obj := range bound {
		i.bound = append(i.bound, fmt.Sprintf("%T/%s/%s", obj, obj.GetName(), obj.GetUID()))
	}
	i.audiences, i.attestations, i.lifetime, i.warnAfter = audiences, attestations, lifetime, warnAfter
	return "token of " + account.Name, "id", i.err
}

func TestTokenRequest(t *testing.T) {
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid")}
	}
	pod := func(name, account, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: meta("ns", name), Spec: corev1.PodSpec{ServiceAccountName: account, NodeName: node}}
	}
	target := &accountTarget{
		account: &corev1.ServiceAccount{ObjectMeta: meta("ns", "sa")},
		others: map[string]resource.Object{
			"pods/ns/p": pod("p", "sa", ""), "pods/ns/placed": pod("placed", "sa", "n"), "pods/ns/lost": pod("lost", "sa", "gone"), "pods/ns/foreign": pod("foreign", "other", ""),
			"validatingwebhookconfigurations//h": &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta("", "h"), Webhooks: []admissionregistrationv1.ValidatingWebhook{
				{ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://hook/a")}, Rules: []admissionregistrationv1.RuleWithOperations{
					{Rule: admissionregistrationv1.Rule{APIGroups: []string{"batch"}}}, {Rule: admissionregistrationv1.Rule{APIGroups: []string{"apps"}}}}},
				{ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "ns", Name: "svc", Path: ptr.To("b")}},
					Rules: []admissionregistrationv1.RuleWithOperations{{Rule: admissionregistrationv1.Rule{APIGroups: []string{"*"}}}}},
			}},
			"secrets/ns/s": &corev1.Secret{ObjectMeta: meta("ns", "s")}, "nodes//n": &corev1.Node{ObjectMeta: meta("", "n")},
		},
	}
	ref := func(kind, name string, uid ...types.UID) *authenticationv1.BoundObjectReference {
		r := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: name}
		if len(uid) > 0 {
			r.UID = uid[0]
		}
		return r
	}
	hook := &authenticationv1.BoundObjectReference{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingWebhookConfiguration", Name: "h"}
	attest := func(key string, values ...string) map[string]authenticationv1.AttestationValue {
		return map[string]authenticationv1.AttestationValue{key: values}
	}
	const year = 365 * 24 * time.Hour
	forHook := func(audience, group string) authenticationv1.TokenRequestSpec {
		return authenticationv1.TokenRequestSpec{BoundObjectRef: hook, Audiences: []string{audience}, Attestations: attest("admissionReviewAPIGroups", group)}
	}
	attesting := Tokens{MayAttest: func(_ context.Context, user *request.User, group string) error {
		if user.Name != "system:serviceaccount:ns:sa" || group == "secret" {
			return fmt.Errorf("%s may not attest %s", user.Name, group)
		}
		return nil
	}}
	hookToken := func(audience, group string) issued {
		return issued{bound: []string{"*v1.ValidatingWebhookConfiguration/h/h-uid"}, audiences: []string{audience}, attestations: attest("admissionReviewAPIGroups", group), lifetime: 10 * time.Minute}
	}
	tests := []struct {
		name    string
		tokens  Tokens
		meta    metav1.ObjectMeta
		spec    authenticationv1.TokenRequestSpec
		want    issued
		seconds int64
		warning string
		err     string
	}{
		{name: "defaults", want: issued{audiences: []string{"api"}, lifetime: time.Hour}, seconds: 3600},
		{name: "all said", meta: meta("ns", "sa"), spec: authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}, ExpirationSeconds: ptr.To[int64](600)},
			want: issued{audiences: []string{"vault"}, lifetime: 10 * time.Minute}, seconds: 600},
		{name: "other name", meta: metav1.ObjectMeta{Name: "x"},
			err: `TokenRequest.authentication.k8s.io "sa" is invalid: metadata.name: Invalid value: "x": must match the service account name if specified`},
		{name: "other namespace", meta: metav1.ObjectMeta{Namespace: "x"},
			err: `the namespace of the provided object does not match the namespace sent on the request`},
		{name: "other uid", meta: metav1.ObjectMeta{UID: "x"},
			err: `Operation cannot be fulfilled on TokenRequest.authentication.k8s.io "sa": the UID in the token request (x) does not match the UID of the service account (sa-uid)`},
		{name: "too short", spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](599)},
			err: `TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes`},
		{name: "too long", spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](1<<32 + 1)},
			err: `TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds`},
		{name: "longer than the server allows", tokens: Tokens{MaxExpiration: time.Hour}, spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](7200)},
			want: issued{audiences: []string{"api"}, lifetime: time.Hour}, seconds: 3600, warning: "requested expiration of 7200 seconds shortened to 3600 seconds"},

		{name: "pod", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref("Pod", "p", "p-uid")},
			want: issued{bound: []string{"*v1.Pod/p/p-uid"}, audiences: []string{"api"}, lifetime: time.Hour}, seconds: 3600},
		{name: "pod on a node", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref("Pod", "placed")},
			want: issued{bound: []string{"*v1.Pod/placed/placed-uid", "*v1.Node/n/n-uid"}, audiences: []string{"api"}, lifetime: time.Hour}, seconds: 3600},
		{name: "pod on a node that is gone", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref("Pod", "lost")},
			want: issued{bound: []string{"*v1.Pod/lost/lost-uid", "*v1.Node/gone/"}, audiences: []string{"api"}, lifetime: time.Hour}, seconds: 3600},
		{name: "secret", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref("Secret", "s")},
			want: issued{bound: []string{"*v1.Secret/s/s-uid"}, audiences: []string{"api"}, lifetime: time.Hour}, seconds: 3600},
		{name: "node", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref("Node", "n")},
			want: issued{bound: []string{"*v1.Node/n/n-uid"}, audiences: []string{"api"}, lifetime: time.Hour}, seconds: 3600},
		{name: "pod of another account", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref("Pod", "foreign")},
			err: `cannot bind token for serviceaccount "sa" to pod running with different serviceaccount name.`},
		{name: "no pod", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref("Pod", "none")}, err: `pods "none" not found`},
		{name: "other pod", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref("Pod", "p", "x")},
			err: `Operation cannot be fulfilled on Pod "p": the UID in the bound object reference (x) does not match the UID in record. The object might have been deleted and then recreated`},
		{name: "service", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref("Service", "s")}, err: "cannot bind token to object of type /v1, Kind=Service"},
		{name: "pod of another group", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "x/v1", Kind: "Pod"}},
			err: "cannot bind token to object of type x/v1, Kind=Pod"},

		{name: "of a pod by default", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref("Pod", "p"), ExpirationSeconds: ptr.To[int64](3607)},
			want: issued{bound: []string{"*v1.Pod/p/p-uid"}, audiences: []string{"api"}, lifetime: year, warnAfter: 3607 * time.Second}, seconds: 3607},
		{name: "of a pod by default, not extended", tokens: Tokens{NoExtension: true}, spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref("Pod", "p"), ExpirationSeconds: ptr.To[int64](3607)},
			want: issued{bound: []string{"*v1.Pod/p/p-uid"}, audiences: []string{"api"}, lifetime: 3607 * time.Second}, seconds: 3607},
		{name: "of a pod for others", spec: authenticationv1.TokenRequestSpec{Audiences: []string{"api", "x"}, BoundObjectRef: ref("Pod", "p"), ExpirationSeconds: ptr.To[int64](3607)},
			want: issued{bound: []string{"*v1.Pod/p/p-uid"}, audiences: []string{"api", "x"}, lifetime: 3607 * time.Second}, seconds: 3607},
		{name: "of no pod", spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3607)},
			want: issued{audiences: []string{"api"}, lifetime: 3607 * time.Second}, seconds: 3607},

		{name: "attestation", spec: authenticationv1.TokenRequestSpec{Attestations: attest("a", "b")},
			err: `attestations may only be specified with a webhook bound object reference`},
		{name: "webhook without attestation", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: hook}, err: "webhook bound requests require exactly one admissionReviewAPIGroups attestation"},
		{name: "webhook with another attestation", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: hook, Attestations: attest("x", "y")}, err: `spec.attestations[x]: Unsupported value: "x": supported values: "admissionReviewAPIGroups"`},
		{name: "webhook", spec: authenticationv1.TokenRequestSpec{BoundObjectRef: hook, Attestations: attest("admissionReviewAPIGroups", "apps")},
			err: "cannot bind token to object of type admissionregistration.k8s.io/v1, Kind=ValidatingWebhookConfiguration (feature gate APIServerWebhookAuthenticationToken is disabled)"},
		{name: "webhook by address", tokens: attesting, spec: forHook("https://hook/a", "apps"), want: hookToken("https://hook/a", "apps"), seconds: 600},
		{name: "webhook by service", tokens: attesting, spec: forHook("https://svc.ns.svc:443/b", "x"), want: hookToken("https://svc.ns.svc:443/b", "x"), seconds: 600},
		{name: "webhooks of all groups", tokens: attesting, spec: forHook("https://other", "*"), want: hookToken("https://other", "*"), seconds: 600},
		{name: "webhook of other groups", tokens: attesting, spec: forHook("https://hook/a", "core"), err: `serviceaccounts/token "sa" is forbidden: token request denied`},
		{name: "webhook elsewhere", tokens: attesting, spec: forHook("https://hook/b", "apps"), err: "token request denied"},
		{name: "webhook for the server", tokens: attesting, spec: forHook("api", "apps"), err: "api server audiences are invalid for webhook token requests"},
		{name: "webhook without permission", tokens: attesting, spec: forHook("https://hook/a", "secret"), err: "system:serviceaccount:ns:sa may not attest secret"},
		{name: "other uid, not judged", tokens: Tokens{AnyUID: true}, meta: metav1.ObjectMeta{UID: "x"}, want: issued{audiences: []string{"api"}, lifetime: time.Hour}, seconds: 3600,
			warning: "the UID in the token request (x) does not match the UID of the service account (sa-uid) but TokenRequestServiceAccountUIDValidation is not enabled. In the future, this will return a conflict error"},
		{name: "broken key", tokens: Tokens{Issuer: &issued{err: errors.New("no key")}}, err: "Internal error occurred: failed to generate token: no key"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := &issued{}
			if test.tokens.Issuer == nil {
				test.tokens.Issuer = got
			}
			test.tokens.Audiences = []string{"api"}
			ctx := request.With(t.Context(), &request.Request{Received: time.Now(), Warned: &request.Warnings{}})
			body := &authenticationv1.TokenRequest{ObjectMeta: test.meta, Spec: test.spec, Status: authenticationv1.TokenRequestStatus{Token: "made up"}}
			sub := ServiceAccounts(test.tokens).Subresources[0]
			sub.Default(body)
			before := time.Now()
			out, err := sub.Action(ctx, target, body)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want %s", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			req := out.(*authenticationv1.TokenRequest)
			lasts := req.Status.ExpirationTimestamp.Sub(before).Round(time.Minute)
			if req.Status.Token != "token of sa" || *req.Spec.ExpirationSeconds != test.seconds || lasts != (time.Duration(test.seconds)*time.Second).Round(time.Minute) ||
				req.Name != "sa" || req.Namespace != "ns" || req.UID != cmp.Or(test.meta.UID, "sa-uid") || req.CreationTimestamp.IsZero() || !reflect.DeepEqual(req.Spec.Audiences, test.want.audiences) {
				t.Errorf("answer %+v", req)
			}
			if !reflect.DeepEqual(*got, test.want) {
				t.Errorf("issued %+v, want %+v", *got, test.want)
			}
			if warnings := strings.Join(request.From(ctx).Warnings(), ""); warnings != test.warning {
				t.Errorf("warnings %q", warnings)
			}
		})
	}
	if len(ServiceAccounts(Tokens{}).Subresources) != 0 {
		t.Error("tokens can be asked for although nobody signs them")
	}
}
