// Package webhook authorizes with a remote service, by SubjectAccessReviews. Start at
// Config and New. Answers are cached; a request whose attributes are very long is not.
package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	authorizationv1beta1 "k8s.io/api/authorization/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/internal/configfile"
	"github.com/apikeel/kelson/metrics/servercert"
	"github.com/apikeel/kelson/request"
	hooks "github.com/apikeel/kelson/webhook"
)

const (
	// cacheEntries is the largest number of cached answers.
	cacheEntries = 8192
	// maxCachedBytes is the largest size of the client-controlled attributes of a
	// request whose answer is cached: no client should be able to fill the memory.
	maxCachedBytes = 10000

	// DefaultTimeout is the timeout of one request.
	DefaultTimeout = 30 * time.Second
)

// DefaultBackoff is how failed requests are retried.
func DefaultBackoff() wait.Backoff {
	return wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
}

// Config describes the service.
type Config struct {
	// Kubeconfig is the path of a kubeconfig with the address of the service and the
	// credentials to use. The path of the server URL is the one that reviews are sent
	// to.
	Kubeconfig string
	// Client is used instead of Kubeconfig if it is set.
	Client *rest.Config
	// Dial connects to the service; nil dials directly.
	Dial egress.Dial
	// Version of the reviews: v1 or v1beta1.
	Version string
	// AuthorizedTTL and UnauthorizedTTL are how long answers are cached; zero caches
	// none.
	AuthorizedTTL, UnauthorizedTTL time.Duration
	// Timeout of a request; zero is DefaultTimeout.
	Timeout time.Duration
	// Backoff of retries; the zero value is DefaultBackoff.
	Backoff wait.Backoff
	// OnError is the decision if the service fails.
	OnError authz.Decision
	// Conditions must all be true for the service to be asked; nil asks always.
	Conditions *Conditions
	// Certificates counts deprecated server certificates; nil does not.
	Certificates *servercert.Counter
	// Logger gets failures; nil discards them.
	Logger *slog.Logger
}

// Authorizer implements authz.Authorizer with a remote service.
type Authorizer struct {
	cfg     Config
	client  *rest.RESTClient
	answers *cache.LRUExpireCache
}

