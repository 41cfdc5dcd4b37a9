// Package plugin is the plugins that every server has: those of kube-apiserver,
// in its order, with its texts.
//
// A plugin is a small type; related ones share a file. New picks those that are
// switched on and puts them in order, with the plugins that others bring: the
// webhooks and policies, and those of a library user.
package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/quota"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Config says which plugins there are. The zero value has those that are on by
// default.
type Config struct {
	// Enable and Disable switch plugins on and off by name, as
	// --enable-admission-plugins and --disable-admission-plugins do.
	Enable, Disable []string
	// File is the AdmissionConfiguration with the configurations of plugins.
	File string

	// NotReadySeconds and UnreachableSeconds are how long pods stay on a node
	// that is not ready or cannot be reached unless they say; nil is 300.
	NotReadySeconds, UnreachableSeconds *int64
	// MakeAccounts makes the service account default of a namespace when a pod
	// needs it, for servers without the controller that makes it. One that
	// somebody has deleted stays deleted.
	MakeAccounts bool
}

// Authorize tells whether a user may do something. The reason is for the user.
type Authorize func(ctx context.Context, user *request.User, what request.Info) (allowed bool, reason string, err error)

// Objects is what plugins read, and the little that they write, in the name of
// the server.
type Objects interface {
	quota.Objects
	// Create stores a new object.
	Create(ctx context.Context, group, resource string, obj resource.Object) error
}

// Deps is what plugins need from the server.
type Deps struct {
	Objects Objects
	// Authorize is for checks that depend on what the user may do otherwise; nil
	// allows everything.
	Authorize Authorize
	// Kinds returns how a kind is served: in the version if it names one, else
	// in all.
	Kinds func(kind schema.GroupVersionKind) []*resource.Served
	// Plugins are those that are not from here. One with a name in the order, such
	// as MutatingAdmissionWebhook, takes its place; others come before these, and
	// are on unless they are switched off.
	Plugins []admission.Plugin
	// Gates reports whether a feature gate is on that is off by default; nil is none.
	Gates func(name string) bool
	// Metrics measures how long plugins take; nil does not.
	Metrics admission.Metrics
	// Log gets what no client can be told; nil discards it.
	Log *slog.Logger
}

// maker makes a plugin of the order.
type maker struct {
	name string
	on   bool // by default
	make func(b *builder) (admission.Plugin, error)
}

// builder is what makers get.
type builder struct {
	Config
	Deps
	// configuration is the part of the file that is the plugin's; nil if there
	// is none.
	configuration []byte
}

// plain is a maker of a plugin that cannot fail.
func plain(f func(b *builder) admission.Plugin) func(b *builder) (admission.Plugin, error) {
	return func(b *builder) (admission.Plugin, error) { return f(b), nil }
}

