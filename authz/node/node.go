// Package node decides what kubelets may do.
//
// A kubelet is a user of the group system:nodes whose name is system:node: and
// the name of its node. It may read those secrets, config maps, claims, volumes,
// service accounts and so on that pods on its node have to do with, which a graph
// (graph.go) knows, and for the rest it may do what every node may.
package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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

// Authorizer decides for nodes.
type Authorizer struct {
	source resource.Follower
	graph  graph
	rules  *rbac.RuleSet
	judges map[schema.GroupResource]func(*question) verdict
}

// New makes an authorizer with what a source tells of pods, persistent volumes,
// volume attachments, resource slices and pod certificate requests.
func New(source resource.Follower) *Authorizer {
	a := &Authorizer{source: source, rules: rbac.NewRuleSet(Rules()), judges: judges()}
	a.graph.clear()
	return a
}

// Measure makes the authorizer measure how long it takes to learn of changes. It must
// be called before anybody asks.
func (a *Authorizer) Measure(to measure.Sink) { a.graph.metrics = to }

// nameOf returns the name of the node that a user is.
func nameOf(user *request.User) (name string, isNode bool) {
	if user == nil || !strings.HasPrefix(user.Name, authz.NodePrefix) || !slices.Contains(user.Groups, authz.Nodes) {
		return "", false
	}
	return user.Name[len(authz.NodePrefix):], true
}

// RulesFor implements authz.Rules: what a node may do cannot be enumerated.
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
		if judge := a.judges[schema.GroupResource{Group: at.Group, Resource: at.Resource}]; judge != nil {
			v := judge(&question{Attributes: at, node: node})
			if v.object == nil {
				return v.decision, v.reason, nil
			}
			return a.related(ctx, node, *v.object)
		}
	}
	if a.rules.Allows(at) {
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, "", nil
}

