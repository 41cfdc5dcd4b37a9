package request

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// The headers in which another API server is told who the user is.
const (
	userHeader  = "X-Remote-User"
	uidHeader   = "X-Remote-Uid"
	groupHeader = "X-Remote-Group"
	extraPrefix = "X-Remote-Extra-"
)

// SetHeaders replaces the headers that tell another API server who the user is. It returns
// false, and sets nothing, if the other would read another user: blanks around a value get
// lost in a header and line breaks become blanks, which would make an administrator of who is
// in the group " system:masters"; and without a name the other takes this server for the user.
func (u *User) SetHeaders(h http.Header) bool {
	if u.Name == "" || !isHeaderValue(u.Name) || !isHeaderValue(u.UID) || !areHeaderValues(u.Groups) {
		return false
	}
	for _, values := range u.Extra {
		if !areHeaderValues(values) {
			return false
		}
	}
	for name := range h {
		if IsUserHeader(name) {
			delete(h, name)
		}
	}
	h[userHeader] = []string{u.Name}
	if u.UID != "" {
		h[uidHeader] = []string{u.UID}
	}
	if len(u.Groups) > 0 {
		h[groupHeader] = slices.Clip(u.Groups)
	}
	for key, values := range u.Extra {
		if len(values) > 0 {
			h[http.CanonicalHeaderKey(extraPrefix+escapeKey(key))] = slices.Clip(values)
		}
	}
	return true
}

// Impersonate sets the headers of a request, which stays in this process, that impersonates the
// user.
func (u *User) Impersonate(h http.Header) {
	h["Impersonate-User"] = []string{u.Name}
	if u.UID != "" {
		h["Impersonate-Uid"] = []string{u.UID}
	}
	if len(u.Groups) > 0 {
		h["Impersonate-Group"] = slices.Clip(u.Groups)
	}
	for key, values := range u.Extra {
		h[http.CanonicalHeaderKey("Impersonate-Extra-"+escapeKey(key))] = slices.Clip(values)
	}
}

// IsUserHeader reports whether a header, whose name is canonical, tells another server who the
// user is.
func IsUserHeader(name string) bool {
	if name = withDashes(name); !strings.HasPrefix(name, "X-Remote-") {
		return false
	}
	return name == userHeader || name == uidHeader || name == groupHeader || strings.HasPrefix(name, extraPrefix)
}

// IsCredential reports whether a header, whose name is canonical, says who a client is or wants to
// be. It does not go on to other servers.
func IsCredential(name string) bool {
	name = withDashes(name)
	return name == "Authorization" || strings.HasPrefix(name, "Impersonate-")
}

// IsOverride reports whether a header, whose name is canonical, asks for another method or path
// than those of the request, which some frameworks heed. Nobody here reads it, and it does not go
// on to another server that would do what was not authorized.
func IsOverride(name string) bool {
	switch withDashes(name) {
	case "X-Http-Method", "X-Http-Method-Override", "X-Method-Override", "X-Original-Url", "X-Rewrite-Url":
		return true
	}
	return false
}

// withDashes returns the name of the header that some servers, those behind CGI or WSGI, do not
// tell from one of this name: X-Remote-User for X_Remote_User.
func withDashes(name string) string {
	if strings.IndexByte(name, '_') < 0 {
		return name
	}
	return http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
}

// IsWebSocket reports whether a request, of HTTP/1.1, wants to become a WebSocket.
func IsWebSocket(r *http.Request) bool {
	return r.ProtoMajor == 1 && strings.EqualFold(r.Header.Get("Upgrade"), "websocket") &&
		httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade")
}

func areHeaderValues(values []string) bool {
	for _, v := range values {
		if !isHeaderValue(v) {
			return false
		}
	}
	return true
}

// isHeaderValue reports whether a header can have a value without changing it.
func isHeaderValue(s string) bool {
	return httpguts.ValidHeaderFieldValue(s) && strings.Trim(s, " \t") == s
}

// escapeKey returns the end of the name of a header for a key of User.Extra. Names of headers
// have no case: upper case is escaped, so that the reader, who makes all lower case before it
// unescapes, gets the same key.
func escapeKey(key string) string {
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		if c == '%' || 'A' <= c && c <= 'Z' || !httpguts.IsTokenRune(rune(c)) {
			fmt.Fprintf(&b, "%%%02x", c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}
