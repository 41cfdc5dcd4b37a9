package kelson

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/h2"
	"github.com/apikeel/kelson/internal/turns"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/status"
	"github.com/apikeel/kelson/trace"
	"github.com/apikeel/kelson/usage"
)

// exchange is a request and its response on their way through the pipeline. It is a single
// allocation: the state of the stages is in it.
type exchange struct {
	request.Request
	// r is the request for handlers: its context carries the Request above and
	// has its deadline.
	r *http.Request
	// w is where handlers write: the writer below, with or without Hijack.
	w http.ResponseWriter

	lifetime lifetime
	// queryErr is why the query of the request is refused; nil if it is not.
	queryErr error
	// entry is the seat of the request in flow control.
	entry flow.Entry
	// held is how many bytes of Memory.Clients the request holds, holder in whose name.
	held   int64
	holder string
	// counted: shutdown waits for the request.
	counted bool
	// loopback: the request is from this process (loopback).
	loopback bool
	// passed is the number of stages that the request has passed; ended is how it ended,
	// for metrics.
	passed int
	ended  metrics.End
	// measured ends the measurement of a long-running request; nil for others.
	measured func()
	// mark is when the stage that is being measured began.
	mark time.Time
	line request.Timeline
	// warnings is what Request.Warned points to.
	warnings request.Warnings
	writer
}

func newExchange(w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{}
	x.Received, x.Line, x.Warned = time.Now(), &x.line, &x.warnings
	x.lifetime.parent = r.Context()
	x.r = r.WithContext(request.With(&x.lifetime, &x.Request))
	x.writer.ResponseWriter = w
	x.writer.request = &x.Request
	x.w = &x.writer
	x.Arrival, _ = w.(h2.Arrival)
	_, own := w.(h2.Continuer)
	x.CanContinue, x.writer.bounded = own, !own
	if _, ok := w.(http.Hijacker); ok {
		x.w = hijackable{&x.writer}
	}
	return x
}

// finish is called when the request is answered and all stages have ended.
func (x *exchange) finish() {
	if x.status == 0 {
		x.begin(http.StatusOK) // net/http writes the header now
	}
	x.turn.Finish()
	x.lifetime.release()
}

// setHeader sets a response header, whose name is in canonical form, unless it is set: a
// server behind this one may have set it.
func (x *exchange) setHeader(name, value string) {
	h := x.writer.Header()
	if _, ok := h[name]; ok || x.headers == len(x.values) {
		return
	}
	x.values[x.headers] = value
	h[name] = x.values[x.headers : x.headers+1 : x.headers+1]
	x.headers++
}

// disconnect makes this the last request of an HTTP/2 connection, so that unauthenticated
// clients cannot keep one to flood the server.
func (x *exchange) disconnect() {
	if x.r.ProtoMajor == 2 {
		x.writer.Header().Set("Connection", "close")
	}
}

// setDeadline ends the context of the request at a time. The connection of a client that
// sends its body too slowly, or does not read a large response, is closed then; small
// responses fit into buffers and get no timer.
func (x *exchange) setDeadline(t time.Time) {
	x.lifetime.deadline = t
	x.writer.deadline = t
	if x.r.ContentLength != 0 {
		// Writers without a network behind them support no deadlines.
		_ = http.NewResponseController(x.ResponseWriter).SetReadDeadline(t)
	}
}

// endWith ends the context of the request when ctx ends, as soon as turn calls the function
// that it is given; a nil turn does so at once.
func (x *exchange) endWith(ctx context.Context, turn func(end func())) { x.lifetime.endWith(ctx, turn) }

// late reports whether the deadline has passed.
func (x *exchange) late() bool {
	return !x.lifetime.deadline.IsZero() && !time.Now().Before(x.lifetime.deadline)
}

// timeOut writes the response of a request that timed out.
func (x *exchange) timeOut() {
	x.ended = metrics.TimedOut
	status.WriteTimeout(x.w)
}

