package controlplane

import (
	"net/http"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/usage"
)

// accounting makes the accounts of what clients cost.
func (a *assembly) accounting() {
	a.usage = usage.New(usage.Config{Known: a.isServed, Levels: a.levels})
	a.outer.Usage = a.usage
}

// isServed reports whether there is such a resource.
func (a *assembly) isServed(group, version, resource string) bool {
	_, ok := a.catalogs.get().Lookup(group, version, resource)
	return ok
}

// levels tells how busy the priority levels are.
func (a *assembly) levels() (all []usage.Level) {
	if a.flow == nil {
		return nil
	}
	for _, l := range a.flow.Stats() {
		level := usage.Level{Name: l.Name, Seats: l.Now}
		for _, s := range l.Schemas {
			level.Used += s.Seats
			level.Waiting += s.Waiting
		}
		all = append(all, level)
	}
	return all
}

// usagePages are the pages of what clients cost.
func (a *assembly) usagePages() map[string]http.Handler {
	return map[string]http.Handler{
		usage.TopPath:      a.only(a.usage.ServeTop(a.viewer), http.MethodGet),
		usage.StormPath:    a.only(a.usage.ServeStorm(a.viewer), http.MethodGet),
		usage.FindingsPath: a.only(http.HandlerFunc(a.serveFindings), http.MethodGet),
	}
}

// viewer returns what the user of a request may list.
func (a *assembly) viewer(r *http.Request) usage.Viewer {
	user := &request.From(r.Context()).User
	return func(group, resource, namespace string) bool {
		decision, _, _ := a.authz.Authorize(r.Context(), &authz.Attributes{
			User: user, Verb: request.List, IsResource: true, Group: group, Version: "*", Resource: resource, Namespace: namespace,
		})
		return decision == authz.Allow
	}
}
