package aggregator

import (
	"net/http"
	"net/url"

	"k8s.io/client-go/transport"

	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/request"
)

// proxy passes a request on.
//
// The headers that say who asks are set here, whatever came with the request.
// Those who ask for an upgrade get the connection only if the other side answers
// that it has switched; any other answer ends the connection. A redirect is no
// answer: the client would follow it with its credentials.
func (b *backend) proxy(w http.ResponseWriter, r *http.Request) {
	if !b.available.Load() {
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	if b.broken != nil {
		http.Error(w, b.broken.Error(), http.StatusInternalServerError)
		return
	}
	target, err := b.resolve(r.Context())
	if err != nil {
		b.server.Logger.Warn("the address of an APIService is not known", "name", b.name, "error", err)
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	location := &url.URL{Scheme: "https", Host: target.Host, Path: r.URL.Path, RawQuery: r.URL.Query().Encode()}
	req := request.From(r.Context())
	out := r.WithContext(r.Context())
	out.Header = r.Header.Clone()
	transport.SetAuthProxyHeaders(out, req.User.Name, req.User.UID, req.User.Groups, req.User.Extra)
	if req.AuditID != "" {
		out.Header.Set("Audit-Id", req.AuditID)
	}
	connect.Proxy(w, out, location, connect.Via{
		Transport: b.transport, ForwardRedirects: b.server.ForwardRedirects, Logger: b.server.Logger,
		Fail: func(err error) {
			b.doubt()
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		},
	})
}
