// Package webhooks implements MutatingAdmissionWebhook and ValidatingAdmissionWebhook. Start
// at Config and the plugins Mutating and Validating. For a write that no webhook matches
// nothing is prepared. The time and memory of a call are bounded; failurePolicy decides what
// a failed call means.
package webhooks

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/expression"
	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/webhook"
)

// defaultTimeout is the timeout of a webhook without timeoutSeconds.
const defaultTimeout = 10 * time.Second

// Config are the dependencies of the plugins.
type Config struct {
	// Source has the webhook configurations of the plugin. Required.
	Source resource.Follower
	// Manifests returns configurations from static manifests, which are called first;
	// nil if there are none.
	Manifests func() *admission.Manifests
	// Objects reads namespaces. Required.
	Objects admission.Objects
	// Client calls webhooks. Required.
	Client *webhook.Client
	// Authorizer answers authorization checks of match conditions; nil denies
	// everything.
	Authorizer expression.Authorizer
	// Expressions compiles CEL; nil creates an environment for this plugin.
	Expressions *policycel.Environment
	// Reviews sends access reviews to webhooks too, as Kubernetes does with the feature gate
	// ExcludeAdmissionWebhookVirtualResources disabled.
	Reviews bool
	// Metrics may be nil.
	Metrics admission.Metrics
	Logger  *slog.Logger
}

// plugin is the common part of both plugins.
type plugin struct {
	Config
	step     string // label type of the exclusion metric
	kind     string // label type of other metrics
	followed admission.Followed[*match.Index[*hook]]
	compiled map[condition]func() *expression.Conditions
}

// condition identifies the match conditions of a hook by its index in a configuration
// object, which is immutable.
type condition struct {
	config resource.Object
	index  int
}

// hook is one webhook of a configuration.
type hook struct {
	name, config string
	// key identifies it among all; ordinal is its position.
	key     string
	ordinal int
	// manifest: it is from a static manifest.
	manifest bool

	criteria    *match.Criteria
	conditions  func() *expression.Conditions
	endpoint    webhook.Endpoint
	timeout     time.Duration
	ignore      bool // failurePolicy is Ignore
	sideEffects *registrationv1.SideEffectClass
	versions    []string
	again       bool
}

// part returns what a trace says about a call of the hook.
func (h *hook) part(resource string, err error) admission.Part {
	p := admission.Part{Resource: resource, Config: h.config, Name: h.name, Answer: admission.PartAdmitted}
	var failed *callError
	if err != nil {
		p.Answer, p.Message = admission.PartRefused, err.Error()
		if errors.As(err, &failed) && h.ignore {
			p.Answer = admission.PartIgnored
		}
	}
	return p
}

