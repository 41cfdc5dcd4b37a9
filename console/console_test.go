package console

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
)

// apiServer plays an API server, and tells what it was asked.
type apiServer struct {
	*httptest.Server
	asked  chan *http.Request
	bodies chan string
}

func newAPIServer(t *testing.T, answer http.HandlerFunc) *apiServer {
	t.Helper()
	s := &apiServer{asked: make(chan *http.Request, 100), bodies: make(chan string, 100)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.asked <- r
		s.bodies <- string(body)
		if answer == nil {
			fmt.Fprint(w, `{"kind":"PodList"}`)
			return
		}
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// running is a console that listens, and a browser's jar of keys.
type running struct {
	*Console
	at   string // host:port
	stop func()
}

func start(t *testing.T, server string, change func(*Config)) *running {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := listener.Addr().String()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	config := Config{Server: u, Transport: transport, Info: Info{Server: server}, Hosts: []string{at}}
	if change != nil {
		change(&config)
	}
	c := New(config)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Serve(ctx, listener, nil) }()
	stopped := false
	r := &running{Console: c, at: at}
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
	t.Cleanup(r.stop)
	return r
}

// keys are what a browser has after a login.
type keys struct{ cookie, key string }

func (r *running) logIn(t *testing.T) keys {
	t.Helper()
	_, key, _ := strings.Cut(r.NewLink(), "=")
	resp, body := r.do(t, "POST", "/session", keys{}, `{"key":"`+key+`"}`, "Content-Type", "application/json")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("login: got %d %s, want 200", resp.StatusCode, body)
	}
	var said struct{ Key string }
	if err := json.Unmarshal([]byte(body), &said); err != nil {
		t.Fatal(err)
	}
	return keys{resp.Header.Get("Set-Cookie"), said.Key}
}

// do sends a request as a browser would, with pairs of header names and values. A header
// "Host" is the name that the browser knows.
func (r *running) do(t *testing.T, method, path string, k keys, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+r.at+"/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.URL.Opaque = path // as it is
	if k.cookie != "" {
		req.Header.Set("Cookie", strings.Split(k.cookie, ";")[0])
	}
	if k.key != "" {
		req.Header.Set(keyHeader, k.key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Add(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp, string(text)
}

func (r *running) openWatch(t *testing.T, path string, k keys, change func(http.Header)) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	h := http.Header{"Origin": {"http://" + r.at}, "Cookie": {strings.Split(k.cookie, ";")[0]}, "Sec-Websocket-Protocol": {"kelson, " + k.key}}
	if change != nil {
		change(h)
	}
	conn, resp, err := websocket.DefaultDialer.Dial("ws://"+r.at+"/watch?path="+url.QueryEscape(path), h)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, resp, err
}

func TestBothKeysAreNeeded(t *testing.T) {
	api := newAPIServer(t, nil)
	c := start(t, api.URL, func(config *Config) {
		config.Actions = map[string]http.Handler{"undo": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "undone") })}
	})
	mine, other := c.logIn(t), c.logIn(t)
	for name, k := range map[string]keys{
		"nothing": {}, "cookie": {cookie: mine.cookie}, "key": {key: mine.key}, "cookie and another's key": {mine.cookie, other.key},
		"wrong key": {mine.cookie, mine.key + "x"}, "key as cookie": {"kelson-console=" + mine.key, mine.key},
	} {
		for _, path := range []string{"/k8s/api/v1/pods", "/console/info", "/console/undo"} {
			if resp, body := c.do(t, "GET", path, k, ""); resp.StatusCode != http.StatusUnauthorized || resp.Header.Get(keyHeader) == "" {
				t.Errorf("%s with %s: got %d %s, want 401 of the console", path, name, resp.StatusCode, body)
			}
		}
		if _, resp, err := c.openWatch(t, "/api/v1/pods", k, nil); err == nil || resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("watch with %s: got %v, want 401", name, err)
		}
		if resp, _ := c.do(t, "DELETE", "/session", k, ""); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("log-out with %s: got %d, want 401", name, resp.StatusCode)
		}
	}
	if len(api.asked) != 0 {
		t.Errorf("the API server was asked %d times, want none", len(api.asked))
	}
	for _, path := range []string{"/k8s/api/v1/pods", "/console/info", "/console/undo"} {
		if resp, body := c.do(t, "GET", path, mine, ""); resp.StatusCode != http.StatusOK {
			t.Errorf("%s with both keys: got %d %s, want 200", path, resp.StatusCode, body)
		}
	}
	// Another program on this host sets cookies of the same name.
	name, _, _ := strings.Cut(mine.cookie, "=")
	tossed := name + "=a; " + name + "=b; "
	if resp, body := c.do(t, "GET", "/console/info", keys{key: mine.key}, "", "Cookie", tossed+strings.Split(mine.cookie, ";")[0]); resp.StatusCode != http.StatusOK {
		t.Errorf("with cookies of others first: got %d %s, want 200", resp.StatusCode, body)
	}
}

