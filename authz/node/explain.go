package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/apikeel/kelson/authz"
)

// This file explains decisions: by which objects a node reaches the one that it asks
// for, or which connection is missing.

// maxPaths is the largest number of paths in an explanation.
const maxPaths = 10

// Explain implements authz.Explainer.
func (a *Authorizer) Explain(ctx context.Context, at *authz.Attributes) (d authz.Detail, _ error) {
	node, isNode := nameOf(at.User)
	if !isNode {
		return authz.Detail{Notes: []string{"the user is not a node"}}, nil
	}
	if !at.IsResource || node == "" {
		return d, nil
	}
	judge := a.resourceRules[schema.GroupResource{Group: at.Group, Resource: at.Resource}]
	if judge == nil {
		return d, nil
	}
	v := judge(&nodeRequest{Attributes: at, node: node, features: a.features})
	if v.object == nil || v.object.name == "" {
		return d, nil
	}
	if !a.source.Current() {
		if err := a.source.Pull(ctx, a.graph.apply); err != nil {
			return d, err
		}
	}
	d.Paths = a.graph.paths(*v.object, node)
	if !slices.ContainsFunc(d.Paths, func(p authz.Path) bool { return p.Node == node }) {
		d.Missing = missing(*v.object, node)
	}
	return d, nil
}

// missing says what would connect an object with a node.
func missing(object vertex, node string) string {
	name := object.name
	if object.namespace != "" {
		name = object.namespace + "/" + name
	}
	switch k := object.kind.name(); object.kind {
	case pod, attachment, slice, certificateRequest:
		return fmt.Sprintf("%s %q on node %q", k.word, name, node)
	case volume:
		return fmt.Sprintf("a pod on node %q that uses the claim to which %s %q is bound", node, k.word, name)
	default:
		return fmt.Sprintf("a pod on node %q that uses %s %q", node, k.word, name)
	}
}

// WhoCan implements authz.Finder.
func (a *Authorizer) WhoCan(ctx context.Context, at *authz.Attributes, found func(authz.Grant) bool) (string, error) {
	everyNode := authz.Grant{Subject: &authz.Subject{Kind: "Group", Name: authz.Nodes}, Policy: "every node may do this"}
	judge := a.resourceRules[schema.GroupResource{Group: at.Group, Resource: at.Resource}]
	if !at.IsResource || judge == nil {
		if a.rules.Allows(at) {
			found(everyNode)
		}
		return "", nil
	}
	// What is allowed to a node that cannot exist is allowed to every node.
	v := judge(&nodeRequest{Attributes: at, node: "\x00", features: a.features})
	if v.object != nil {
		if !a.source.Current() {
			if err := a.source.Pull(ctx, a.graph.apply); err != nil {
				return "", err
			}
		}
		for _, node := range a.graph.nodesOf(*v.object) {
			g := authz.Grant{Subject: &authz.Subject{Kind: "User", Name: authz.NodePrefix + node}, Policy: "the object belongs to this node, or a pod on it uses it"}
			if !found(g) {
				break
			}
		}
		return "", nil
	}
	if v.decision == authz.Allow {
		found(everyNode)
		return "", nil
	}
	// Otherwise it may be allowed to the node that the request names.
	named := []string{at.Name}
	for _, r := range at.Fields {
		if r.Operator == selection.Equals {
			named = append(named, r.Value)
		}
	}
	for _, node := range slices.Compact(named) {
		if node == "" {
			continue
		}
		v := judge(&nodeRequest{Attributes: at, node: node, features: a.features})
		g := authz.Grant{Subject: &authz.Subject{Kind: "User", Name: authz.NodePrefix + node}, Policy: "a node may do this with what is its own"}
		if v.object == nil && v.decision == authz.Allow && !found(g) {
			break
		}
	}
	return "", nil
}

// paths returns how anchors reach an object: those on the node first, then those on
// other nodes.
func (g *graph) paths(object vertex, node string) (paths []authz.Path) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	// ways are the vertices that an anchor may reference, with what follows from there.
	ways := map[vertex][]vertex{object: {object}}
	switch object.kind {
	case volume:
		if v, ok := g.volumes[object.name]; ok && object.namespace == "" {
			ways[v.claim] = []vertex{v.claim, object}
		}
	case secret:
		for name := range g.secrets[object] {
			v := g.volumes[name]
			ways[v.claim] = []vertex{v.claim, {volume, "", name}, object}
		}
	}
	own, others := []authz.Path{}, 0
	for v, a := range g.anchors {
		if a.node != node && others >= maxPaths || len(own) >= maxPaths {
			continue
		}
		at := slices.IndexFunc(a.refs, func(ref vertex) bool { return ways[ref] != nil })
		if at < 0 {
			continue
		}
		p := authz.Path{Node: a.node}
		if a.refs[at] != v {
			p.Objects = append(p.Objects, v.object())
		}
		for _, next := range ways[a.refs[at]] {
			p.Objects = append(p.Objects, next.object())
		}
		if a.node == node {
			own = append(own, p)
		} else {
			others++
			paths = append(paths, p)
		}
	}
	byName := func(a, b authz.Path) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Objects[0].Namespace, b.Objects[0].Namespace), cmp.Compare(a.Objects[0].Name, b.Objects[0].Name))
	}
	slices.SortFunc(own, byName)
	slices.SortFunc(paths, byName)
	if len(own) > 0 {
		return own
	}
	return paths
}

// nodesOf returns the nodes that may access an object.
func (g *graph) nodesOf(object vertex) []string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	nodes := map[string]bool{}
	add := func(v vertex) {
		for node, n := range g.counts[v] {
			if n > 0 {
				nodes[node] = true
			}
		}
	}
	add(object)
	switch object.kind {
	case volume:
		if v, ok := g.volumes[object.name]; ok && object.namespace == "" {
			add(v.claim)
		}
	case secret:
		for name := range g.secrets[object] {
			add(g.volumes[name].claim)
		}
	}
	sorted := make([]string, 0, len(nodes))
	for node := range nodes {
		sorted = append(sorted, node)
	}
	slices.Sort(sorted)
	return sorted
}

// kindName is how a kind of vertex is called.
type kindName struct{ group, resource, kind, word string }

func (k kind) name() kindName {
	return [...]kindName{
		secret:             {"", "secrets", "Secret", "secret"},
		configMap:          {"", "configmaps", "ConfigMap", "config map"},
		claim:              {"", "persistentvolumeclaims", "PersistentVolumeClaim", "persistent volume claim"},
		volume:             {"", "persistentvolumes", "PersistentVolume", "persistent volume"},
		resourceClaim:      {"resource.k8s.io", "resourceclaims", "ResourceClaim", "resource claim"},
		serviceAccount:     {"", "serviceaccounts", "ServiceAccount", "service account"},
		pod:                {"", "pods", "Pod", "pod"},
		attachment:         {"storage.k8s.io", "volumeattachments", "VolumeAttachment", "volume attachment"},
		slice:              {"resource.k8s.io", "resourceslices", "ResourceSlice", "resource slice"},
		certificateRequest: {"certificates.k8s.io", "podcertificaterequests", "PodCertificateRequest", "pod certificate request"},
	}[k]
}

// object returns the API object of a vertex.
func (v vertex) object() authz.Object {
	k := v.kind.name()
	return authz.Object{Group: k.group, Resource: k.resource, Kind: k.kind, Namespace: v.namespace, Name: v.name}
}
