// Package console serves a console for the browser: a page that is embedded in the
// program, and a way from that page to an API server, with the rights of the user who
// started it. It is a program beside the server, which gets no new surface by it.
//
// A browser also runs the pages of strangers, and on one machine many programs listen on
// loopback. So every request but that for the page itself, which holds no secrets, has to
// show two keys: a cookie, which no script can read, and a header with a key that the page
// keeps in the storage of its origin. Cookies are sent to every port of a host, and the
// storage belongs to one port; a header cannot be sent by a form, a frame or an image, nor
// by a script of another origin. Both keys come in exchange for the key of the link that
// the command prints, which is good for one exchange, or for a password.
//
// The parts:
//
//	GET    /…                the page, and what it is made of (/assets/…)
//	POST   /session          a link's key or a password in exchange for a session
//	DELETE /session          log out
//	GET    /console/info     which server, and as whom
//	ANY    /console/NAME     actions that the command offers, such as undo
//	ANY    /k8s/PATH         PATH of the API server
//	GET    /watch?path=PATH  a watch of the API server, over a WebSocket
package console

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Config says what a console is for.
type Config struct {
	// Server is the API server, and Transport speaks to it with the user's credentials.
	Server    *url.URL
	Transport http.RoundTripper
	Info      Info
	// Hosts are the names, with ports, by which a browser may reach the console. Other
	// names are refused: a stranger's name may point to this address.
	Hosts []string
	// TLS says that the console is served by TLS.
	TLS bool
	// Password, if it is not empty, logs in as often as it is given. Without it, only
	// the key of NewLink does.
	Password string
	// Actions are served below /console/, by name. They get requests that have shown
	// both keys.
	Actions map[string]http.Handler
	// Page has the files of the page instead of those in the program, and is read for
	// every request: for who works on the page.
	Page fs.FS
}

// Info is what the page shows of where it is.
type Info struct {
	Context   string `json:"context,omitempty"` // in the kubeconfig
	Server    string `json:"server"`
	Namespace string `json:"namespace"` // of the context
	// User is whom the console impersonates; if it is empty, requests of the page may
	// impersonate whom the credentials allow.
	User    string `json:"user,omitempty"`
	Version string `json:"version"` // of the console
	// Password says that a password logs in, and not a link.
	Password bool `json:"password,omitempty"`
}

// Console is an http.Handler.
type Console struct {
	config   Config
	cookie   string // its name, which has the port: cookies do not
	hosts    []string
	origins  []string
	sessions sessions
	watches  chan struct{} // has one for each that is open
	mux      http.ServeMux
}

// New returns a console that nobody has logged in to.
func New(config Config) *Console {
	c := &Console{config: config, sessions: sessions{password: config.Password}, watches: make(chan struct{}, mostWatches)}
	scheme, defaultPort := "http://", "80"
	c.cookie = "kelson-console"
	if config.TLS {
		scheme, defaultPort = "https://", "443"
		c.cookie = "__Host-kelson-console" // which no page without TLS can set
	}
	for i, host := range config.Hosts {
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			c.hosts = append(c.hosts, strings.ToLower(host))
			continue
		}
		if address, err := netip.ParseAddr(name); err == nil {
			name = address.String() // as browsers write it
		}
		c.hosts = append(c.hosts, strings.ToLower(net.JoinHostPort(name, port)))
		if port == defaultPort {
			c.hosts = append(c.hosts, strings.TrimSuffix(c.hosts[len(c.hosts)-1], ":"+port))
		}
		if i == 0 {
			c.cookie += "-" + port
		}
	}
	for _, host := range c.hosts {
		c.origins = append(c.origins, scheme+host)
	}
	c.mux.Handle("/", newPage(config.Page))
	c.mux.HandleFunc("POST /session", c.logIn)
	c.mux.Handle("DELETE /session", c.private(c.logOut))
	c.mux.Handle("GET /console/info", c.private(c.info))
	for name, action := range config.Actions {
		c.mux.Handle("/console/"+name, c.private(action.ServeHTTP))
	}
	c.mux.Handle("/k8s/", c.private(c.forward))
	c.mux.HandleFunc("GET /watch", c.watch)
	return c
}

// NewLink returns the path of a link that logs in once, within ten minutes. Links that
// were made before are void. The key is in the part of the address that browsers do not
// send.
func (c *Console) NewLink() string { return "/#key=" + c.sessions.newLink(time.Now()) }

// Serve answers on the listener until the context ends, with TLS if secure is not nil, and
// returns when nothing of the console runs any more.
func (c *Console) Serve(ctx context.Context, listener net.Listener, secure *tls.Config) error {
	server := &http.Server{
		Handler: c, TLSConfig: secure, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: bodyTimeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	defer c.Close()
	serve := server.Serve
	if secure != nil {
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	if err := serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends all sessions with their watches, and waits for their requests. Nobody can
// log in any more.
func (c *Console) Close() { c.sessions.close() }

// ServeHTTP answers what comes from a page of this console, and refuses everything else.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	for name, value := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
			"worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Referrer-Policy":              "no-referrer",
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Cache-Control":                "no-store",
	} {
		h.Set(name, value)
	}
	if !slices.Contains(c.hosts, strings.ToLower(r.Host)) {
		http.Error(w, "This console is not known by the name "+printable(r.Host)+". Open the address that 'kelson console' has printed.", http.StatusMisdirectedRequest)
		return
	}
	if !c.isOwn(r) {
		http.Error(w, "This console answers to its own page only.", http.StatusForbidden)
		return
	}
	c.mux.ServeHTTP(w, r)
}

// isOwn reports whether a request comes from the console's page, or from a person who
// opens it: Origin is with every request that changes something and with WebSockets, and
// browsers tell with Sec-Fetch-Site where any request comes from. A service worker would
// stay in the browser and see all requests; the page has none.
func (c *Console) isOwn(r *http.Request) bool {
	if len(r.Header["Service-Worker"]) > 0 {
		return false
	}
	for _, origin := range r.Header["Origin"] {
		if !slices.Contains(c.origins, origin) {
			return false
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site": // another port is of the same site
		return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" && r.Method == http.MethodGet
	}
	return true
}

// private lets requests through that show both keys of a session. They end with it.
func (c *Console) private(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, leave := c.sessions.enter(r.Context(), c.cookiesOf(r), r.Header.Get(keyHeader))
		if ctx == nil {
			refuseStranger(w)
			return
		}
		defer leave()
		next(w, r.WithContext(ctx))
	})
}

// refuseStranger answers who has not shown both keys. The header tells this apart from an
// API server that says the same.
func refuseStranger(w http.ResponseWriter) {
	w.Header().Set(keyHeader, "none")
	refuse(w, http.StatusUnauthorized, "Nobody is logged in here. Run 'kelson console' again for a new link.")
}

func (c *Console) info(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, c.config.Info)
}

// refuse answers as an API server would, so that the page has one way to read errors.
func refuse(w http.ResponseWriter, code int, message string) {
	writeJSON(w, code, failure(code, message))
}

// failure is a Status.
func failure(code int, message string) map[string]any {
	return map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": http.StatusText(code), "message": message}
}

func writeJSON(w http.ResponseWriter, code int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(marshal(answer), '\n'))
}

// marshal encodes what has no cycles, functions or channels in it.
func marshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// printable is text of a stranger, shortened and without what could change a terminal.
func printable(s string) string {
	if len(s) > 100 {
		s = s[:100] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, s)
}
