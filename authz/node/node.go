// Package node is the Node authorizer: it decides what kubelets may do. Start at
// Authorizer and graph. It has no opinion about users that are not nodes, and never
// allows a node to access objects of another node's pods.
//
// A kubelet is a user of the group system:nodes whose name is system:node: and the name
// of its node. It may read the secrets, config maps, claims, volumes and service
// accounts that pods on its node reference, which the graph (graph.go) records; apart
// from these it may do what every node may (Rules).
package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/authz/rbac"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Authorizer implements authz.Authorizer for nodes.
type Authorizer struct {
	source        resource.Follower
	graph         graph
	rules         *rbac.RuleSet
	resourceRules map[schema.GroupResource]func(*nodeRequest) verdict
	features      Features
}

// Features are permissions of nodes that belong to features of Kubernetes.
type Features struct {
	TrustBundles        bool // to read clustertrustbundles
	PodCertificates     bool // to request certificates for pods
	CredentialProviders bool // to read the service accounts of pods
	Devices             bool // to read the resourceclaims of pods, and to keep the resourceslices of the node
	StorageHealth       bool // to report the health of storage in their CSINode
}

// Defaults returns the features that a server has by default.
func Defaults() Features {
	return Features{TrustBundles: true, PodCertificates: true, CredentialProviders: true, Devices: true}
}

// ruleSet is Rules of the default features as all authorizers of a process share it: it is
// not changed.
var ruleSet = sync.OnceValue(func() *rbac.RuleSet { return rbac.NewRuleSet(Rules(Defaults())) })

// New returns an authorizer. The source must deliver pods, persistent volumes, volume
// attachments, resource slices and pod certificate requests.
func New(source resource.Follower, features Features) *Authorizer {
	a := &Authorizer{source: source, features: features, resourceRules: resourceRules()}
	if features == Defaults() {
		a.rules = ruleSet()
	} else {
		a.rules = rbac.NewRuleSet(Rules(features))
	}
	a.graph.clear()
	return a
}

// Measure sets the sink for the duration of graph updates. It must be called before the
// first decision.
func (a *Authorizer) Measure(to measure.Sink) { a.graph.metrics = to }

// nameOf returns the node name of a user.
func nameOf(user *request.User) (name string, isNode bool) {
	if user == nil || !strings.HasPrefix(user.Name, authz.NodePrefix) || !slices.Contains(user.Groups, authz.Nodes) {
		return "", false
	}
	return user.Name[len(authz.NodePrefix):], true
}

// RulesFor implements authz.Rules: the rules of a node cannot be enumerated.
func (a *Authorizer) RulesFor(_ context.Context, user *request.User, _ string) ([]authz.ResourceRule, []authz.PathRule, bool, error) {
	if _, isNode := nameOf(user); isNode {
		return nil, nil, true, errors.New("node authorizer does not support user rule resolution")
	}
	return nil, nil, false, nil
}

