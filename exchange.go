package kelson

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/h2"
	"github.com/apikeel/kelson/internal/turns"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/trace"
)

// An exchange is a request and its answer on their way through the pipeline.
// It is one allocation: what the stages add finds its place here.
type exchange struct {
	request.Request
	// r is the request for handlers: its context carries the Request above and
	// has its deadline.
	r *http.Request
	// w is where handlers write: the writer below, with or without Hijack.
	w http.ResponseWriter

	lifetime lifetime
	// entry is what the request holds of the server's capacity.
	entry flow.Entry
	// counted: the end of the server waits for it.
	counted bool
	// own: the server has asked itself.
	own bool
	// passed is how many stages the request has passed, and ended how far it came.
	passed int
	ended  metrics.End
	// measured ends the measuring of a request that may last; nil for others.
	measured func()
	// mark is when the stage began that is to be measured.
	mark time.Time
	line request.Timeline
	// warnings is where Request.Warned points.
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
	_, own := w.(h2.Continuer)
	x.CanContinue, x.writer.bounded = own, !own
	if _, ok := w.(http.Hijacker); ok {
		x.w = hijackable{&x.writer}
	}
	return x
}

// finish is called when the request has been answered and all stages have ended.
func (x *exchange) finish() {
	if x.status == 0 {
		x.begin(http.StatusOK) // net/http writes the header now
	}
	x.turn.Finish()
	x.lifetime.release()
}

// setHeader sets a header of the answer, whose name is in canonical form,
// unless it is there: a server behind this one may have set it.
func (x *exchange) setHeader(name, value string) {
	h := x.writer.Header()
	if _, ok := h[name]; ok || x.headers == len(x.values) {
		return
	}
	x.values[x.headers] = value
	h[name] = x.values[x.headers : x.headers+1 : x.headers+1]
	x.headers++
}

// disconnect makes this the last request of an HTTP/2 connection. Who is not
// known gets none that is worth flooding.
func (x *exchange) disconnect() {
	if x.r.ProtoMajor == 2 {
		x.writer.Header().Set("Connection", "close")
	}
}

// setDeadline ends the context of the request at a time. A client that sends
// its body too slowly is cut off then, and so is one that does not read a large
// answer; small ones are not worth a timer, they fit into buffers.
func (x *exchange) setDeadline(t time.Time) {
	x.lifetime.deadline = t
	x.writer.deadline = t
	if x.r.ContentLength != 0 {
		// Writers that know no deadline have no network behind them.
		_ = http.NewResponseController(x.ResponseWriter).SetReadDeadline(t)
	}
}

// endWith ends the context of the request when ctx ends, as soon as turn calls
// what it is given; nil does so at once.
func (x *exchange) endWith(ctx context.Context, turn func(end func())) { x.lifetime.endWith(ctx, turn) }

// late reports whether the deadline is over.
func (x *exchange) late() bool {
	return !x.lifetime.deadline.IsZero() && !time.Now().Before(x.lifetime.deadline)
}

const timeoutMessage = "request did not complete within the allotted timeout"

// timeOut answers for a handler that has not. The form of the answer, which is not
// quite that of other errors, is what clients know.
func (x *exchange) timeOut() {
	x.ended = metrics.TimedOut
	status := apierrors.NewTimeoutError(timeoutMessage, 0).ErrStatus
	x.w.WriteHeader(http.StatusGatewayTimeout)
	_ = json.NewEncoder(x.w).Encode(&status)
}

// A writer adds to net/http's what has to happen when the header is written.
type writer struct {
	http.ResponseWriter
	request *request.Request
	// record is told when the answer begins; nil if nothing is audited.
	record *audit.Record

	// status is what was answered, 0 as long as nothing was.
	status int
	// written counts bytes of the body.
	written  int64
	deadline time.Time
	// bounded says that the HTTP server does not itself end a response that its client
	// does not read, as package h2 does.
	bounded bool

	turn turns.Turn

	values  [3]string // of headers set with setHeader
	headers int
}

// manyBytes is what an answer must exceed for its writes to get a deadline.
const manyBytes = 64 << 10

func (w *writer) begin(status int) {
	w.status = status
	if w.record != nil {
		w.record.Answer(status)
	}
	if w.bounded && !w.deadline.IsZero() {
		// Not the deadline of the request: the client is told when that is over.
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

// WriteString saves the copy that io.WriteString would make.
func (w *writer) WriteString(s string) (int, error) {
	if w.status == 0 {
		w.begin(http.StatusOK)
	}
	w.count(len(s))
	defer w.boundWrite()()
	if sw, ok := w.ResponseWriter.(interface{ WriteString(string) (int, error) }); ok {
		return sw.WriteString(s)
	}
	return w.ResponseWriter.Write([]byte(s))
}

func (w *writer) count(n int) {
	before := w.written
	w.written += int64(n)
	if before <= manyBytes && w.written > manyBytes && !w.deadline.IsZero() {
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(w.deadline)
	}
}

// boundWrite gives a write of a long-running request stalledTimeout, until the
// function that it returns is called: a client that reads nothing must not keep a
// watch for ever. Other requests have their deadline.
func (w *writer) boundWrite() (done func()) {
	if !w.bounded || !w.deadline.IsZero() {
		return nothing
	}
	control := http.NewResponseController(w.ResponseWriter)
	_ = control.SetWriteDeadline(time.Now().Add(stalledTimeout))
	return func() { _ = control.SetWriteDeadline(time.Time{}) }
}

func nothing() {}

func (w *writer) Flush() { _ = w.FlushError() }

// FlushError is what http.ResponseController looks for.
func (w *writer) FlushError() error {
	if w.status == 0 {
		w.begin(http.StatusOK)
	}
	defer w.boundWrite()()
	switch f := w.ResponseWriter.(type) {
	case interface{ FlushError() error }:
		return f.FlushError()
	case http.Flusher:
		f.Flush()
		return nil
	}
	return http.ErrNotSupported
}

// Unwrap lets http.ResponseController find what is not here.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// hijackable is the writer of a connection that can be taken over: HTTP/1.1.
// Those who want to take one over look for the method.
type hijackable struct{ *writer }

func (w hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := w.ResponseWriter.(http.Hijacker).Hijack()
	if err == nil && w.status == 0 {
		w.begin(http.StatusSwitchingProtocols)
	}
	return conn, buffer, err
}

// A lifetime is the context of a request. Most requests are answered before
// anybody waits for their end, so the timer is made only when somebody does.
type lifetime struct {
	parent   context.Context
	deadline time.Time // set before anybody else knows the context
	// span is the trace of the request, nil if there is none; set before anybody
	// else looks.
	span *trace.Span

	mu       sync.Mutex
	inner    context.Context // nil until somebody waits
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

// waited returns a context with which the end can be waited for.
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

// Value asks the inner context if there is one: package context finds out that
// way that a child needs no goroutine to follow it.
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

// endWith ends the lifetime when ctx ends and it is its turn, for the same cause.
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

// release ends what waits. The request is over.
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
	// maxWarningRunes is how much text warnings may have together. Beyond it
	// each is cut to maxLongWarning.
	maxWarningRunes = 4096
	maxLongWarning  = 256
)

// writeWarnings adds a header for each warning.
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
		// Text with control characters does not go into a header.
		if header, err := utilnet.NewWarningHeader(299, "-", string(runes)); err == nil && text != "" {
			h.Add("Warning", header)
			written += len(runes)
		}
	}
}
