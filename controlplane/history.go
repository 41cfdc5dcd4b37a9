package controlplane

import (
	"github.com/apikeel/kelson/history"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
)

// historyPages are the pages about the past of objects.
func (a *assembly) historyPages() *history.Pages {
	return &history.Pages{
		Catalog:    a.catalogs.get,
		Backend:    func(def *resource.Definition) storage.Backend { return a.places.all[a.places.of(def)].backend },
		Main:       func() storage.Backend { return a.places.all[0].backend },
		Authorizer: a.authz,
		Memory:     a.Memory,
	}
}
