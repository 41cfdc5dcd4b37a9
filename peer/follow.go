package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// This file follows the identity leases of servers, and asks peers what they serve.

// IdentityLabel is the label of identity leases, and IdentityValue its value.
const (
	IdentityLabel = "apiserver.kubernetes.io/identity"
	IdentityValue = "kube-apiserver"
)

// serverName is the name that the certificates of all API servers have.
const serverName = "kubernetes.default.svc"

// Types of errors in metrics.
const (
	errorEndpoint = "endpoint_resolution"
	errorAddress  = "hostport_resolution"
	errorFetch    = "fetch_discovery"
	errorLeases   = "lease_list"
)

// acceptOwn asks for the discovery of a server without that of its peers. Servers that do
// not know the profile have no peers.
const acceptOwn = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer," +
	"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// peer is another server.
type peer struct {
	name string
	// holder identifies the process: a restart changes it.
	holder string
	stop   context.CancelFunc
	ask    chan struct{} // capacity 1: ask now
	// asked is closed when the peer has been asked for the first time.
	asked chan struct{}

	// etags and groups are what it has told last; groups is nil before. Guarded by
	// Proxy.mu. Peers that have told the same share groups.
	etags  [2]string
	groups []apidiscovery.APIGroupDiscovery
}

// Run follows peers until ctx ends.
func (p *Proxy) Run(ctx context.Context) {
	delay := retryDelay
	for ctx.Err() == nil {
		err := p.Leases.Pull(ctx, func(reset bool, changes []resource.Change) { p.apply(ctx, reset, changes) })
		if err == nil {
			p.syncedOnce.Do(func() { close(p.synced) })
			delay = retryDelay
			err = p.Leases.Wait(ctx)
		}
		if err != nil && ctx.Err() == nil {
			measure.Count(p.Metrics, measure.PeerDiscoveryErrors, errorLeases)
			p.Logger.Warn("the leases of API servers cannot be read; they are read again", "error", err)
			pause(ctx, nil, delay)
			delay = min(2*delay, maxRetryDelay)
		}
	}
	p.running.Wait()
}