// order is all plugins in the order in which they are asked. Those without a
// maker are brought by others.
func order() []maker {
	const on, off = true, false
	return []maker{
		{"AlwaysAdmit", off, plain(func(*builder) admission.Plugin { return base{name: "AlwaysAdmit"} })},
		{"NamespaceAutoProvision", off, plain(newProvision)},
		{"NamespaceLifecycle", on, plain(newLifecycle)},
		{"NamespaceExists", off, plain(newExists)},
		{"LimitPodHardAntiAffinityTopology", off, plain(newAntiAffinity)},
		{"LimitRanger", on, plain(newLimitRanger)},
		{"ServiceAccount", on, plain(newServiceAccount)},
		{"NodeRestriction", off, plain(newNodeRestriction)},
		{"TaintNodesByCondition", on, plain(newNodeTaint)},
		{"AlwaysPullImages", off, plain(newAlwaysPull)},
		{"ImagePolicyWebhook", off, newImagePolicy},
		{"PodSecurity", on, newPodSecurity},
		{"PodNodeSelector", off, newPodNodeSelector},
		{"Priority", on, plain(newPriority)},
		{"DefaultTolerationSeconds", on, plain(newTolerationSeconds)},
		{"PodTolerationRestriction", off, newTolerationRestriction},
		{"EventRateLimit", off, newEventRateLimit},
		{"ExtendedResourceToleration", off, plain(newExtendedResources)},
		{"DefaultStorageClass", on, plain(newDefaultStorageClass)},
		{"StorageObjectInUseProtection", on, plain(newInUseProtection)},
		{"PodGroupProtection", on, plain(newGroupProtection)},
		{"OwnerReferencesPermissionEnforcement", off, plain(newOwnerReferences)},
		{"PersistentVolumeClaimResize", on, plain(newClaimResize)},
		{"RuntimeClass", on, plain(newRuntimeClass)},
		{"CertificateApproval", on, plain(newCertificateApproval)},
		{"CertificateSigning", on, plain(newCertificateSigning)},
		{"ClusterTrustBundleAttest", on, plain(newTrustBundleAttest)},
		{"CertificateSubjectRestriction", on, plain(newSubjectRestriction)},
		{"DefaultIngressClass", on, plain(newDefaultIngressClass)},
		{"DenyServiceExternalIPs", off, plain(newDenyExternalIPs)},
		{"PodTopologyLabels", on, plain(newTopologyLabels)},
		{"NodeDeclaredFeatureValidator", on, plain(newDeclaredFeatures)},
		{"PodResizeValidator", on, plain(newPodResize)},

		{"MutatingAdmissionPolicy", on, nil},
		{"MutatingAdmissionWebhook", on, nil},
		{"ValidatingAdmissionPolicy", on, nil},
		{"ValidatingAdmissionWebhook", on, nil},
		{"ResourceQuota", on, newResourceQuota},
		{"AlwaysDeny", off, plain(newAlwaysDeny)},
	}
}

// firstOfOthers is before which plugin those of library users come.
const firstOfOthers = "MutatingAdmissionPolicy"

// Names returns the names of all plugins in their order, and which of them are
// on by default.
func Names() (all, on []string) {
	for _, m := range order() {
		all = append(all, m.name)
		if m.on {
			on = append(on, m.name)
		}
	}
	return all, on
}

// New returns the chain of the plugins that are switched on.
func New(cfg Config, deps Deps) (*admission.Chain, error) {
	plugins, err := Plugins(cfg, deps)
	if err != nil {
		return nil, err
	}
	chain := admission.NewChain(plugins...)
	chain.Metrics = deps.Metrics
	return chain, nil
}

// Plugins returns the plugins that are switched on, in their order.
func Plugins(cfg Config, deps Deps) ([]admission.Plugin, error) {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Authorize == nil {
		deps.Authorize = func(context.Context, *request.User, request.Info) (bool, string, error) { return true, "", nil }
	}
	makers := withOthers(order(), deps.Plugins)
	if err := cfg.validate(makers); err != nil {
		return nil, err
	}
	var enabled []maker
	for _, m := range makers {
		if cfg.enabled(m) {
			enabled = append(enabled, m)
		}
	}
	configurations, err := cfg.read(enabled)
	if err != nil {
		return nil, fmt.Errorf("failed to read plugin config: %w", err)
	}
	var plugins []admission.Plugin
	for _, m := range enabled {
		if m.make == nil {
			continue // nobody has brought it
		}
		configuration, err := configurations.of(m.name)
		if err != nil {
			return nil, err
		}
		p, err := m.make(&builder{Config: cfg, Deps: deps, configuration: configuration})
		if err != nil {
			return nil, fmt.Errorf("couldn't init admission plugin %q: %w", m.name, err)
		}
		plugins = append(plugins, p)
	}
	return plugins, nil
}

func (c Config) enabled(m maker) bool {
	return slices.Contains(c.Enable, m.name) || m.on && !slices.Contains(c.Disable, m.name)
}

// withOthers puts plugins that are not from here into the order.
func withOthers(makers []maker, others []admission.Plugin) []maker {
	for _, other := range others {
		brought := maker{other.Name(), true, plain(func(*builder) admission.Plugin { return other })}
		if i := slices.IndexFunc(makers, func(m maker) bool { return m.name == other.Name() }); i >= 0 {
			brought.on = makers[i].on
			makers[i] = brought
			continue
		}
		i := slices.IndexFunc(makers, func(m maker) bool { return m.name == firstOfOthers })
		makers = slices.Insert(makers, i, brought)
	}
	return makers
}

