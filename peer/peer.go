// Package peer lets API servers of different versions share a store: a request for a
// resource that this server does not serve, and another one does, is forwarded to that
// one, and discovery shows what any of them serves. It is what the gate
// UnknownVersionInteroperabilityProxy stands for in kube-apiserver; servers of both kinds
// can be peers of each other. Start at Proxy.
//
// # How servers find each other
//
// Every server keeps an identity lease in kube-system, and a key with its address in the
// store (package controller/apiserver). Proxy follows the leases. A peer has one
// goroutine (follow.go), which asks it for its own discovery, without that of its peers,
// when its lease appears or has another holder, and again now and then. The resources
// that this server lacks are kept in a map that requests read without a lock.
//
// What comes and goes while servers run, custom resources and aggregated APIs, is not
// taken from peers: this server learns of it from the store. For a while after its end it
// is not taken from them either, since a peer may notice later.
//
// # What is trusted
//
// A peer must show a certificate of the peer authority for kubernetes.default.svc, and is
// shown the proxy client certificate, for which it believes the X-Remote headers. These
// are set here, whatever the client sent, and say who the client is: the peer authorizes
// the request as this server did. A user whose name would change on the way is not
// forwarded. A forwarded request has the header X-Kubernetes-Peer-Proxied, and a request
// that has it is never forwarded, so that it takes one hop at most. A client that sends
// the header itself only forgoes being forwarded.
//
// The size of what is kept of a peer is bounded, and so are the number of peers, response
// headers and the time to connect. Bodies are streamed.
//
// Proxy must never answer for a resource that this server has: it is asked when nobody
// else in the chain of servers knows the path.
package peer

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Config configures a Proxy.
type Config struct {
	// Name is the name of the identity lease of this server.
	Name string
	// Leases follows leases; those of servers have the label IdentityLabel.
	Leases resource.Follower
	// Address returns the host and port at which the server with an identity lease is
	// reached by its peers.
	Address func(ctx context.Context, name string) (string, error)
	// CAFile is the file with the authority of the certificates of peers: --peer-ca-file.
	CAFile string
	// Certificate returns the client certificate that peers know this server by. It is
	// called for each connection.
	Certificate func() (*tls.Certificate, error)
	// Dial connects to peers; nil dials directly.
	Dial egress.Dial
	// Catalog returns what this server serves.
	Catalog func() *resource.Catalog
	// Dynamic returns the versions of groups with custom resources and of aggregated
	// APIs. DynamicRevision changes when Dynamic does; it is called for every request that
	// Route is asked about.
	Dynamic         func() map[schema.GroupVersion]bool
	DynamicRevision func() int64
	// Fail answers a request with an error.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
	// Hold, if it is not nil, takes bytes of the memory that clients hold, in the name of a
	// user. It returns a function that gives them back, or nil if there is no room.
	Hold func(user *request.User, bytes int64) (release func())
	// Metrics counts forwarded requests and errors; nil does not.
	Metrics measure.Sink
	// Logger gets peers that cannot be asked; nil discards them.
	Logger *slog.Logger
}

// Bounds of what is kept, and times.
const (
	// maxPeers is the largest number of peers that are followed.
	maxPeers = 64
	// maxDiscovery is the largest discovery document of a peer, in bytes of JSON.
	maxDiscovery = 16 << 20
	// maxHeader is the largest response header of a peer in bytes.
	maxHeader = 1 << 20
	// watchMemory is what a forwarded watch takes here: a copy buffer, and a stream of the
	// connection to the peer. retryHeld is after how many seconds a client may ask again that
	// has too many of them.
	watchMemory, retryHeld = 48 << 10, 5
	// dialTimeout is how long a connection to a peer may take.
	dialTimeout = 3 * time.Second
	// fetchTimeout is how long a peer may take to tell what it serves.
	fetchTimeout = 10 * time.Second
	// refreshPeriod is how often a peer is asked again. It answers 304 as a rule.
	refreshPeriod = time.Minute
	// retryDelay is the pause after a peer could not be asked for the first time; it
	// doubles up to maxRetryDelay. A server that starts has its lease before its address.
	retryDelay    = 50 * time.Millisecond
	maxRetryDelay = 5 * time.Second
	// firstLook is how long SyncPeers waits for the discovery of peers.
	firstLook = time.Second
	// gracePeriod is how long a version of a group that was custom or aggregated is not
	// taken from peers after its end.
	gracePeriod = 5 * time.Minute
)