// SyncPeers waits until leases have been read, and for a short time until the servers
// that have one have told what they serve: a server that says that it is ready should
// know its peers, and must not wait for one that is down.
func (p *Proxy) SyncPeers(ctx context.Context) error {
	select {
	case <-p.synced:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	peers := slices.Collect(maps.Values(p.peers))
	p.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	for _, peer := range peers {
		select {
		case <-peer.asked:
		case <-bounded.Done():
			return ctx.Err()
		}
	}
	return nil
}

// apply starts and ends the goroutines of peers after changes of leases.
func (p *Proxy) apply(ctx context.Context, reset bool, changes []resource.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := map[string]bool{}
	for _, c := range changes {
		name, holder, ok := p.identity(c.Object)
		switch {
		case !ok:
		case c.Deleted:
			p.forget(name)
		default:
			kept[name] = true
			p.meet(ctx, name, holder)
		}
	}
	if reset {
		for name := range p.peers {
			if !kept[name] {
				p.forget(name)
			}
		}
	}
}

// identity returns the name and the holder of the lease of another server.
func (p *Proxy) identity(obj resource.Object) (name, holder string, ok bool) {
	lease, isLease := obj.(*coordinationv1.Lease)
	if !isLease || lease.Namespace != metav1.NamespaceSystem || lease.Labels[IdentityLabel] != IdentityValue || lease.Name == p.Name {
		return "", "", false
	}
	if lease.Spec.HolderIdentity == nil {
		return "", "", false
	}
	return lease.Name, *lease.Spec.HolderIdentity, true
}

// meet follows a peer, or asks it again if its process is another one. The caller holds
// mu.
func (p *Proxy) meet(ctx context.Context, name, holder string) {
	if known := p.peers[name]; known != nil {
		if known.holder != holder {
			known.holder = holder
			select {
			case known.ask <- struct{}{}:
			default:
			}
		}
		return
	}
	if len(p.peers) >= maxPeers {
		p.Logger.Warn("there are too many API servers: one is not followed", "name", name, "most", maxPeers)
		return
	}
	next := &peer{name: name, holder: holder, ask: make(chan struct{}, 1), asked: make(chan struct{})}
	ctx, next.stop = context.WithCancel(ctx)
	p.peers[name] = next
	p.running.Go(func() { p.follow(ctx, next) })
}

// forget ends the goroutine of a peer. The caller holds mu.
func (p *Proxy) forget(name string) {
	if known := p.peers[name]; known != nil {
		known.stop()
		delete(p.peers, name)
		p.rebuild()
	}
}

// follow asks a peer what it serves, again and again.
func (p *Proxy) follow(ctx context.Context, peer *peer) {
	delay, failures := retryDelay, 0
	for first := true; ctx.Err() == nil; first = false {
		err := p.fetch(ctx, peer)
		if first {
			close(peer.asked)
		}
		wait := refreshPeriod
		if err != nil && ctx.Err() == nil {
			// A server that starts, or has ended without notice, fails for a while.
			failures++
			level := p.Logger.Debug
			if failures == 10 {
				level = p.Logger.Warn
			}
			level("an API server does not tell what it serves; it is asked again", "name", peer.name, "error", err)
			wait = delay
			delay = min(2*delay, maxRetryDelay)
		} else {
			delay, failures = retryDelay, 0
		}
		if pause(ctx, peer.ask, wait) {
			delay = retryDelay
		}
	}
}

// fetch asks a peer what it serves, and keeps the answer.
func (p *Proxy) fetch(ctx context.Context, peer *peer) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	address, err := p.Address(ctx, peer.name)
	if err != nil {
		measure.Count(p.Metrics, measure.PeerDiscoveryErrors, errorAddress)
		return fmt.Errorf("its address is not known: %w", err)
	}
	p.reloadCA()
	p.mu.Lock()
	etags := peer.etags
	p.mu.Unlock()
	var next [2]string
	var answers [2]*apidiscovery.APIGroupDiscoveryList
	for i, path := range [...]string{"/api", "/apis"} {
		if answers[i], next[i], err = p.discover(ctx, address, path, etags[i]); err != nil {
			measure.Count(p.Metrics, measure.PeerDiscoveryErrors, errorFetch)
			return err
		}
	}
	if answers[0] == nil && answers[1] == nil {
		return nil // as before
	}
	// One has changed: the other is needed too, since only both together are kept.
	for i, path := range [...]string{"/api", "/apis"} {
		if answers[i] == nil {
			if answers[i], next[i], err = p.discover(ctx, address, path, ""); err != nil {
				measure.Count(p.Metrics, measure.PeerDiscoveryErrors, errorFetch)
				return err
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.peers[peer.name] != peer {
		return nil // it has gone meanwhile
	}
	p.observeDynamic()
	peer.etags, peer.groups = next, p.shared(next)
	if peer.groups == nil {
		// Versions that are custom here are many, and not needed.
		peer.groups = append([]apidiscovery.APIGroupDiscovery{}, p.withoutDynamic(slices.Concat(answers[0].Items, answers[1].Items))...)
	}
	p.rebuild()
	return nil
}

// shared returns the groups of a peer that has told the same, nil if there is none. The
// caller holds mu.
func (p *Proxy) shared(etags [2]string) []apidiscovery.APIGroupDiscovery {
	if etags[0] == "" || etags[1] == "" {
		return nil
	}
	for _, other := range p.peers {
		if other.etags == etags && other.groups != nil {
			return other.groups
		}
	}
	return nil
}

// discover asks a server for its own aggregated discovery. The answer is nil if it has the
// ETag that is known.
func (p *Proxy) discover(ctx context.Context, address, path, etag string) (*apidiscovery.APIGroupDiscoveryList, string, error) {
	location := url.URL{Scheme: "https", Host: address, Path: path}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return nil, "", err
	}
	r.Header.Set("Accept", acceptOwn)
	if etag != "" {
		r.Header.Set("If-None-Match", etag)
	}
	setHeaders(r.Header, &request.User{Name: "system:apiserver", UID: "system:apiserver", Groups: []string{"system:authenticated"}})
	resp, err := p.transport.Load().RoundTrip(r)
	if err != nil {
		p.countForwarded(http.StatusServiceUnavailable, "", "", "")
		return nil, "", err
	}
	defer resp.Body.Close()
	p.countForwarded(resp.StatusCode, "", "", "")
	switch {
	case resp.StatusCode == http.StatusNotModified && etag != "":
		return nil, etag, nil
	case resp.StatusCode != http.StatusOK:
		return nil, "", fmt.Errorf("discovery request failed with status: %d", resp.StatusCode)
	case !strings.Contains(resp.Header.Get("Content-Type"), "as=APIGroupDiscoveryList"):
		return nil, "", fmt.Errorf("discovery has the content type %q, which is not aggregated discovery", resp.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDiscovery+1))
	if err != nil {
		return nil, "", err
	}
	if len(body) > maxDiscovery {
		return nil, "", fmt.Errorf("discovery has more than %d bytes", maxDiscovery)
	}
	var list apidiscovery.APIGroupDiscoveryList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, "", fmt.Errorf("error decoding discovery response: %w", err)
	}
	return &list, resp.Header.Get("ETag"), nil
}

// newTransport returns a transport to peers, for the CA file as it is now.
func (p *Proxy) newTransport() (*http.Transport, error) {
	pem, err := os.ReadFile(p.CAFile)
	if err != nil {
		return nil, fmt.Errorf("authority of other API servers: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("authority of other API servers: %s has no certificates", p.CAFile)
	}
	dial := p.Dial
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, &unreachable{err}
			}
			return conn, nil
		},
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, ServerName: serverName, RootCAs: roots,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return p.Certificate() },
		},
		TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2:   true,
		// Pings detect a dead connection that was not closed.
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second},
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        90 * time.Second,
		DisableCompression:     true, // bodies are forwarded unchanged
		MaxResponseHeaderBytes: maxHeader,
	}, nil
}

// reloadCA takes another transport if the CA file has changed. Requests that go on keep
// the old one.
func (p *Proxy) reloadCA() {
	next, err := p.newTransport()
	if err != nil {
		p.Logger.Warn("the authority of other API servers cannot be read; the last one stays", "error", err)
		return
	}
	old := p.transport.Load()
	if !old.TLSClientConfig.RootCAs.Equal(next.TLSClientConfig.RootCAs) && p.transport.CompareAndSwap(old, next) {
		old.CloseIdleConnections()
	}
}

// unreachable is the error of a connection that was not established: nothing was sent.
type unreachable struct{ error }

// Unwrap returns the cause.
func (u *unreachable) Unwrap() error { return u.error }

// isUnreachable reports whether a request failed before anything of it was sent.
func isUnreachable(err error) bool {
	var dial *unreachable
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &dial) || errors.As(err, &certificate)
}

// pause waits until a duration has passed or ctx ends, or something comes on wake, which
// it reports.
func pause(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-wake:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}
