package h2

import (
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// maxBuffered is how much of a response is kept back until it is flushed, or
	// complete.
	maxBuffered = 4 << 10
	// largeWrite is what the handler of a large response writes at a time.
	largeWrite = 64 << 10
)

// response is the http.ResponseWriter of a stream. Only the handler uses it,
// except for begun, which the mutex of the connection guards.
type response struct {
	st     *stream
	head   bool // no body is sent
	header http.Header

	status   int // 0 until WriteHeader
	sent     http.Header
	declared int64 // the Content-Length, -1 if there is none
	size     int64
	buffer   *[]byte
	begun    bool // the headers are on their way
	leave    bool // the connection ends after it
	// continuation is called when the handler has returned, see Continuer.
	continuation func()
}

// A Continuer is a writer whose response may go on when the handler has returned.
type Continuer interface {
	// Continue has f called then, on a goroutine of its own. The response, and the
	// context of the request, end when it returns.
	Continue(f func())
}

// Continue implements Continuer.
func (w *response) Continue(f func()) { w.continuation = f }

// A Laster is a writer whose response may last as long as the client likes.
type Laster interface {
	// Lasts says that it does, and that somebody else bounds how many there are: the handler
	// does not count for Server.MaxHandlers any longer.
	Lasts()
}

// Lasts implements Laster.
func (w *response) Lasts() {
	c := w.st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopCounting(w.st)
}

// Privileged is a writer whose connection can be privileged.
type Privileged interface {
	// SetPrivileged says whether requests of the connection are served while so many others run that
	// those of other connections are refused (Server.MaxHandlers).
	SetPrivileged(privileged bool)
}

// SetPrivileged implements Privileged.
func (w *response) SetPrivileged(privileged bool) {
	if c := w.st.c; c.privileged.Load() != privileged {
		c.privileged.Store(privileged)
	}
}

// An Arrival is a writer of a response whose request has arrived before it is answered.
type Arrival interface {
	// EndArrival says that the request waits for something, or that somebody else bounds how many
	// there are: it does not count for Server.MaxArriving any longer. With ahead, further
	// requests of its connection do not wait for those of others.
	EndArrival(ahead bool)
}

// EndArrival implements Arrival.
func (w *response) EndArrival(ahead bool) {
	c := w.st.c
	if c.aheadOfOthers.Load() != ahead {
		c.aheadOfOthers.Store(ahead)
	}
	c.mu.Lock()
	entered := w.st.entered
	w.st.entered = 0
	c.mu.Unlock()
	c.srv.leave(entered)
}

// A Staller is a writer that knows whether its client reads.
type Staller interface {
	// Stalled is how long a write has waited for the client, which has read nothing meanwhile; 0
	// if none waits. Any goroutine may ask.
	Stalled() time.Duration
}

// Stalled implements Staller.
func (w *response) Stalled() time.Duration {
	c := w.st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.st.stalled.IsZero() {
		return 0
	}
	return time.Since(w.st.stalled)
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

// dropHeader drops what a response without trailers needs no longer, once its
// headers are on their way.
func (w *response) dropHeader() {
	if w.begun && w.sent == nil && !w.hasTrailers() {
		w.header = nil
	}
}

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic("invalid WriteHeader code " + strconv.Itoa(status))
	}
	if w.status != 0 {
		return
	}
	if status < 200 {
		c := w.st.c
		c.mu.Lock()
		if w.st.failed() == nil {
			if status == http.StatusContinue {
				w.st.expectsContinue = false
			}
			w.addInformational(status, w.header)
			c.send()
		}
		c.mu.Unlock()
		return
	}
	w.status = status
	// Later changes are not for this response.
	w.sent = maps.Clone(w.header)
	w.declared = -1
	if length := w.sent["Content-Length"]; len(length) > 0 {
		if n, err := strconv.ParseUint(length[0], 10, 63); err == nil {
			w.declared = int64(n)
		} else {
			delete(w.sent, "Content-Length")
		}
	}
	if connection := w.sent["Connection"]; len(connection) > 0 && connection[0] == "close" {
		w.leave = true
	}
}

