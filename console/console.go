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
	"encoding/json"
	"io/fs"
	"net"
	"net/http"
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
	origins  []string
	sessions sessions
	watches  watches
	mux      http.ServeMux
}

// New returns a console that nobody has logged in to.
func New(config Config) *Console {
	c := &Console{config: config, sessions: sessions{password: config.Password}}
	scheme := "http://"
	if config.TLS {
		scheme = "https://"
	}
	c.cookie = "kelson-console"
	for _, host := range config.Hosts {
		if _, port, err := net.SplitHostPort(host); err == nil {
			c.cookie = "kelson-console-" + port
		}
		c.origins = append(c.origins, scheme+host)
	}
	c.mux.Handle("/", newPage(config.Page))
	c.mux.HandleFunc("POST /session", c.logIn)
	c.mux.Handle("DELETE /session", c.private(c.logOut))
	c.mux.Handle("GET /console/info", c.private(c.info))
	for name, action := range config.Actions {
		c.mux.Handle("/console/"+name, c.private(action.ServeHTTP))
	}
	c.mux.Handle("/k8s/", c.private(c.forward()))
	c.mux.HandleFunc("GET /watch", c.watch)
	return c
}

// NewLink returns the path of a link that logs in once, within ten minutes. Links that
// were made before are void. The key is in the part of the address that browsers do not
// send.
func (c *Console) NewLink() string { return "/#key=" + c.sessions.newLink(time.Now()) }

// ServeHTTP answers what comes from a page of this console, and refuses everything else.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	for name, value := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Referrer-Policy":              "no-referrer",
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Cache-Control":                "no-store",
	} {
		h.Set(name, value)
	}
	switch origin := r.Header.Get("Origin"); {
	case !slices.Contains(c.config.Hosts, strings.ToLower(r.Host)):
		http.Error(w, "This console is not known by the name "+printable(r.Host)+". Open the address that 'kelson console' has printed.", http.StatusMisdirectedRequest)
		return
	case origin != "" && !slices.Contains(c.origins, origin):
		http.Error(w, "This console answers to its own page only.", http.StatusForbidden)
		return
	}
	c.mux.ServeHTTP(w, r)
}

// private lets requests through that show both keys of a session.
func (c *Console) private(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !c.sessions.has(c.cookieOf(r), r.Header.Get(keyHeader), time.Now()) {
			refuse(w, http.StatusUnauthorized, "Nobody is logged in here. Run 'kelson console' again for a new link.")
			return
		}
		next(w, r)
	})
}

func (c *Console) info(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, c.config.Info)
}

// refuse answers as an API server would, so that the page has one way to read errors.
func refuse(w http.ResponseWriter, code int, message string) {
	writeJSON(w, code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": http.StatusText(code), "message": message})
}

func writeJSON(w http.ResponseWriter, code int, answer any) {
	text, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n'))
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
