// Package request describes a request: who asks for what. Start at Request and Info.
// Every stage of the server uses it, so it imports none of them.
package request

import (
	"context"
	"errors"
	"k8s.io/apimachinery/pkg/types"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Verbs of requests for resources. A request for another path has the lower-
// case HTTP method as its verb.
const (
	Get              = "get"
	List             = "list"
	Watch            = "watch"
	Create           = "create"
	Update           = "update"
	Patch            = "patch"
	Delete           = "delete"
	DeleteCollection = "deletecollection"
	Connect          = "connect"
)

// ErrBusy is the error of authentication when too many others wait for the lookup of a
// credential, as long as it is not known whose this one is. The client should try again.
var ErrBusy = errors.New("too many credentials are being looked up, please try again later")

// User is an authenticated user.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
}

// Masters is the group of administrators: they are allowed everything, flow control exempts
// them, and a part of the memory is kept for them.
const Masters = "system:masters"

// IsAdministrator reports whether the user is in the group Masters.
func (u *User) IsAdministrator() bool { return slices.Contains(u.Groups, Masters) }

// Info is what a request asks for, parsed from its path, query and method.
type Info struct {
	// IsResource is true for resources below /api and /apis.
	IsResource bool
	Path       string
	Verb       string

	Group       string
	Version     string
	Namespace   string
	Resource    string
	Subresource string
	Name        string
	// Parts are the path segments after the namespace: resource, name,
	// subresource and whatever follows it.
	Parts []string
	// Query has the parameters of the URL.
	Query Query

	options *ListOptions // of Query; nil until ListOptions is called
}

// Request is the state of a request in the server. Except where a field says otherwise,
// it is written by the goroutine that serves the request.
type Request struct {
	Info
	// User is set by authentication and replaced by impersonation.
	User User
	// Impersonator is the authenticated user if User is impersonated. Wanted is whom its
	// headers named then, without what the server has added.
	Impersonator, Wanted *User
	// ImpersonationConstraint is the verb that allowed a constrained impersonation.
	ImpersonationConstraint string
	// NamespaceUID is the UID of the namespace for which a write was authorized; "" if it had none, or was not there.
	NamespaceUID types.UID
	// AuditID identifies the request in the audit log and to aggregated API servers. A
	// client may choose it; it has at most MaxAuditID bytes.
	AuditID string
	// Received is when the request arrived. It is also the creation time of objects
	// that the request creates.
	Received time.Time
	// Passed is when the stages before the handler were finished, by the machine's
	// clock; zero if not measured.
	Passed time.Time
	// MachineTime is Received by the machine's clock, if the server uses another clock.
	MachineTime time.Time
	// Clock is the clock of the server; nil is the machine's.
	Clock func() time.Time
	// Server is what definitions of kinds that servers of a process share use of the server
	// that the request came to; nil if it shares none.
	Server any
	// CBOR: the server accepts and returns CBOR besides the other encodings.
	CBOR bool
	// DryRun: everything is done but the write.
	DryRun bool
	// FieldManager is the manager of the fields that the request sets.
	FieldManager string
	// Audit receives what is to be audited; nil if nothing is.
	Audit Recorder
	// Hold is the share of the server's capacity (flow control seats) that the request
	// has until it ends; nil if none.
	Hold Hold
	// Turns are the CPU turns for large responses; nil if they are not limited.
	Turns Turns
	// Arrival is told when the request waits for something or has a seat; nil if nobody
	// wants to know.
	Arrival Arrival
	// Line is preallocated memory for Time; nil allocates.
	Line *Timeline
	// Warned is where Warn collects warnings; nil drops them.
	Warned *Warnings
	// Deprecation is the warning about the API version of the request; empty if the
	// version is not deprecated.
	Deprecation string
	// CanContinue: the server supports Continue for this request.
	CanContinue bool

	continuation func()
	timeline     *Timeline
	// Nanoseconds spent in webhooks: the sum of mutating ones, and the longest of the
	// validating ones, which run in parallel. Accessed atomically.
	mutating, validating int64
	// stored is the time spent in the store, in nanoseconds. Accessed atomically.
	stored int64
	// reads and writes are operations on the store, held is reserved memory times its
	// duration, in bytes times microseconds. Accessed atomically.
	reads, writes, held int64
}

// Requestor returns the user who was authenticated, also if User is another one.
func (r *Request) Requestor() *User {
	if r.Impersonator != nil {
		return r.Impersonator
	}
	return &r.User
}

