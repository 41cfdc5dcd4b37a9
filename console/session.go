package console

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

const (
	keyHeader = "X-Kelson-Console"

	linkLives    = 10 * time.Minute
	sessionLives = 24 * time.Hour
	mostSessions = 16
	// mostTries is how many wrong passwords a minute are looked at.
	mostTries = 10
)

// digest is what is kept of a key.
type digest [sha256.Size]byte

func same(a, b digest) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }

func digestOf(key string) digest { return sha256.Sum256([]byte(key)) }

// session is one login: digests of its two keys.
type session struct {
	cookie, key digest
	until       time.Time
}

// sessions are the logins of a console.
type sessions struct {
	password string

	mu    sync.Mutex
	link  digest
	until time.Time // of the link
	open  []session // the oldest first; mostSessions at most
	wrong []time.Time
}

func (s *sessions) newLink(now time.Time) string {
	key := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link, s.until = digestOf(key), now.Add(linkLives)
	return key
}

// begin exchanges the key of a link or the password for a session. Code is a status of
// HTTP.
func (s *sessions) begin(key, password string, now time.Time) (cookie, page string, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.wrong) > 0 && now.Sub(s.wrong[0]) > time.Minute {
		s.wrong = s.wrong[1:]
	}
	if len(s.wrong) >= mostTries {
		return "", "", http.StatusTooManyRequests
	}
	switch {
	case key != "" && now.Before(s.until) && same(digestOf(key), s.link):
		s.until = time.Time{}
	case s.password != "" && same(digestOf(password), digestOf(s.password)):
	default:
		s.wrong = append(s.wrong, now)
		return "", "", http.StatusForbidden
	}
	if len(s.open) == mostSessions {
		s.open = s.open[1:]
	}
	cookie, page = rand.Text(), rand.Text()
	s.open = append(s.open, session{digestOf(cookie), digestOf(page), now.Add(sessionLives)})
	return cookie, page, http.StatusOK
}

// has reports whether both keys belong to one session.
func (s *sessions) has(cookie, key string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(cookie, key, now) >= 0
}

func (s *sessions) find(cookie, key string, now time.Time) int {
	c, k := digestOf(cookie), digestOf(key)
	for i := range s.open {
		if o := &s.open[i]; same(o.cookie, c) && same(o.key, k) && now.Before(o.until) {
			return i
		}
	}
	return -1
}

// end forgets a session.
func (s *sessions) end(cookie, key string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.find(cookie, key, now); i >= 0 {
		s.open = append(s.open[:i:i], s.open[i+1:]...)
	}
}

func (c *Console) cookieOf(r *http.Request) string {
	if got, err := r.Cookie(c.cookie); err == nil {
		return got.Value
	}
	return ""
}

// logIn exchanges {"key": …} or {"password": …} for a cookie and {"key": …}, which the
// page sends in a header from then on.
func (c *Console) logIn(w http.ResponseWriter, r *http.Request) {
	var said struct{ Key, Password string }
	if r.Header.Get("Content-Type") != "application/json" || json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&said) != nil {
		refuse(w, http.StatusBadRequest, "A login is a JSON object with a key or a password.")
		return
	}
	cookie, key, code := c.sessions.begin(said.Key, said.Password, time.Now())
	switch {
	case code == http.StatusTooManyRequests:
		refuse(w, code, "There were too many wrong logins. Wait a minute.")
	case code != http.StatusOK && c.config.Password != "":
		refuse(w, code, "This is not the password.")
	case code != http.StatusOK:
		refuse(w, code, "This link was used already, or is too old. Run 'kelson console' again for a new one.")
	default:
		http.SetCookie(w, &http.Cookie{Name: c.cookie, Value: cookie, Path: "/", HttpOnly: true, Secure: c.config.TLS, SameSite: http.SameSiteStrictMode, MaxAge: int(sessionLives.Seconds())})
		writeJSON(w, code, map[string]string{"key": key})
	}
}

func (c *Console) logOut(w http.ResponseWriter, r *http.Request) {
	c.sessions.end(c.cookieOf(r), r.Header.Get(keyHeader), time.Now())
	c.watches.endOf(digestOf(c.cookieOf(r)))
	http.SetCookie(w, &http.Cookie{Name: c.cookie, Path: "/", HttpOnly: true, Secure: c.config.TLS, SameSite: http.SameSiteStrictMode, MaxAge: -1})
	w.WriteHeader(http.StatusNoContent)
}
