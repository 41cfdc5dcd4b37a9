// Package plugin has the built-in admission plugins of kube-apiserver, in its order and with
// its messages. Start at Config and New, which builds the chain of the enabled plugins
// together with those that others bring: webhooks, policies and plugins of library users.
// Each plugin is a small type; related ones share a file. Plugins must read other objects
// only through admission.Objects.
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

// Config selects and configures plugins. The zero value enables the default ones.
type Config struct {
	// Enable and Disable are plugin names, as in --enable-admission-plugins and
	// --disable-admission-plugins.
	Enable, Disable []string
	// File is the path of an AdmissionConfiguration.
	File string

	// NotReadySeconds and UnreachableSeconds are the default tolerationSeconds of pods
	// for the taints not-ready and unreachable; nil is 300.
	NotReadySeconds, UnreachableSeconds *int64
	// MakeAccounts creates the service account "default" of a namespace when a pod
	// needs it before the controller has created it. A deleted one is not created again.
	// Without it, as in kube-apiserver, a pod waits for somebody else to create the account.
	MakeAccounts bool
}

// Authorize asks the authorizer whether a user may do something. reason is for the user.
type Authorize func(ctx context.Context, user *request.User, what request.Info) (allowed bool, reason string, err error)

// Objects is what plugins read, and create as the server itself.
type Objects interface {
	quota.Objects
	// Create stores a new object.
	Create(ctx context.Context, group, resource string, obj resource.Object) error
}

// Deps are the dependencies of plugins.
type Deps struct {
	Objects Objects
	// Authorize is for plugins that check further permissions of the user; nil allows
	// everything.
	Authorize Authorize
	// Kinds returns the resources of a kind: in its version if it has one, otherwise in
	// all.
	Kinds func(kind schema.GroupVersionKind) []*resource.Served
	// Charges is shared with the controller that recounts quotas; nil if another program recounts them.
	Charges *quota.Ledger
	// Plugins are made outside of this package. One with a name in the order, such as
	// MutatingAdmissionWebhook, is put there; others come before firstOfOthers, and are
	// enabled unless disabled by name.
	Plugins []admission.Plugin
	// Gates reports whether a feature gate is enabled; with nil all are as they are by
	// default.
	Gates func(name string) bool
	// Metrics measures how long plugins take; nil for none.
	Metrics admission.Metrics
	// Log is for errors that no client sees; nil discards them.
	Log *slog.Logger
}

// maker is an entry of the order: how a plugin is made.
type maker struct {
	name string
	on   bool // enabled by default
	make func(b *builder) (admission.Plugin, error)
}

// builder is the argument of makers.
type builder struct {
	Config
	Deps
	// configuration of the plugin in the file; nil if there is none.
	configuration []byte
}

// plain is a maker that cannot fail.
func plain(f func(b *builder) admission.Plugin) func(b *builder) (admission.Plugin, error) {
	return func(b *builder) (admission.Plugin, error) { return f(b), nil }
}

// order returns all plugins in the order in which they run. Those without a maker are made
// outside of this package.
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

// firstOfOthers is the plugin before which those of library users are inserted.
const firstOfOthers = "MutatingAdmissionPolicy"

// Names returns the names of all plugins in order, and those enabled by default.
func Names() (all, on []string) {
	for _, m := range order() {
		all = append(all, m.name)
		if m.on {
			on = append(on, m.name)
		}
	}
	return all, on
}

// New returns the chain of the enabled plugins.
func New(cfg Config, deps Deps) (*admission.Chain, error) {
	plugins, err := Plugins(cfg, deps)
	if err != nil {
		return nil, err
	}
	chain := admission.NewChain(plugins...)
	chain.Metrics = deps.Metrics
	return chain, nil
}

// Plugins returns the enabled plugins in order.
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
			continue // made elsewhere, and not given
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

// withOthers inserts plugins that are made outside of this package.
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

// Validate returns an error for unknown plugin names, and for plugins both enabled and
// disabled.
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

// base has the name of a plugin and which writes it handles; nil handles nothing.
type base struct {
	name    string
	handles func(t admission.Target) bool
}

// Name implements admission.Plugin.
func (b base) Name() string { return b.name }

// Handles implements admission.Plugin.
func (b base) Handles(t admission.Target) bool { return b.handles != nil && b.handles(t) }

// on matches writes to a resource, not to its subresources.
func on(group, name string, ops ...admission.Operation) func(t admission.Target) bool {
	return func(t admission.Target) bool {
		return t.Group == group && t.Resource == name && t.Subresource == "" && slices.Contains(ops, t.Operation)
	}
}

// get reads an object of a Go type.
func get[T resource.Object](ctx context.Context, objects admission.Objects, group, name, namespace, key string) (T, error) {
	obj, err := objects.Get(ctx, group, name, namespace, key)
	return typed[T](obj, err)
}

// newest is get, with a consistent read if the watch cache does not have the object.
func newest[T resource.Object](ctx context.Context, objects admission.Objects, group, name, namespace, key string) (T, error) {
	obj, err := get[T](ctx, objects, group, name, namespace, key)
	if err == nil || !apierrors.IsNotFound(err) { // which allocates, also for nil
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

// newResourceQuota makes the plugin of package quota.
func newResourceQuota(b *builder) (admission.Plugin, error) {
	limited, err := quota.Load(b.configuration)
	if err != nil {
		return nil, err
	}
	return quota.New(b.Objects, limited, quota.Settings{NoDevices: b.Gates != nil && !b.Gates("DynamicResourceAllocation")}, b.Charges, b.Log), nil
}

// alwaysDeny is AlwaysDeny: it refuses everything.
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