func TestCookieIsForThisConsoleOnly(t *testing.T) {
	api := newAPIServer(t, nil)
	c := start(t, api.URL, nil)
	_, port, _ := net.SplitHostPort(c.at)
	got := c.logIn(t).cookie
	for _, want := range []string{"kelson-console-" + port + "=", "HttpOnly", "SameSite=Strict", "Path=/"} {
		if !strings.Contains(got, want) {
			t.Errorf("cookie %s has no %s", got, want)
		}
	}
	secure := New(Config{TLS: true, Hosts: []string{"example.com:8443"}})
	if got := secure.newCookie("x", 1).String(); !strings.HasPrefix(got, "__Host-kelson-console-8443=") || !strings.Contains(got, "Secure") {
		t.Errorf("cookie with TLS: got %s, want a __Host- one that is Secure", got)
	}
}

func TestOtherOriginsAndHostsAreRefused(t *testing.T) {
	api := newAPIServer(t, nil)
	c := start(t, api.URL, nil)
	k := c.logIn(t)
	_, port, _ := net.SplitHostPort(c.at)
	for _, test := range []struct {
		name, method, path string
		headers            []string
		want               int
	}{
		{"its own page", "GET", "/k8s/api", []string{"Origin", "http://" + c.at, "Sec-Fetch-Site", "same-origin"}, 200},
		{"another origin", "GET", "/k8s/api", []string{"Origin", "http://evil.example"}, 403},
		{"another port", "GET", "/k8s/api", []string{"Origin", "http://127.0.0.1:1"}, 403},
		{"another scheme", "GET", "/k8s/api", []string{"Origin", "https://" + c.at}, 403},
		{"a sandboxed frame", "GET", "/k8s/api", []string{"Origin", "null"}, 403},
		{"two origins", "GET", "/k8s/api", []string{"Origin", "http://" + c.at, "Origin", "http://evil.example"}, 403},
		{"a prefix", "GET", "/k8s/api", []string{"Origin", "http://" + c.at + ".evil.example"}, 403},
		{"an image of another site", "GET", "/assets/icon.svg", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, 403},
		{"a script of another port", "GET", "/assets/app.js", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"}, 403},
		{"a frame of another site", "GET", "/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403},
		{"a form of another site", "POST", "/session", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 403},
		{"a link on another site", "GET", "/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
		{"a service worker", "GET", "/assets/app.js", []string{"Service-Worker", "script"}, 403},
		{"a form of text", "POST", "/session", []string{"Content-Type", "text/plain"}, 400},
		{"a preflight", "OPTIONS", "/session", []string{"Access-Control-Request-Method", "POST"}, 405},
		{"a stranger's name", "GET", "/", []string{"Host", "evil.example:" + port}, 421},
		{"the name without the port", "GET", "/", []string{"Host", "127.0.0.1"}, 421},
		{"another port's name", "GET", "/", []string{"Host", "127.0.0.1:1"}, 421},
		{"a dot at the end", "GET", "/", []string{"Host", "127.0.0.1.:" + port}, 421},
	} {
		resp, body := c.do(t, test.method, test.path, k, "", test.headers...)
		if resp.StatusCode != test.want {
			t.Errorf("%s: got %d %s, want %d", test.name, resp.StatusCode, body, test.want)
		}
		for name := range resp.Header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s: the answer has %s, want no such header", test.name, name)
			}
		}
		if got := resp.Header.Get("X-Frame-Options") + resp.Header.Get("X-Content-Type-Options"); got != "DENYnosniff" {
			t.Errorf("%s: got %q, want the headers of every answer", test.name, got)
		}
	}
	for name, change := range map[string]func(http.Header){
		"no origin":      func(h http.Header) { h.Del("Origin") },
		"null":           func(h http.Header) { h.Set("Origin", "null") },
		"another origin": func(h http.Header) { h.Set("Origin", "http://127.0.0.1:1") },
	} {
		if _, resp, err := c.openWatch(t, "/api/v1/pods", k, change); err == nil || resp.StatusCode != http.StatusForbidden {
			t.Errorf("watch with %s: got %v, want 403", name, err)
		}
	}
}

func TestDefaultPortsAndAddressesAreNamedAsBrowsersDo(t *testing.T) {
	c := New(Config{TLS: true, Hosts: []string{"Console.Example:443", "[0:0:0:0:0:0:0:1]:443"}})
	for host, want := range map[string]int{
		"console.example": 200, "console.example:443": 200, "CONSOLE.example": 200, "[::1]": 200, "[::1]:443": 200, "console.example:80": 421, "example": 421,
	} {
		for _, origin := range []string{"", "https://" + strings.ToLower(host)} {
			r := httptest.NewRequest("GET", "/", nil)
			r.Host = host
			if origin != "" {
				r.Header.Set("Origin", origin)
			}
			w := httptest.NewRecorder()
			if c.ServeHTTP(w, r); w.Code != want {
				t.Errorf("Host %s, Origin %q: got %d, want %d", host, origin, w.Code, want)
			}
		}
	}
}

func TestLinkLogsInOnce(t *testing.T) {
	now := time.Now()
	from := netip.MustParsePrefix("127.0.0.1/32")
	s := &sessions{}
	first := s.newLink(now)
	second := s.newLink(now)
	for range 1000 { // wrong keys keep nobody out
		if _, _, code := s.begin("wrong", "", from, now); code != http.StatusForbidden {
			t.Fatalf("wrong key: got %d, want 403", code)
		}
	}
	for _, test := range []struct {
		name, key, password string
		at                  time.Time
		want                int
	}{
		{"link before the last", first, "", now, 403},
		{"nothing", "", "", now, 403},
		{"too old", second, "", now.Add(linkLives), 403},
		{"good", second, "", now.Add(linkLives - 1), 200},
		{"again", second, "", now.Add(linkLives - 1), 403},
	} {
		if _, _, code := s.begin(test.key, test.password, from, test.at); code != test.want {
			t.Errorf("%s: got %d, want %d", test.name, code, test.want)
		}
	}
}

func TestWrongPasswordsKeepOutTheirAddressOnly(t *testing.T) {
	now := time.Now()
	s := &sessions{password: "correct horse battery"}
	thief, owner := netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.2/32")
	for i := range 100 {
		want := http.StatusForbidden
		if i >= mostTries {
			want = http.StatusTooManyRequests
		}
		if _, _, code := s.begin("", "wrong", thief, now.Add(time.Duration(i)*time.Millisecond)); code != want {
			t.Fatalf("wrong password %d: got %d, want %d", i, code, want)
		}
	}
	if _, _, code := s.begin("", "correct horse battery", thief, now.Add(time.Second)); code != http.StatusTooManyRequests {
		t.Errorf("the password, from an address with many wrong ones: got %d, want 429", code)
	}
	if _, _, code := s.begin("", "correct horse battery", owner, now); code != http.StatusOK {
		t.Errorf("the password, from another address: got %d, want 200", code)
	}
	if _, _, code := s.begin("", "correct horse battery", thief, now.Add(2*time.Minute)); code != http.StatusOK {
		t.Errorf("the password, two minutes later: got %d, want 200", code)
	}
	// A thief with many addresses costs bounded memory, and a minute.
	for i := range 4 * mostAddresses {
		s.begin("", "wrong", netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), 32), now.Add(3*time.Minute))
	}
	if len(s.wrong) > mostAddresses+1 {
		t.Errorf("%d addresses are counted, want %d at most", len(s.wrong), mostAddresses+1)
	}
	if _, _, code := s.begin("", "correct horse battery", owner, now.Add(5*time.Minute)); code != http.StatusOK {
		t.Errorf("the password, after a flood of many addresses: got %d, want 200", code)
	}
}

