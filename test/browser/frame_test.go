package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/apikeel/kelson/console"
)

func TestLinkLogsInOnce(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), nil)
	link := c.url() + c.NewLink()
	first := newTab(t)
	first.visit(link)
	first.untilRole("button", "Log out")
	if got := eval[string](first, "location.href"); strings.Contains(got, "key") {
		t.Errorf("the address is %s, want no key in it", got)
	}
	if got := eval[string](first, "document.cookie"); got != "" {
		t.Errorf("a script can read the cookie %s, want none", got)
	}
	thief := newTab(t)
	thief.visit(link)
	thief.untilText("This link was used already")
	if got := thief.role("navigation", "Views"); len(got) != 0 {
		t.Error("the second use of a link shows the console, want the login")
	}
	thief.accessible()
	// A stolen key of the page is not enough.
	eval[any](thief, "localStorage.setItem('kelson-console-key', "+quote(eval[string](first, "localStorage.getItem('kelson-console-key')"))+")")
	thief.visit(c.url() + "/objects")
	thief.untilText("Nobody is logged in here")
	// Nor is a stolen cookie.
	cookies := call(first, network.GetCookies, network.GetCookiesParams{}).Cookies
	if len(cookies) != 1 || !cookies[0].HTTPOnly || cookies[0].SameSite != network.CookieSameSiteStrict {
		t.Fatalf("cookies: got %+v, want one for the server only", cookies)
	}
	other := newTab(t)
	call(other, network.SetCookie, network.SetCookieParams{Name: cookies[0].Name, Value: cookies[0].Value, URL: c.url()})
	other.visit(c.url() + "/k8s/api")
	other.untilText("Nobody is logged in here")
	other.visit(c.url() + "/")
	other.untilText("Open the link")
}

func TestOwnersLinkTwice(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), nil)
	link := c.url() + c.NewLink()
	tab := newTab(t)
	tab.visit(link)
	tab.untilRole("button", "Log out")
	tab.visit("about:blank")
	tab.visit(link)
	tab.untilRole("button", "Log out")
}

func TestPasswordLogsIn(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), func(config *console.Config) { config.Password, config.Info.Password = "correct horse battery", true })
	tab := newTab(t)
	tab.visit(c.url() + "/apis")
	tab.untilRole("button", "Log in")
	tab.accessible()
	tab.tabTo("textbox", "Password, if the console has one")
	tab.press("wrong", kb.Enter)
	tab.untilText("This is not the password")
	eval[any](tab, "document.querySelector('input[type=password]').select()")
	tab.press("correct horse battery", kb.Enter)
	tab.untilRole("button", "Log out")
	if got := eval[string](tab, "location.pathname"); got != "/apis" {
		t.Errorf("after the login: got %s, want /apis", got)
	}
}

func TestLogOutOfAllTabs(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), nil)
	first := newTab(t)
	first.logIn(c)
	second := first.another()
	second.visit(c.url() + "/apis")
	second.untilRole("button", "Log out")
	stranger := newTab(t)
	stranger.logIn(c)

	first.tabTo("button", "Log out")
	first.press(kb.Enter)
	first.untilText("Open the link")
	if got := eval[int](first, "localStorage.getItem('kelson-console-key') === null ? 0 : 1"); got != 0 {
		t.Error("the page's key is there after the log-out, want it gone")
	}
	second.visit(c.url() + "/objects")
	second.untilText("Open the link")
	stranger.visit(c.url() + "/objects")
	stranger.untilRole("button", "Log out")
}

