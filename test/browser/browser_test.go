// Package browser opens the console in Chromium, against a real server. It is a module of
// its own, since nobody who uses the server needs a browser's protocol.
//
// The tests are skipped where there is no Chromium, and say so.
//
//	go test ./... -screenshots /tmp/pictures
package browser

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/console"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage/engine"
)

// patience is how long something may take to happen on a busy machine.
const patience = time.Minute

var pageDir = flag.String("page", "", "`folder` with the files of the page, instead of those in the program")

var screenshots = flag.String("screenshots", "", "`folder` for a picture of every page at the end of its test")

// chromium is the one browser of all tests; each test has a profile of its own in it.
var chromium struct {
	once   sync.Once
	reason string // why there is none
	ctx    context.Context
	stop   func()
}

// shared is the one server of all tests that change nothing that others see.
var shared struct {
	once   sync.Once
	server *kelsontest.Server
	close  func() error
	err    error
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if chromium.stop != nil {
		chromium.stop()
	}
	if shared.close != nil {
		if err := shared.close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if kelson.dir != "" {
		_ = os.RemoveAll(kelson.dir)
	}
	os.Exit(code)
}

// startChromium starts the browser. Names below .example are this machine.
func startChromium() {
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		chromium.reason = "Chromium is not installed: apt-get install chromium"
		return
	}
	dir, err := os.MkdirTemp("", "kelson-browser-")
	if err != nil {
		chromium.reason = err.Error()
		return
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(dir), chromedp.WSURLReadTimeout(patience),
		chromedp.Flag("host-resolver-rules", "MAP *.example 127.0.0.1"), chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("disable-gpu", true),
		chromedp.Flag("hide-scrollbars", false),
	)
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, cancelAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(ctx)
	chromium.ctx = ctx
	chromium.stop = func() {
		cancel()
		cancelAllocator()
		_ = os.RemoveAll(dir)
	}
	if err := chromedp.Do(ctx); err != nil {
		chromium.reason = "Chromium does not start: " + err.Error()
	}
}

// server returns the server that the tests share.
func server(t *testing.T) *kelsontest.Server {
	t.Helper()
	needChromium(t)
	shared.once.Do(func() { shared.server, shared.close, shared.err = newServer() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

// newServer starts a server that keeps its history, as 'kelson serve --history 1h' does.
func newServer() (s *kelsontest.Server, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "kelson-browser-data-")
	if err != nil {
		return nil, nil, err
	}
	store, err := engine.Open(engine.Options{Dir: filepath.Join(dir, "data"), RetainAge: time.Hour})
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	if s, err = kelsontest.New(kelsontest.Backend(store)); err != nil {
		return nil, nil, errors.Join(err, store.Close(), os.RemoveAll(dir))
	}
	return s, func() error { return errors.Join(s.Close(), store.Close(), os.RemoveAll(dir)) }, nil
}

func needChromium(t *testing.T) {
	t.Helper()
	chromium.once.Do(startChromium)
	if chromium.reason != "" {
		t.Skip(chromium.reason)
	}
}

// client speaks to a server as a configuration says.
func client(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	config = rest.CopyConfig(config)
	config.QPS = -1
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// way is the way from a console to its server, which can be shut.
type way struct {
	http.RoundTripper
	shut  atomic.Bool
	asked atomic.Int64

	mu   sync.Mutex
	open map[*answerBody]bool // answers that are not read to their end
}

func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	w.asked.Add(1)
	if w.shut.Load() {
		return nil, errors.New("connection refused, says the test")
	}
	ctx, cancel := context.WithCancel(r.Context())
	answer, err := w.RoundTripper.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	body := &answerBody{ReadCloser: answer.Body, way: w, cancel: cancel}
	answer.Body = body
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = map[*answerBody]bool{}
	}
	w.open[body] = true
	return answer, nil
}

// goAway shuts the way, and breaks off what is under way, as a server that crashes does.
func (w *way) goAway() {
	w.shut.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	for body := range w.open {
		body.cancel()
	}
}

func (w *way) comeBack() { w.shut.Store(false) }

// answerBody is the body of an answer that goAway can break off.
type answerBody struct {
	io.ReadCloser
	way    *way
	cancel context.CancelFunc
}

func (b *answerBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel()
	b.way.mu.Lock()
	defer b.way.mu.Unlock()
	delete(b.way.open, b)
	return err
}

// served is a console that listens.
type served struct {
	*console.Console
	*way
	at string // host:port
}

func (s *served) url() string { return "http://" + s.at }

// open starts a console for a server, as the user of the configuration.
func open(t *testing.T, config *rest.Config, change func(*console.Config)) *served {
	t.Helper()
	needChromium(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	s := &served{way: &way{RoundTripper: transport}, at: listener.Addr().String()}
	c := console.Config{
		Server: &url.URL{Scheme: to.Scheme, Host: to.Host}, Transport: s.way, Hosts: []string{s.at},
		Info: console.Info{Context: "test", Server: to.String(), Namespace: "default", Version: "v0"},
	}
	if *pageDir != "" {
		c.Page = os.DirFS(*pageDir)
	}
	if change != nil {
		change(&c)
	}
	s.Console = console.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("console: %v", err)
		}
	})
	return s
}