func TestAddressesOfOneHost(t *testing.T) {
	for remote, want := range map[string]string{
		"127.0.0.1:5": "127.0.0.1/32", "[::ffff:10.0.0.1]:5": "10.0.0.1/32", "[2001:db8::1:2]:5": "2001:db8::/64", "[fe80::1%eth0]:5": "fe80::/64", "": "invalid Prefix", "pipe": "invalid Prefix",
	} {
		if got := addressOf(&http.Request{RemoteAddr: remote}).String(); got != want {
			t.Errorf("%s: got %s, want %s", remote, got, want)
		}
	}
}

func TestSessionsEndByAgeAndNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sessions{}
		begin := func() keys {
			cookie, key, code := s.begin(s.newLink(time.Now()), "", netip.Prefix{}, time.Now())
			if code != http.StatusOK {
				t.Fatalf("login: got %d, want 200", code)
			}
			return keys{cookie, key}
		}
		enter := func(k keys) context.Context {
			ctx, leave := s.enter(t.Context(), []string{k.cookie}, k.key)
			if leave != nil {
				t.Cleanup(leave)
			}
			return ctx
		}
		first := begin()
		running := enter(first)
		time.Sleep(sessionLives - time.Second)
		if running.Err() != nil || enter(first) == nil {
			t.Error("the session ended before its time")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if running.Err() == nil || enter(first) != nil {
			t.Error("the session and its requests did not end with its time")
		}
		oldest := begin()
		running = enter(oldest)
		for range mostSessions - 1 {
			begin()
		}
		if running.Err() != nil || enter(oldest) == nil {
			t.Errorf("the oldest session ended before there were more than %d", mostSessions)
		}
		begin()
		synctest.Wait()
		if running.Err() == nil || enter(oldest) != nil {
			t.Errorf("the oldest session did not end for the one after %d", mostSessions)
		}
		if len(s.open) != mostSessions {
			t.Errorf("got %d sessions, want %d", len(s.open), mostSessions)
		}
	})
}

