// Package request says who asks for what. Every stage of the server speaks in
// its terms, so it knows none of them.
package request

import (
	"context"
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

// User is who asks.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
}

// Info is what a request asks for, read from its path and method.
type Info struct {
	// IsResource tells requests below /api and /apis from others.
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
}

// Request is one request on its way through the server.
type Request struct {
	Info
	// User is who asks: set by authentication, replaced by impersonation.
	User User
	// Impersonator is who asked in the name of User, if somebody did.
	Impersonator *User
	// ImpersonationConstraint is the verb that allowed it, if it was allowed
	// for some actions only.
	ImpersonationConstraint string
	// AuditID identifies the request in the audit and to servers behind this one. A
	// client may choose it: it has at most MaxAuditID bytes.
	AuditID string
	// Received is when the request came in. It is also the time that is
	// stamped on what the request creates.
	Received time.Time
	// Passed is when the stages before the handler were done with the request, by the
	// clock of the machine; zero if nobody has looked.
	Passed time.Time
	// MachineTime is Received by the clock of the machine, if the server goes by
	// another one.
	MachineTime time.Time
	// DryRun: everything happens but the write.
	DryRun bool
	// FieldManager is who owns the fields that the request sets.
	FieldManager string
	// Audit takes what is to be written down of the request; nil if nothing is.
	Audit Recorder
	// Hold is what the request keeps of the server's capacity until it is
	// answered; nil if it is nothing, or too little to care.
	Hold Hold
	// Turns are taken by who works on a large answer; nil if nobody waits for them.
	Turns Turns
	// Line is where Time keeps the time; nil has it find a place.
	Line *Timeline
	// Warned is where Warn keeps warnings; nil has it find a place, which is not safe for
	// concurrent use.
	Warned *Warnings
	// CanContinue says that the response may go on when the handler has returned.
	CanContinue bool

	continuation func()
	timeline     *Timeline
	// Nanoseconds that webhooks took: those that change things, and the slowest of
	// those that validate, which are asked at the same time.
	mutating, validating int64
	// stored is how many the store took.
	stored int64
}

const (
	// MaxAuditID is how many bytes of an audit ID are kept.
	MaxAuditID = 1024
	// maxLoggedID is how many of them are logged, as in kube-apiserver's logs.
	maxLoggedID = 64
)

// LoggedID is the audit ID for logs and traces, which have its first bytes.
func (r *Request) LoggedID() string { return r.AuditID[:min(len(r.AuditID), maxLoggedID)] }

// Arrived is when the request came in by the clock of the machine: how long
// something has taken, and may take, is counted from it.
func (r *Request) Arrived() time.Time {
	if !r.MachineTime.IsZero() {
		return r.MachineTime
	}
	return r.Received
}

// Hold is a part of what the server can do at a time.
type Hold interface {
	// Release gives it back. It may be called several times.
	Release()
}

// Turns let large answers be worked on a few at a time, so that small ones, which
// do not take turns, need not wait for all of them.
type Turns interface {
	// Take waits for a turn, if the request has none. It does not last for long.
	Take()
	// End ends it. A large write does so, too.
	End()
}

// TakeTurn ends the turn that the request has, if there is one, and waits for the
// next.
func (r *Request) TakeTurn() {
	if r.Turns != nil {
		r.Turns.End()
		r.Turns.Take()
	}
}

// Started says that what the request still does costs the server next to
// nothing: a watch has sent what there was when it began, or somebody else does
// the work.
func (r *Request) Started() {
	if r.Hold != nil {
		r.Hold.Release()
	}
}

// Continue has the response go on in f, on a goroutine of its own, when the handler
// has returned: a watch that waits need not keep the stack of all that called it. It
// reports false if the handler has to do it itself. With nil it takes that back.
func (r *Request) Continue(f func()) bool {
	if r.CanContinue {
		r.continuation = f
	}
	return r.CanContinue
}

// Continues reports whether the response goes on when the handler has returned.
func (r *Request) Continues() bool { return r.continuation != nil }

