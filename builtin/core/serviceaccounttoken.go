package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

const (
	defaultTokenSeconds = 60 * 60
	minTokenSeconds     = 10 * 60
	// projectedTokenSeconds is the lifetime that the ServiceAccount admission plugin
	// requests for tokens of pods; nobody else uses this number. Such a token is valid for
	// extendedTokenLifetime, so that programs which do not reload it keep working, and
	// carries a claim when it should have been replaced.
	projectedTokenSeconds = 60*60 + 7
	extendedTokenLifetime = 365 * 24 * time.Hour

	// webhookTokenSeconds is the longest lifetime of a token for webhooks.
	webhookTokenSeconds = 10 * 60

	admissionReviewGroups = authenticationv1.AttestationAdmissionReviewAPIGroups
)

// TokenIssuer signs service account tokens.
type TokenIssuer interface {
	// Issue returns a token, bound to the account and to the bound objects, and its ID.
	// warnAfter, if not zero, is when the token should be replaced.
	Issue(account *corev1.ServiceAccount, bound []metav1.Object, audiences []string, attestations map[string]authenticationv1.AttestationValue, lifetime, warnAfter time.Duration) (token, id string, err error)
}

// Tokens configures the subresource serviceaccounts/token.
type Tokens struct {
	// Issuer signs tokens. If it is nil, the subresource is not served.
	Issuer TokenIssuer
	// Audiences of the server, the default audiences of tokens.
	Audiences []string
	// MaxExpiration bounds the lifetime of tokens; zero is unbounded.
	MaxExpiration time.Duration
	// MaxExtended bounds the lifetime of tokens that last longer than they say; zero
	// is unbounded.
	MaxExtended time.Duration
	// NoExtension disables the extended lifetime of tokens of pods.
	NoExtension bool
	// MayAttest returns an error for the client unless a user may have tokens that vouch
	// for an API group to webhooks. With nil, tokens cannot be bound to the configuration
	// of webhooks: the feature gate APIServerWebhookAuthenticationToken.
	MayAttest func(ctx context.Context, user *request.User, group string) error
	// AnyUID only warns of a request with the UID of another account: the feature gate
	// TokenRequestServiceAccountUIDValidation is disabled.
	AnyUID bool
}

// subresource returns serviceaccounts/token.
func (t Tokens) subresource() []resource.Subresource {
	if t.Issuer == nil {
		return nil
	}
	return []resource.Subresource{{
		Name: "token",
		Kind: tokenRequestKind(),
		New:  func() resource.Object { return &authenticationv1.TokenRequest{} },
		Default: func(body resource.Object) {
			rules.DefaultPointer(&body.(*authenticationv1.TokenRequest).Spec.ExpirationSeconds, defaultTokenSeconds)
		},
		Action: t.create,
		Owned:  true, KeepsMeta: true,
	}}
}

func tokenRequestKind() schema.GroupVersionKind {
	return authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")
}

// create is the Action of serviceaccounts/token.
func (t Tokens) create(ctx context.Context, target resource.Target, body resource.Object) (runtime.Object, error) {
	req := body.(*authenticationv1.TokenRequest)
	account, err := t.account(ctx, target, req)
	if err != nil {
		return nil, err
	}
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = t.Audiences
	}
	req.Name, req.Namespace = account.Name, account.Namespace
	if req.UID == "" {
		req.UID = account.UID
	}
	// Taken before signing, so that the response never promises a longer lifetime than
	// the token has.
	now := request.From(ctx).Received
	req.CreationTimestamp = metav1.NewTime(now)
	req.Status = authenticationv1.TokenRequestStatus{}
	if errs := validateTokenRequest(req); len(errs) > 0 {
		return nil, problems.Invalid(tokenRequestKind().GroupKind(), "", errs)
	}
	var bound []metav1.Object
	if isWebhookReference(req.Spec.BoundObjectRef) {
		bound, err = t.boundWebhooks(ctx, target, account, req)
	} else {
		bound, err = boundObjects(ctx, target, req.Spec.BoundObjectRef)
	}
	if err != nil {
		return nil, err
	}

	seconds := *req.Spec.ExpirationSeconds
	if limit := int64(t.MaxExpiration / time.Second); limit > 0 && seconds > limit {
		request.From(ctx).Warn(fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", seconds, limit))
		seconds = limit
		req.Spec.ExpirationSeconds = &seconds
	}
	lifetime, warnAfter := time.Duration(seconds)*time.Second, time.Duration(0)
	if !t.NoExtension && seconds == projectedTokenSeconds && boundToPod(bound) && t.forServer(req.Spec.Audiences) {
		lifetime, warnAfter = extendedTokenLifetime, lifetime
		if t.MaxExtended > 0 {
			lifetime = min(lifetime, t.MaxExtended)
		}
	}
	token, id, err := t.Issuer.Issue(account, bound, req.Spec.Audiences, req.Spec.Attestations, lifetime, warnAfter)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("failed to generate token: %w", err))
	}
	request.From(ctx).Annotate("authentication.kubernetes.io/issued-credential-id", "JTI="+id)
	req.Status.Token = token
	req.Status.ExpirationTimestamp = metav1.NewTime(now.Add(time.Duration(seconds) * time.Second))
	return req, nil
}

