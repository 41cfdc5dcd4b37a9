//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// resource is a kind in a version, as discovery has it.
type resource struct {
	group, version, kind string
	plural, singular     string
	namespaced           bool
	verbs                []string
	// subresources by name, such as status.
	subresources map[string]*resource
}

func (r *resource) apiVersion() string {
	if r.group == "" {
		return r.version
	}
	return r.group + "/" + r.version
}

// base is the path of the group and version.
func (r *resource) base() string {
	if r.group == "" {
		return "/api/" + r.version
	}
	return "/apis/" + r.group + "/" + r.version
}

// collection is the path of all objects, in a namespace if they are in one and it is given.
func (r *resource) collection(namespace string) string {
	if r.namespaced && namespace != "" {
		return r.base() + "/namespaces/" + namespace + "/" + r.plural
	}
	return r.base() + "/" + r.plural
}

func (r *resource) can(verb string) bool { return slices.Contains(r.verbs, verb) }

// schema is what an OpenAPI document says about a value.
type schema struct {
	Ref        string             `json:"$ref"`
	Type       string             `json:"type"`
	Format     string             `json:"format"`
	Enum       []any              `json:"enum"`
	Properties map[string]*schema `json:"properties"`
	Required   []string           `json:"required"`
	Items      *schema            `json:"items"`
	AllOf      []*schema          `json:"allOf"`
	OneOf      []*schema          `json:"oneOf"`
	// Additional is a schema or a boolean.
	Additional  json.RawMessage `json:"additionalProperties"`
	IntOrString bool            `json:"x-kubernetes-int-or-string"`
	Kinds       []struct {
		Group, Version, Kind string
	} `json:"x-kubernetes-group-version-kind"`

	name       string // of a component
	additional *schema
}

// api is what the reference serves.
type api struct {
	resources []*resource
	// schemas of components by name, and kinds by group/version/kind.
	schemas, kinds map[string]*schema
}

// readAPI reads discovery and OpenAPI v3.
func readAPI(ctx context.Context, s *server) (*api, error) {
	get := func(path string, into any) error {
		a := s.send(ctx, &message{method: "GET", path: path, user: "admin"})
		// OpenAPI of custom resources comes a little later.
		for range 200 {
			if a.status == http.StatusOK || ctx.Err() != nil {
				break
			}
			wait(ctx, pollInterval)
			a = s.send(ctx, &message{method: "GET", path: path, user: "admin"})
		}
		if a.status != http.StatusOK {
			return fmt.Errorf("%s: %d %.300s", path, a.status, a.body)
		}
		return json.Unmarshal(a.body, into)
	}
	out := &api{schemas: map[string]*schema{}, kinds: map[string]*schema{}}
	paths := []string{"api/v1"}
	var groups struct {
		Groups []struct {
			Versions []struct{ GroupVersion string }
		}
	}
	if err := get("/apis", &groups); err != nil {
		return nil, err
	}
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			paths = append(paths, "apis/"+v.GroupVersion)
		}
	}
	for _, path := range paths {
		var list struct {
			GroupVersion string
			Resources    []struct {
				Name, SingularName, Kind, Group, Version string
				Namespaced                               bool
				Verbs                                    []string
			}
		}
		if err := get("/"+path, &list); err != nil {
			return nil, err
		}
		group, version, ok := strings.Cut(list.GroupVersion, "/")
		if !ok {
			group, version = "", group
		}
		byName := map[string]*resource{}
		for _, r := range list.Resources {
			name, sub, isSub := strings.Cut(r.Name, "/")
			one := &resource{group: group, version: version, kind: r.Kind, plural: name, singular: r.SingularName, namespaced: r.Namespaced, verbs: r.Verbs, subresources: map[string]*resource{}}
			if isSub {
				if r.Version != "" {
					one.group, one.version = r.Group, r.Version
				}
				if parent := byName[name]; parent != nil {
					parent.subresources[sub] = one
				}
				continue
			}
			byName[name] = one
			out.resources = append(out.resources, one)
		}
		var doc struct {
			Components struct{ Schemas map[string]*schema }
		}
		if err := get("/openapi/v3/"+path, &doc); err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(doc.Components.Schemas)) {
			sch := doc.Components.Schemas[name]
			sch.name = name
			sch.resolve()
			// The documents agree about what they share.
			out.schemas[name] = sch
			for _, k := range sch.Kinds {
				if len(sch.Kinds) == 1 {
					out.kinds[k.Group+"/"+k.Version+"/"+k.Kind] = sch
				}
			}
		}
	}
	return out, nil
}

// resolve parses what is a schema or a boolean.
func (s *schema) resolve() {
	if s == nil {
		return
	}
	if len(s.Additional) > 0 && s.Additional[0] == '{' {
		if json.Unmarshal(s.Additional, &s.additional) == nil {
			s.additional.resolve()
		}
	}
	for _, p := range s.Properties {
		p.resolve()
	}
	s.Items.resolve()
	for _, p := range s.AllOf {
		p.resolve()
	}
	for _, p := range s.OneOf {
		p.resolve()
	}
}

// of follows references.
func (a *api) of(s *schema) *schema {
	for range 10 {
		switch {
		case s == nil:
			return &schema{}
		case s.Ref != "":
			s = a.schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
		case len(s.AllOf) == 1 && s.Type == "" && len(s.Properties) == 0:
			s = s.AllOf[0]
		default:
			return s
		}
	}
	return &schema{}
}

// kind returns the schema of a kind.
func (a *api) kind(apiVersion, kind string) *schema {
	group, version, ok := strings.Cut(apiVersion, "/")
	if !ok {
		group, version = "", group
	}
	return a.kinds[group+"/"+version+"/"+kind]
}