// writer wraps the ResponseWriter of net/http, to act when the header is written.
type writer struct {
	http.ResponseWriter
	request *request.Request
	// record is called when the response begins; nil without audit.
	record *audit.Record

	// status of the response, 0 until the header is written.
	status int
	// written is the number of bytes of the body.
	written  int64
	deadline time.Time
	// bounded says that the HTTP server does not itself close connections that do not
	// read a response, as package h2 does.
	bounded bool

	turn turns.Turn
	// long is the account of a long-running request; nil for others.
	long *usage.Long

	values  [3]string // values of headers set with setHeader
	headers int

	writing sync.Mutex // guards since
	since   time.Time  // when a write began that has not ended; zero if there is none
}

// manyBytes is the response size in bytes from which writes get a deadline.
const manyBytes = 64 << 10

func (w *writer) begin(status int) {
	w.status = status
	if w.record != nil {
		w.record.Answer(status)
	}
	if w.bounded && !w.deadline.IsZero() {
		// Not the deadline of the request: after that, a timeout response is still written.
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(stalledTimeout))
	}
	if warnings := w.request.Warnings(); len(warnings) > 0 {
		writeWarnings(w.Header(), warnings)
	}
}

func (w *writer) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.begin(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.begin(http.StatusOK)
	}
	w.count(len(b))
	defer w.boundWrite()()
	w.beginWrite()
	defer w.endWrite()
	if len(b) >= manyBytes && !w.deadline.IsZero() {
		w.turn.Take()
		defer w.turn.End()
	}
	if w.record != nil {
		began := time.Now()
		defer func() { w.request.Spent(request.ResponseWrite, time.Since(began)) }()
	}
	return w.ResponseWriter.Write(b)
}

// WriteString implements io.StringWriter, without the copy of io.WriteString.
func (w *writer) WriteString(s string) (int, error) {
	if w.status == 0 {
		w.begin(http.StatusOK)
	}
	w.count(len(s))
	defer w.boundWrite()()
	w.beginWrite()
	defer w.endWrite()
	if sw, ok := w.ResponseWriter.(interface{ WriteString(string) (int, error) }); ok {
		return sw.WriteString(s)
	}
	return w.ResponseWriter.Write([]byte(s))
}

func (w *writer) count(n int) {
	before := w.written
	w.written += int64(n)
	if w.long != nil {
		w.long.Sent(n)
	}
	if before <= manyBytes && w.written > manyBytes && !w.deadline.IsZero() {
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(w.deadline)
	}
}

// boundWrite gives a write of a long-running request a deadline of stalledTimeout, until
// the function that it returns is called: a client that reads nothing must not keep a watch
// open. Other requests have their own deadline.
func (w *writer) boundWrite() (done func()) {
	if !w.bounded || !w.deadline.IsZero() {
		return nothing
	}
	control := http.NewResponseController(w.ResponseWriter)
	_ = control.SetWriteDeadline(time.Now().Add(stalledTimeout))
	return func() { _ = control.SetWriteDeadline(time.Time{}) }
}

func nothing() {}

// slowWrite is how long a write of HTTP/1.1 may take before its client counts as one that does
// not read: whether it has read a part of it is not known.
const slowWrite = 10 * time.Second

// beginWrite notes that a write waits for the client, until endWrite is called.
func (w *writer) beginWrite() {
	w.writing.Lock()
	w.since = time.Now()
	w.writing.Unlock()
}

func (w *writer) endWrite() {
	w.writing.Lock()
	w.since = time.Time{}
	w.writing.Unlock()
}

// Stalled implements flow.Client.
func (w *writer) Stalled() time.Duration {
	w.writing.Lock()
	since := w.since
	w.writing.Unlock()
	if since.IsZero() {
		return 0
	}
	if s, ok := w.ResponseWriter.(h2.Staller); ok {
		return s.Stalled()
	}
	if took := time.Since(since); took >= slowWrite {
		return took
	}
	return 0
}

// CutOff implements flow.Client.
func (w *writer) CutOff() {
	w.writing.Lock()
	defer w.writing.Unlock()
	if !w.since.IsZero() { // the handler has not returned: the connection has no other response
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now())
	}
}

func (w *writer) Flush() { _ = w.FlushError() }