// bodyAllowed reports whether a response with a status has a body.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) { return write(w, p) }

// WriteString implements io.StringWriter.
func (w *response) WriteString(s string) (int, error) {
	if len(s) <= maxBuffered {
		return write(w, s)
	}
	return write(w, []byte(s))
}

func write[P []byte | string](w *response, p P) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if w.declared >= 0 && w.size+int64(len(p)) > w.declared {
		return 0, http.ErrContentLength
	}
	w.size += int64(len(p))
	if w.buffer == nil && len(p) <= maxBuffered {
		w.buffer = smallBuffers.Get().(*[]byte)
	}
	if w.buffer != nil && len(*w.buffer)+len(p) <= maxBuffered {
		*w.buffer = append(*w.buffer, p...)
		return len(p), nil
	}
	c := w.st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(p) >= largeWrite && !w.st.large && w.st.closed == nil {
		w.st.large = true
		c.large++
	}
	err := w.add([]byte(p), false, false)
	// What is less than is worth writing waits for more.
	if !w.st.large || c.queued() >= maxOut || err != nil {
		c.send()
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError is what http.ResponseController looks for.
func (w *response) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	c := w.st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	err := w.add(nil, true, false)
	c.send()
	return err
}

// SetReadDeadline is what http.ResponseController looks for.
func (w *response) SetReadDeadline(t time.Time) error {
	w.st.c.mu.Lock()
	defer w.st.c.mu.Unlock()
	w.st.readDeadline = t
	w.st.arrived.Broadcast()
	return nil
}

// SetWriteDeadline is what http.ResponseController looks for.
func (w *response) SetWriteDeadline(t time.Time) error {
	w.st.c.mu.Lock()
	defer w.st.c.mu.Unlock()
	w.st.writeDeadline = t
	w.st.c.writable.Broadcast()
	return nil
}

// EnableFullDuplex is what http.ResponseController looks for: it always is.
func (w *response) EnableFullDuplex() error { return nil }

// finish is called when the handler has returned.
func (w *response) finish() {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	c := w.st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	w.continuation = nil
	if w.declared > w.size && !w.head && bodyAllowed(w.status) {
		// Half a response must not look like a whole one.
		c.resetStream(w.st, http2.ErrCodeInternal)
	}
	if w.add(nil, true, true) == nil {
		c.finishStream(w.st)
	}
	if w.leave {
		c.leave() // also if the client has reset the stream before the response began
	}
	c.send()
	if w.buffer != nil {
		recycle(w.buffer)
		w.buffer = nil
	}
}

// add adds everything that is not sent yet, and then p: all of it, or but for an end
// that is worth no frame. The last is the end of the response.
func (w *response) add(p []byte, all, last bool) error {
	st, c := w.st, w.st.c
	if err := st.failed(); err != nil {
		return err
	}
	var buffered []byte
	if w.buffer != nil {
		buffered = *w.buffer
	}
	var trailers bool
	if last {
		trailers = w.hasTrailers()
	}
	if !w.begun {
		w.begun = true
		body := buffered
		if len(body) == 0 {
			body = p
		}
		w.complete(body, last)
		if len(w.sent["Trailer"]) == 0 {
			w.sent = nil
		}
		end := last && (w.head || len(body) == 0 && !trailers)
		c.addHeaders(st.id, end)
		if w.leave {
			// Not at the end of the response: a client that does not read it could go on
			// sending requests.
			c.leave()
		}
		if end {
			return nil
		}
	}
	if w.head {
		buffered, p = nil, nil
	}
	if len(buffered)+len(p) > 0 || last && !trailers {
		rest, err := c.addData(st, buffered, p, all, last && !trailers)
		if err != nil {
			return err
		}
		w.buffer = keepRest(w.buffer, rest)
	}
	if trailers {
		if err := c.waitPending(st); err != nil {
			return err
		}
		w.encodeTrailers()
		c.addHeaders(st.id, true)
	}
	return nil
}