// tab is a page in the browser. Whatever it complains of fails the test: errors of scripts,
// what the policy for content forbids, and dialogs.
type tab struct {
	t   *testing.T
	ctx context.Context
	// wire is how many bytes of answers have come.
	wire atomic.Int64

	mu       sync.Mutex
	problems []string
	expected []string // parts of problems that are not
}

// newTab opens a page with a profile of its own.
func newTab(t *testing.T) *tab {
	t.Helper()
	needChromium(t)
	ctx, cancel := chromedp.NewContext(chromium.ctx, chromedp.WithNewBrowserContext())
	return begin(t, ctx, cancel)
}

// another opens a page in the same profile.
func (tab *tab) another() *tab {
	tab.t.Helper()
	ctx, cancel := chromedp.NewContext(tab.ctx)
	return begin(tab.t, ctx, cancel)
}

func begin(t *testing.T, ctx context.Context, cancel func()) *tab {
	t.Helper()
	tab := &tab{t: t, ctx: ctx}
	if err := chromedp.Do(ctx); err != nil { // opens the page, whose context must not get a deadline
		t.Fatal(err)
	}
	listen(tab, cdpruntime.ExceptionThrown, func(e cdpruntime.EventExceptionThrown) {
		tab.complain(describe(e.ExceptionDetails))
	})
	listen(tab, cdpruntime.ConsoleAPICalled, func(e cdpruntime.EventConsoleAPICalled) {
		if e.Type == cdpruntime.ConsoleAPICalledTypeError || e.Type == cdpruntime.ConsoleAPICalledTypeAssert {
			said := "console:"
			for _, arg := range e.Args {
				said += " " + string(arg.Value) + arg.Description
			}
			tab.complain(said)
		}
	})
	listen(tab, log.EntryAdded, func(e log.EventEntryAdded) {
		// Answers that are errors are told to the page, which shows them.
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork || e.Entry.Source == log.EntrySourceSecurity {
			tab.complain(string(e.Entry.Source) + ": " + e.Entry.Text + " " + e.Entry.URL)
		}
	})
	listen(tab, page.JavascriptDialogOpening, func(e page.EventJavascriptDialogOpening) {
		tab.complain("dialog: " + e.Message)
		_, _ = tryCall(tab, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
	})
	listen(tab, network.LoadingFinished, func(e network.EventLoadingFinished) { tab.wire.Add(int64(e.EncodedDataLength)) })
	call(tab, network.Enable, network.EnableParams{})
	call(tab, log.Enable, cdp.Empty{})
	call(tab, accessibility.Enable, cdp.Empty{})
	tab.size(1200, 750, false)
	// Colours are looked at, which must not be on their way to others.
	call(tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-reduced-motion", Value: "reduce"}}})
	t.Cleanup(func() {
		if *screenshots != "" {
			tab.picture(filepath.Join(*screenshots, strings.ReplaceAll(t.Name(), "/", "-")+".png"))
		}
		for _, problem := range tab.unexpected() {
			t.Errorf("the browser complained: %s", problem)
		}
		cancel()
	})
	return tab
}

// listen calls a function for each event of a kind, until the page is closed.
func listen[E any](tab *tab, kind cdp.Event[E], heard func(E)) {
	events := cdp.Events(tab.ctx, chromedp.FromContext(tab.ctx).Target, kind)
	go func() {
		for event, err := range events {
			if err != nil {
				if tab.ctx.Err() == nil {
					tab.complain(err.Error())
				}
				return
			}
			heard(event)
		}
	}()
}

func describe(e *cdpruntime.ExceptionDetails) string {
	if e.Exception != nil {
		return e.Text + " " + e.Exception.Description + " " + e.URL
	}
	return e.Text + " " + e.URL
}

func (tab *tab) complain(problem string) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	tab.problems = append(tab.problems, problem)
}

// noted is how many problems there were.
func (tab *tab) noted() int {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	return len(tab.problems)
}

// expect says that a problem with this text is what the test wants.
func (tab *tab) expect(text string) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	tab.expected = append(tab.expected, text)
}