// FlushError implements the interface that http.ResponseController looks for.
func (w *writer) FlushError() error {
	if w.status == 0 {
		w.begin(http.StatusOK)
	}
	defer w.boundWrite()()
	w.beginWrite()
	defer w.endWrite()
	switch f := w.ResponseWriter.(type) {
	case interface{ FlushError() error }:
		return f.FlushError()
	case http.Flusher:
		f.Flush()
		return nil
	}
	return http.ErrNotSupported
}

// Unwrap lets http.ResponseController reach the wrapped writer.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// hijackable is the writer of an HTTP/1.1 connection, which can be hijacked. Handlers look
// for the method Hijack.
type hijackable struct{ *writer }

func (w hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := w.ResponseWriter.(http.Hijacker).Hijack()
	if err == nil && w.status == 0 {
		w.begin(http.StatusSwitchingProtocols)
	}
	return conn, buffer, err
}

// lifetime is the context of a request. Most requests are answered before anybody waits on
// Done, so the timer is created only then.
type lifetime struct {
	parent   context.Context
	deadline time.Time // set before the context is shared
	// span is the trace of the request, nil without tracing; set before the context is
	// shared.
	span *trace.Span

	mu       sync.Mutex
	inner    context.Context // nil until Done is called
	cancel   context.CancelCauseFunc
	released func() bool
}

func (l *lifetime) Deadline() (time.Time, bool) {
	if l.deadline.IsZero() {
		return l.parent.Deadline()
	}
	return l.deadline, true
}

func (l *lifetime) Done() <-chan struct{} { return l.waited().Done() }

// waited returns the inner context, and creates it on first use.
func (l *lifetime) waited() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inner == nil {
		if l.deadline.IsZero() {
			return l.parent
		}
		ctx, cancel := context.WithDeadline(l.parent, l.deadline)
		l.inner, l.cancel = ctx, func(error) { cancel() }
	}
	return l.inner
}

func (l *lifetime) Err() error {
	l.mu.Lock()
	inner := l.inner
	l.mu.Unlock()
	if inner != nil {
		return inner.Err()
	}
	if err := l.parent.Err(); err != nil {
		return err
	}
	if !l.deadline.IsZero() && !time.Now().Before(l.deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// Value asks the inner context if there is one: package context then recognizes it and starts
// no goroutine for a child.
func (l *lifetime) Value(key any) any {
	if key == trace.Key() {
		return l.span
	}
	l.mu.Lock()
	ctx := l.inner
	l.mu.Unlock()
	if ctx == nil {
		ctx = l.parent
	}
	return ctx.Value(key)
}

// endWith ends the lifetime when ctx has ended and its turn has come, with the same cause.
func (l *lifetime) endWith(ctx context.Context, turn func(end func())) {
	inner, cancel := context.WithCancelCause(l.parent)
	l.inner, l.cancel = inner, cancel
	l.released = context.AfterFunc(ctx, func() {
		end := func() { cancel(context.Cause(ctx)) }
		if turn == nil {
			end()
		} else {
			turn(end)
		}
	})
}

// release frees the timer. The request is over.
func (l *lifetime) release() {
	l.mu.Lock()
	cancel, released := l.cancel, l.released
	l.mu.Unlock()
	if released != nil {
		released()
	}
	if cancel != nil {
		cancel(nil)
	}
}

const (
	// maxWarningRunes bounds the total text of warnings. Beyond it each is truncated to
	// maxLongWarning.
	maxWarningRunes = 4096
	maxLongWarning  = 256
)

// writeWarnings adds a Warning header for each warning.
func writeWarnings(h http.Header, warnings []string) {
	total := 0
	for _, text := range warnings {
		total += len([]rune(text))
	}
	written := 0
	for _, text := range warnings {
		runes := []rune(text)
		if total > maxWarningRunes {
			if written >= maxWarningRunes {
				return
			}
			if len(runes) > maxLongWarning {
				runes = runes[:maxLongWarning]
			}
		}
		// Control characters are not allowed in a header.
		if header, err := utilnet.NewWarningHeader(299, "-", string(runes)); err == nil && text != "" {
			h.Add("Warning", header)
			written += len(runes)
		}
	}
}
