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

// traced begins the trace of a request. What clients say of traces that it
// belongs to is passed on to those that the server asks in turn, whether or not
// anything is kept here.
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
	// Anybody can claim to be part of a trace that is kept, and fill disks that
	// way, so only some are believed.
	span := s.Tracer.Root(trace.FromHeader(x.r.Header), believed(&x.User), spanName(x), trace.Server, x.Arrived())
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

// step begins a span for a stage. What it returns ends it.
func (x *exchange) step(name string) *trace.Span {
	if !x.lifetime.span.Recording() {
		return nil
	}
	_, span := trace.Start(x.r.Context(), name)
	return span
}

func believed(u *request.User) bool {
	return slices.Contains(u.Groups, "system:masters") || slices.Contains(u.Groups, "system:monitoring")
}

// spanName says what is asked for, without names.
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

// requestAttributes are those that OpenTelemetry has for a request, and the ones
// that find it in the audit.
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
