package controlplane

import (
	"cmp"
	"fmt"

	internalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/controller/apiserver"
)

// storageVersionAPI is the gate that has servers tell in which versions they keep
// objects.
const storageVersionAPI = "StorageVersionAPI"

// newIdentity returns nil if this server is alone, and need not say who it is.
func (a *assembly) newIdentity() *apiserver.Identity {
	_, leases := a.catalogs.get().Definition(coordinationv1.GroupName, "leases")
	if !leases || !a.Gates.Enabled("APIServerIdentity") || !a.places.shared() && !a.Gates.Enabled(storageVersionAPI) {
		return nil
	}
	identity := apiserver.NewIdentity(a.own)
	identity.Replaces = a.Serving.PermitPortSharing
	identity.Name = cmp.Or(a.Peers.Identity, identity.Name)
	return identity
}

// checkStorageVersions wants the resources to be served in which servers tell it, and
// that they are there.
func (a *assembly) checkStorageVersions() error {
	if !a.Gates.Enabled(storageVersionAPI) {
		return nil
	}
	if _, ok := a.catalogs.get().Definition(internalv1alpha1.GroupName, "storageversions"); !ok {
		return fmt.Errorf("--feature-gates: this server needs --runtime-config=%s=true for %s", internalv1alpha1.SchemeGroupVersion, storageVersionAPI)
	}
	if _, ok := a.catalogs.get().Definition(coordinationv1.GroupName, "leases"); !ok {
		return fmt.Errorf("--feature-gates: this server needs leases for %s", storageVersionAPI)
	}
	return nil
}

// storageVersionHooks write the versions in which built-in kinds are kept.
func (a *assembly) storageVersionHooks() []kelson.Hook {
	if !a.Gates.Enabled(storageVersionAPI) {
		return nil
	}
	return []kelson.Hook{{Name: "built-in-resources-storage-version-updater", Run: apiserver.StorageVersions{Identity: a.identity}.Start}}
}
