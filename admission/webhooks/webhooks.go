// Package webhooks asks services about writes: MutatingAdmissionWebhook and
// ValidatingAdmissionWebhook.
//
// Nothing is prepared for a write that no webhook is about. The time and the
// memory that a service can take up are bounded; what its failure means is for
// its configuration to say.
package webhooks

import (
	"context"
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

// defaultTimeout is what a webhook has that does not say.
const defaultTimeout = 10 * time.Second

// Config is what the plugins need from outside.
type Config struct {
	// Source tells of the configurations of a plugin. Required.
	Source resource.Follower
	// Manifests returns the configurations that come from files, which are asked
	// first; nil if there never are any.
	Manifests func() *admission.Manifests
	// Objects are namespaces. Required.
	Objects admission.Objects
	// Client calls. Required.
	Client *webhook.Client
	// Authorizer answers the questions of match conditions; without one everything
	// is denied.
	Authorizer expression.Authorizer
	// Expressions compiles; the default is an environment of the plugin's own.
	Expressions *policycel.Environment
	// Metrics measures; nil does not.
	Metrics admission.Metrics
	Logger  *slog.Logger
}

// plugin is what both have in common.
type plugin struct {
	Config
	step     string // as exclusions are measured
	kind     string // as everything else is
	followed admission.Followed[*match.Index[*hook]]
	compiled map[condition]func() *expression.Conditions
}

// condition tells match conditions apart: those of a hook at a place in a
// configuration, which is never changed.
type condition struct {
	config resource.Object
	index  int
}

// hook is a webhook.
type hook struct {
	name, config string
	// key tells it from all others, ordinal is its place among them.
	key     string
	ordinal int
	// manifest: it is named in a file.
	manifest bool

	criteria    *match.Criteria
	conditions  func() *expression.Conditions
	endpoint    webhook.Endpoint
	timeout     time.Duration
	ignore      bool // failures
	sideEffects *registrationv1.SideEffectClass
	versions    []string
	again       bool
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

// Handles implements admission.Plugin: nobody is asked about webhooks and
// policies, but who is named in a file, nor about the questions by which a
// cluster finds out who may do what. A service that says no to those could not be
// got rid of.
func (p *plugin) Handles(t admission.Target) bool {
	switch t.Group {
	case registrationv1.GroupName:
		return p.Manifests != nil || !isConfiguration(t.Resource)
	case "authentication.k8s.io", "authorization.k8s.io":
		return false
	}
	return true
}

// isConfiguration reports whether a resource of the group is of those that say
// what admission does.
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

// place tells a hook where it is from. Conditions are compiled once, when a write
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

// candidates returns the hooks that may be about a write.
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

// wanted returns the form in which a hook wants to be asked about a write, nil if
// it does not.
func (p *plugin) wanted(ctx context.Context, w *match.Write, c *match.Candidate[*hook]) (*match.Form, error) {
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
	switch {
	case err != nil && !h.ignore:
		return nil, apierrors.NewForbidden(w.GroupResource(), w.Name, err)
	case err != nil || !met:
		conditions.Exclude(w.Operation, 1)
		return nil, nil
	}
	return form, nil
}