// account returns the account of the token, or an error if the body names another one.
func (t Tokens) account(ctx context.Context, target resource.Target, req *authenticationv1.TokenRequest) (*corev1.ServiceAccount, error) {
	if req.Namespace != "" && req.Namespace != target.Namespace() {
		return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	if req.Name != "" && req.Name != target.Name() {
		return nil, problems.Invalid(tokenRequestKind().GroupKind(), target.Name(), field.ErrorList{
			field.Invalid(field.NewPath("metadata", "name"), req.Name, "must match the service account name if specified"),
		})
	}
	obj, err := target.Get(ctx)
	if err != nil {
		return nil, err
	}
	if uid := obj.GetUID(); req.UID != "" && req.UID != uid && t.AnyUID {
		differs := fmt.Sprintf("the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID, uid)
		request.From(ctx).Annotate("authentication.k8s.io/token-request-uid-mismatch", differs)
		request.From(ctx).Warn(differs + " but TokenRequestServiceAccountUIDValidation is not enabled. In the future, this will return a conflict error")
	} else if req.UID != "" && req.UID != uid {
		gr := schema.GroupResource{Group: authenticationv1.GroupName, Resource: "TokenRequest"}
		return nil, apierrors.NewConflict(gr, target.Name(), fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID, uid))
	}
	return obj.(*corev1.ServiceAccount), nil
}

// forServer reports whether a token is only for audiences of the server.
func (t Tokens) forServer(audiences []string) bool {
	return !slices.ContainsFunc(audiences, func(a string) bool { return !slices.Contains(t.Audiences, a) })
}

func boundToPod(bound []metav1.Object) bool {
	if len(bound) == 0 {
		return false
	}
	_, ok := bound[0].(*corev1.Pod)
	return ok
}

// boundObjects returns the objects to bind the token to: the one that the request names and,
// for a pod, its node.
func boundObjects(ctx context.Context, target resource.Target, ref *authenticationv1.BoundObjectReference) ([]metav1.Object, error) {
	if ref == nil {
		return nil, nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	name := map[string]string{"Pod": "pods", "Secret": "secrets", "Node": "nodes"}[gvk.Kind]
	if gvk.Group != "" || name == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk))
	}
	namespace := target.Namespace()
	if name == "nodes" {
		namespace = ""
	}
	obj, err := otherObject(ctx, target, name, namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	bound := []metav1.Object{obj}
	if pod, ok := obj.(*corev1.Pod); ok {
		if pod.Spec.ServiceAccountName != target.Name() {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", target.Name()))
		}
		if pod.Spec.NodeName != "" {
			node, err := nodeOf(ctx, target, pod.Spec.NodeName)
			if err != nil {
				return nil, err
			}
			bound = append(bound, node)
		}
	}
	return bound, sameUID(ref, obj)
}

// sameUID returns a conflict if a reference has another UID than its object.
func sameUID(ref *authenticationv1.BoundObjectReference, obj metav1.Object) error {
	if ref.UID == "" || ref.UID == obj.GetUID() {
		return nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	return apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, ref.Name,
		fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
}

// boundWebhooks returns the configuration of webhooks to bind the token to. One of them
// must be for the audience and the API group of the request, and the account must be
// allowed to vouch for the group. It shortens the lifetime of the token.
func (t Tokens) boundWebhooks(ctx context.Context, target resource.Target, account *corev1.ServiceAccount, req *authenticationv1.TokenRequest) ([]metav1.Object, error) {
	ref := req.Spec.BoundObjectRef
	if t.MayAttest == nil {
		gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
		return nil, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s (feature gate %s is disabled)", gvk, "APIServerWebhookAuthenticationToken"))
	}
	if slices.ContainsFunc(req.Spec.Audiences, func(a string) bool { return slices.Contains(t.Audiences, a) }) {
		return nil, apierrors.NewBadRequest("api server audiences are invalid for webhook token requests")
	}
	group, audience := req.Spec.Attestations[admissionReviewGroups][0], req.Spec.Audiences[0]
	req.Spec.ExpirationSeconds = new(min(*req.Spec.ExpirationSeconds, webhookTokenSeconds))
	user := request.User{Name: "system:serviceaccount:" + account.Namespace + ":" + account.Name, UID: string(account.UID),
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + account.Namespace}}
	if err := t.MayAttest(ctx, &user, group); err != nil {
		return nil, err
	}
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts/token"}, account.Name, errors.New("token request denied"))
	others, err := target.Other(admissionregistrationv1.GroupName, strings.ToLower(ref.Kind)+"s")
	if err != nil {
		return nil, denied
	}
	obj, err := others.Get(ctx, "", ref.Name)
	if err != nil {
		return nil, denied
	}
	deleted := obj.GetDeletionTimestamp()
	if deleted != nil && request.From(ctx).Received.After(deleted.Time) || group != "*" && !hasWebhookFor(obj, group, audience) {
		return nil, denied
	}
	return []metav1.Object{obj}, sameUID(ref, obj)
}