// New returns an authorizer; it does not connect yet.
func New(cfg Config) (*Authorizer, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Backoff.Steps == 0 {
		cfg.Backoff = DefaultBackoff()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Version != "v1" && cfg.Version != "v1beta1" {
		return nil, fmt.Errorf("unsupported webhook authorizer version %q, supported versions are %q, %q", cfg.Version, "v1", "v1beta1")
	}
	client, err := cfg.client()
	if err != nil {
		return nil, err
	}
	client.Timeout = cfg.Timeout
	if cfg.Dial != nil {
		client.Dial = cfg.Dial
	}
	client.Wrap(cfg.Certificates.Wrap)
	a := &Authorizer{cfg: cfg, answers: cache.NewLRUExpireCache(cacheEntries)}
	if a.client, err = hooks.ReviewClient(client); err != nil {
		return nil, err
	}
	return a, nil
}

// client returns the client configuration of the service.
func (c *Config) client() (*rest.Config, error) {
	if c.Client != nil {
		return rest.CopyConfig(c.Client), nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	client, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	return client, configfile.Unquoted(err)
}

// Authorize implements authz.Authorizer.
func (a *Authorizer) Authorize(ctx context.Context, at *authz.Attributes) (authz.Decision, string, error) {
	spec := specOf(at)
	matches, err := a.cfg.Conditions.match(ctx, spec)
	switch {
	case err != nil:
		return a.cfg.OnError, "", err
	case !matches:
		return authz.NoOpinion, "", nil
	}
	key, err := json.Marshal(spec)
	if err != nil {
		return a.cfg.OnError, "", err
	}
	var status authorizationv1.SubjectAccessReviewStatus
	if kept, ok := a.answers.Get(string(key)); ok {
		status = kept.(authorizationv1.SubjectAccessReviewStatus)
	} else {
		if status, err = a.review(ctx, spec); err != nil {
			a.cfg.Logger.Error("authorization webhook failed", "error", err)
			return a.cfg.OnError, "", err
		}
		ttl := a.cfg.UnauthorizedTTL
		if status.Allowed {
			ttl = a.cfg.AuthorizedTTL
		}
		if ttl > 0 && clientControlledBytes(at) < maxCachedBytes {
			a.answers.Add(string(key), status, ttl)
		}
	}
	switch {
	case status.Denied && status.Allowed:
		return authz.Deny, status.Reason, errors.New("webhook subject access review returned both allow and deny response")
	case status.Denied:
		return authz.Deny, status.Reason, nil
	case status.Allowed:
		return authz.Allow, status.Reason, nil
	}
	return authz.NoOpinion, status.Reason, nil
}

// Explain implements authz.Explainer. What the service says is the reason of the
// decision; here is whether it was asked at all.
func (a *Authorizer) Explain(ctx context.Context, at *authz.Attributes) (d authz.Detail, _ error) {
	matches, err := a.cfg.Conditions.match(ctx, specOf(at))
	switch {
	case err != nil:
		d.Notes = append(d.Notes, "a match condition failed, so the service was not asked")
	case !matches:
		d.Notes = append(d.Notes, "a match condition is false, so the service was not asked")
	}
	return d, nil
}

// WhoCan implements authz.Finder: only the service knows.
func (a *Authorizer) WhoCan(context.Context, *authz.Attributes, func(authz.Grant) bool) (string, error) {
	return "a webhook cannot list whom it allows; ask it about one user with 'kelson why'", nil
}

// RulesFor implements authz.Rules: only the service knows the rules.
func (a *Authorizer) RulesFor(context.Context, *request.User, string) ([]authz.ResourceRule, []authz.PathRule, bool, error) {
	return nil, nil, true, errors.New("webhook authorizer does not support user rule resolution")
}

// clientControlledBytes returns the size in bytes of the attributes that a client controls.
func clientControlledBytes(at *authz.Attributes) int {
	return len(at.Namespace) + len(at.Verb) + len(at.Group) + len(at.Version) + len(at.Resource) +
		len(at.Subresource) + len(at.Name) + len(at.Path)
}

// review sends a review to the service, with retries.
func (a *Authorizer) review(ctx context.Context, spec *authorizationv1.SubjectAccessReviewSpec) (status authorizationv1.SubjectAccessReviewStatus, err error) {
	body, err := a.encode(spec)
	if err != nil {
		return status, err
	}
	request.EndArrival(ctx)
	var failed error
	err = wait.ExponentialBackoffWithContext(ctx, a.cfg.Backoff, func(ctx context.Context) (done bool, _ error) {
		if status, failed = a.post(ctx, body); failed != nil && hooks.MayPass(failed) {
			return false, nil
		}
		return failed == nil, failed
	})
	switch {
	case failed != nil:
		return status, failed
	case err != nil:
		return status, fmt.Errorf("webhook call failed: %w", err)
	}
	return status, nil
}

func (a *Authorizer) post(ctx context.Context, body []byte) (status authorizationv1.SubjectAccessReviewStatus, err error) {
	result := a.client.Post().SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx)
	if err := result.Error(); err != nil { // Do has read the Status in the body
		return status, err
	}
	answer, err := result.Raw()
	if err != nil {
		return status, err
	}
	// The status has the same form in both versions.
	var review struct {
		metav1.TypeMeta
		Status authorizationv1.SubjectAccessReviewStatus `json:"status"`
	}
	if err := json.Unmarshal(answer, &review); err != nil {
		return status, err
	}
	if v := review.APIVersion; v != "" && v != a.apiVersion() || review.Kind != "" && review.Kind != "SubjectAccessReview" {
		return status, fmt.Errorf("webhook answered with %s of %s, and not with SubjectAccessReview of %s", review.Kind, review.APIVersion, a.apiVersion())
	}
	return review.Status, nil
}

func (a *Authorizer) apiVersion() string { return authorizationv1.GroupName + "/" + a.cfg.Version }

// encode encodes a review in the version that the service understands.
func (a *Authorizer) encode(spec *authorizationv1.SubjectAccessReviewSpec) ([]byte, error) {
	meta := metav1.TypeMeta{APIVersion: a.apiVersion(), Kind: "SubjectAccessReview"}
	if a.cfg.Version == "v1" {
		return json.Marshal(&authorizationv1.SubjectAccessReview{TypeMeta: meta, Spec: *spec})
	}
	old := &authorizationv1beta1.SubjectAccessReview{TypeMeta: meta, Spec: authorizationv1beta1.SubjectAccessReviewSpec{
		ResourceAttributes:    (*authorizationv1beta1.ResourceAttributes)(spec.ResourceAttributes),
		NonResourceAttributes: (*authorizationv1beta1.NonResourceAttributes)(spec.NonResourceAttributes),
		User:                  spec.User, Groups: spec.Groups, UID: spec.UID,
	}}
	for k, v := range spec.Extra {
		if old.Spec.Extra == nil {
			old.Spec.Extra = map[string]authorizationv1beta1.ExtraValue{}
		}
		old.Spec.Extra[k] = authorizationv1beta1.ExtraValue(v)
	}
	return json.Marshal(old)
}

// specOf converts attributes to the spec of a review.
func specOf(at *authz.Attributes) *authorizationv1.SubjectAccessReviewSpec {
	spec := &authorizationv1.SubjectAccessReviewSpec{}
	if u := at.User; u != nil {
		spec.User, spec.UID, spec.Groups = u.Name, u.UID, u.Groups
		for k, v := range u.Extra {
			if spec.Extra == nil {
				spec.Extra = map[string]authorizationv1.ExtraValue{}
			}
			spec.Extra[k] = v
		}
	}
	if !at.IsResource {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: at.Path, Verb: at.Verb}
		return spec
	}
	spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Namespace: at.Namespace, Verb: at.Verb, Group: at.Group, Version: at.Version,
		Resource: at.Resource, Subresource: at.Subresource, Name: at.Name,
	}
	// Selectors only narrow a request, so one that a review cannot express is left out.
	var fields []metav1.FieldSelectorRequirement
	for _, r := range at.Fields {
		switch r.Operator {
		case selection.Equals, selection.DoubleEquals, selection.In:
			fields = append(fields, metav1.FieldSelectorRequirement{Key: r.Field, Operator: metav1.FieldSelectorOpIn, Values: []string{r.Value}})
		case selection.NotEquals, selection.NotIn:
			fields = append(fields, metav1.FieldSelectorRequirement{Key: r.Field, Operator: metav1.FieldSelectorOpNotIn, Values: []string{r.Value}})
		}
	}
	if len(fields) > 0 {
		spec.ResourceAttributes.FieldSelector = &authorizationv1.FieldSelectorAttributes{Requirements: fields}
	}
	var labels []metav1.LabelSelectorRequirement
	for _, r := range at.Labels {
		if op, ok := labelOperators()[r.Operator()]; ok {
			labels = append(labels, metav1.LabelSelectorRequirement{Key: r.Key(), Operator: op, Values: r.ValuesUnsorted()})
		}
	}
	if len(labels) > 0 {
		spec.ResourceAttributes.LabelSelector = &authorizationv1.LabelSelectorAttributes{Requirements: labels}
	}
	return spec
}

func labelOperators() map[selection.Operator]metav1.LabelSelectorOperator {
	return map[selection.Operator]metav1.LabelSelectorOperator{
		selection.Equals: metav1.LabelSelectorOpIn, selection.DoubleEquals: metav1.LabelSelectorOpIn, selection.In: metav1.LabelSelectorOpIn,
		selection.NotEquals: metav1.LabelSelectorOpNotIn, selection.NotIn: metav1.LabelSelectorOpNotIn,
		selection.Exists: metav1.LabelSelectorOpExists, selection.DoesNotExist: metav1.LabelSelectorOpDoesNotExist,
	}
}