// unexpected returns the problems that no test has expected.
func (tab *tab) unexpected() (all []string) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	for _, problem := range tab.problems {
		wanted := false
		for _, text := range tab.expected {
			wanted = wanted || strings.Contains(problem, text)
		}
		if !wanted && !slices.Contains(all, problem) {
			all = append(all, problem)
		}
	}
	return all
}

// run runs an action in the page.
func run[T any](tab *tab, action chromedp.Action[T]) T {
	tab.t.Helper()
	value, err := tryRun(tab, action)
	if err != nil {
		tab.t.Fatal(err)
	}
	return value
}

func tryRun[T any](tab *tab, action chromedp.Action[T]) (T, error) {
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, action)
}

// call gives the page a command of the protocol.
func call[P, R any](tab *tab, command cdp.Command[P, R], params P) R {
	tab.t.Helper()
	result, err := tryCall(tab, command, params)
	if err != nil {
		tab.t.Fatalf("%s: %v", command.Method, err)
	}
	return result
}

func tryCall[P, R any](tab *tab, command cdp.Command[P, R], params P) (R, error) {
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	return cdp.Call(ctx, chromedp.FromContext(tab.ctx).Target, command, params)
}

// size sets the size of the window.
func (tab *tab) size(width, height int64, phone bool) {
	tab.t.Helper()
	scale := 1.0
	if phone {
		scale = 2
	}
	call(tab, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: scale, Mobile: phone})
}

// eval returns the value of a JavaScript expression. A promise is waited for.
func eval[T any](tab *tab, script string) (value T) {
	tab.t.Helper()
	value, err := tryEval[T](tab, script)
	if err != nil {
		tab.t.Fatalf("%s: %v", script, err)
	}
	return value
}

func tryEval[T any](tab *tab, script string) (T, error) {
	return tryRun(tab, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
}

// eventually asks until the condition holds.
func (tab *tab) eventually(what string, holds func() bool) {
	tab.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	again := time.NewTicker(25 * time.Millisecond)
	defer again.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			text, _ := tryEval[string](tab, "location.href + '\\n' + document.body.innerText.slice(0, 3000)")
			tab.t.Fatalf("%s: not within %v. The page has:\n%s\n%s", what, patience, text, strings.Join(tab.unexpected(), "\n"))
		case <-again.C:
		}
	}
}

// until waits until a JavaScript expression is true.
func (tab *tab) until(what, script string) {
	tab.t.Helper()
	tab.eventually(what, func() bool {
		ok, err := tryEval[bool](tab, "!!("+script+")")
		return err == nil && ok
	})
}

