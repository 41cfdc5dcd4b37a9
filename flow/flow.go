// Package flow decides which requests the server works on, and which have to
// wait or come back later.
//
// There are two ways. InFlight bounds how many requests are under way. Control
// is API priority and fairness: flow schemas sort requests into flows and
// priority levels; a level has a number of seats, lends some of them to others
// and borrows from them; within a level requests wait in queues, and the flows
// get the same share of its seats however many requests each of them sends.
//
//	match.go     which schema, and so which level, a request belongs to
//	estimate.go  how many seats it takes, and for how long
//	shard.go     which queues its flow may use
//	level.go     queues and seats of a level: fair queuing in virtual time
//	borrow.go    how levels lend seats to each other
//	table.go     levels and schemas from API objects
//	retry.go     when a client that was refused should come back
//	dump.go      pages for people who want to see all this at work
package flow

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/request"
)

// Headers of answers that say which flow schema and priority level a request
// belonged to, in the form that http.Header has them in.
const (
	SchemaHeader = "X-Kubernetes-Pf-Flowschema-Uid"
	LevelHeader  = "X-Kubernetes-Pf-Prioritylevel-Uid"
)

// masters is the group whose requests are never refused.
const masters = "system:masters"

// Limiter lets requests in, or refuses them.
type Limiter interface {
	// Enter waits until the server has room for a request and reports whether
	// it has. The query is that of the URL. If it reports true Leave must be
	// called when the request is answered. The entry is empty, and is filled in
	// either case; it may not be copied or used for another request.
	Enter(ctx context.Context, r *request.Request, query string, e *Entry) bool
}

// Headers sets the headers of an answer, and is called before it is begun.
func (e *Entry) Headers(h http.Header) {
	if e.schema != nil {
		h[SchemaHeader], h[LevelHeader] = e.schema.uid, e.schema.levelUID
	}
}

// Description is what flow control made of a request.
type Description struct {
	Level, Schema string
	// Seats are those that it takes while it is answered, FinalSeats those that it
	// takes for some time After that.
	Seats, FinalSeats int
	After             time.Duration
	// Worked is how long it was worked on; of a watch, how long it took to begin.
	Worked time.Duration
}

// Describe returns what was made of the request, unless it did not pass through
// priorities and fairness.
func (e *Entry) Describe() (d Description, ok bool) {
	if e.schema == nil {
		return d, false
	}
	return Description{e.schema.level.name, e.schema.name, e.estimate.initial, e.estimate.final, e.estimate.after, e.worked}, true
}

// InFlight bounds how many requests are under way at a time. Requests are never
// made to wait, long-running ones do not count, and those of administrators are
// let in all the same.
type InFlight struct {
	reading, writing limit
}

type limit struct {
	most int64 // 0 is no limit
	now  atomic.Int64
	peak atomic.Int64
}

// Peaks returns how many requests that read, and that write, were under way at most
// since it was last called.
func (f *InFlight) Peaks() (reading, writing int64) {
	return f.reading.peak.Swap(f.reading.now.Load()), f.writing.peak.Swap(f.writing.now.Load())
}

// Enter implements Limiter.
func (f *InFlight) Enter(_ context.Context, r *request.Request, _ string, e *Entry) bool {
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
		return slices.Contains(r.User.Groups, masters)
	}
	for peak := l.peak.Load(); now > peak && !l.peak.CompareAndSwap(peak, now); peak = l.peak.Load() {
	}
	e.limit = l
	return true
}

// ReadOnly reports whether a verb changes nothing.
func ReadOnly(verb string) bool {
	return verb == request.Get || verb == request.List || verb == request.Watch
}
