package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/controller/apiserver"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/peer"
	"github.com/apikeel/kelson/rest"
)

// peerGate is the gate of requests that are forwarded to other servers.
const peerGate = "UnknownVersionInteroperabilityProxy"

// Peers says how this server and others that share its store forward requests to each
// other, for what only some of them serve. It has no effect on a store that is not shared.
type Peers struct {
	// CAFile is the file with the authority of the certificates of other servers:
	// --peer-ca-file. Without it, no request is forwarded. It needs
	// Aggregation.ProxyCertificate, which other servers know this one by.
	CAFile string
	// AdvertiseIP and AdvertisePort are where other servers reach this one:
	// --peer-advertise-ip and --peer-advertise-port. Unless both are set, it is the
	// address and the port that the server has for everybody.
	AdvertiseIP, AdvertisePort string
	// Identity is the name of the lease of this server; empty is a name for the machine.
	// Servers on the same machine need different names to be peers.
	Identity string
}

// peerResource is by which name an override chooses where the addresses of servers are.
const peerResource = "apiServerPeerIPInfo"

// hasPeers reports whether this server tells others where it is.
func (a *assembly) hasPeers() bool {
	return a.identity != nil && a.places.shared() && a.Gates.Enabled(peerGate)
}

// newPeers makes what forwards requests to other servers, if that is wanted.
func (a *assembly) newPeers() (err error) {
	if a.Peers.CAFile == "" || !a.Gates.Enabled(peerGate) {
		return nil
	}
	if a.Aggregation.ProxyCertificate == "" {
		return errors.New("error building peer proxy handler, proxy-cert-file not specified")
	}
	if !a.hasPeers() {
		return nil
	}
	store := a.places.all[a.places.number("", peerResource)].backend
	certificate, err := a.proxyCertificate()
	if err != nil {
		return err
	}
	a.peers, err = peer.New(peer.Config{
		Name: a.identity.Name, CAFile: a.Peers.CAFile, Certificate: certificate, Dial: a.Egress.For("controlplane"),
		Leases:  a.resources.Follow(schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}),
		Address: func(ctx context.Context, name string) (string, error) { return apiserver.FindPeer(ctx, store, name) },
		Catalog: a.catalogs.get, Dynamic: a.dynamicVersions, DynamicRevision: func() int64 { return a.aggregator.Revision() },
		Fail:    func(w http.ResponseWriter, r *http.Request, err error) { rest.WriteError(w, r, err, a.resources) },
		Hold:    a.outer.Hold,
		Metrics: a.measured, Logger: a.Logger,
	})
	if err != nil {
		return err
	}
	for _, name := range []string{measure.DiscoveryPeerHits, measure.DiscoveryPeerMisses, measure.DiscoveryNoPeer} {
		a.measured.Series(name).Observe(0) // they are exposed if there can be peers
	}
	return nil
}

// dynamicVersions returns the versions of groups with custom resources, and of aggregated
// APIs.
func (a *assembly) dynamicVersions() map[schema.GroupVersion]bool {
	all := map[schema.GroupVersion]bool{}
	for _, group := range a.catalogs.get().Groups() {
		for i := range group.Versions {
			if v := &group.Versions[i]; len(v.Resources) > 0 && v.Resources[0].Unstructured {
				all[schema.GroupVersion{Group: group.Name, Version: v.Name}] = true
			}
		}
	}
	for _, gv := range a.aggregator.Remote() {
		all[gv] = true
	}
	return all
}

// peerHooks publish where other servers reach this one, and follow the others.
func (a *assembly) peerHooks() (hooks []kelson.Hook) {
	if !a.hasPeers() {
		return nil
	}
	hooks = append(hooks, kelson.Hook{Name: "peer-endpoint-reconciler-controller", Run: func(ctx context.Context) error {
		ip, port, err := a.peerAddress()
		if err != nil {
			return err
		}
		return a.published.Start(ctx, ip, port, a.outer.Signals().MuxAndDiscoveryComplete.Happened())
	}})
	if a.peers == nil {
		return hooks
	}
	// What has these names elsewhere is one part here.
	return append(hooks,
		kelson.Hook{Name: "mixed-version-proxy-handler", Run: a.peers.SyncPeers},
		kelson.Hook{Name: "local-discovery-cache-sync", Run: func(context.Context) error { return nil }},
		kelson.Hook{Name: "peer-discovery-workers", Run: func(ctx context.Context) error {
			a.running.Go(func() { a.peers.Run(ctx) })
			return nil
		}})
}

// publishAddress prepares what tells other servers where this one is.
func (a *assembly) publishAddress() {
	if a.hasPeers() {
		a.published = &apiserver.PeerAddress{
			Server: a.own, Name: a.identity.Name, Store: a.places.all[a.places.number("", peerResource)].backend,
		}
	}
}

// peerAddress returns where other servers reach this one.
func (a *assembly) peerAddress() (ip string, port int32, err error) {
	text := a.Peers.AdvertisePort
	if a.Peers.AdvertiseIP != "" && text != "" {
		ip = a.Peers.AdvertiseIP
	} else {
		address, err := url.Parse(a.outer.URL())
		if err != nil {
			return "", 0, err
		}
		advertised, err := a.outer.AdvertiseAddress()
		if err != nil {
			return "", 0, err
		}
		ip, text = advertised.String(), address.Port()
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("the port for other servers: %w", err)
	}
	return ip, int32(number), nil
}

// startIdentity keeps the lease of this server. The address in it is known when the server
// listens.
func (a *assembly) startIdentity(ctx context.Context) error {
	if a.hasPeers() {
		ip, port, err := a.peerAddress()
		if err != nil {
			return err
		}
		a.identity.PeerAddress = net.JoinHostPort(ip, strconv.Itoa(int(port)))
	}
	return a.identity.Start(ctx)
}