// untilText waits until the page shows the text.
func (tab *tab) untilText(text string) {
	tab.t.Helper()
	tab.until("text "+text, "document.body && document.body.innerText.includes("+quote(text)+")")
}

func quote(text string) string {
	b, _ := json.Marshal(text) // a string always is JSON
	return string(b)
}

// visit goes to an address of its own accord, as a person who types it.
func (tab *tab) visit(address string) {
	tab.t.Helper()
	run(tab, chromedp.Navigate(address))
}

// logIn opens a new link, and waits for the frame of the page.
func (tab *tab) logIn(c *served) {
	tab.t.Helper()
	tab.visit(c.url() + c.NewLink())
	tab.untilRole("button", "Log out")
}

// view goes to a path of the console within the page, and waits for a heading.
func (tab *tab) view(path string) {
	tab.t.Helper()
	eval[bool](tab, "history.pushState(null, '', "+quote(path)+"), window.dispatchEvent(new Event('kelson-route'))")
	tab.until("heading of "+path, "document.querySelector('main h1') && !document.querySelector('main .loading')")
}

// role returns the elements with a role and a name, as a screen reader finds them. An
// empty name is any.
func (tab *tab) role(role, name string) []cdp.BackendNodeID {
	root, err := tryCall(tab, dom.GetDocument, dom.GetDocumentParams{})
	if err != nil {
		return nil // between two pages
	}
	result, err := tryCall(tab, accessibility.QueryAXTree, accessibility.QueryAXTreeParams{NodeID: root.Root.NodeID, Role: role, AccessibleName: name})
	if err != nil {
		return nil
	}
	var found []cdp.BackendNodeID
	for _, node := range result.Nodes {
		if !node.Ignored {
			found = append(found, node.BackendDOMNodeID)
		}
	}
	return found
}

func (tab *tab) untilRole(role, name string) {
	tab.t.Helper()
	tab.eventually(role+" "+name, func() bool { return len(tab.role(role, name)) > 0 })
}

// on calls a function of JavaScript with the one element that has the role and the name
// as this.
func (tab *tab) on(role, name, function string) {
	tab.t.Helper()
	tab.untilRole(role, name)
	found := tab.role(role, name)
	if len(found) == 0 {
		tab.t.Fatalf("%s %q is gone", role, name)
	}
	object := call(tab, dom.ResolveNode, dom.ResolveNodeParams{BackendNodeID: found[0]}).Object
	result := call(tab, cdpruntime.CallFunctionOn, cdpruntime.CallFunctionOnParams{FunctionDeclaration: function, ObjectID: object.ObjectID})
	if result.ExceptionDetails != nil {
		tab.t.Fatal(describe(result.ExceptionDetails))
	}
}

// click clicks on an element.
func (tab *tab) click(role, name string) {
	tab.t.Helper()
	tab.on(role, name, "function() { this.click() }")
}

// set gives a field a value at once, as who pastes it.
func (tab *tab) set(role, name, value string) {
	tab.t.Helper()
	tab.on(role, name, `function() {
		this.focus();
		Object.getOwnPropertyDescriptor(Object.getPrototypeOf(this), "value").set.call(this, `+quote(value)+`);
		this.dispatchEvent(new Event("input", { bubbles: true }));
		this.dispatchEvent(new Event("change", { bubbles: true }));
	}`)
}

// rows returns the texts of the cells of the table in the part of the page with a name.
func (tab *tab) rows(part string) [][]string {
	tab.t.Helper()
	return eval[[][]string](tab, "[...document.querySelectorAll('[aria-label='+CSS.escape("+quote(part)+")+'] tbody tr')].map((r) => [...r.cells].map((c) => c.innerText.trim()))")
}

// row returns the row of a table whose first cell has the text; nil if there is none.
func (tab *tab) row(part, text string) []string {
	tab.t.Helper()
	for _, row := range tab.rows(part) {
		if strings.Contains(row[0], text) {
			return row
		}
	}
	return nil
}

