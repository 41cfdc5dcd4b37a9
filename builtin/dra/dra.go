// Package dra is the API group resource.k8s.io, dynamic resource allocation:
// drivers offer devices in slices, claims ask for some, and the scheduler
// allocates them. A file is a kind; what they have in common is in values.go.
package dra

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/apikeel/kelson/resource"
)

// Config is what the group needs from outside.
type Config struct {
	// AdminNamespace reports whether claims in a namespace may ask for access to
	// devices that are in use, because it has the label AdminLabel. Nil is no
	// for every namespace.
	AdminNamespace func(ctx context.Context, namespace string) (bool, error)
	// MayBind judges who changes the allocation of a claim, or for whom it is
	// reserved. The error is shown. Nil allows everyone.
	MayBind func(ctx context.Context) error
	// MayReport judges who changes what a driver reports about its devices: one of
	// the verbs on resourceclaims/driver is enough. The error is shown. Nil
	// allows everyone.
	MayReport func(ctx context.Context, driver string, verbs []string) error
}

// AdminLabel has to be "true" on a namespace for AdminNamespace.
const AdminLabel = resourcev1.DRAAdminNamespaceLabelKey

// Group returns the group.
func Group(cfg Config) resource.Group {
	if cfg.AdminNamespace == nil {
		cfg.AdminNamespace = func(context.Context, string) (bool, error) { return false, nil }
	}
	if cfg.MayBind == nil {
		cfg.MayBind = func(context.Context) error { return nil }
	}
	if cfg.MayReport == nil {
		cfg.MayReport = func(context.Context, string, []string) error { return nil }
	}
	selectors := new(Selectors)
	group := resource.Group{Name: resourcev1.GroupName, Resources: []resource.Definition{
		DeviceClasses(selectors),
		TaintRules(),
		Claims(cfg, selectors),
		ClaimTemplates(cfg, selectors),
		PoolRequests(),
		Slices(),
	}}
	for i := range group.Resources {
		d := &group.Resources[i]
		inItsVersion(&d.Strategy)
		for _, sub := range d.Subresources {
			inItsVersion(sub.Part)
		}
	}
	return group
}