// related allows what concerns an object that a pod on the node has to do with.
func (a *Authorizer) related(ctx context.Context, node string, object vertex) (authz.Decision, string, error) {
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

// question is what a node wants to do with a resource.
type question struct {
	*authz.Attributes
	node string
}

// verdict is an answer, or the object whose relation to the node is the answer.
type verdict struct {
	decision authz.Decision
	reason   string
	object   *vertex
}

func yes() verdict             { return verdict{decision: authz.Allow} }
func no(reason string) verdict { return verdict{reason: reason} }
func (q *question) ask(k kind) verdict {
	return verdict{object: &vertex{k, q.Namespace, q.Name}}
}

// judges are those who decide about resources of which a node may not see all.
func judges() map[schema.GroupResource]func(*question) verdict {
	return map[schema.GroupResource]func(*question) verdict{
		{Resource: "secrets"}:                                              func(q *question) verdict { return q.read(secret) },
		{Resource: "configmaps"}:                                           func(q *question) verdict { return q.read(configMap) },
		{Resource: "persistentvolumeclaims"}:                               (*question).claim,
		{Resource: "persistentvolumes"}:                                    func(q *question) verdict { return q.get(volume) },
		{Resource: "serviceaccounts"}:                                      (*question).serviceAccount,
		{Resource: "nodes"}:                                                (*question).nodeObject,
		{Resource: "pods"}:                                                 (*question).pod,
		{Group: "resource.k8s.io", Resource: "resourceclaims"}:             func(q *question) verdict { return q.get(resourceClaim) },
		{Group: "resource.k8s.io", Resource: "resourceslices"}:             (*question).resourceSlice,
		{Group: "storage.k8s.io", Resource: "volumeattachments"}:           func(q *question) verdict { return q.get(attachment) },
		{Group: "storage.k8s.io", Resource: "csinodes"}:                    (*question).csiNode,
		{Group: "coordination.k8s.io", Resource: "leases"}:                 (*question).lease,
		{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}: (*question).certificateRequest,
	}
}

func (q *question) verbIs(verbs ...string) bool { return slices.Contains(verbs, q.Verb) }

// selects reports whether a list or watch wants those of this node only.
func (q *question) selects(field string) bool {
	return slices.ContainsFunc(q.Fields, func(r fields.Requirement) bool {
		return r.Field == field && r.Operator == selection.Equals && r.Value == q.node
	})
}

// read is about reading a single object of a namespace, by list and watch too.
func (q *question) read(k kind) verdict {
	switch {
	case !q.ReadOnly():
		return no("can only read resources of this type")
	case q.Subresource != "":
		return no("cannot read subresource")
	case q.Namespace == "":
		return no("can only read namespaced object of this type")
	}
	return q.ask(k)
}

// get is about getting a single object.
func (q *question) get(k kind) verdict {
	switch {
	case q.Verb != request.Get:
		return no("can only get individual resources of this type")
	case q.Subresource != "":
		return no("cannot get subresource")
	}
	return q.ask(k)
}

func (q *question) claim() verdict {
	if q.Subresource != "status" {
		return q.get(claim)
	}
	if !q.verbIs(request.Update, request.Patch) {
		return no("can only get/update/patch this type")
	}
	return q.ask(claim)
}

func (q *question) serviceAccount() verdict {
	switch {
	case q.Verb == request.Get && q.Subresource == "":
		return q.read(serviceAccount)
	case q.Verb != request.Create || q.Name == "":
		return no("can only create tokens for individual service accounts")
	case q.Subresource != "token":
		return no("can only create token subresource of serviceaccount")
	}
	return q.ask(serviceAccount)
}

// nodeObject is about Node objects. Admission sees to it that a node writes its
// own only.
func (q *question) nodeObject() verdict {
	switch {
	case q.Subresource == "status" && q.verbIs(request.Update, request.Patch),
		q.Subresource == "" && q.verbIs(request.Create, request.Update, request.Patch):
		return yes()
	case q.Subresource != "" || !q.ReadOnly():
		return no("")
	case q.Name == q.node:
		// The graph need not know it: a kubelet looks before it creates it.
		return yes()
	case q.Name == "":
		return no(fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", q.node))
	}
	return no(fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", q.node, q.Name))
}

// pod is about pods. Admission limits what a node writes to mirror pods and pods
// on the node.
func (q *question) pod() verdict {
	switch q.Subresource {
	case "":
		switch q.Verb {
		case request.Get:
			return q.get(pod)
		case request.List, request.Watch:
			switch {
			case q.selects("spec.nodeName"):
				return yes()
			case q.Name != "":
				return q.ask(pod)
			}
			return no("can only list/watch pods with spec.nodeName field selector")
		case request.Create, request.Delete:
			return yes()
		}
	case "status":
		if q.verbIs(request.Update, request.Patch) {
			return yes()
		}
	case "eviction":
		if q.Verb == request.Create {
			return yes()
		}
	}
	return no("")
}

func (q *question) resourceSlice() verdict {
	if q.Subresource != "" {
		return no("cannot authorize ResourceSlice subresources")
	}
	switch q.Verb {
	case request.Create:
		return yes() // admission knows the node that it is for
	case request.Get, request.Update, request.Patch, request.Delete:
		return q.ask(slice)
	case request.List, request.Watch, request.DeleteCollection:
		if q.selects("spec.nodeName") {
			return yes()
		}
		return no("can only list/watch/deletecollection resourceslices with nodeName field selector")
	}
	return no("only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection")
}

func (q *question) csiNode() verdict {
	switch {
	case q.Subresource == "status":
		return no("CSINode status access requires CSIVolumeHealth feature")
	case q.Subresource != "":
		return no("cannot authorize CSINode subresources")
	case !q.verbIs(request.Get, request.Create, request.Update, request.Patch, request.Delete):
		return no("can only get, create, update, patch, or delete a CSINode")
	case q.Verb != request.Create && q.Name != q.node:
		return no("can only access CSINode with the same name as the requesting node")
	}
	return yes()
}

func (q *question) lease() verdict {
	switch {
	case !q.verbIs(request.Get, request.Create, request.Update, request.Patch, request.Delete):
		return no("can only get, create, update, patch, or delete a node lease")
	case q.Namespace != leases:
		return no(fmt.Sprintf("can only access leases in the %q system namespace", leases))
	case q.Verb != request.Create && q.Name != q.node:
		return no("can only access node lease with the same name as the requesting node")
	}
	return yes()
}

// leases is the namespace of node leases.
const leases = "kube-node-lease"

func (q *question) certificateRequest() verdict {
	if q.Subresource != "" {
		return no("nodes may not access the status subresource of PodCertificateRequests")
	}
	switch q.Verb {
	case request.Create:
		return yes() // admission knows the node that it is for
	case request.Get:
		return q.ask(certificateRequest)
	case request.List, request.Watch:
		if q.selects("spec.nodeName") {
			return yes()
		}
		return no("can only list/watch podcertificaterequests with nodeName field selector")
	}
	return no(fmt.Sprintf("nodes may not %s podcertificaterequests", q.Verb))
}

// Rules are what every node may do, as far as nothing more special is said
// above. The cluster role system:node has the same.
func Rules() []rbacv1.PolicyRule {
	read := []string{request.Get, request.List, request.Watch}
	rule := func(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Verbs: verbs, Resources: resources}
	}
	v := func(verbs ...string) []string { return verbs }
	return []rbacv1.PolicyRule{
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
		rule("resource.k8s.io", v("get"), "resourceclaims"),
		rule("resource.k8s.io", v("deletecollection"), "resourceslices"),
		rule("certificates.k8s.io", read, "clustertrustbundles"),
		rule("", v("get"), "serviceaccounts"),
		rule("certificates.k8s.io", v("create", "get", "list", "watch"), "podcertificaterequests"),
	}
}
