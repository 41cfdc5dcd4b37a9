package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

const (
	mostWatches = 64
	// maxLine is the size of the largest event that the console passes on.
	maxLine = 16 << 20
	// maxBody is the size of the largest request that the console passes on. An API server
	// takes 3 MiB.
	maxBody = 16 << 20
	// writeTimeout is how long a browser may take for a part of an answer.
	writeTimeout = time.Minute
)

// methods are the HTTP methods that are forwarded.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}

// requestHeaders are the request headers that are forwarded, besides those that impersonate:
// the rights of the user decide who may do that. Credentials are the transport's alone.
var requestHeaders = []string{"Accept", "Audit-Id", "Content-Type", "If-None-Match", "Kubectl-Command", "X-Request-Id"}

// answerHeaders are the response headers of the API server that are forwarded. The response may come from
// a pod or an aggregated API that means harm: nothing in it may set cookies, redirect the
// page's request, or change how the browser treats the console.
var answerHeaders = []string{
	"Allow", "Audit-Id", "Content-Encoding", "Content-Length", "Content-Type", "Etag", "Last-Modified", "Retry-After", "Warning",
	"X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid",
}

// forward is the handler of /k8s/: requests go on to the API server with the user's
// credentials, and nothing of the browser's.
func (c *Console) forward(w http.ResponseWriter, r *http.Request) {
	target := c.target(strings.TrimPrefix(r.URL.EscapedPath(), "/k8s"), r.URL.RawQuery)
	impersonates := slices.ContainsFunc(headerNames(r.Header), isImpersonation)
	switch {
	case r.Header.Get("Upgrade") != "" || !slices.Contains(methods, r.Method):
		refuse(w, http.StatusBadRequest, "The console forwards requests of the API only, and no connections.")
		return
	case target == nil:
		refuse(w, http.StatusBadRequest, "This is not a path of the API server.")
		return
	case impersonates && c.config.Info.User != "":
		// The transport leaves a request alone that impersonates, which would give back
		// the rights of the impersonator.
		refuse(w, http.StatusForbidden, "This console speaks as "+c.config.Info.User+", and cannot speak as others.")
		return
	}
	out := (&http.Request{Method: r.Method, URL: target, Host: target.Host, Header: http.Header{}, ContentLength: r.ContentLength}).WithContext(r.Context())
	if r.ContentLength != 0 {
		out.Body = http.MaxBytesReader(w, r.Body, maxBody)
	}
	for name, values := range r.Header {
		if slices.Contains(requestHeaders, name) || isImpersonation(name) {
			out.Header[name] = values
		}
	}
	out.Header.Set("Accept-Encoding", "identity")
	if acceptsGzip(r.Header) {
		out.Header.Set("Accept-Encoding", "gzip") // as the browser reads it; nothing is unpacked here
	}
	resp, err := c.config.Transport.RoundTrip(out)
	if err != nil {
		refuse(w, http.StatusBadGateway, "The API server "+c.config.Server.Host+" cannot be reached: "+err.Error())
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.StatusCode != http.StatusNotModified {
		// The browser would send the request again, with both keys, to wherever the
		// answer says.
		refuse(w, http.StatusBadGateway, fmt.Sprintf("The API server answered %d %s, and the console follows no redirects.", resp.StatusCode, printable(resp.Header.Get("Location"))))
		return
	}
	h := w.Header()
	for _, name := range answerHeaders {
		if values := resp.Header.Values(name); len(values) > 0 {
			h[name] = values
		}
	}
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/octet-stream") // net/http would guess
	}
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox; frame-ancestors 'none'")
	w.WriteHeader(resp.StatusCode)
	if copyAnswer(w, resp.Body) != nil {
		panic(http.ErrAbortHandler) // a part must not look like the whole
	}
}

// copyAnswer passes on what comes as it comes. A browser that does not read ends it.
func copyAnswer(w http.ResponseWriter, from io.Reader) error {
	control := http.NewResponseController(w)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := w.Write(buffer[:n]); err != nil {
				return err
			}
			if err := control.Flush(); err != nil {
				return err
			}
			_ = control.SetWriteDeadline(time.Time{})
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func headerNames(h http.Header) []string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	return names
}

func isImpersonation(header string) bool { return strings.HasPrefix(header, "Impersonate-") }