func TestLogOutEndsWhatTheSessionHasOpen(t *testing.T) {
	api := newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, `{"type":"ADDED"}`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	c := start(t, api.URL, nil)
	mine, other := c.logIn(t), c.logIn(t)
	watch := func(k keys) *websocket.Conn {
		conn, _, err := c.openWatch(t, "/api/v1/pods?watch=1", k, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, text, err := conn.ReadMessage(); err != nil || string(text) != `{"type":"ADDED"}` {
			t.Fatalf("watch: got %q, %v", text, err)
		}
		return conn
	}
	watches, kept := []*websocket.Conn{watch(mine), watch(mine)}, watch(other)
	// A watch without a WebSocket is a request that does not end.
	req, _ := http.NewRequest("GET", "http://"+c.at+"/k8s/api/v1/pods?watch=1", nil)
	req.Header.Set("Cookie", strings.Split(mine.cookie, ";")[0])
	req.Header.Set(keyHeader, mine.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()

	if resp, body := c.do(t, "DELETE", "/session", mine, ""); resp.StatusCode != http.StatusNoContent || !strings.Contains(resp.Header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("log-out: got %d %s %s, want 204 and no cookie", resp.StatusCode, resp.Header.Get("Set-Cookie"), body)
	}
	for i, conn := range watches {
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, text, err := conn.ReadMessage(); err == nil || isTimeout(err) {
			t.Errorf("watch %d after log-out: got %q, %v, want its end", i, text, err)
		}
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("a forwarded watch after log-out: got a whole answer, want it to be cut")
	}
	if resp, _ := c.do(t, "GET", "/console/info", mine, ""); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("after log-out: got %d, want 401", resp.StatusCode)
	}
	if resp, _ := c.do(t, "GET", "/console/info", other, ""); resp.StatusCode != http.StatusOK {
		t.Errorf("another session after log-out: got %d, want 200", resp.StatusCode)
	}
	_ = kept.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, _, err := kept.ReadMessage(); !isTimeout(err) {
		t.Errorf("another session's watch: got %v, want it to go on", err)
	}
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

func TestNothingRunsAfterTheEnd(t *testing.T) {
	api := newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, `{}`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	c := start(t, api.URL, nil)
	k := c.logIn(t)
	for range 5 {
		conn, _, err := c.openWatch(t, "/api/v1/pods?watch=1", k, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.ReadMessage(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			if _, _, err := conn.ReadMessage(); err == nil || isTimeout(err) {
				t.Errorf("a watch after the end of the console: got %v, want its end", err)
			}
		}()
	}
	c.stop()
	stacks := make([]byte, 1<<20)
	if text := string(stacks[:runtime.Stack(stacks, true)]); strings.Contains(text, "(*Console).copyWatch") {
		t.Errorf("watches run after the end:\n%s", text)
	}
	if len(c.watches) != 0 {
		t.Errorf("got %d open watches, want 0", len(c.watches))
	}
	if _, _, code := c.sessions.begin(c.sessions.newLink(time.Now()), "", netip.Prefix{}, time.Now()); code != http.StatusServiceUnavailable {
		t.Errorf("login after the end: got %d, want 503", code)
	}
}

func TestWatchesAreBounded(t *testing.T) {
	api := newAPIServer(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	c := start(t, api.URL, nil)
	k := c.logIn(t)
	var conns []*websocket.Conn
	for i := range mostWatches {
		conn, _, err := c.openWatch(t, "/api/v1/pods?watch=1", k, nil)
		if err != nil {
			t.Fatalf("watch %d: %v", i, err)
		}
		conns = append(conns, conn)
	}
	if _, resp, err := c.openWatch(t, "/api/v1/pods?watch=1", k, nil); err == nil || resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one more watch: got %v, want 429", err)
	}
	_ = conns[0].Close()
	for range mostWatches {
		<-api.asked
	}
	deadline := time.Now().Add(time.Minute)
	for {
		_, _, err := c.openWatch(t, "/api/v1/pods?watch=1", k, nil)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a watch after one was closed: got %v, want it within a minute", err)
		}
		runtime.Gosched()
	}
}

func TestWatchTellsErrors(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"a Status": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(403)
			fmt.Fprint(w, `{"kind":"Status","code":403,"message":"no"}`)
		}, `{"object":{"kind":"Status","code":403,"message":"no"},"type":"ERROR"}`},
		"a page": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<h1>no</h1>", 404) }, `\u003ch1\u003eno`},
		"null":   {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "null", 500) }, `"code":500`},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://evil.example/", http.StatusFound)
		}, `"code":400`},
		"a line without end": {func(w http.ResponseWriter, _ *http.Request) {
			for range maxLine/(1<<16) + 1 {
				_, _ = w.Write(make([]byte, 1<<16))
			}
		}, "token too long"},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, newAPIServer(t, test.answer).URL, nil)
			conn, _, err := c.openWatch(t, "/api/v1/pods?watch=1", c.logIn(t), nil)
			if err != nil {
				t.Fatal(err)
			}
			_, text, err := conn.ReadMessage()
			if err != nil || !strings.Contains(string(text), test.want) || !json.Valid(text) {
				t.Errorf("got %s, %v, want %s", text, err, test.want)
			}
			if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
				t.Errorf("after the error: got %v, want the end", err)
			}
		})
	}
}

