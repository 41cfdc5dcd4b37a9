package console

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// forward returns the handler of /k8s/: requests go on to the API server with the user's
// credentials, and nothing of the browser's.
func (c *Console) forward() http.HandlerFunc {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL = c.target(r.Out.URL, strings.TrimPrefix(r.Out.URL.EscapedPath(), "/k8s"))
			r.Out.Host = c.config.Server.Host
			for _, name := range []string{"Cookie", "Origin", "Referer", "Authorization", keyHeader} {
				r.Out.Header.Del(name)
			}
			for name := range r.Out.Header {
				if strings.HasPrefix(name, "Sec-") || strings.HasPrefix(name, "X-Remote-") {
					delete(r.Out.Header, name)
				}
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			// The headers of ServeHTTP count, whatever the server says.
			for _, name := range []string{"Set-Cookie", "Content-Security-Policy", "Cache-Control", "X-Frame-Options", "X-Content-Type-Options", "Access-Control-Allow-Origin"} {
				resp.Header.Del(name)
			}
			return nil
		},
		Transport:     c.config.Transport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if !errors.Is(err, context.Canceled) {
				refuse(w, http.StatusBadGateway, "The API server "+c.config.Server.Host+" cannot be reached: "+err.Error())
			}
		},
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			refuse(w, http.StatusBadRequest, "The console forwards no connections.")
			return
		}
		// Credentials that impersonate leave a request alone that does so itself, which
		// would give back the rights of the impersonator.
		if c.config.Info.User != "" && impersonates(r.Header) {
			refuse(w, http.StatusForbidden, "This console speaks as "+c.config.Info.User+", and cannot speak as others.")
			return
		}
		proxy.ServeHTTP(w, r)
	}
}

// impersonates reports whether a request asks to be made as somebody else.
func impersonates(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// target is the address of a path of the API server, with the query of u.
func (c *Console) target(u *url.URL, escapedPath string) *url.URL {
	t := *c.config.Server
	path := strings.TrimSuffix(t.EscapedPath(), "/") + escapedPath
	if plain, err := url.PathUnescape(path); err == nil {
		t.Path, t.RawPath = plain, path
	}
	t.RawQuery = u.RawQuery
	return &t
}

const (
	mostWatches = 64
	// maxLine is the size of the largest event that the console passes on.
	maxLine = 16 << 20
	// writeTimeout is how long a browser may take for a message.
	writeTimeout = time.Minute
)

// watches are the open ones.
type watches struct {
	mu   sync.Mutex
	open []*openWatch
}

// openWatch belongs to the session with the cookie.
type openWatch struct {
	cookie digest
	stop   context.CancelFunc
}

func (w *watches) add(o *openWatch) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.open) >= mostWatches {
		return false
	}
	w.open = append(w.open, o)
	return true
}

func (w *watches) remove(o *openWatch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = slices.DeleteFunc(w.open, func(other *openWatch) bool { return other == o })
}

func (w *watches) endOf(cookie digest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.open {
		if same(o.cookie, cookie) {
			o.stop()
		}
	}
}

// watch passes on a watch, an event a message. Browsers open only six connections of
// HTTP/1.1 to a host, and hundreds of WebSockets. The page's key comes as a subprotocol,
// since a page cannot set headers of a WebSocket.
func (c *Console) watch(w http.ResponseWriter, r *http.Request) {
	protocols := websocket.Subprotocols(r)
	cookie := c.cookieOf(r)
	switch {
	case r.Header.Get("Origin") == "": // ServeHTTP has checked any other
		refuse(w, http.StatusForbidden, "A watch is for the console's own page.")
		return
	case len(protocols) != 2 || protocols[0] != "kelson" || !c.sessions.has(cookie, protocols[1], time.Now()):
		refuse(w, http.StatusUnauthorized, "Nobody is logged in here. Run 'kelson console' again for a new link.")
		return
	}
	path, err := url.Parse(r.URL.Query().Get("path"))
	if err != nil || !strings.HasPrefix(path.Path, "/") || path.Host != "" {
		refuse(w, http.StatusBadRequest, "A watch needs a path of the API server.")
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	open := &openWatch{digestOf(cookie), cancel}
	if !c.watches.add(open) {
		refuse(w, http.StatusTooManyRequests, "Too many watches are open. Close some pages of the console.")
		return
	}
	defer c.watches.remove(open)

	upgrader := websocket.Upgrader{Subprotocols: []string{"kelson"}, CheckOrigin: func(*http.Request) bool { return true }}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // it has answered
	}
	defer conn.Close()
	go func() {
		// The page says nothing; reading notices that it has gone.
		conn.SetReadLimit(1024)
		for {
			if _, _, err := conn.NextReader(); err != nil {
				cancel()
				return
			}
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	send := func(text []byte) error {
		_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		return conn.WriteMessage(websocket.TextMessage, text)
	}
	if err := c.copyWatch(ctx, path, r.URL.Query().Has("table"), send); err != nil && ctx.Err() == nil {
		_ = send(errorEvent(err))
	}
	_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
}

// copyWatch sends every line that the API server answers, as rows of tables if they are
// wanted and the server has them.
func (c *Console) copyWatch(ctx context.Context, path *url.URL, table bool, send func([]byte) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.target(path, path.EscapedPath()).String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if table {
		req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	}
	resp, err := c.config.Transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return &answered{text}
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for lines.Scan() {
		if err := send(lines.Bytes()); err != nil {
			return nil // the page is gone
		}
	}
	return lines.Err()
}

// answered is a Status that the server gave instead of a watch.
type answered struct{ status []byte }

func (a *answered) Error() string { return string(a.status) }