func newPlugin(cfg Config, step, kind string) *plugin {
	if cfg.Authorizer == nil {
		cfg.Authorizer = func(context.Context, *expression.Check) (bool, string, error) { return false, "", nil }
	}
	if cfg.Expressions == nil {
		cfg.Expressions = new(policycel.Environment)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &plugin{Config: cfg, step: step, kind: kind}
	p.followed.Source, p.followed.Manifests, p.followed.Make = cfg.Source, cfg.Manifests, p.index
	return p
}

// Handles implements admission.Plugin. Webhook and policy configurations are sent only to
// webhooks from static manifests, and access reviews to none unless Reviews is set: a webhook
// that refused those could not be removed.
func (p *plugin) Handles(t admission.Target) bool {
	switch t.Group {
	case registrationv1.GroupName:
		return p.Manifests != nil || !isConfiguration(t.Resource)
	case "authentication.k8s.io", "authorization.k8s.io":
		return p.Reviews
	}
	return true
}

// isConfiguration reports whether a resource is of webhook or policy configurations.
func isConfiguration(name string) bool {
	return slices.Contains([]string{
		"validatingwebhookconfigurations", "mutatingwebhookconfigurations",
		"validatingadmissionpolicies", "validatingadmissionpolicybindings",
		"mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
	}, name)
}

// index makes hooks of the configurations, in the order of their names.
func (p *plugin) index(manifests, objects []resource.Object) *match.Index[*hook] {
	var hooks []*hook
	compiled := map[condition]func() *expression.Conditions{}
	for i, obj := range slices.Concat(manifests, objects) {
		before := len(hooks)
		switch c := obj.(type) {
		case *registrationv1.MutatingWebhookConfiguration:
			for i := range c.Webhooks {
				h := newHook(&c.Webhooks[i])
				h.again = c.Webhooks[i].ReinvocationPolicy != nil && *c.Webhooks[i].ReinvocationPolicy == registrationv1.IfNeededReinvocationPolicy
				hooks = append(hooks, p.place(h, condition{c, i}, c.Webhooks[i].MatchConditions, compiled))
			}
		case *registrationv1.ValidatingWebhookConfiguration:
			for i := range c.Webhooks {
				w := &c.Webhooks[i]
				h := newHook(&registrationv1.MutatingWebhook{
					Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
					NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects,
					TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions,
				})
				hooks = append(hooks, p.place(h, condition{c, i}, w.MatchConditions, compiled))
			}
		}
		if i < len(manifests) {
			for _, h := range hooks[before:] {
				h.manifest, h.key = true, "manifest/"+h.key
			}
		}
	}
	for i, h := range hooks {
		h.ordinal = i
	}
	p.compiled = compiled
	return match.NewIndex(hooks, func(h *hook) *match.Criteria { return h.criteria }, func(h *hook) match.Needs {
		conditions := h.conditions()
		return match.Needs{All: conditions.Needs(), Excluded: func(op admission.Operation, n int) {
			conditions.Excluded(op, n)
			conditions.Exclude(op, n)
		}}
	})
}

// place sets the configuration of a hook. Match conditions are compiled once, when a write
// first reaches them.
func (p *plugin) place(h *hook, at condition, conditions []registrationv1.MatchCondition, compiled map[condition]func() *expression.Conditions) *hook {
	h.config = at.config.GetName()
	h.key = h.config + "/" + h.name + "/" + strconv.Itoa(at.index)
	f, ok := p.compiled[at]
	if !ok {
		f = sync.OnceValue(func() *expression.Conditions {
			return expression.CompileConditions(p.Expressions.Compiler(), conditions, policycel.Variables{Authorizer: true},
				expression.Owner{Name: h.name, Kind: "webhook", Type: p.kind, Step: p.step}, p.Metrics)
		})
	}
	compiled[at], h.conditions = f, f
	return h
}

func newHook(w *registrationv1.MutatingWebhook) *hook {
	h := &hook{
		name: w.Name, criteria: match.ForWebhook(w.Rules, w.MatchPolicy, w.NamespaceSelector, w.ObjectSelector),
		timeout: defaultTimeout, ignore: w.FailurePolicy != nil && *w.FailurePolicy == registrationv1.Ignore,
		sideEffects: w.SideEffects, versions: w.AdmissionReviewVersions,
		endpoint: webhook.Endpoint{CABundle: w.ClientConfig.CABundle},
	}
	if w.TimeoutSeconds != nil {
		h.timeout = time.Duration(*w.TimeoutSeconds) * time.Second
	}
	if u := w.ClientConfig.URL; u != nil {
		h.endpoint.URL = *u
	}
	if s := w.ClientConfig.Service; s != nil {
		h.endpoint.Service = &webhook.Service{Namespace: s.Namespace, Name: s.Name}
		if s.Path != nil {
			h.endpoint.Service.Path = *s.Path
		}
		if s.Port != nil {
			h.endpoint.Service.Port = *s.Port
		}
	}
	return h
}

// candidates returns the hooks that may match a write.
func (p *plugin) candidates(ctx context.Context, a *admission.Attributes) (*match.Write, *match.Found[*hook], error) {
	index, err := p.followed.Get(ctx)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	if len(index.All()) == 0 {
		return nil, &match.Found[*hook]{}, nil
	}
	w := match.New(a, p.Objects)
	found := index.For(w)
	if gr := a.GroupResource(); gr.Group == registrationv1.GroupName && isConfiguration(gr.Resource) {
		found = found.Only(func(h *hook) bool { return h.manifest })
	}
	return w, found, nil
}

// matchingForm returns the form in which a hook matches a write, nil if it does not.
func (p *plugin) matchingForm(ctx context.Context, w *match.Write, c *match.Candidate[*hook]) (*match.Form, error) {
	h := c.Item
	form, err := c.Match(ctx, w)
	if form == nil || err != nil {
		return nil, err
	}
	conditions := h.conditions()
	if conditions.None() {
		return form, nil
	}
	if conditions.Excludes(ctx, w, form) {
		conditions.Exclude(w.Operation, 1)
		return nil, nil
	}
	met, err := conditions.Match(ctx, expression.Input{Write: w, Form: form, Authorizer: p.Authorizer})
	switch interrupted := w.Interrupted(ctx); {
	case err != nil && interrupted != nil:
		return nil, interrupted
	case err != nil && !h.ignore:
		return nil, apierrors.NewForbidden(w.GroupResource(), w.Name, err)
	case err != nil || !met:
		conditions.Exclude(w.Operation, 1)
		return nil, nil
	}
	return form, nil
}
