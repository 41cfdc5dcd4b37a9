package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	keyHeader = "X-Kelson-Console"

	linkLives    = 10 * time.Minute
	sessionLives = 24 * time.Hour
	mostSessions = 16
	// mostTries is how many wrong passwords a minute are looked at, of one address.
	mostTries = 10
	// mostAddresses is how many addresses with wrong passwords are counted on their own.
	mostAddresses = 1024
	// mostCookies is how many cookies of one name are looked at. Other programs on this
	// host can set such cookies, which a browser may send before the console's own.
	mostCookies = 8
	// bodyTimeout is how long a browser may take to send a request.
	bodyTimeout = time.Minute
)

// digest is what is kept of a key.
type digest [sha256.Size]byte

func same(a, b digest) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }

func digestOf(key string) digest { return sha256.Sum256([]byte(key)) }

// session is one login: digests of its two keys, and a context that ends when the session
// does, whether by log-out, by age, or for a newer one.
type session struct {
	cookie, key digest
	ctx         context.Context
	end         context.CancelFunc
}

// wrongTries are the wrong passwords of an address within a minute.
type wrongTries struct {
	since time.Time
	count int
}

// sessions are the logins of a console.
type sessions struct {
	password string

	// requests are the authenticated requests that have not ended.
	requests sync.WaitGroup

	mu     sync.Mutex
	link   digest
	until  time.Time  // of the link
	open   []*session // the oldest first; mostSessions at most
	wrong  map[netip.Prefix]wrongTries
	closed bool
}

func (s *sessions) newLink(now time.Time) string {
	key := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link, s.until = digestOf(key), now.Add(linkLives)
	return key
}

// begin exchanges the key of a link or the password for a session. Code is a status of
// HTTP. Keys of links have 128 bits, and are not guessed: only passwords are counted, and
// by address, so that a flood of wrong ones keeps nobody else out.
func (s *sessions) begin(key, password string, from netip.Prefix, now time.Time) (cookie, page string, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return "", "", http.StatusServiceUnavailable
	case key != "" && now.Before(s.until) && same(digestOf(key), s.link):
		s.until = time.Time{}
	case key != "" || s.password == "":
		return "", "", http.StatusForbidden
	case !s.mayTry(&from, now):
		return "", "", http.StatusTooManyRequests
	case !same(digestOf(password), digestOf(s.password)):
		tries := s.wrong[from]
		if tries.count == 0 {
			tries.since = now
		}
		tries.count++
		s.wrong[from] = tries
		return "", "", http.StatusForbidden
	}
	s.open = slices.DeleteFunc(s.open, func(o *session) bool { return o.ctx.Err() != nil })
	if len(s.open) == mostSessions {
		s.open[0].end()
		s.open = s.open[1:]
	}
	cookie, page = rand.Text(), rand.Text()
	o := &session{cookie: digestOf(cookie), key: digestOf(page)}
	o.ctx, o.end = context.WithDeadline(context.Background(), now.Add(sessionLives))
	s.open = append(s.open, o)
	return cookie, page, http.StatusOK
}

// mayTry reports whether a password of the address is looked at. When there are too many
// addresses, it changes from to one that the others share. Under mu.
func (s *sessions) mayTry(from *netip.Prefix, now time.Time) bool {
	if s.wrong == nil {
		s.wrong = map[netip.Prefix]wrongTries{}
	}
	if _, known := s.wrong[*from]; !known && len(s.wrong) >= mostAddresses {
		for address, tries := range s.wrong {
			if now.Sub(tries.since) > time.Minute {
				delete(s.wrong, address)
			}
		}
		if len(s.wrong) >= mostAddresses {
			*from = netip.Prefix{}
		}
	}
	if now.Sub(s.wrong[*from].since) > time.Minute {
		delete(s.wrong, *from)
	}
	return s.wrong[*from].count < mostTries
}

// enter returns a context that ends with the request and with the session whose keys
// these are, and a function to call when the request has been answered. It returns nil if
// there is no such session.
func (s *sessions) enter(ctx context.Context, cookies []string, key string) (context.Context, func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.find(cookies, key)
	if o == nil || s.closed {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(o.ctx, cancel)
	s.requests.Add(1)
	return ctx, func() {
		stop()
		cancel()
		s.requests.Done()
	}
}

// find returns the session that has both keys, or nil. Under mu.
func (s *sessions) find(cookies []string, key string) *session {
	k := digestOf(key)
	for _, cookie := range cookies {
		c := digestOf(cookie)
		for _, o := range s.open {
			if same(o.cookie, c) && same(o.key, k) && o.ctx.Err() == nil {
				return o
			}
		}
	}
	return nil
}

// end forgets a session, and ends its requests.
func (s *sessions) end(cookies []string, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.find(cookies, key); o != nil {
		o.end()
		s.open = slices.DeleteFunc(s.open, func(other *session) bool { return other == o })
	}
}

// close ends all sessions, lets nobody log in any more, and waits for their requests.
func (s *sessions) close() {
	s.mu.Lock()
	s.closed = true
	for _, o := range s.open {
		o.end()
	}
	s.open = nil
	s.mu.Unlock()
	s.requests.Wait()
}

// cookiesOf returns the values of the cookies with the console's name.
func (c *Console) cookiesOf(r *http.Request) []string {
	var values []string
	for _, cookie := range r.CookiesNamed(c.cookie) {
		if len(values) < mostCookies {
			values = append(values, cookie.Value)
		}
	}
	return values
}

func (c *Console) newCookie(value string, age int) *http.Cookie {
	return &http.Cookie{Name: c.cookie, Value: value, Path: "/", HttpOnly: true, Secure: c.config.TLS, SameSite: http.SameSiteStrictMode, MaxAge: age}
}

// addressOf is the address of who asks. The addresses of IPv6 that one host may have are
// taken as one.
func addressOf(r *http.Request) netip.Prefix {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	address := at.Addr().Unmap().WithZone("")
	bits := 64
	if address.Is4() {
		bits = 32
	}
	prefix, _ := address.Prefix(bits) // fails only for a wrong number of bits
	return prefix
}

// logIn exchanges {"key": …} or {"password": …} for a cookie and {"key": …}, which the
// page sends in a header from then on.
func (c *Console) logIn(w http.ResponseWriter, r *http.Request) {
	var said struct{ Key, Password string }
	if r.Header.Get("Content-Type") != "application/json" || json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&said) != nil {
		refuse(w, http.StatusBadRequest, "A login is a JSON object with a key or a password.")
		return
	}
	cookie, key, code := c.sessions.begin(said.Key, said.Password, addressOf(r), time.Now())
	switch {
	case code == http.StatusServiceUnavailable:
		refuse(w, code, "The console ends.")
	case code == http.StatusTooManyRequests:
		refuse(w, code, "There were too many wrong passwords. Wait a minute.")
	case code != http.StatusOK && said.Key == "" && c.config.Password != "":
		refuse(w, code, "This is not the password.")
	case code != http.StatusOK:
		refuse(w, code, "This link was used already, or is too old. Run 'kelson console' again for a new one.")
	default:
		http.SetCookie(w, c.newCookie(cookie, int(sessionLives.Seconds())))
		writeJSON(w, code, map[string]string{"key": key})
	}
}

func (c *Console) logOut(w http.ResponseWriter, r *http.Request) {
	c.sessions.end(c.cookiesOf(r), r.Header.Get(keyHeader))
	http.SetCookie(w, c.newCookie("", -1))
	w.WriteHeader(http.StatusNoContent)
}