func TestPaletteByKeyboard(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	run(tab, chromedp.KeyEvent("k", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
	tab.untilRole("dialog", "Go to")
	tab.press("deployments")
	tab.until("an option", "[...document.querySelectorAll('[role=option]')].some((e) => e.innerText.includes('deployments'))")
	tab.accessible()
	tab.press(kb.Enter)
	tab.until("the list", "location.pathname === '/objects/apps/v1/deployments'")
	tab.until("no palette", "!document.querySelector('dialog[open]')")
	tab.shortcut("g")
	tab.untilRole("dialog", "Go to")
	tab.press(kb.Escape)
	tab.until("no palette", "!document.querySelector('dialog[open]')")
	run(tab, chromedp.KeyEvent("k", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
	tab.untilRole("dialog", "Go to")
	tab.press("ns kube-s")
	tab.until("an object", "[...document.querySelectorAll('[role=option]')].some((e) => e.innerText.includes('kube-system'))")
	tab.press(kb.ArrowDown, kb.Enter)
	tab.until("the object", "location.pathname === '/object/core/v1/namespaces/-/kube-system'")
}

func TestThemes(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	const back = "getComputedStyle(document.body).backgroundColor"
	const button = "Change between light, dark and the system's colours"
	want := map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 28)"}
	for _, theme := range []string{"light", "dark"} {
		tab.click("button", button)
		if got := eval[string](tab, back); got != want[theme] {
			t.Errorf("%s: got %s, want %s", theme, got, want[theme])
		}
		tab.visit(c.url() + "/apis") // it is kept
		tab.untilRole("button", "Log out")
		if got := eval[string](tab, back); got != want[theme] {
			t.Errorf("%s, after a reload: got %s, want %s", theme, got, want[theme])
		}
	}
	tab.click("button", button)
	for theme, want := range want { // the system's
		call(tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
		if got := eval[string](tab, back); got != want {
			t.Errorf("system %s: got %s, want %s", theme, got, want)
		}
	}
}

// addresses are one for each view.
var addresses = []string{"/", "/objects", "/objects/core/v1/namespaces", "/object/core/v1/namespaces/-/default", "/access", "/apis", "/explorer", "/time"}

func TestViewsAreAccessible(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	for _, theme := range []string{"light", "dark"} {
		eval[any](tab, fmt.Sprintf("document.documentElement.dataset.theme = %q", theme))
		for _, address := range addresses {
			tab.view(address)
			tab.accessible()
		}
	}
	tab.size(390, 844, true)
	for _, address := range addresses {
		tab.view(address)
		if got := eval[int](tab, "document.scrollingElement.scrollWidth"); got > 390 {
			wide := eval[string](tab, "[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > 391 && !e.closest('.scroll')).slice(0, 5).map((e) => e.tagName + '.' + e.className).join(' ')")
			t.Errorf("%s on a phone: the page is %d wide, want 390: %s", address, got, wide)
		}
	}
}

func TestUnknownAddress(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	for _, path := range []string{"/no/such/page", "/%3Cscript%3Ealert(1)%3C/script%3E", "/%FF", "/objects/%FF/v1/x", "/objects/no.such.group/v1/things", "/object/core/v1/namespaces/-/none"} {
		tab.visit(c.url() + path)
		tab.untilRole("button", "Log out")
		tab.untilRole("alert", "")
	}
}

func TestOtherNamesAndFramesAreRefused(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), nil)
	_, port, _ := strings.Cut(c.at, ":")
	tab := newTab(t)
	tab.expect("Cross-Origin-Opener-Policy") // is for hosts that the browser trusts
	tab.visit("http://rebound.example:" + port + "/")
	tab.untilText("This console is not known by the name rebound.example")

	owner := newTab(t)
	owner.logIn(c)
	owner.visit("about:blank") // its keys stay, and it asks nothing
	before, same := int64(-1), 0
	owner.eventually("nothing is left of what it has asked", func() bool {
		if now := c.asked.Load(); now != before {
			before, same = now, 0
		}
		same++
		return same > 10
	})
	for _, host := range []string{"127.0.0.1", "hostile.example"} { // the same site, and another one
		result := make(chan string, 1)
		hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/result" {
				result <- r.URL.Query().Get("got")
				return
			}
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, hostilePage, c.url(), "ws://"+c.at)
		}))
		t.Cleanup(hostile.Close)
		_, port, _ := strings.Cut(strings.TrimPrefix(hostile.URL, "http://"), ":")
		other := owner.another()
		for _, text := range []string{"CORS", "WebSocket", "frame", "Framing", "X-Frame-Options", "Refused", "blocked", "ERR_"} {
			other.expect(text)
		}
		other.visit("http://" + host + ":" + port + "/")
		other.until("the end of the attacks", "window.result")
		if got := eval[string](other, "window.result"); got != "nothing" {
			t.Errorf("a page of %s got %s, want nothing", host, got)
		}
		if host == "127.0.0.1" { // cookies are sent to all ports, which is why there is a second key
			if got := eval[string](other, "document.cookie"); got != "" {
				t.Errorf("a page of another port reads the cookie %s, want none", got)
			}
		}
	}
	if got := c.asked.Load(); got != before {
		t.Errorf("the API server was asked %d times for hostile pages, want none", got-before)
	}
	owner.visit(c.url() + "/apis")
	owner.untilRole("button", "Log out") // nobody has logged it out
}