const (
	// MaxAuditID is the largest length of an audit ID in bytes.
	MaxAuditID = 1024
	// maxLoggedID is the length to which audit IDs are cut in logs, as in
	// kube-apiserver.
	maxLoggedID = 64
)

// LoggedID is the audit ID for logs and traces, cut to maxLoggedID.
func (r *Request) LoggedID() string { return r.AuditID[:min(len(r.AuditID), maxLoggedID)] }

// Arrived is when the request arrived by the machine's clock; durations and deadlines
// are counted from it.
func (r *Request) Arrived() time.Time {
	if !r.MachineTime.IsZero() {
		return r.MachineTime
	}
	return r.Received
}

// Now is the time by the clock of the server. Requests that last, such as watches, use
// it where others use Received.
func (r *Request) Now() time.Time {
	if r.Clock != nil {
		return r.Clock()
	}
	return time.Now()
}

// Hold is a share of the server's capacity.
type Hold interface {
	// Release returns it. It may be called several times.
	Release()
}

// Turns limit how many large responses are worked on at a time, so that small ones,
// which take no turn, get a CPU.
type Turns interface {
	// Take waits for a turn if the request has none. A turn is short.
	Take()
	// End ends the turn. A large write ends it too.
	End()
}

// TakeTurn ends the current turn, if there is one, and waits for the next.
func (r *Request) TakeTurn() {
	if r.Turns != nil {
		r.Turns.End()
		r.Turns.Take()
	}
}

// EndTurn ends the current turn, if there is one.
func (r *Request) EndTurn() {
	if r.Turns != nil {
		r.Turns.End()
	}
}

// Arrival is the connection of a request, which reads no more of them than can be looked at
// soon: see h2.Arrival.
type Arrival interface {
	EndArrival(ahead bool)
}

// EndArrival tells the connection that the request waits for something, or has a seat in flow
// control. It may be called several times, and by any goroutine.
func (r *Request) EndArrival() {
	if r.Arrival != nil {
		r.Arrival.EndArrival(r.User.IsAdministrator())
	}
}

// EndArrival does so for the request of a context, if it has one.
func EndArrival(ctx context.Context) {
	if r := Of(ctx); r != nil {
		r.EndArrival()
	}
}

// Started releases Hold, because the rest of the request costs the server next to
// nothing: a watch has sent its initial events, a watch is proxied, or a small
// response has only to be written.
func (r *Request) Started() {
	if r.Hold != nil {
		r.Hold.Release()
	}
}

// Continue makes the response continue in f, on a goroutine of its own, after the
// handler has returned, so that an idle watch does not keep the stack of the whole
// pipeline. It returns false if the handler has to call f itself. Continue(nil) cancels
// it.
func (r *Request) Continue(f func()) bool {
	if r.CanContinue {
		r.continuation = f
	}
	return r.CanContinue
}

// Continues reports whether the response continues after the handler has returned.
func (r *Request) Continues() bool { return r.continuation != nil }

// TakeContinuation returns and clears the function passed to Continue.
func (r *Request) TakeContinuation() func() {
	f := r.continuation
	r.continuation = nil
	return f
}

// Recorder receives the data for the audit of a request. Objects are encoded, as JSON,
// only if the policy wants them. It is safe for concurrent use.
type Recorder interface {
	// Annotate adds an annotation. The first value of a key stays.
	Annotate(key, value string)
	// AnnotateBody adds an annotation about the body of the request, if the audit level
	// includes bodies.
	AnnotateBody(key, value string)
	// SentObject records the object that the client sent, after defaulting, in its own
	// version. meta is its metadata as sent; nil if it has none.
	SentObject(meta metav1.Object, encode func() ([]byte, error))
	// SentPatch records the patch that the client sent, as JSON.
	SentPatch(patch []byte)
	// AnsweredObject records the response object. If encode returns ErrTooLargeToRecord, it
	// records that there was one.
	AnsweredObject(encode func() ([]byte, error))
	// AnsweredStatus records a response that is a Status.
	AnsweredStatus(status *metav1.Status, encode func() ([]byte, error))
}

// ErrTooLargeToRecord: a response object is not recorded, as it is too large.
var ErrTooLargeToRecord = errors.New("too large to be recorded")

// Timekeeper is a Recorder that also receives the latency of parts of the server.
type Timekeeper interface {
	Recorder
	Spent(part Part, d time.Duration)
}

// Part is a part of the server whose latency is recorded.
type Part uint8

