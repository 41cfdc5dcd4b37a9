// Package discoverytest has a catalog of nearly everything that kube-apiserver v1.37
// serves, built from its discovery documents. Start at Catalog. Definitions have names,
// verbs and types, but no behaviour: they are for testing what is computed from a
// catalog.
package discoverytest

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/apikeel/kelson/resource"
)

// API and APIs are kube-apiserver v1.37.1's aggregated discovery of /api and /apis.
var (
	//go:embed api.json
	API []byte
	//go:embed apis.json
	APIs []byte
)

// Known reports whether the catalog has a kind: one of k8s.io/api whose objects have
// metadata. Option kinds of connect subresources have none.
func Known(gvk schema.GroupVersionKind) bool {
	obj, err := scheme.Scheme.New(gvk)
	if err != nil {
		return false
	}
	_, ok := obj.(resource.Object)
	return ok
}

// Catalog returns the catalog, without the groups of leaveOut.
func Catalog(leaveOut ...string) (*resource.Catalog, error) {
	var groups []resource.Group
	for _, data := range [][]byte{API, APIs} {
		var list apidiscovery.APIGroupDiscoveryList
		if err := json.Unmarshal(data, &list); err != nil {
			return nil, err
		}
		for _, g := range list.Items {
			if !slices.Contains(leaveOut, g.Name) {
				groups = append(groups, group(g))
			}
		}
	}
	return resource.NewCatalog(groups...)
}

func group(g apidiscovery.APIGroupDiscovery) resource.Group {
	group := resource.Group{Name: g.Name}
	if g.Name == "events.k8s.io" {
		return group // another version of the core group's events
	}
	for _, v := range g.Versions {
		for _, r := range v.Resources {
			gvk := schema.GroupVersionKind{Group: g.Name, Version: v.Version, Kind: r.ResponseKind.Kind}
			if !Known(gvk) {
				continue
			}
			at := slices.IndexFunc(group.Resources, func(d resource.Definition) bool { return d.Resource == r.Resource })
			if at < 0 {
				at = len(group.Resources)
				group.Resources = append(group.Resources, definition(gvk, r))
			}
			d := &group.Resources[at]
			d.Versions = append(d.Versions, version(gvk, "", len(d.Versions) > 0))
			if g.Name == "" && r.Resource == "events" {
				d.Versions = append(d.Versions, version(schema.GroupVersionKind{Group: "events.k8s.io", Version: "v1", Kind: "Event"}, "events.k8s.io", true))
			}
		}
	}
	return group
}

func definition(gvk schema.GroupVersionKind, r apidiscovery.APIResourceDiscovery) resource.Definition {
	d := resource.Definition{
		Group: gvk.Group, Resource: r.Resource, Singular: r.SingularResource, Kind: gvk.Kind,
		ShortNames: r.ShortNames, Categories: r.Categories, Namespaced: r.Scope == apidiscovery.ScopeNamespace,
		Verbs: r.Verbs, Strategy: resource.Strategy{ReturnDeleted: returnDeleted(gvk)},
	}
	for _, s := range r.Subresources {
		sub := resource.Subresource{Name: s.Subresource, Verbs: s.Verbs, Part: &resource.Strategy{}}
		if s.ResponseKind.Kind != gvk.Kind {
			sub.Kind = schema.GroupVersionKind(*s.ResponseKind)
			if sub.Kind.Version == "" {
				sub.Kind.Group, sub.Kind.Version = gvk.Group, gvk.Version
			}
			if !Known(sub.Kind) {
				continue
			}
			sub.New = func() resource.Object { return object(sub.Kind).(resource.Object) }
		} else if s.Subresource == "log" {
			continue // answers with text
		}
		d.Subresources = append(d.Subresources, sub)
	}
	if slices.Equal(r.Verbs, []string{"create"}) || r.Resource == "componentstatuses" {
		d.Answer = answer // nothing is stored
	}
	return d
}

func version(gvk schema.GroupVersionKind, group string, converts bool) resource.Version {
	v := resource.Version{
		Name: gvk.Version, Group: group,
		New:     func() resource.Object { return object(gvk).(resource.Object) },
		NewList: func() runtime.Object { return object(gvk.GroupVersion().WithKind(gvk.Kind + "List")) },
	}
	if converts {
		v.ToHub = func(obj resource.Object) (resource.Object, error) { return obj, nil }
		v.FromHub = v.ToHub
	}
	return v
}

func object(gvk schema.GroupVersionKind) runtime.Object {
	obj, err := scheme.Scheme.New(gvk)
	if err != nil {
		panic(fmt.Sprintf("discoverytest: %v", err))
	}
	return obj
}

// returnDeleted are the kinds whose deletion returns the object.
func returnDeleted(gvk schema.GroupVersionKind) bool {
	kinds := map[string][]string{
		"":                {"PersistentVolume", "PersistentVolumeClaim", "Pod", "PodTemplate", "ResourceQuota", "Service", "ServiceAccount"},
		"resource.k8s.io": {"DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"},
		"storage.k8s.io":  {"CSIDriver", "CSINode", "StorageClass", "VolumeAttachment", "VolumeAttributesClass"},
	}
	return slices.Contains(kinds[gvk.Group], gvk.Kind)
}

func answer(_ context.Context, obj resource.Object) (resource.Object, error) { return obj, nil }