// Authorize implements authz.Authorizer.
func (a *Authorizer) Authorize(ctx context.Context, at *authz.Attributes) (authz.Decision, string, error) {
	node, isNode := nameOf(at.User)
	if !isNode {
		return authz.NoOpinion, "", nil
	}
	if node == "" {
		return authz.NoOpinion, fmt.Sprintf("unknown node for user %q", at.User.Name), nil
	}
	if at.IsResource {
		if judge := a.resourceRules[schema.GroupResource{Group: at.Group, Resource: at.Resource}]; judge != nil {
			v := judge(&nodeRequest{Attributes: at, node: node, features: a.features})
			if v.object == nil {
				return v.decision, v.reason, nil
			}
			return a.authorizeRelated(ctx, node, *v.object)
		}
	}
	if a.rules.Allows(at) {
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, "", nil
}

// authorizeRelated allows access to an object if the graph connects it to the node.
func (a *Authorizer) authorizeRelated(ctx context.Context, node string, object vertex) (authz.Decision, string, error) {
	if object.name == "" {
		return authz.NoOpinion, "No Object name found", nil
	}
	if !a.source.Current() {
		if err := a.source.Pull(ctx, a.graph.apply); err != nil {
			return authz.NoOpinion, "", err
		}
	}
	if a.graph.reaches(object, node) {
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, fmt.Sprintf("no relationship found between node '%s' and this object", node), nil
}

// nodeRequest is a request of a node for a resource.
type nodeRequest struct {
	*authz.Attributes
	node     string
	features Features
}

// verdict is a decision, or the object whose connection to the node decides.
type verdict struct {
	decision authz.Decision
	reason   string
	object   *vertex
}

func allow() verdict                  { return verdict{decision: authz.Allow} }
func noOpinion(reason string) verdict { return verdict{reason: reason} }
func (q *nodeRequest) requireRelation(k kind) verdict {
	return verdict{object: &vertex{k, q.Namespace, q.Name}}
}

// resourceRules returns the functions that decide about the resources of which a node may
// access only a part.
func resourceRules() map[schema.GroupResource]func(*nodeRequest) verdict {
	return map[schema.GroupResource]func(*nodeRequest) verdict{
		{Resource: "secrets"}:                                              func(q *nodeRequest) verdict { return q.read(secret) },
		{Resource: "configmaps"}:                                           func(q *nodeRequest) verdict { return q.read(configMap) },
		{Resource: "persistentvolumeclaims"}:                               (*nodeRequest).claim,
		{Resource: "persistentvolumes"}:                                    func(q *nodeRequest) verdict { return q.get(volume) },
		{Resource: "serviceaccounts"}:                                      (*nodeRequest).serviceAccount,
		{Resource: "nodes"}:                                                (*nodeRequest).nodeObject,
		{Resource: "pods"}:                                                 (*nodeRequest).pod,
		{Group: "resource.k8s.io", Resource: "resourceclaims"}:             func(q *nodeRequest) verdict { return q.get(resourceClaim) },
		{Group: "resource.k8s.io", Resource: "resourceslices"}:             (*nodeRequest).resourceSlice,
		{Group: "storage.k8s.io", Resource: "volumeattachments"}:           func(q *nodeRequest) verdict { return q.get(attachment) },
		{Group: "storage.k8s.io", Resource: "csinodes"}:                    (*nodeRequest).csiNode,
		{Group: "coordination.k8s.io", Resource: "leases"}:                 (*nodeRequest).lease,
		{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}: (*nodeRequest).certificateRequest,
	}
}

// verbIs reports whether the verb is one of verbs.
func (q *nodeRequest) verbIs(verbs ...string) bool { return slices.Contains(verbs, q.Verb) }

// selects reports whether a field selector restricts the list or watch to this node.
func (q *nodeRequest) selects(field string) bool {
	return slices.ContainsFunc(q.Fields, func(r fields.Requirement) bool {
		return r.Field == field && r.Operator == selection.Equals && r.Value == q.node
	})
}

// read allows get, list and watch of a single object.
func (q *nodeRequest) read(k kind) verdict {
	switch {
	case !q.ReadOnly():
		return noOpinion("can only read resources of this type")
	case q.Subresource != "":
		return noOpinion("cannot read subresource")
	case q.Namespace == "":
		return noOpinion("can only read namespaced object of this type")
	}
	return q.requireRelation(k)
}

// get allows get of a single object.
func (q *nodeRequest) get(k kind) verdict {
	switch {
	case q.Verb != request.Get:
		return noOpinion("can only get individual resources of this type")
	case q.Subresource != "":
		return noOpinion("cannot get subresource")
	}
	return q.requireRelation(k)
}

func (q *nodeRequest) claim() verdict {
	if q.Subresource != "status" {
		return q.get(claim)
	}
	if !q.verbIs(request.Update, request.Patch) {
		return noOpinion("can only get/update/patch this type")
	}
	return q.requireRelation(claim)
}

func (q *nodeRequest) serviceAccount() verdict {
	switch {
	case q.Verb == request.Get && q.Subresource == "":
		if !q.features.CredentialProviders && !q.features.PodCertificates {
			return noOpinion("not allowed to get service accounts")
		}
		return q.read(serviceAccount)
	case q.Verb != request.Create || q.Name == "":
		return noOpinion("can only create tokens for individual service accounts")
	case q.Subresource != "token":
		return noOpinion("can only create token subresource of serviceaccount")
	}
	return q.requireRelation(serviceAccount)
}

// nodeObject decides about Node objects. The admission plugin NodeRestriction makes
// sure that a node writes only its own.
func (q *nodeRequest) nodeObject() verdict {
	switch {
	case q.Subresource == "status" && q.verbIs(request.Update, request.Patch),
		q.Subresource == "" && q.verbIs(request.Create, request.Update, request.Patch):
		return allow()
	case q.Subresource != "" || !q.ReadOnly():
		return noOpinion("")
	case q.Name == q.node:
		// Allowed without the graph: the kubelet gets its Node before it creates it.
		return allow()
	case q.Name == "":
		return noOpinion(fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", q.node))
	}
	return noOpinion(fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", q.node, q.Name))
}

// pod decides about pods. NodeRestriction limits writes to mirror pods and to pods on
// the node.
func (q *nodeRequest) pod() verdict {
	switch q.Subresource {
	case "":
		switch q.Verb {
		case request.Get:
			return q.get(pod)
		case request.List, request.Watch:
			switch {
			case q.selects("spec.nodeName"):
				return allow()
			case q.Name != "":
				return q.requireRelation(pod)
			}
			return noOpinion("can only list/watch pods with spec.nodeName field selector")
		case request.Create, request.Delete:
			return allow()
		}
	case "status":
		if q.verbIs(request.Update, request.Patch) {
			return allow()
		}
	case "eviction":
		if q.Verb == request.Create {
			return allow()
		}
	}
	return noOpinion("")
}

func (q *nodeRequest) resourceSlice() verdict {
	if q.Subresource != "" {
		return noOpinion("cannot authorize ResourceSlice subresources")
	}
	switch q.Verb {
	case request.Create:
		return allow() // NodeRestriction checks the node name in the object
	case request.Get, request.Update, request.Patch, request.Delete:
		return q.requireRelation(slice)
	case request.List, request.Watch, request.DeleteCollection:
		if q.selects("spec.nodeName") {
			return allow()
		}
		return noOpinion("can only list/watch/deletecollection resourceslices with nodeName field selector")
	}
	return noOpinion("only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection")
}

func (q *nodeRequest) csiNode() verdict {
	switch status := q.Subresource == "status"; {
	case status && !q.features.StorageHealth:
		return noOpinion("CSINode status access requires CSIVolumeHealth feature")
	case status && !q.verbIs(request.Get, request.Update, request.Patch):
		return noOpinion("can only get, update, or patch CSINode status")
	case !status && q.Subresource != "":
		return noOpinion("cannot authorize CSINode subresources")
	case !status && !q.verbIs(request.Get, request.Create, request.Update, request.Patch, request.Delete):
		return noOpinion("can only get, create, update, patch, or delete a CSINode")
	case q.Verb != request.Create && q.Name != q.node:
		return noOpinion("can only access CSINode with the same name as the requesting node")
	}
	return allow()
}

func (q *nodeRequest) lease() verdict {
	switch {
	case !q.verbIs(request.Get, request.Create, request.Update, request.Patch, request.Delete):
		return noOpinion("can only get, create, update, patch, or delete a node lease")
	case q.Namespace != leaseNamespace:
		return noOpinion(fmt.Sprintf("can only access leases in the %q system namespace", leaseNamespace))
	case q.Verb != request.Create && q.Name != q.node:
		return noOpinion("can only access node lease with the same name as the requesting node")
	}
	return allow()
}

// leaseNamespace is the namespace of node leases.
const leaseNamespace = "kube-node-lease"

func (q *nodeRequest) certificateRequest() verdict {
	if !q.features.PodCertificates {
		return noOpinion("")
	}
	if q.Subresource != "" {
		return noOpinion("nodes may not access the status subresource of PodCertificateRequests")
	}
	switch q.Verb {
	case request.Create:
		return allow() // NodeRestriction checks the node name in the object
	case request.Get:
		return q.requireRelation(certificateRequest)
	case request.List, request.Watch:
		if q.selects("spec.nodeName") {
			return allow()
		}
		return noOpinion("can only list/watch podcertificaterequests with nodeName field selector")
	}
	return noOpinion(fmt.Sprintf("nodes may not %s podcertificaterequests", q.Verb))
}

// Rules are what every node may do with the resources that have no function above. The
// cluster role system:node has the same rules.
func Rules(features Features) []rbacv1.PolicyRule {
	read := []string{request.Get, request.List, request.Watch}
	rule := func(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Verbs: verbs, Resources: resources}
	}
	v := func(verbs ...string) []string { return verbs }
	rules := []rbacv1.PolicyRule{
		rule("authentication.k8s.io", v("create"), "tokenreviews"),
		rule("authorization.k8s.io", v("create"), "localsubjectaccessreviews", "subjectaccessreviews"),
		rule("", read, "services"),
		rule("", v("create", "get", "list", "watch"), "nodes"),
		rule("", v("patch", "update"), "nodes/status"),
		rule("", v("patch", "update"), "nodes"),
		{APIGroups: v("", "events.k8s.io"), Verbs: v("create", "patch", "update"), Resources: v("events")},
		rule("", read, "pods"),
		rule("", v("create", "delete"), "pods"),
		rule("", v("patch", "update"), "pods/status"),
		rule("", v("create"), "pods/eviction"),
		rule("", read, "configmaps", "secrets"),
		rule("", v("get"), "persistentvolumeclaims", "persistentvolumes"),
		rule("", v("get"), "endpoints"),
		rule("certificates.k8s.io", v("create", "get", "list", "watch"), "certificatesigningrequests"),
		rule("coordination.k8s.io", v("create", "delete", "get", "patch", "update"), "leases"),
		rule("storage.k8s.io", v("get"), "volumeattachments"),
		rule("", v("create"), "serviceaccounts/token"),
		rule("", v("get", "patch", "update"), "persistentvolumeclaims/status"),
		rule("storage.k8s.io", read, "csidrivers"),
		rule("storage.k8s.io", v("create", "delete", "get", "patch", "update"), "csinodes"),
		rule("node.k8s.io", read, "runtimeclasses"),
	}
	behind := func(feature bool, rule rbacv1.PolicyRule) {
		if feature {
			rules = append(rules, rule)
		}
	}
	behind(features.StorageHealth, rule("storage.k8s.io", v("get", "patch", "update"), "csinodes/status"))
	behind(features.Devices, rule("resource.k8s.io", v("get"), "resourceclaims"))
	behind(features.Devices, rule("resource.k8s.io", v("deletecollection"), "resourceslices"))
	behind(features.TrustBundles, rule("certificates.k8s.io", read, "clustertrustbundles"))
	behind(features.CredentialProviders, rule("", v("get"), "serviceaccounts"))
	behind(features.PodCertificates, rule("certificates.k8s.io", v("create", "get", "list", "watch"), "podcertificaterequests"))
	return rules
}