// Validate refuses plugins that are not built in, and those that are both on and off.
func (c Config) Validate() error { return c.validate(order()) }

// validate checks the names of plugins.
func (c Config) validate(makers []maker) error {
	known := func(name string) bool {
		return slices.ContainsFunc(makers, func(m maker) bool { return m.name == name })
	}
	var problems []error
	for _, flag := range []struct {
		name  string
		names []string
	}{{"enable-admission-plugins", c.Enable}, {"disable-admission-plugins", c.Disable}} {
		for _, name := range flag.names {
			if !known(name) {
				problems = append(problems, fmt.Errorf("%s plugin %q is unknown", flag.name, name))
			}
		}
	}
	var both []string
	for _, name := range c.Enable {
		if slices.Contains(c.Disable, name) && !slices.Contains(both, name) {
			both = append(both, name)
		}
	}
	if slices.Sort(both); len(both) > 0 {
		problems = append(problems, fmt.Errorf("%v in enable-admission-plugins and disable-admission-plugins overlapped", both))
	}
	if len(problems) == 0 {
		return nil
	}
	return utilerrors.NewAggregate(problems)
}

// base is the name of a plugin and what it looks at; nil handles nothing.
type base struct {
	name    string
	handles func(t admission.Target) bool
}

// Name implements admission.Plugin.
func (b base) Name() string { return b.name }

// Handles implements admission.Plugin.
func (b base) Handles(t admission.Target) bool { return b.handles != nil && b.handles(t) }

// on handles writes to a resource itself, not to its subresources.
func on(group, name string, ops ...admission.Operation) func(t admission.Target) bool {
	return func(t admission.Target) bool {
		return t.Group == group && t.Resource == name && t.Subresource == "" && slices.Contains(ops, t.Operation)
	}
}

// get reads an object of a type of Go.
func get[T resource.Object](ctx context.Context, objects admission.Objects, group, name, namespace, key string) (T, error) {
	obj, err := objects.Get(ctx, group, name, namespace, key)
	return typed[T](obj, err)
}

// newest is get, and asks for the newest state if there seems to be none.
func newest[T resource.Object](ctx context.Context, objects admission.Objects, group, name, namespace, key string) (T, error) {
	obj, err := get[T](ctx, objects, group, name, namespace, key)
	if !apierrors.IsNotFound(err) {
		return obj, err
	}
	now, err := objects.GetNewest(ctx, group, name, namespace, key)
	return typed[T](now, err)
}

// list reads the objects of a namespace.
func list[T resource.Object](ctx context.Context, objects admission.Objects, group, name, namespace string) ([]T, error) {
	objs, err := objects.List(ctx, group, name, namespace)
	if err != nil || len(objs) == 0 {
		return nil, err
	}
	typed := make([]T, 0, len(objs))
	for _, obj := range objs {
		if t, ok := obj.(T); ok {
			typed = append(typed, t)
		}
	}
	return typed, nil
}

func typed[T resource.Object](obj resource.Object, err error) (T, error) {
	t, ok := obj.(T)
	if err == nil && !ok {
		err = apierrors.NewInternalError(fmt.Errorf("unexpected type %T", obj))
	}
	return t, err
}

// newResourceQuota makes the plugin of another package.
func newResourceQuota(b *builder) (admission.Plugin, error) {
	limited, err := quota.Load(b.configuration)
	if err != nil {
		return nil, err
	}
	return quota.New(b.Objects, limited, b.Log), nil
}

// alwaysDeny refuses everything.
type alwaysDeny struct{ base }

func newAlwaysDeny(*builder) admission.Plugin {
	return alwaysDeny{base{"AlwaysDeny", func(admission.Target) bool { return true }}}
}

func (alwaysDeny) Admit(_ context.Context, a *admission.Attributes) error {
	return a.Forbidden(fmt.Errorf("admission control is denying all modifications"))
}

func (d alwaysDeny) Validate(ctx context.Context, a *admission.Attributes) error {
	return d.Admit(ctx, a)
}