// TakeContinuation returns what Continue was called with, once.
func (r *Request) TakeContinuation() func() {
	f := r.continuation
	r.continuation = nil
	return f
}

// Recorder takes what the audit of a request may want. Objects are encoded, as
// JSON, only if they are wanted. It is safe for concurrent use.
type Recorder interface {
	// Annotate adds a note. The first value of a key stays.
	Annotate(key, value string)
	// AnnotateBody adds a note that tells of the body of the request, if the
	// audit may have that.
	AnnotateBody(key, value string)
	// SentObject is what the client sent, with defaults, in the version that it
	// was sent in. meta is its metadata as sent; nil if it has none.
	SentObject(meta metav1.Object, encode func() ([]byte, error))
	// SentPatch is a patch that the client sent, as JSON.
	SentPatch(patch []byte)
	// AnsweredObject is what the client gets.
	AnsweredObject(encode func() ([]byte, error))
	// AnsweredStatus is what the client gets if it is a Status.
	AnsweredStatus(status *metav1.Status, encode func() ([]byte, error))
}

// Timekeeper is a Recorder that wants to know how long parts of the server have
// worked on the request.
type Timekeeper interface {
	Recorder
	Spent(part Part, d time.Duration)
}

// Part is a part of the server that may take long.
type Part uint8

// The parts of which the audit tells why a request has taken long.
const (
	Authentication Part = iota
	Impersonation
	Queue
	Authorization
	MutatingWebhooks
	ValidatingWebhooks
	Storage
	ResponseWrite
	// Decode is reading what was stored, Transform making a table or the like of it,
	// and Serialize the rest of what makes the answer, and sending it.
	Decode
	Transform
	Serialize
	// Parts is how many there are.
	Parts
)

// Spent tells the audit of the request, if it wants to know, how long a part of the
// server has worked on it.
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

// Webhooks is how long the request has waited for webhooks.
func (r *Request) Webhooks() time.Duration {
	return time.Duration(atomic.LoadInt64(&r.mutating) + atomic.LoadInt64(&r.validating))
}

// Stored is how long the request has waited for the store.
func (r *Request) Stored() time.Duration { return time.Duration(atomic.LoadInt64(&r.stored)) }

// Annotate adds a note to the audit of the request, if there is one.
func (r *Request) Annotate(key, value string) {
	if r.Audit != nil {
		r.Audit.Annotate(key, value)
	}
}

// AnnotateBody adds a note that tells of the body of the request.
func (r *Request) AnnotateBody(key, value string) {
	if r.Audit != nil {
		r.Audit.AnnotateBody(key, value)
	}
}

// maxWarnings bounds what a request can collect. Clients get the first ones, up to
// that many letters of text.
const maxWarnings = 4096

// Warnings are the warnings of a request and of what it is passed on as. The zero value
// is ready.
type Warnings struct {
	mu    sync.Mutex
	texts []string
}

// Warn adds a warning for the client, once. It is safe for concurrent use on a request
// that has Warned.
func (r *Request) Warn(text string) {
	if r.Warned == nil {
		r.Warned = &Warnings{}
	}
	w := r.Warned
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.texts) < maxWarnings && !slices.Contains(w.texts, text) {
		w.texts = append(w.texts, text)
	}
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

// From returns the request that a context carries. Work that no client asked
// for, such as that of a hook at start, has an empty one, which comes in now.
func From(ctx context.Context) *Request {
	if r, ok := ctx.Value(contextKey{}).(*Request); ok {
		return r
	}
	if now, ok := ctx.Value(clockKey{}).(func() time.Time); ok {
		return &Request{Received: now()}
	}
	return &Request{Received: time.Now()}
}

type clockKey struct{}

// WithClock returns a context in which work that no client asked for goes by a
// clock of its own.
func WithClock(ctx context.Context, now func() time.Time) context.Context {
	return context.WithValue(ctx, clockKey{}, now)
}