// The parts in the latency annotations of the audit.
const (
	Authentication Part = iota
	Impersonation
	Queue
	Authorization
	MutatingWebhooks
	ValidatingWebhooks
	Storage
	ResponseWrite
	// Decode is decoding stored objects, Transform converting them (to a Table, for
	// example), Serialize encoding and sending the response.
	Decode
	Transform
	Serialize
	// Parts is the number of parts.
	Parts
)

// Spent records the latency of a part.
func (r *Request) Spent(part Part, d time.Duration) {
	switch part {
	case Storage:
		atomic.AddInt64(&r.stored, int64(d))
	case MutatingWebhooks:
		atomic.AddInt64(&r.mutating, int64(d))
	case ValidatingWebhooks:
		for {
			most := atomic.LoadInt64(&r.validating)
			if int64(d) <= most || atomic.CompareAndSwapInt64(&r.validating, most, int64(d)) {
				break
			}
		}
	}
	if d > 0 && r.Audit != nil {
		if k, ok := r.Audit.(Timekeeper); ok {
			k.Spent(part, d)
		}
	}
}

// Webhooks is the time that the request waited for webhooks.
func (r *Request) Webhooks() time.Duration {
	return time.Duration(atomic.LoadInt64(&r.mutating) + atomic.LoadInt64(&r.validating))
}

// Stored is the time that the request waited for the store.
func (r *Request) Stored() time.Duration { return time.Duration(atomic.LoadInt64(&r.stored)) }

// CountStore counts an operation on the store that was not answered from a cache.
func (r *Request) CountStore(write bool) {
	if write {
		atomic.AddInt64(&r.writes, 1)
	} else {
		atomic.AddInt64(&r.reads, 1)
	}
}

// StoreCounts is how often the request has read from the store and written to it.
func (r *Request) StoreCounts() (reads, writes int64) {
	return atomic.LoadInt64(&r.reads), atomic.LoadInt64(&r.writes)
}

// HeldMemory records that the request had bytes of memory reserved for a time.
func (r *Request) HeldMemory(bytes int64, d time.Duration) {
	atomic.AddInt64(&r.held, bytes*d.Microseconds())
}

// HeldByteSeconds is the sum of the memory that was reserved, times for how long.
func (r *Request) HeldByteSeconds() float64 { return float64(atomic.LoadInt64(&r.held)) / 1e6 }

// Annotate adds an audit annotation, if the request is audited.
func (r *Request) Annotate(key, value string) {
	if r.Audit != nil {
		r.Audit.Annotate(key, value)
	}
}

// AnnotateBody adds an audit annotation about the body of the request.
func (r *Request) AnnotateBody(key, value string) {
	if r.Audit != nil {
		r.Audit.AnnotateBody(key, value)
	}
}

// maxWarnings is the largest number of warnings that a request collects. How much text
// of them a client gets is limited where the response header is written.
const maxWarnings = 4096

// Warnings are the warnings of a request, shared with requests that are made on its
// behalf. The zero value is ready to use.
type Warnings struct {
	mu    sync.Mutex
	texts []string
	known map[string]bool // the texts
}

// Warn adds a warning for the client, once. It is safe for concurrent use.
func (r *Request) Warn(text string) {
	w := r.Warned
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.texts) == maxWarnings || w.known[text] {
		return
	}
	if w.known == nil {
		w.known = map[string]bool{}
	}
	w.known[text] = true
	w.texts = append(w.texts, text)
}

// Warnings returns the warnings added so far.
func (r *Request) Warnings() []string {
	w := r.Warned
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clip(w.texts)
}

type contextKey struct{}

// With returns a context that carries the request.
func With(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, contextKey{}, r)
}

// Of returns the request of a context, nil for work without a client.
func Of(ctx context.Context) *Request {
	r, _ := ctx.Value(contextKey{}).(*Request)
	return r
}

// From returns the request of a context. Work without a client, such as a start hook,
// gets an empty request that arrives now.
func From(ctx context.Context) *Request {
	if r := Of(ctx); r != nil {
		return r
	}
	if now, ok := ctx.Value(clockKey{}).(func() time.Time); ok {
		return &Request{Received: now()}
	}
	return &Request{Received: time.Now()}
}

type clockKey struct{}

// WithClock returns a context in which From uses another clock for work without a
// client.
func WithClock(ctx context.Context, now func() time.Time) context.Context {
	return context.WithValue(ctx, clockKey{}, now)
}