// hasWebhookFor reports whether one of the webhooks of a configuration gets objects of an
// API group at an audience.
func hasWebhookFor(obj metav1.Object, group, audience string) bool {
	fits := func(client *admissionregistrationv1.WebhookClientConfig, rules []admissionregistrationv1.RuleWithOperations) bool {
		return webhookAudience(client) == audience && slices.ContainsFunc(rules, func(r admissionregistrationv1.RuleWithOperations) bool {
			return slices.Contains(r.APIGroups, "*") || slices.Contains(r.APIGroups, group)
		})
	}
	switch c := obj.(type) {
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		return slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool { return fits(&w.ClientConfig, w.Rules) })
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		return slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return fits(&w.ClientConfig, w.Rules) })
	}
	return false
}

// webhookAudience returns the audience of tokens for a webhook: its URL, for a service
// https://NAME.NAMESPACE.svc:PORT/PATH.
func webhookAudience(c *admissionregistrationv1.WebhookClientConfig) string {
	switch {
	case c.URL != nil:
		return *c.URL
	case c.Service == nil:
		return ""
	}
	path := "/" + strings.TrimPrefix(ptr.Deref(c.Service.Path, "/"), "/")
	return fmt.Sprintf("https://%s.%s.svc:%d%s", c.Service.Name, c.Service.Namespace, ptr.Deref(c.Service.Port, 443), path)
}

// nodeOf returns a node; if it does not exist, an object with only the name.
func nodeOf(ctx context.Context, target resource.Target, name string) (metav1.Object, error) {
	node, err := otherObject(ctx, target, "nodes", "", name)
	switch {
	case apierrors.IsNotFound(err):
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
	case err != nil:
		return nil, apierrors.NewInternalError(err)
	}
	return node, nil
}

func otherObject(ctx context.Context, target resource.Target, resource, namespace, name string) (metav1.Object, error) {
	others, err := target.Other(corev1.GroupName, resource)
	if err != nil {
		return nil, err
	}
	return others.Get(ctx, namespace, name)
}

func isWebhookReference(ref *authenticationv1.BoundObjectReference) bool {
	return ref != nil && ref.APIVersion == "admissionregistration.k8s.io/v1" &&
		(ref.Kind == "ValidatingWebhookConfiguration" || ref.Kind == "MutatingWebhookConfiguration")
}

func validateTokenRequest(req *authenticationv1.TokenRequest) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	attestations := spec.Child("attestations")
	seconds := *req.Spec.ExpirationSeconds
	if seconds < minTokenSeconds {
		errs = append(errs, field.Invalid(spec.Child("expirationSeconds"), seconds, "may not specify a duration less than 10 minutes"))
	}
	if seconds > 1<<32 {
		errs = append(errs, field.Invalid(spec.Child("expirationSeconds"), seconds, "may not specify a duration larger than 2^32 seconds"))
	}
	if !isWebhookReference(req.Spec.BoundObjectRef) {
		if len(req.Spec.Attestations) > 0 {
			return field.ErrorList{field.Invalid(attestations, req.Spec.Attestations, "attestations may only be specified with a webhook bound object reference")}
		}
		return errs
	}
	if len(req.Spec.Audiences) != 1 {
		errs = append(errs, field.Invalid(spec.Child("audiences"), req.Spec.Audiences, "must be length 1 when bound to a webhook config"))
	}
	if len(req.Spec.Attestations) != 1 {
		return append(errs, field.Invalid(attestations, req.Spec.Attestations, "webhook bound requests require exactly one admissionReviewAPIGroups attestation"))
	}
	for key, values := range req.Spec.Attestations {
		errs = append(errs, validateAttestation(key, values, attestations.Key(key))...)
	}
	return errs
}

func validateAttestation(key string, values []string, path *field.Path) field.ErrorList {
	switch {
	case key != admissionReviewGroups:
		return field.ErrorList{field.NotSupported(path, key, []string{admissionReviewGroups})}
	case len(values) != 1:
		return field.ErrorList{field.Invalid(path, values, "must specify a single value")}
	case values[0] == "":
		return field.ErrorList{field.Invalid(path.Index(0), values[0], "may not be an empty string")}
	case values[0] == "*":
		return nil
	}
	var errs field.ErrorList
	for _, reason := range validation.IsDNS1123Subdomain(values[0]) {
		errs = append(errs, field.Invalid(path.Index(0), values[0], "must specify a valid API Group: "+reason))
	}
	return errs
}
