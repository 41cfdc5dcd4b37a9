package discovery

import (
	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/apikeel/kelson/metrics/measure"
)

// Peers are other servers that share the store of this one.
type Peers interface {
	// Version changes when Merge may return something else for the same groups.
	Version() int64
	// Merge returns the groups of this server with those of its peers; own itself if they
	// have nothing else. It does not change own.
	Merge(own []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery
}

// peerState has the documents of a state with the groups of peers.
type peerState struct {
	own     *state
	version int64
	*state
	list *apidiscovery.APIGroupDiscoveryList
}

// withPeers returns the documents of /apis with the groups of peers, and what they are
// encoded from. They are kept until this server or a peer serves something else.
func (h *Handler) withPeers(v view, own *state) (*state, func() runtime.Object) {
	version := h.Peers.Version()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.peers != nil && h.peers.own == own && h.peers.version == version {
		measure.Count(h.Metrics, measure.DiscoveryPeerHits)
		return h.peers.state, h.peers.object
	}
	measure.Count(h.Metrics, measure.DiscoveryPeerMisses)
	list := aggregated(v, "apis")
	list.Items = h.Peers.Merge(list.Items)
	h.peers = &peerState{own, version, &state{catalog: v.catalog, merged: v.merged, pages: map[page][]byte{}, etags: map[string]string{}}, list}
	return h.peers.state, h.peers.object
}

func (p *peerState) object() runtime.Object { return p.list }