func TestNothingOfTheBrowserReachesTheServer(t *testing.T) {
	api := newAPIServer(t, nil)
	c := start(t, api.URL, nil)
	k := c.logIn(t)
	hostile := []string{
		"Authorization", "Bearer stolen", "Proxy-Authorization", "Basic x", "X-Remote-User", "admin", "X-Remote-Group", "system:masters", "X_remote_user", "admin",
		"Origin", "http://" + c.at, "Referer", "http://" + c.at + "/secret", "User-Agent", "Mozilla", "X-Forwarded-For", "1.2.3.4", "X-Forwarded-Uri", "/x", "Te", "trailers",
		"Sec-Fetch-Site", "same-origin", "Connection", "Impersonate-Group, X-Other", "X-Other", "1", "Accept-Encoding", "br, gzip;q=0.5", "Range", "bytes=0-1",
	}
	wanted := []string{"Impersonate-User", "jane", "Impersonate-Group", "devs", "Impersonate-Extra-Scopes", "a", "Accept", "application/json;as=Table", "Content-Type", "application/apply-patch+yaml", "If-None-Match", `"x"`}
	if resp, body := c.do(t, "PATCH", "/k8s/api/v1/namespaces/default/pods/a?dryRun=All", k, "kind: Pod", append(hostile, wanted...)...); resp.StatusCode != http.StatusOK {
		t.Fatalf("got %d %s, want 200", resp.StatusCode, body)
	}
	got := <-api.asked
	var names []string
	for name := range got.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{"Accept", "Accept-Encoding", "Content-Length", "Content-Type", "If-None-Match", "Impersonate-Extra-Scopes", "Impersonate-Group", "Impersonate-User", "User-Agent"}
	if !slices.Equal(names, want) || strings.Contains(got.UserAgent(), "Mozilla") {
		t.Errorf("headers: got %v, want %v", got.Header, want)
	}
	for i := 0; i < len(wanted); i += 2 {
		if got.Header.Get(wanted[i]) != wanted[i+1] {
			t.Errorf("%s: got %q, want %q", wanted[i], got.Header.Get(wanted[i]), wanted[i+1])
		}
	}
	if body := <-api.bodies; got.Method != "PATCH" || got.RequestURI != "/api/v1/namespaces/default/pods/a?dryRun=All" || body != "kind: Pod" || "http://"+got.Host != api.URL {
		t.Errorf("got %s %s%s with %q, want the request", got.Method, got.Host, got.RequestURI, body)
	}
}

func TestImpersonatingConsoleStaysThatUser(t *testing.T) {
	api := newAPIServer(t, nil)
	c := start(t, api.URL, func(config *Config) { config.Info.User = "jane" })
	k := c.logIn(t)
	for _, name := range []string{"Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-X", "impersonate-group"} {
		if resp, _ := c.do(t, "GET", "/k8s/api", k, "", name, "system:masters"); resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: got %d, want 403", name, resp.StatusCode)
		}
	}
	if len(api.asked) != 0 {
		t.Errorf("the API server was asked %d times, want none", len(api.asked))
	}
}

