package kelson

import (
	"github.com/apikeel/kelson/h2"
	"github.com/apikeel/kelson/internal/newcomers"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
)

// What a client holds for as long as it likes, in bytes. The number of these is bounded by
// the memory of the server (budget.Memory.Clients), not by the number of seats in flow
// control, which they do not take.
const (
	// connectionMemory is for a connection with TLS, and buffers in the kernel.
	connectionMemory = 16 << 10
	// watchMemory is for a watch: a stream, its goroutine and its place in a log of events.
	watchMemory = 12 << 10
	// streamMemory is for other requests that last, such as exec and the logs of a pod: two
	// connections with buffers between them.
	streamMemory = 64 << 10
)

// holdMemory is the stage that counts the memory of connections and of requests that last, by
// user. Who holds too much is answered 429; a connection for which there is no room is closed.
func (s *Server) holdMemory() stage {
	return stage{
		begin: func(x *exchange) bool {
			if x.loopback {
				return true
			}
			if !x.isStranger() && !newcomers.Introduce(x.r.Context(), func() func() { return s.Hold(&x.User, connectionMemory) }) {
				x.disconnect()
				x.ended = metrics.Dropped
				x.tooMany(retryHeld)
				return false
			}
			if !x.LongRunning() {
				return true
			}
			bytes := int64(streamMemory)
			if x.Verb == request.Watch {
				bytes = watchMemory
			}
			if !s.memory().Clients.Take(x.User.Name, bytes, x.User.IsAdministrator()) {
				x.ended = metrics.Dropped
				x.tooMany(retryHeld)
				return false
			}
			x.held, x.holder = bytes, x.User.Name
			if w, ok := x.ResponseWriter.(h2.Laster); ok {
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

// Hold takes bytes of the memory that clients hold, in the name of a user. It returns a
// function that gives them back, to be called once, or nil if there is no room.
func (s *Server) Hold(user *request.User, bytes int64) (release func()) {
	clients, name := &s.memory().Clients, user.Name
	if !clients.Take(name, bytes, user.IsAdministrator()) {
		return nil
	}
	return func() { clients.Return(name, bytes) }
}
