package kelson

import (
	"cmp"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/trace"
)

// traced is the stage that begins the trace of a request. The trace context of the client is
// propagated to backends and webhooks whether or not traces are recorded here.
func (s *Server) traced() stage {
	return stage{
		begin: func(x *exchange) bool {
			s.beginTrace(x)
			return true
		},
		end: func(x *exchange, _ any) {
			if x.lifetime.span.Recording() {
				x.endTrace()
			}
		},
	}
}

func (s *Server) beginTrace(x *exchange) {
	if s.Tracer == nil {
		if _, told := x.r.Header["Traceparent"]; told {
			if remote := trace.FromHeader(x.r.Header); remote != nil {
				x.lifetime.span = trace.Passed(*remote)
			}
		}
		return
	}
	// The sampled flag of a client could fill disks, so it is honoured only for trusted
	// users.
	span := s.Tracer.Root(trace.FromHeader(x.r.Header), mayForceSampling(&x.User), spanName(x), trace.Server, x.Arrived())
	x.lifetime.span = span
	if span.Recording() {
		span.Set(requestAttributes(x)...)
	}
}

func (x *exchange) endTrace() {
	span := x.lifetime.span
	if x.r.ContentLength > 0 {
		span.Set(trace.Int("http.request.body.size", x.r.ContentLength))
	}
	if x.written > 0 {
		span.Set(trace.Int("http.response.body.size", x.written))
	}
	status := cmp.Or(x.status, http.StatusOK)
	span.Set(trace.Int("http.response.status_code", int64(status)))
	if status >= http.StatusInternalServerError {
		span.Fail(nil)
	}
	span.End()
}

// step begins a span for a stage; the caller ends it.
func (x *exchange) step(name string) *trace.Span {
	if !x.lifetime.span.Recording() {
		return nil
	}
	_, span := trace.Start(x.r.Context(), name)
	return span
}

// mayForceSampling reports whether the sampled flag of a user is honoured.
func mayForceSampling(u *request.User) bool {
	return slices.Contains(u.Groups, "system:masters") || slices.Contains(u.Groups, "system:monitoring")
}

// spanName returns verb and resource of the request, without object names.
func spanName(x *exchange) string {
	if !x.IsResource {
		return x.r.Method
	}
	name := x.r.Method + " /api"
	if x.Group != "" || strings.HasPrefix(x.Path, "/apis/") {
		name += "s/" + x.Group
	}
	name += "/" + x.Version
	if x.Namespace != "" {
		name += "/namespaces/{:namespace}"
	}
	name += "/" + x.Resource
	if x.Name != "" {
		name += "/{:name}"
	}
	if x.Subresource != "" {
		name += "/" + x.Subresource
	}
	return name
}

// requestAttributes returns the OpenTelemetry attributes of a request, and those that link it
// to the audit log.
func requestAttributes(x *exchange) []trace.Attribute {
	r := x.r
	host, port := hostPort(r.Host)
	peer, peerPort := hostPort(r.RemoteAddr)
	all := []trace.Attribute{trace.String("server.address", host), trace.String("http.request.method", r.Method), trace.String("url.scheme", "https")}
	if port > 0 {
		all = append(all, trace.Int("server.port", port))
	}
	if peer != "" {
		all = append(all, trace.String("network.peer.address", peer), trace.Int("network.peer.port", peerPort))
	}
	return append(all,
		trace.String("user_agent.original", r.UserAgent()), trace.String("client.address", peer), trace.String("url.path", r.URL.Path),
		trace.String("network.protocol.version", strings.TrimPrefix(r.Proto, "HTTP/")),
		trace.String("http.target", r.URL.RequestURI()), trace.String("audit-id", x.LoggedID()),
	)
}

func hostPort(address string) (host string, port int64) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return address, 0
	}
	port, _ = strconv.ParseInt(text, 10, 32)
	return host, port
}