func TestHostileAnswersChangeNothing(t *testing.T) {
	api := newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for _, header := range []string{
			"Set-Cookie: kelson-console=x", "Content-Security-Policy: script-src *", "Clear-Site-Data: \"*\"", "Refresh: 0;url=http://evil.example", "Link: </x>; rel=preload", "Service-Worker-Allowed: /",
			"Access-Control-Allow-Origin: *", "Access-Control-Allow-Credentials: true", "Cache-Control: max-age=9999", "X-Frame-Options: ALLOWALL", "X-Content-Type-Options: none", "Location: /session",
			"Strict-Transport-Security: max-age=999", "Alt-Svc: h3=\":1\"", "Sourcemap: /x", "Cross-Origin-Opener-Policy: unsafe-none", "X-Kelson-Console: none", "Content-Disposition: inline", "Report-To: {}", "Trailer: X-Late",
			"Content-Type: text/html", "Audit-Id: 7", "Warning: 299 - \"old\"", "Retry-After: 1", "Etag: \"e\"", "Server-Timing: x", "Www-Authenticate: Basic",
		} {
			name, value, _ := strings.Cut(header, ": ")
			h.Set(name, value)
		}
		w.WriteHeader(http.StatusEarlyHints) // net/http's proxy forgets the headers of its answer for this
		fmt.Fprint(w, "<script>alert(1)</script>")
		h.Set("X-Late", "1")
	})
	c := start(t, api.URL, nil)
	k := c.logIn(t)
	resp, body := c.do(t, "GET", "/k8s/apis/hostile/v1/x", k, "")
	var names []string
	for name := range resp.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{"Audit-Id", "Cache-Control", "Content-Security-Policy", "Content-Type", "Cross-Origin-Opener-Policy", "Cross-Origin-Resource-Policy", "Date", "Etag", "Referrer-Policy", "Retry-After", "Warning", "X-Content-Type-Options", "X-Frame-Options"}
	if !slices.Equal(names, want) {
		t.Errorf("headers: got %q, want %q", names, want)
	}
	for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'"} {
		if got := resp.Header.Values(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if body != "<script>alert(1)</script>" {
		t.Errorf("body: got %s", body)
	}
	// What a navigation, a script element or a worker would get.
	if resp, body := c.do(t, "GET", "/k8s/apis/hostile/v1/x", keys{cookie: k.cookie}, ""); resp.StatusCode != 401 || strings.Contains(body, "script") {
		t.Errorf("without the page's key: got %d %s, want 401", resp.StatusCode, body)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	for _, code := range []int{300, 301, 302, 303, 307, 308} {
		api := newAPIServer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/k8s/api/v1/namespaces/kube-system")
			w.WriteHeader(code)
		})
		c := start(t, api.URL, nil)
		resp, body := c.do(t, "DELETE", "/k8s/apis/hostile/v1/x", c.logIn(t), "")
		if resp.StatusCode != http.StatusBadGateway || resp.Header.Get("Location") != "" {
			t.Errorf("%d: got %d to %q %s, want 502", code, resp.StatusCode, resp.Header.Get("Location"), body)
		}
	}
}

func TestPathsStayBelowTheServersOwn(t *testing.T) {
	api := newAPIServer(t, nil)
	c := start(t, api.URL+"/clusters/a%2Fb/", nil)
	k := c.logIn(t)
	for path, want := range map[string]string{
		"/k8s/api":                    "/clusters/a%2Fb/api",
		"/k8s/api/v1/x%2fy?a=b%26c&d": "/clusters/a%2Fb/api/v1/x%2fy?a=b%26c&d",
		"/k8s/apis/x%3fy":             "/clusters/a%2Fb/apis/x%3fy",
		"/k8s/a%20b/%D7%A9":           "/clusters/a%2Fb/a%20b/%D7%A9",
		"/k8s/...":                    "/clusters/a%2Fb/...",
		"/k8s/%2e%2e/x":               "",
		"/k8s/a/%2E%2E/%2e%2e/x":      "",
		"/k8s/..%2fx":                 "",
		"/k8s/a%2f..%2f..":            "",
		"/k8s/..%5cx":                 "",
		"/k8s/%2e":                    "",
		"/k8s/../session":             "moved",
		"/k8s//evil.example/x":        "moved",
		"/k8s":                        "moved",
		"/k8s/api/../../console/info": "moved",
	} {
		resp, body := c.do(t, "GET", path, k, "")
		got := ""
		if len(api.asked) > 0 {
			got = (<-api.asked).RequestURI
		}
		switch {
		case want == "moved":
			// The console's own redirect, to the path without what is in excess.
			if to := resp.Header.Get("Location"); resp.StatusCode/100 != 3 || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || got != "" {
				t.Errorf("%s: got %d to %q, asked %q, want a redirect within the console", path, resp.StatusCode, to, got)
			}
		case want == "" && resp.StatusCode != http.StatusBadRequest || got != want:
			t.Errorf("%s: got %d %s, asked %q, want %q", path, resp.StatusCode, body, got, want)
		}
	}
	for _, path := range []string{"", "api", "//evil.example/api", "http://evil.example/api", "/../x", "/%2e%2e/x", "/a/..", "%zz", ":", "?watch=1", "/api?a HTTP/1.1"} {
		if _, resp, err := c.openWatch(t, path, k, nil); err == nil || resp.StatusCode != http.StatusBadRequest {
			t.Errorf("watch of %q: got %v, want 400", path, err)
		}
	}
	for _, method := range []string{"TRACE", "CONNECT", "PROPFIND"} {
		req, _ := http.NewRequest(method, "http://"+c.at+"/k8s/api", nil)
		w := httptest.NewRecorder()
		if c.forward(w, req); w.Code != http.StatusBadRequest {
			t.Errorf("%s: got %d, want 400", method, w.Code)
		}
	}
	if resp, _ := c.do(t, "GET", "/k8s/api", k, "", "Connection", "Upgrade", "Upgrade", "websocket"); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("upgrade: got %d, want 400", resp.StatusCode)
	}
	if len(api.asked) != 0 {
		t.Errorf("the API server was asked for %s", (<-api.asked).RequestURI)
	}
}

