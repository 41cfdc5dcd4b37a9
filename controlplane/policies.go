package controlplane

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/expression"
	"github.com/apikeel/kelson/admission/manifests"
	"github.com/apikeel/kelson/admission/policy"
	"github.com/apikeel/kelson/admission/webhooks"
	"github.com/apikeel/kelson/aggregator"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/builtin/admissionregistration"
	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/managedfields"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/metrics/servercert"
	"github.com/apikeel/kelson/openapi"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/webhook"
)

// policies are the plugins that apply what the API is told: policies and
// webhooks.
func (a *assembly) policies(objects admission.Objects, measured admission.Metrics) ([]admission.Plugin, error) {
	const group = "admissionregistration.k8s.io"
	follow := func(names ...string) resource.Follower {
		var resources []schema.GroupResource
		for _, name := range names {
			resources = append(resources, schema.GroupResource{Group: group, Resource: name})
		}
		f := a.resources.Follow(resources...)
		f.Complete = true // a policy that cannot be read must not be as good as none
		return f
	}
	cfg := policy.Config{
		Objects: objects, Catalog: a.catalogs.get, Authorizer: checks(a.authz), Types: (&managedfields.Served{Catalog: a.catalogs.get}).Type,
		Expressions: new(policycel.Environment), Metrics: measured,
	}
	hooks := webhooks.Config{
		Objects: cfg.Objects, Authorizer: cfg.Authorizer, Logger: a.Logger, Expressions: cfg.Expressions,
		Metrics: measured, Reviews: !a.Gates.Enabled("ExcludeAdmissionWebhookVirtualResources"),
	}
	var plugins []admission.Plugin
	for _, p := range []struct {
		name      string
		resources []string
		kinds     []string
		make      func() admission.Plugin
	}{
		{"MutatingAdmissionPolicy", []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"},
			[]string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}, func() admission.Plugin { return policy.NewMutating(cfg) }},
		{"ValidatingAdmissionPolicy", []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"},
			[]string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}, func() admission.Plugin { return policy.NewValidating(cfg) }},
		{"MutatingAdmissionWebhook", []string{"mutatingwebhookconfigurations"},
			[]string{"MutatingWebhookConfiguration"}, func() admission.Plugin { return webhooks.NewMutating(hooks) }},
		{"ValidatingAdmissionWebhook", []string{"validatingwebhookconfigurations"},
			[]string{"ValidatingWebhookConfiguration"}, func() admission.Plugin { return webhooks.NewValidating(hooks) }},
	} {
		if p.name == "MutatingAdmissionPolicy" && !a.Gates.Enabled(p.name) {
			continue
		}
		cfg.Source = follow(p.resources...)
		hooks.Source = cfg.Source
		sources, err := a.Admission.Sources(p.name)
		if err == nil {
			hooks.Client, err = a.admissionCaller(sources.Kubeconfig)
		}
		if err != nil {
			return nil, fmt.Errorf("couldn't init admission plugin %q: %w", p.name, err)
		}
		if cfg.Manifests, err = a.manifests(p.name, sources.Manifests, p.kinds, measured); err != nil {
			return nil, err
		}
		hooks.Manifests = cfg.Manifests
		plugins = append(plugins, p.make())
	}
	return plugins, nil
}

// manifests opens the directory of the manifests of a plugin, which is followed
// while the server runs.
func (a *assembly) manifests(plugin, path string, kinds []string, measured admission.Metrics) (func() *admission.Manifests, error) {
	if path == "" {
		return nil, nil
	}
	what := "policy"
	if strings.HasSuffix(plugin, "Webhook") {
		what = "webhook"
	}
	if gate := "ManifestBasedAdmissionControlConfig"; !a.Gates.Enabled(gate) {
		return nil, fmt.Errorf("failed to initialize admission: static %s manifests dir %q configured but %s feature gate is not enabled", what, path, gate)
	}
	cfg := manifests.Config{
		Plugin: plugin, Path: path, Kinds: map[string]*resource.Definition{}, Server: measure.ServerName(), Metrics: measured, Logger: a.Logger,
	}
	group := admissionregistration.Group(admissionregistration.Config{Manifests: true})
	for i := range group.Resources {
		if slices.Contains(kinds, group.Resources[i].Kind) {
			cfg.Kinds[group.Resources[i].Kind] = &group.Resources[i]
		}
	}
	dir, err := manifests.Open(cfg)
	if err != nil {
		return nil, fmt.Errorf("failed to initialize admission: failed to load static %s manifests from %q: %w", what, path, err)
	}
	a.manifestDirs = append(a.manifestDirs, dir)
	return dir.Current, nil
}

// admissionCaller makes the client of a plugin, with the credentials of a file if
// there is one.
func (a *assembly) admissionCaller(file string) (c *webhook.Client, err error) {
	c = a.caller("kube-apiserver-admission")
	if file != "" {
		c.Credentials, err = webhook.LoadCredentials(file)
	}
	return c, err
}

// checker looks for mistakes in the expressions of policies.
func (a *assembly) checker() *policy.Checker {
	return &policy.Checker{Catalog: a.catalogs.get, Schema: openapi.Schema, Expressions: new(policycel.Environment)}
}

// caller makes a client of webhooks, which is closed with the server.
func (a *assembly) caller(agent string) *webhook.Client {
	c := &webhook.Client{
		Resolve: a.resolver(), ResolveOnDial: !a.Gates.Enabled("WebhookRoundTripLoadBalancing"),
		UserAgent: agent, TellTimeout: true, Self: a.outer.Loopback(loopbackUser()),
		Dial: a.Egress.For("cluster"), DialURL: a.Egress.For("controlplane"),
	}
	c.Hold = func(ctx context.Context, bytes int64) (release func(), err error) {
		r := request.Of(ctx)
		return a.Memory.Webhooks.Acquire(ctx, bytes, r != nil && r.User.IsAdministrator())
	}
	c.Tracer = a.outer.Tracer
	c.Called, c.Certificates = a.called, servercert.OfWebhooks(a.measured, a.Logger)
	a.onClose(c.Close)
	return c
}

// checks answers what expressions ask.
func checks(a authz.Authorizer) expression.Authorizer {
	return func(ctx context.Context, c *expression.Check) (bool, string, error) {
		decision, reason, err := a.Authorize(ctx, &authz.Attributes{
			User: &c.User, Verb: c.Verb, IsResource: c.IsResource, Group: c.Group, Version: c.Version, Namespace: c.Namespace,
			Resource: c.Resource, Subresource: c.Subresource, Name: c.Name, Path: c.Path,
			Fields: c.Fields, FieldsErr: c.FieldsErr, Labels: c.Labels, LabelsErr: c.LabelsErr,
		})
		return decision == authz.Allow, reason, err
	}
}

// resolver returns a webhook.Resolver: services are reached at the addresses at which the
// aggregator reaches them.
func (a *assembly) resolver() webhook.Resolver {
	services := &aggregator.Resolver{
		Objects:   func(group, name string) resource.Lister { return a.resources.Objects(group, name).Cached() },
		Endpoints: a.Aggregation.EndpointRouting,
	}
	return func(ctx context.Context, namespace, name string, port int32) (string, error) {
		addresses, err := services.Addresses(ctx, namespace, name, port)
		if err != nil {
			return "", err
		}
		return addresses[rand.IntN(len(addresses))], nil
	}
}
