package controlplane

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/authz/chain"
	"github.com/apikeel/kelson/authz/node"
	"github.com/apikeel/kelson/authz/rbac"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/rest"
)

// roles are the resources that RBAC decides by.
func roles() []schema.GroupResource {
	const group = "rbac.authorization.k8s.io"
	return []schema.GroupResource{
		{Group: group, Resource: "clusterroles"}, {Group: group, Resource: "clusterrolebindings"},
		{Group: group, Resource: "roles"}, {Group: group, Resource: "rolebindings"},
	}
}

// newestRoles waits until the caches have the roles and bindings that any server has
// acknowledged by now.
func (a *assembly) newestRoles(ctx context.Context) error {
	waited := map[int]bool{}
	for _, r := range roles() {
		n := a.places.number(r.Group, r.Resource)
		if waited[n] {
			continue
		}
		waited[n] = true
		if err := a.places.all[n].current(ctx); err != nil {
			return err
		}
	}
	return nil
}

// related are the resources that say which objects a node needs.
func related(gates features.Gates) []schema.GroupResource {
	all := []schema.GroupResource{
		{Resource: "pods"}, {Resource: "persistentvolumes"},
		{Group: "storage.k8s.io", Resource: "volumeattachments"},
		{Group: "certificates.k8s.io", Resource: "podcertificaterequests"},
	}
	if gates.Enabled(deviceAllocation) {
		all = append(all, schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"})
	}
	return all
}

// deviceAllocation is the gate of claims for devices.
const deviceAllocation = "DynamicResourceAllocation"

// authorizers makes the chain of authorizers, and what keeps users from
// giving away rights that they do not have.
func authorizers(cfg chain.Config, resources *rest.Handler, gates features.Gates) (*chain.Chain, *rbac.Guard, error) {
	byRole := rbac.New(resources.Follow(roles()...))
	cfg.RBAC = byRole
	byNode := node.New(resources.Follow(related(gates)...), node.Features{
		TrustBundles: gates.Enabled("ClusterTrustBundle"), PodCertificates: gates.Enabled("PodCertificateRequest"),
		CredentialProviders: gates.Enabled("KubeletServiceAccountTokenForCredentialProviders"), StorageHealth: gates.Enabled("CSIVolumeHealth"),
		Devices: gates.Enabled(deviceAllocation),
	})
	byNode.Measure(cfg.Metrics)
	cfg.Node = byNode
	all, err := chain.New(cfg)
	return all, &rbac.Guard{Authorizer: all, Roles: byRole}, err
}
