package controlplane

import (
	"net/http"
	"slices"
	"strings"

	"github.com/apikeel/kelson/discovery"
	"github.com/apikeel/kelson/openapi"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// api is the core server's part of the chain: the resources of a catalog, what
// is told about them, and that something is not among them.
type api struct {
	catalog   func() *resource.Catalog
	rest      *rest.Handler
	discovery *discovery.Handler
	openapi   *openapi.Handler
}

func newAPI(catalog func() *resource.Catalog, resources *rest.Handler) *api {
	return &api{
		catalog:   catalog,
		rest:      resources,
		discovery: discovery.New(catalog, func(r *http.Request) string { return r.Host }),
		openapi:   openapi.New(catalog, openapi.Config{Log: resources.Logger}),
	}
}

// Route implements kelson.Router.
func (a *api) Route(w http.ResponseWriter, r *http.Request) bool {
	if a.rest.Route(w, r) || a.openapi.Serve(w, r) {
		return true
	}
	if known, err := a.discovery.Serve(w, r); known {
		if err != nil {
			rest.WriteError(w, r, err, a.rest)
		}
		return true
	}
	return false
}

// Paths implements kelson.Router.
func (a *api) Paths() []string {
	paths := a.openapi.Paths()
	for _, g := range a.catalog().Groups() {
		root := "/api"
		if g.Name != "" {
			root = "/apis/" + g.Name
			paths = append(paths, "/apis")
		}
		paths = append(paths, root)
		for i := range g.Versions {
			paths = append(paths, root+"/"+g.Versions[i].Name)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// notFound ends the chain: below /api and the groups that are served the answer
// is a Status.
type notFound struct{ rest *rest.Handler }

// Route implements kelson.Router.
func (n notFound) Route(w http.ResponseWriter, r *http.Request) bool {
	path, inGroup := strings.CutPrefix(r.URL.Path, "/apis/")
	group, _, _ := strings.Cut(path, "/")
	if _, served := n.rest.Catalog().Group(group); inGroup && (!served || group == "") || !inGroup && !strings.HasPrefix(path, "/api/") {
		return false
	}
	rest.WriteError(w, r, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: "the server could not find the requested resource", Details: &metav1.StatusDetails{},
	}}, n.rest)
	return true
}

// Paths implements kelson.Router.
func (notFound) Paths() []string { return nil }