func TestAnswersThatBreakOffAreNotWhole(t *testing.T) {
	api := newAPIServer(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"items":[`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	c := start(t, api.URL, nil)
	k := c.logIn(t)
	req, _ := http.NewRequest("GET", "http://"+c.at+"/k8s/api", nil)
	req.Header.Set("Cookie", strings.Split(k.cookie, ";")[0])
	req.Header.Set(keyHeader, k.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("got %q without an error, want one", text)
	}
}

func TestLargeRequestsAreRefused(t *testing.T) {
	api := newAPIServer(t, nil)
	c := start(t, api.URL, nil)
	k := c.logIn(t)
	if resp, _ := c.do(t, "POST", "/k8s/api", k, strings.Repeat("x", maxBody+1)); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("large request: got %d, want 502", resp.StatusCode)
	}
	if resp, _ := c.do(t, "POST", "/session", keys{}, `{"key":"`+strings.Repeat("x", 5000)+`"}`, "Content-Type", "application/json"); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("large login: got %d, want 400", resp.StatusCode)
	}
	if resp, _ := c.do(t, "GET", "/", keys{}, "", "X-Large", strings.Repeat("x", 128<<10)); resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("large header: got %d, want 431", resp.StatusCode)
	}
}

func TestServerAway(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	c := start(t, gone.URL, nil)
	k := c.logIn(t)
	resp, body := c.do(t, "GET", "/k8s/api", k, "")
	if resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, "cannot be reached") {
		t.Errorf("got %d %s, want 502", resp.StatusCode, body)
	}
	conn, _, err := c.openWatch(t, "/api/v1/pods?watch=1", k, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, text, err := conn.ReadMessage(); err != nil || !strings.Contains(string(text), `"code":502`) {
		t.Errorf("watch: got %s, %v, want 502", text, err)
	}
	if resp, body := c.do(t, "GET", "/", keys{}, ""); resp.StatusCode != http.StatusOK || !strings.Contains(body, "<!doctype html>") {
		t.Errorf("page: got %d, want 200", resp.StatusCode)
	}
}

func TestPage(t *testing.T) {
	c := start(t, "http://127.0.0.1:1", nil)
	for path, want := range map[string]struct {
		code int
		kind string
	}{
		"/": {200, "text/html; charset=utf-8"}, "/objects/apps/v1/deployments": {200, "text/html; charset=utf-8"}, "/assets/app.js": {200, "text/javascript; charset=utf-8"},
		"/assets/style.css": {200, "text/css; charset=utf-8"}, "/assets/icon.svg": {200, "image/svg+xml"}, "/assets/none.js": {404, "text/plain; charset=utf-8"},
		"/assets/lib": {404, "text/plain; charset=utf-8"}, "/assets/%2e%2e/console.go": {200, "text/html; charset=utf-8"}, "/assets/..%2f..%2fetc/passwd": {200, "text/html; charset=utf-8"}, "/assets/a%00b": {404, "text/plain; charset=utf-8"},
	} {
		resp, _ := c.do(t, "GET", path, keys{}, "")
		if got := resp.Header.Get("Content-Type"); resp.StatusCode != want.code || got != want.kind {
			t.Errorf("%s: got %d %s, want %d %s", path, resp.StatusCode, got, want.code, want.kind)
		}
	}
	if resp, _ := c.do(t, "POST", "/", keys{}, ""); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: got %d, want 405", resp.StatusCode)
	}
	resp, _ := c.do(t, "GET", "/assets/app.js", keys{}, "", "Accept-Encoding", "gzip")
	if resp.Header.Get("Content-Encoding") != "gzip" {
		t.Error("a browser that takes gzip gets none")
	}
	if resp, _ := c.do(t, "GET", "/assets/app.js", keys{}, "", "If-None-Match", resp.Header.Get("Etag")); resp.StatusCode != http.StatusNotModified {
		t.Errorf("the same file: got %d, want 304", resp.StatusCode)
	}
}

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "GZip": true, "br, gzip ; q=0.1": true, "gzip;q=0": false, "gzip; Q=0.000": false, "*": true, "*;q=0": false, "*, gzip;q=0": false, "gzip;q=0, *": false,
		"gzip;q=x": false, "notgzip": false, "gzip-ng, br": false, "identity": false, "x-gzip": true,
	} {
		if got := acceptsGzip(http.Header{"Accept-Encoding": {header}}); got != want {
			t.Errorf("%q: got %t, want %t", header, got, want)
		}
	}
}

// TestSlowReaderIsWaitedFor has a browser that does not read: the answer waits, and does not grow
// in memory.
func TestSlowReaderIsWaitedFor(t *testing.T) {
	sent := make(chan int, 1)
	api := newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
		n := 0
		for range 1 << 14 { // a gigabyte
			k, err := w.Write(make([]byte, 1<<16))
			n += k
			if err != nil {
				break
			}
		}
		sent <- n
	})
	c := start(t, api.URL, nil)
	k := c.logIn(t)
	conn, err := net.Dial("tcp", c.at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /k8s/api HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\n%s: %s\r\n\r\n", c.at, strings.Split(k.cookie, ";")[0], keyHeader, k.key)
	if line, err := bufio.NewReaderSize(conn, 16).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatalf("got %q, %v, want 200", line, err)
	}
	c.stop()
	if n := <-sent; n > 256<<20 {
		t.Errorf("%d bytes were read for a browser that does not, want them to wait", n)
	}
}

func TestServesTLS(t *testing.T) {
	api := newAPIServer(t, nil)
	given := httptest.NewTLSServer(nil) // for its certificate
	defer given.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u, _ := url.Parse(api.URL)
	at := listener.Addr().String()
	c := New(Config{Server: u, Transport: http.DefaultTransport, Hosts: []string{at}, TLS: true, Password: "correct horse battery"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Serve(ctx, listener, &tls.Config{Certificates: given.TLS.Certificates}) }()
	client := given.Client()
	resp, err := client.Post("https://"+at+"/session", "application/json", strings.NewReader(`{"password":"correct horse battery"}`))
	if err != nil {
		t.Fatal(err)
	}
	var said struct{ Key string }
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil || resp.StatusCode != 200 {
		t.Fatalf("login: got %d, %v", resp.StatusCode, err)
	}
	_ = resp.Body.Close()
	dialer := websocket.Dialer{TLSClientConfig: client.Transport.(*http.Transport).TLSClientConfig.Clone()}
	dialer.TLSClientConfig.NextProtos = nil
	conn, _, err := dialer.Dial("wss://"+at+"/watch?path=/api", http.Header{"Origin": {"https://" + at}, "Cookie": {strings.Split(resp.Header.Get("Set-Cookie"), ";")[0]}, "Sec-Websocket-Protocol": {"kelson, " + said.Key}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, text, err := conn.ReadMessage(); err != nil || string(text) != `{"kind":"PodList"}` {
		t.Errorf("watch: got %s, %v", text, err)
	}
	client.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func FuzzTarget(f *testing.F) {
	for _, seed := range []string{"/api", "/%2e%2e/x", "/a%2fb", "//x", "/a?b", "/%zz", "/\x00", "/a\\..\\b", "@evil/", ":80/", "/a#b"} {
		f.Add(seed, "watch=1")
	}
	server, err := url.Parse("https://api.example:6443/clusters/a")
	if err != nil {
		f.Fatal(err)
	}
	c := New(Config{Server: server})
	f.Fuzz(func(t *testing.T, path, query string) {
		got := c.target(path, query)
		if got == nil {
			return
		}
		if got.Scheme != "https" || got.Host != "api.example:6443" || got.User != nil || !strings.HasPrefix(got.Path, "/clusters/a/") {
			t.Fatalf("%q leads to %s", path, got)
		}
		clean, err := url.JoinPath("/", got.EscapedPath())
		if err != nil || !strings.HasPrefix(clean, "/clusters/a") {
			t.Fatalf("%q leads to %s, %v", path, clean, err)
		}
		if strings.ContainsAny(got.EscapedPath(), " ?#\r\n") || strings.ContainsAny(got.RequestURI(), " \r\n\t\x00") {
			t.Fatalf("%q is sent as %q", path, got.RequestURI())
		}
	})
}

func FuzzErrorEvent(f *testing.F) {
	for _, seed := range []string{`{"kind":"Status","code":403}`, "null", "<html>", "", "{\"kind\":\"Status\"}\n\n", "\xff", `{"kind":"Status","kind":1}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		var event struct {
			Type   string
			Object struct{ Kind string }
		}
		if err := json.Unmarshal(errorEvent(500, said), &event); err != nil || event.Type != "ERROR" || event.Object.Kind != "Status" {
			t.Fatalf("%q: got %+v, %v, want an ERROR with a Status", said, event, err)
		}
	})
}

func FuzzAcceptsGzip(f *testing.F) {
	f.Add("br, gzip;q=0.5, *;q=0")
	f.Fuzz(func(t *testing.T, header string) {
		if acceptsGzip(http.Header{"Accept-Encoding": {header}}) && !strings.Contains(strings.ToLower(header), "gzip") && !strings.Contains(header, "*") {
			t.Fatalf("%q does not take gzip", header)
		}
	})
}