// keepRest leaves the rest of a body in a buffer, which there need not be.
func keepRest(buffer *[]byte, rest []byte) *[]byte {
	switch {
	case len(rest) > 0:
		if buffer == nil {
			buffer = smallBuffers.Get().(*[]byte)
		}
		*buffer = append((*buffer)[:0], rest...)
	case buffer != nil:
		recycle(buffer)
		buffer = nil
	}
	return buffer
}

// complete encodes the headers of the response, with what every response has. body is
// the beginning of the body, or all of it.
func (w *response) complete(body []byte, whole bool) {
	h := w.sent
	if h == nil {
		h = http.Header{}
	}
	allowed := bodyAllowed(w.status)
	w.encodeStatus(w.status)
	if _, ok := h["Content-Type"]; !ok && allowed && len(body) > 0 && h.Get("Content-Encoding") == "" {
		w.encode("content-type", http.DetectContentType(body))
	}
	if _, ok := h["Content-Length"]; !ok && whole && allowed && (len(body) > 0 || !w.head) {
		w.encode("content-length", strconv.Itoa(len(body)))
	}
	if _, ok := h["Date"]; !ok {
		w.encode("date", w.st.c.srv.date())
	}
	for name, values := range h {
		if !strings.HasPrefix(name, http.TrailerPrefix) {
			w.encodeHeader(name, values)
		}
	}
}

func (w *response) encodeStatus(status int) {
	text := "200"
	if status != http.StatusOK {
		text = strconv.Itoa(status)
	}
	w.encode(":status", text)
}

// encodeHeader encodes a header, unless it is one that HTTP/2 does not have.
func (w *response) encodeHeader(name string, values []string) {
	switch name {
	case "Connection", "Proxy-Connection", "Transfer-Encoding", "Upgrade", "Keep-Alive":
		return
	}
	name = lower(name)
	if !httpguts.ValidHeaderFieldName(name) {
		return
	}
	for _, value := range values {
		if httpguts.ValidHeaderFieldValue(value) {
			w.encode(name, value)
		}
	}
}

func (w *response) encode(name, value string) {
	// A buffer does not fail.
	_ = w.st.c.encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: isUnique(name)})
}

// isUnique reports whether a header has another value in each response, so that
// neither side should keep it in its table.
func isUnique(name string) bool { return name == "audit-id" || name == "content-length" }

// addInformational adds a 1xx response.
func (w *response) addInformational(status int, header http.Header) {
	w.encodeStatus(status)
	for name, values := range header {
		w.encodeHeader(name, values)
	}
	w.st.c.addHeaders(w.st.id, false)
}

// hasTrailers reports whether there is something to send after the body.
func (w *response) hasTrailers() bool {
	if len(w.sent["Trailer"]) > 0 {
		return true
	}
	for name := range w.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

func (w *response) encodeTrailers() {
	for _, names := range w.sent["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if httpguts.ValidTrailerHeader(name) {
				w.encodeHeader(name, w.header[name])
			}
		}
	}
	for name, values := range w.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok && httpguts.ValidTrailerHeader(http.CanonicalHeaderKey(name)) {
			w.encodeHeader(http.CanonicalHeaderKey(name), values)
		}
	}
}

// lower is strings.ToLower without the copy for headers that most responses have.
func lower(name string) string {
	switch name {
	case "Content-Type":
		return "content-type"
	case "Content-Length":
		return "content-length"
	case "Content-Encoding":
		return "content-encoding"
	case "Cache-Control":
		return "cache-control"
	case "Audit-Id":
		return "audit-id"
	case "Vary":
		return "vary"
	case "X-Kubernetes-Pf-Flowschema-Uid":
		return "x-kubernetes-pf-flowschema-uid"
	case "X-Kubernetes-Pf-Prioritylevel-Uid":
		return "x-kubernetes-pf-prioritylevel-uid"
	}
	return strings.ToLower(name)
}

// cachedDate is the Date header of a second.
type cachedDate struct {
	second int64
	text   string
}

// date returns the Date header of a response.
func (s *Server) date() string {
	now := time.Now()
	if m := s.dateCache.Load(); m != nil && m.second == now.Unix() {
		return m.text
	}
	m := &cachedDate{now.Unix(), now.UTC().Format(http.TimeFormat)}
	s.dateCache.Store(m)
	return m.text
}
