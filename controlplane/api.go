package controlplane

import (
	"net/http"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/store"
)

// api is the core server's part of the chain: the resources of a catalog, and
// what is told about them.
type api struct {
	*kelson.API
	catalog func() *resource.Catalog
}

func newAPI(catalog func() *resource.Catalog, resources *rest.Handler) *api {
	return &api{kelson.NewAPI(catalog, resources), catalog}
}

// currentAPI is an api that serves custom resources as the definitions say that this
// server has acknowledged.
type currentAPI struct {
	*api
	custom      *crd.Server
	definitions *store.Resource // nil if they are not served
}

// Route implements kelson.Router.
func (c currentAPI) Route(w http.ResponseWriter, r *http.Request) bool {
	if c.definitions != nil && c.definitions.Acknowledged() > c.custom.Revision() {
		req := request.From(r.Context())
		if s, ok := c.catalog().Lookup(req.Group, req.Version, req.Resource); ok && s.Unstructured {
			// If it fails, there is still what was there before.
			_ = c.custom.Sync(r.Context())
		}
	}
	return c.api.Route(w, r)
}
