package kelson

import (
	"net/http"
	"strings"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/h2"
	"github.com/apikeel/kelson/internal/newcomers"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
)

// What a client holds for as long as it likes, in bytes. The number of these is bounded by
// the memory of the server (budget.Memory.Clients), not by the number of seats in flow
// control, which they do not take.
const (
	// connectionMemory is for a connection with TLS, and buffers in the kernel: 8 KiB if it is idle and of
	// HTTP/1.1, 26 with all that HTTP/2 keeps between requests. certificateFactor is how many times the size
	// of a client certificate it takes beside that, parsed.
	connectionMemory  = 26 << 10
	certificateFactor = 3
	// watchMemory is for a watch: a stream, its goroutine and its place in a log of events.
	watchMemory = 12 << 10
	// streamMemory is for other requests that last, such as exec and the logs of a pod: two
	// connections with buffers between them.
	streamMemory = 64 << 10

	// ordinaryHeader is how much of the header of a request counts as part of what is above, or
	// of the memory of its handler. What is more counts by itself.
	ordinaryHeader = 8 << 10
	// fieldMemory is for a field of a header beside its text, partMemory for a part of a URI:
	// a requirement of a selector, a value, a parameter.
	fieldMemory, partMemory = 80, 192
	// shortURI is up to how many bytes of a URI the parts are not counted.
	shortURI = 256
)

// headerMemory returns how many bytes the header of a request takes beyond an ordinary one, with
// what its URI is parsed into. Requests hold it until they end, also watches: their selectors.
func headerMemory(r *http.Request) int64 {
	bytes := 3 * len(r.RequestURI) // and of a parameter its text without escapes
	if len(r.RequestURI) > shortURI {
		for i := range len(r.RequestURI) {
			switch r.RequestURI[i] {
			case ',', '&', '/', '%':
				bytes += partMemory
			}
		}
	}
	for name, values := range r.Header {
		bytes += len(name)
		for _, value := range values {
			bytes += len(value) + fieldMemory
		}
	}
	return int64(max(0, bytes-ordinaryHeader))
}

// certificateMemory returns how many bytes the certificates take that the client has shown.
func certificateMemory(r *http.Request) (bytes int64) {
	if r.TLS != nil {
		for _, c := range r.TLS.PeerCertificates {
			bytes += certificateFactor * int64(len(c.Raw))
		}
	}
	return bytes
}

// holdMemory is the stage that counts the memory of connections, of requests that last and of
// large headers, by user. Who holds too much is answered 429; a connection for which there is
// no room is closed.
func (s *Server) holdMemory() stage {
	return stage{
		begin: func(x *exchange) bool {
			if x.loopback {
				return true
			}
			if !x.isStranger() && !newcomers.Introduce(x.r.Context(), func() func() { return s.hold((*budget.Shared).Take, &x.User, connectionMemory+certificateMemory(x.r)) }) {
				x.disconnect()
				x.ended = metrics.Dropped
				x.tooMany(retryHeld)
				return false
			}
			if w, ok := x.ResponseWriter.(h2.Privileged); ok {
				w.SetPrivileged(x.User.IsAdministrator())
			}
			bytes, lasts := headerMemory(x.r), x.LongRunning()
			switch {
			case x.Verb == request.Watch:
				bytes += watchMemory
			case lasts:
				bytes += streamMemory
			case bytes == 0:
				return true
			}
			name := holder(&x.User)
			if !s.memory().Clients.TakeMore(name, bytes, x.User.IsAdministrator()) {
				x.ended = metrics.Dropped
				x.tooMany(retryHeld)
				return false
			}
			x.held, x.holder = bytes, name
			if w, ok := x.ResponseWriter.(h2.Laster); ok && lasts {
				w.Lasts()
			}
			return true
		},
		end: func(x *exchange, _ any) {
			if x.held > 0 {
				s.memory().Clients.Return(x.holder, x.held)
			}
		},
	}
}

// retryHeld is after how many seconds a client may ask again that holds too much: it has to
// end something first.
const retryHeld = 5

// holder returns in whose name a user holds memory. The service accounts of a namespace do so
// together: who may create one has as many names as they like.
func holder(user *request.User) string {
	if account, ok := strings.CutPrefix(user.Name, authz.ServiceAccountPrefix); ok {
		namespace, _, _ := strings.Cut(account, ":")
		return user.Name[:len(authz.ServiceAccountPrefix)+len(namespace)]
	}
	return user.Name
}

// Hold takes bytes of the memory that clients hold, in the name of a user. It returns a
// function that gives them back, to be called once, or nil if there is no room.
func (s *Server) Hold(user *request.User, bytes int64) (release func()) {
	return s.hold((*budget.Shared).TakeMore, user, bytes)
}

func (s *Server) hold(take func(*budget.Shared, string, int64, bool) bool, user *request.User, bytes int64) (release func()) {
	clients, name := &s.memory().Clients, holder(user)
	if !take(clients, name, bytes, user.IsAdministrator()) {
		return nil
	}
	return func() { clients.Return(name, bytes) }
}