// target is the address of a path of the API server; nil if the path could lead elsewhere.
func (c *Console) target(escapedPath, query string) *url.URL {
	plain, err := url.PathUnescape(escapedPath)
	if err != nil || !strings.HasPrefix(plain, "/") || strings.ContainsFunc(query, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return nil
	}
	for part := range strings.SplitSeq(strings.ReplaceAll(plain, `\`, "/"), "/") {
		if part == "." || part == ".." {
			return nil
		}
	}
	server := c.config.Server
	t := &url.URL{Scheme: server.Scheme, Host: server.Host, RawQuery: query}
	t.Path = strings.TrimSuffix(server.Path, "/") + plain
	t.RawPath = strings.TrimSuffix(server.EscapedPath(), "/") + escapedPath
	return t
}

// watch passes on a watch, an event a message. Browsers open only six connections of
// HTTP/1.1 to a host, and hundreds of WebSockets. The page's key comes as a subprotocol,
// since a page cannot set headers of a WebSocket.
func (c *Console) watch(w http.ResponseWriter, r *http.Request) {
	protocols := websocket.Subprotocols(r)
	if r.Header.Get("Origin") == "" { // ServeHTTP has checked any other
		refuse(w, http.StatusForbidden, "A watch is for the console's own page.")
		return
	}
	if len(protocols) != 2 || protocols[0] != "kelson" {
		refuseStranger(w)
		return
	}
	ctx, leave := c.sessions.enter(r.Context(), c.cookiesOf(r), protocols[1])
	if ctx == nil {
		refuseStranger(w)
		return
	}
	defer leave()
	path, err := url.Parse(r.URL.Query().Get("path"))
	if err != nil || path.Host != "" || c.target(path.EscapedPath(), path.RawQuery) == nil {
		refuse(w, http.StatusBadRequest, "A watch needs a path of the API server.")
		return
	}
	select {
	case c.watches <- struct{}{}:
		defer func() { <-c.watches }()
	default:
		refuse(w, http.StatusTooManyRequests, "Too many watches are open. Close some pages of the console.")
		return
	}

	upgrader := websocket.Upgrader{Subprotocols: []string{"kelson"}, CheckOrigin: func(*http.Request) bool { return true }}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // it has answered
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		// The page says nothing; reading notices that it has gone.
		defer close(done)
		defer cancel()
		conn.SetReadLimit(1024)
		for {
			if _, _, err := conn.NextReader(); err != nil {
				return
			}
		}
	}()
	defer func() {
		cancel()
		_ = conn.Close()
		<-done
	}()
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		_ = conn.Close()
	})
	defer func() {
		if !stop() {
			<-closed
		}
	}()
	send := func(text []byte) error {
		_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		return conn.WriteMessage(websocket.TextMessage, text)
	}
	if failure := c.copyWatch(ctx, c.target(path.EscapedPath(), path.RawQuery), r.URL.Query().Has("table"), send); failure != nil && ctx.Err() == nil {
		_ = send(failure)
	}
	_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
}

// copyWatch sends every line that the API server answers, as rows of tables if they are
// wanted and the server has them. It returns an event that tells an error, if there is one.
func (c *Console) copyWatch(ctx context.Context, target *url.URL, table bool, send func([]byte) error) []byte {
	req := (&http.Request{Method: http.MethodGet, URL: target, Host: target.Host, Header: http.Header{"Accept": {"application/json"}}}).WithContext(ctx)
	if table {
		req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	}
	resp, err := c.config.Transport.RoundTrip(req)
	if err != nil {
		return errorEvent(http.StatusBadGateway, []byte(err.Error()))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return errorEvent(max(resp.StatusCode, http.StatusBadRequest), text)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for lines.Scan() {
		if err := send(lines.Bytes()); err != nil {
			return nil // the page is gone
		}
	}
	if err := lines.Err(); err != nil {
		return errorEvent(http.StatusBadGateway, []byte(err.Error()))
	}
	return nil
}

// errorEvent is an event of a watch that tells an error: the Status that the server gave,
// or one with its text.
func errorEvent(code int, said []byte) []byte {
	var status struct{ Kind string }
	object := json.RawMessage(bytes.TrimSpace(said))
	if json.Unmarshal(said, &status) != nil || status.Kind != "Status" {
		object = marshal(failure(code, string(said[:min(len(said), 2000)])))
	}
	return marshal(map[string]any{"type": "ERROR", "object": object})
}