// Proxy forwards requests to peers. It is safe for concurrent use.
type Proxy struct {
	Config
	transport atomic.Pointer[http.Transport]
	// view is what peers serve, read by requests without a lock.
	view atomic.Pointer[view]

	mu    sync.Mutex
	peers map[string]*peer // by the name of the lease
	// dynamic and dynamicRevision are from Dynamic; gone are the versions that were in it,
	// with the time at which that was noticed.
	dynamic         map[schema.GroupVersion]bool
	dynamicRevision int64
	gone            map[schema.GroupVersion]time.Time
	// synced is closed when leases have been read for the first time.
	synced     chan struct{}
	syncedOnce sync.Once
	running    sync.WaitGroup // goroutines of peers
}

// view is what peers serve at a moment. It is not changed.
type view struct {
	version int64
	// dynamicRevision is the one for which it was made.
	dynamicRevision int64
	// serving has the peers by resource, for resources that this server lacks.
	serving map[schema.GroupVersionResource][]string
	// groups are the API groups of each peer, by the name of its lease.
	groups map[string][]apidiscovery.APIGroupDiscovery
}

// New returns a proxy that has no peers before Run. It reads the CA file.
func New(cfg Config) (*Proxy, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{Config: cfg, peers: map[string]*peer{}, gone: map[schema.GroupVersion]time.Time{}, synced: make(chan struct{})}
	p.view.Store(&view{})
	transport, err := p.newTransport()
	if err != nil {
		return nil, err
	}
	p.transport.Store(transport)
	return p, nil
}

// current returns the view, made again if custom resources or aggregated APIs have
// changed.
func (p *Proxy) current() *view {
	v := p.view.Load()
	if len(v.groups) == 0 || v.dynamicRevision == p.DynamicRevision() {
		return v
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rebuild()
}

// rebuild makes the view from what peers have told. The caller holds mu.
func (p *Proxy) rebuild() *view {
	p.observeDynamic()
	v := &view{
		version: p.view.Load().version + 1, dynamicRevision: p.dynamicRevision,
		serving: map[schema.GroupVersionResource][]string{}, groups: map[string][]apidiscovery.APIGroupDiscovery{},
	}
	catalog := p.Catalog()
	for name, peer := range p.peers {
		if peer.groups == nil {
			continue // it has told nothing yet
		}
		groups := p.withoutDynamic(peer.groups)
		v.groups[name] = groups
		for i := range groups {
			for j := range groups[i].Versions {
				version := &groups[i].Versions[j]
				for k := range version.Resources {
					gvr := schema.GroupVersionResource{Group: groups[i].Name, Version: version.Version, Resource: version.Resources[k].Resource}
					if _, own := catalog.Lookup(gvr.Group, gvr.Version, gvr.Resource); !own {
						v.serving[gvr] = append(v.serving[gvr], name)
					}
				}
			}
		}
	}
	p.view.Store(v)
	return v
}

// observeDynamic brings dynamic and gone up to date. The caller holds mu.
func (p *Proxy) observeDynamic() {
	now := time.Now()
	for gv, since := range p.gone {
		if now.Sub(since) > gracePeriod {
			delete(p.gone, gv)
		}
	}
	// The revision is read first: a change in between is noticed with the next request.
	revision := p.DynamicRevision()
	if p.dynamic != nil && revision == p.dynamicRevision {
		return
	}
	next := p.Dynamic()
	for gv := range p.dynamic {
		if !next[gv] {
			p.gone[gv] = now
		}
	}
	for gv := range next {
		delete(p.gone, gv)
	}
	p.dynamic, p.dynamicRevision = next, revision
}

// withoutDynamic returns groups without the versions that are, or were, custom or
// aggregated here. The caller holds mu.
func (p *Proxy) withoutDynamic(groups []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
	var kept []apidiscovery.APIGroupDiscovery
	for _, group := range groups {
		var versions []apidiscovery.APIVersionDiscovery
		for _, version := range group.Versions {
			gv := schema.GroupVersion{Group: group.Name, Version: version.Version}
			if _, gone := p.gone[gv]; !gone && !p.dynamic[gv] {
				versions = append(versions, version)
			}
		}
		if len(versions) > 0 {
			group.Versions = versions
			kept = append(kept, group)
		}
	}
	return kept
}
