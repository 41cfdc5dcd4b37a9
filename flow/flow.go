// Package flow limits how many requests are executed at a time, and decides which have
// to wait or are refused. Start at Limiter and Control. It never looks at the body of a
// request.
//
// There are two limiters. InFlight bounds the number of requests in flight. Control is
// API priority and fairness: flow schemas assign requests to flows and priority levels;
// a level has a number of seats, lends some of them to other levels and borrows from
// them; within a level requests wait in queues, and every flow gets the same share of
// the seats however many requests it sends.
//
//	match.go     which schema, and so which level, a request belongs to
//	estimate.go  how many seats it takes, and for how long
//	shard.go     which queues its flow may use (shuffle sharding)
//	level.go     queues and seats of a level: fair queuing in virtual time
//	borrow.go    how levels lend seats to each other
//	table.go     levels and schemas from API objects
//	retry.go     the Retry-After of refused requests
//	dump.go      debug pages
package flow

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/request"
)

// Response headers with the flow schema and priority level of a request, in the
// canonical form of http.Header.
const (
	SchemaHeader = "X-Kubernetes-Pf-Flowschema-Uid"
	LevelHeader  = "X-Kubernetes-Pf-Prioritylevel-Uid"
)

// Limiter admits requests, or refuses them.
type Limiter interface {
	// Enter waits until the server has room for a request and reports whether it is
	// admitted; if so, Leave must be called when the request has ended. e must be zero except for its Client; it is filled in either case, and must not be
	// copied or used for another request.
	Enter(ctx context.Context, r *request.Request, e *Entry) bool
}

// Client is the client of a request that is executed.
type Client interface {
	// Stalled is how long the request has waited for the client to read; 0 if it does not.
	Stalled() time.Duration
	// CutOff ends the response if the client still does not read.
	CutOff()
}

// Headers sets the response headers; it is called before the response begins.
func (e *Entry) Headers(h http.Header) {
	if e.schema != nil {
		h[SchemaHeader], h[LevelHeader] = e.schema.uid, e.schema.levelUID
	}
}

// Description is how flow control classified a request.
type Description struct {
	Level, Schema string
	// Seats are taken while the request is executed, FinalSeats for the time After it.
	Seats, FinalSeats int
	After             time.Duration
	// Worked is how long the request was executed; for a watch, until its initial
	// events were sent.
	Worked time.Duration
}

// Describe returns the classification of the request; false if it did not pass through
// priority and fairness.
func (e *Entry) Describe() (d Description, ok bool) {
	if e.schema == nil {
		return d, false
	}
	return Description{e.schema.level.name, e.schema.name, e.estimate.initial, e.estimate.final, e.estimate.after, e.worked}, true
}

// InFlight bounds the number of requests in flight. Requests never wait; long-running
// ones are not counted, and those of system:masters are always admitted.
type InFlight struct {
	reading, writing limit
}

type limit struct {
	most int64 // largest number in flight; 0 is no limit
	now  atomic.Int64
	peak atomic.Int64
}

// Peaks returns the largest numbers of read-only and mutating requests in flight since
// the last call.
func (f *InFlight) Peaks() (reading, writing int64) {
	return f.reading.peak.Swap(f.reading.now.Load()), f.writing.peak.Swap(f.writing.now.Load())
}

// Enter implements Limiter.
func (f *InFlight) Enter(_ context.Context, r *request.Request, e *Entry) bool {
	l := &f.writing
	if ReadOnly(r.Verb) {
		l = &f.reading
	}
	if l.most == 0 || r.LongRunning() {
		return true
	}
	now := l.now.Add(1)
	if now > l.most {
		l.now.Add(-1)
		e.RetryAfter = 1
		return r.User.IsAdministrator()
	}
	for peak := l.peak.Load(); now > peak && !l.peak.CompareAndSwap(peak, now); peak = l.peak.Load() {
	}
	e.limit = l
	return true
}

// ReadOnly reports whether a verb is get, list or watch.
func ReadOnly(verb string) bool {
	return verb == request.Get || verb == request.List || verb == request.Watch
}