// part returns the words of the part of the page with a name, "" if there is none.
func (tab *tab) part(name string) string {
	tab.t.Helper()
	text := eval[string](tab, "document.querySelector('[aria-label='+CSS.escape("+quote(name)+")+']')?.innerText || ''")
	return strings.Join(strings.Fields(text), " ")
}

// untilPart waits until a part of the page has the text.
func (tab *tab) untilPart(name, text string) {
	tab.t.Helper()
	tab.eventually(name+" with "+text, func() bool { return strings.Contains(tab.part(name), text) })
}

// code returns the text to copy that has a label which begins so.
func (tab *tab) code(label string) string {
	tab.t.Helper()
	script := "document.querySelector('figure[aria-label^='+CSS.escape(" + quote(label) + ")+'] pre')?.textContent || ''"
	tab.until("text to copy: "+label, script)
	return eval[string](tab, script)
}

// harmless checks that texts of objects have become neither elements nor marks that turn the
// direction of what is around them.
func (tab *tab) harmless() {
	tab.t.Helper()
	where := eval[string](tab, "location.pathname + location.search")
	if got := eval[int](tab, "document.querySelectorAll('#app script, #app img, #app [onerror], #app a[href^=javascript]').length"); got != 0 {
		tab.t.Errorf("%s: %d elements came from the content of objects, want none", where, got)
	}
	if got := eval[string](tab, `(/.{0,60}[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069].{0,20}/.exec(document.body.innerText) || [""])[0]`); got != "" {
		tab.t.Errorf("%s: the text %q turns its direction, want the mark as an escape", where, got)
	}
	if got, width := eval[int](tab, "document.scrollingElement.scrollWidth"), eval[int](tab, "innerWidth"); got > width {
		tab.t.Errorf("%s: the page is %d wide, want the window's %d", where, got, width)
	}
}

// press presses keys, one after the other.
func (tab *tab) press(keys ...string) {
	tab.t.Helper()
	for _, key := range keys {
		run(tab, chromedp.KeyEvent(key))
	}
}

// shortcut presses one key as a keyboard does: what the page does with it, it does not
// type as well.
func (tab *tab) shortcut(key string) {
	tab.t.Helper()
	call(tab, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: key, Text: key})
	call(tab, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyUp, Key: key})
}

// focused is the role and the name of the element that has the focus.
func (tab *tab) focused() (role, name string) {
	object := call(tab, cdpruntime.Evaluate, cdpruntime.EvaluateParams{Expression: "document.activeElement"}).Result
	if object == nil || object.ObjectID == "" {
		return "", ""
	}
	no := false
	result, err := tryCall(tab, accessibility.GetPartialAXTree, accessibility.GetPartialAXTreeParams{ObjectID: object.ObjectID, FetchRelatives: &no})
	if err != nil || len(result.Nodes) == 0 {
		return "", ""
	}
	return text(result.Nodes[0].Role), text(result.Nodes[0].Name)
}

func text(v *accessibility.Value) string {
	var s string
	if v != nil {
		_ = json.Unmarshal(v.Value, &s) // other values are no text
	}
	return s
}

// tabTo presses Tab until an element has the focus.
func (tab *tab) tabTo(role, name string) {
	tab.t.Helper()
	var seen []string
	for range 200 {
		tab.press("\t")
		gotRole, gotName := tab.focused()
		if gotRole == role && gotName == name {
			return
		}
		seen = append(seen, gotRole+" "+gotName)
	}
	tab.t.Fatalf("Tab does not reach %s %q, but %q", role, name, seen)
}

// picture writes what the page shows.
func (tab *tab) picture(file string) {
	tab.t.Helper()
	png, err := tryRun(tab, chromedp.CaptureScreenshot())
	if err != nil {
		tab.t.Logf("no picture: %v", err)
		return
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		tab.t.Error(err)
	}
	if err := os.WriteFile(file, png, 0o644); err != nil {
		tab.t.Error(err)
	}
}
