// Package dra is the API group resource.k8s.io, dynamic resource allocation: drivers publish
// devices in slices, claims request devices, and the scheduler allocates them. Start at Group
// and Config; each kind is a file, and values.go has what they share.
package dra

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/apikeel/kelson/resource"
)

// Config are the dependencies of the group.
type Config struct {
	// AdminNamespace reports whether claims in a namespace may use adminAccess, because
	// the namespace has the label AdminLabel. Nil is false.
	AdminNamespace func(ctx context.Context, namespace string) (bool, error)
	// MayBind authorizes changes of allocation and reservedFor of a claim. Its error is
	// reported to the client. Nil allows everyone.
	MayBind func(ctx context.Context) error
	// MayReport authorizes changes of the device statuses of a driver: one of the verbs
	// on resourceclaims/driver is enough. Its error is reported to the client. Nil
	// allows everyone.
	MayReport func(ctx context.Context, driver string, verbs []string) error
}

// AdminLabel must be "true" on a namespace with admin access.
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
		rewriteErrors(&d.Strategy)
		for _, sub := range d.Subresources {
			rewriteErrors(sub.Part)
		}
	}
	return group
}
