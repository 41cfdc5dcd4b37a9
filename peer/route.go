package peer

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/trace"
)

// This file forwards requests to peers.

// ProxiedHeader is the header of requests that a peer has forwarded. Its value is true.
const ProxiedHeader = "X-Kubernetes-Peer-Proxied"

// Route forwards a request if a peer serves its resource. It returns false, and does
// nothing, if none does, or if a peer has forwarded the request already. The caller has
// made sure that this server does not serve the resource.
func (p *Proxy) Route(w http.ResponseWriter, r *http.Request) bool {
	req := request.From(r.Context())
	if !req.IsResource || slices.Contains(r.Header[ProxiedHeader], "true") {
		return false
	}
	gvr := schema.GroupVersionResource{Group: req.Group, Version: req.Version, Resource: req.Resource}
	names := p.current().serving[gvr]
	if len(names) == 0 {
		return false
	}
	if !request.IsPlainPath(r.URL.Path) {
		p.Fail(w, r, request.ErrNotPlain())
		return true
	}
	if !setHeaders(http.Header{}, &req.User) {
		p.Fail(w, r, apierrors.NewServiceUnavailable("the resource is served by another API server, to which a user of this name cannot be passed on"))
		return true
	}
	addresses, err := p.addresses(r, names)
	if len(addresses) == 0 {
		measure.Count(p.Metrics, measure.PeerProxyErrors, errorEndpoint, gvr.Group, gvr.Version, gvr.Resource)
		p.Logger.Warn("the address of an API server that serves a resource is not known", "resource", gvr, "error", err)
		p.Fail(w, r, apierrors.NewServiceUnavailable("Error getting ip and port info of the remote server while proxying"))
		return true
	}
	if p.Hold != nil && req.Verb == request.Watch {
		release := p.Hold(req.Requestor(), watchMemory)
		if release == nil {
			p.Fail(w, r, apierrors.NewTooManyRequests("too many watches, end some of them first", retryHeld))
			return true
		}
		defer release()
	}
	if req.Verb == request.Watch {
		req.Started() // from here on the peer works: not counted as our latency
	}
	status := p.forward(w, r, req, addresses)
	p.countForwarded(status, gvr.Group, gvr.Version, gvr.Resource)
	return true
}

// addresses returns those of peers, in random order.
func (p *Proxy) addresses(r *http.Request, names []string) (addresses []string, err error) {
	for _, i := range rand.Perm(len(names)) {
		address, lookup := p.Address(r.Context(), names[i])
		if lookup != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", names[i], lookup))
			continue
		}
		addresses = append(addresses, address)
	}
	return addresses, err
}

// forward sends a request to the first peer that can be reached, and returns the status
// of the response.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, req *request.Request, addresses []string) (status int) {
	upgrade := httpstream.IsUpgradeRequest(r)
	body := &borrowedBody{Reader: r.Body}
	defer body.taken.Store(true)
	for i, address := range addresses {
		to := &url.URL{Scheme: "https", Host: address, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
		out := r.WithContext(r.Context())
		out.Host, out.Trailer, out.Close = address, nil, false
		out.Header = forwardedHeader(r.Header, upgrade)
		if r.Body != nil && r.ContentLength != 0 {
			out.Body = body
		} else {
			out.Body = http.NoBody
		}
		if req.AuditID != "" {
			out.Header.Set("Audit-Id", req.AuditID)
		}
		trace.Inject(r.Context(), out.Header)
		setHeaders(out.Header, &req.User)
		var failed error
		status = http.StatusSwitchingProtocols // unless something else is answered
		connect.Proxy(w, out, to, connect.Via{
			Transport: p.transport.Load(), Logger: p.Logger,
			Answered: func(code int) { status = code },
			Fail:     func(err error) { failed = err },
		})
		if failed == nil {
			return status
		}
		p.Logger.Warn("a request could not be forwarded to another API server", "address", address, "path", r.URL.Path, "error", failed)
		if i == len(addresses)-1 || r.Context().Err() != nil || body.begun.Load() || !isUnreachable(failed) {
			http.Error(w, failed.Error(), http.StatusServiceUnavailable)
			return http.StatusServiceUnavailable
		}
		w.Header().Del("Connection") // the connection of the client goes on
	}
	return status
}

// countForwarded counts a request that was forwarded; one for discovery has no resource.
func (p *Proxy) countForwarded(status int, group, version, resource string) {
	measure.Count(p.Metrics, measure.PeerRequests, strconv.Itoa(status), group, version, resource)
}

// forwardedHeader returns the headers of a client for a peer, without those that say who
// it is and those for one connection. The client can name any header in Connection, so
// these are removed before others are set.
func forwardedHeader(h http.Header, upgrade bool) http.Header {
	out := h.Clone()
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = textproto.TrimString(name); !strings.EqualFold(name, "Upgrade") {
				out.Del(name)
			}
		}
	}
	for name := range out {
		if name == ProxiedHeader || request.IsCredential(name) || request.IsUserHeader(name) {
			delete(out, name)
		}
	}
	for _, name := range [...]string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding"} {
		delete(out, name)
	}
	if upgrade {
		out["Connection"] = []string{"Upgrade"}
	} else {
		delete(out, "Upgrade")
	}
	return out
}

// setHeaders sets what tells a peer who the user is, and that it must not forward the
// request. It returns false if headers cannot say who the user is.
func setHeaders(h http.Header, user *request.User) bool {
	h[ProxiedHeader] = []string{"true"}
	return user.SetHeaders(h)
}

// borrowedBody is the request body while it is forwarded. The transport may read it after
// the request has ended, and closes it; borrowedBody makes such reads fail and does not
// close the client's body, so that another peer can be tried while nothing was read.
type borrowedBody struct {
	io.Reader
	begun, taken atomic.Bool
}

// Read implements io.Reader.
func (b *borrowedBody) Read(p []byte) (int, error) {
	if b.taken.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	b.begun.Store(true)
	return b.Reader.Read(p)
}

// Close implements io.Closer.
func (b *borrowedBody) Close() error { return nil }