// hostilePage tries what a page of a stranger can, with the cookies of the owner.
const hostilePage = `<!doctype html><title>hostile</title><body><script>
const at = %q, ws = %q, got = [];
const tried = (name, promise) => Promise.race([promise, new Promise((done) => setTimeout(done, 20000))]).then((v) => v && got.push(name + " " + v), () => {});
const element = (name, attributes, how) => new Promise((done) => {
  const e = Object.assign(document.createElement(name), attributes);
  e.onload = () => done(how ? how(e) : "loaded");
  e.onerror = () => done();
  document.body.append(e);
});
const socket = (protocols) => new Promise((done) => {
  const s = new WebSocket(ws + "/watch?path=/api/v1/secrets", protocols);
  s.onopen = () => done("opened");
  s.onclose = s.onerror = () => done();
});
const read = (path, options) => fetch(at + path, { credentials: "include", ...options }).then((r) => r.type === "opaque" ? undefined : r.status + " read");
Promise.all([
  tried("get", read("/k8s/api/v1/secrets")),
  tried("opaque", read("/k8s/api/v1/secrets", { mode: "no-cors" })),
  tried("page", read("/")),
  tried("header", read("/k8s/api", { headers: { "X-Kelson-Console": "x" } })),
  tried("delete", read("/session", { method: "DELETE" })),
  tried("post", read("/session", { method: "POST", body: '{"key":"x"}', headers: { "Content-Type": "application/json" } })),
  tried("simple post", read("/k8s/api/v1/namespaces", { method: "POST", mode: "no-cors", body: "{}", headers: { "Content-Type": "text/plain" } })),
  tried("watch", socket(["kelson", "x"])),
  tried("watch without a key", socket()),
  tried("image", element("img", { src: at + "/assets/icon.svg" })),
  tried("script", element("script", { src: at + "/assets/app.js" })),
  tried("style", element("link", { rel: "stylesheet", href: at + "/assets/style.css" })),
  tried("frame", element("iframe", { src: at + "/" }, (e) => { try { return e.contentDocument && e.contentDocument.querySelector("#app") && "shown" } catch { return } })),
  tried("form", element("iframe", { name: "target" }, (e) => {
    const form = Object.assign(document.createElement("form"), { action: at + "/session", method: "POST", target: "target", enctype: "text/plain" });
    document.body.append(form);
    form.submit();
  })),
]).then(() => (window.result = got.join(", ") || "nothing"));
</script>`

func TestServerThatComesAndGoes(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), nil)
	c.shut.Store(true)
	tab := newTab(t)
	tab.logIn(c)
	tab.untilText("cannot be reached")
	c.shut.Store(false)
	tab.until("the view", "document.querySelector('main h1')")
	tab.until("no failure", "!document.querySelector('.failure')")
	tab.view("/objects/core/v1/namespaces")
	c.shut.Store(true)
	tab.visit(c.url() + "/apis")
	tab.untilText("cannot be reached")
	c.shut.Store(false)
	tab.until("the view", "document.querySelector('main h1')")
}

// TestHarnessSeesViolations has a page do what the policy forbids, to know that it would
// be noticed.
func TestHarnessSeesViolations(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	tab.expect("")
	for name, script := range map[string]string{
		"inline script":   "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = true'}))",
		"event attribute": "(() => { const i = document.createElement('img'); i.setAttribute('onerror', 'window.ran = true'); i.src = '/assets/none'; document.body.append(i) })()",
		"style element":   "document.head.append(Object.assign(document.createElement('style'), {textContent: 'body{}'}))",
		"foreign request": "fetch('http://other.example/').catch(() => {})",
		"service worker":  "navigator.serviceWorker.register('/assets/app.js').catch((e) => console.error('CSP ' + e))",
		"frame":           "document.body.append(Object.assign(document.createElement('iframe'), {src: '/'}))",
		"exception":       "setTimeout(() => { throw new Error('CSP') })",
	} {
		before := tab.noted()
		eval[any](tab, script+", 1")
		tab.eventually("a problem for "+name, func() bool { return tab.noted() > before })
		if eval[bool](tab, "!!window.ran") {
			t.Errorf("%s ran, want it to be refused", name)
		}
	}
}
