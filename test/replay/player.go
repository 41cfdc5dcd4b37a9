package replay

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// manager owns the fields in the recordings, after the User-Agent of the
	// requests.
	manager    = "contract-test"
	retryEvery = 20 * time.Millisecond
	retryFor   = 5 * time.Second
	// requestTimeout is for a watch that should have ended, and long enough for 10,000
	// operations of a patch with the race detector.
	requestTimeout = 60 * time.Second
)

// Player plays recordings on a server.
type Player struct {
	server string
	// admin has the credentials, nobody has none.
	admin, nobody http.RoundTripper
	// shared is a namespace for harmless recordings.
	shared string
	// Own marks what is recorded as answers of the server under test.
	Own bool
}

// NewPlayer returns a player for the server at a URL, and makes a namespace there.
// The requests of admin carry credentials, those of nobody none.
func NewPlayer(ctx context.Context, server string, admin, nobody http.RoundTripper) (*Player, error) {
	p := &Player{server: strings.TrimSuffix(server, "/"), admin: admin, nobody: nobody, shared: newName()}
	return p, p.makeNamespace(ctx, p.shared)
}

// answer is what came back, without what is volatile.
type answer struct {
	status  int
	headers map[string]any
	body    any
	matches bool // has the text that was to be waited for
	raw     string
}

// Play plays a recording, and returns where an answer differs first; nothing if all are
// as recorded.
func (p *Player) Play(ctx context.Context, r *Recording) (difference string, err error) {
	err = p.play(ctx, r, func(s *Step, got *answer) bool {
		d := "no answer is recorded"
		if s.Status != 0 {
			d = compare(s, got)
		}
		if d != "" {
			difference = fmt.Sprintf("%s %s\n\t%s", s.Method, s.Path, d)
		}
		return d == ""
	})
	return difference, err
}

// Record plays a recording and writes into it what is answered: to the steps without an
// answer, and to those whose answer differs in more than what has no order. It returns a
// line for each of these steps.
func (p *Player) Record(ctx context.Context, r *Recording) (changes []string, err error) {
	err = p.play(ctx, r, func(s *Step, got *answer) bool {
		var headers map[string]any
		var body json.RawMessage
		if !s.Brief {
			headers, body = got.headers, json.RawMessage(encode(got.body))
		}
		d := "recorded for the first time"
		if s.Status != 0 {
			d = compare(s, got)
		}
		if d != "" {
			s.Status, s.ResponseHeaders, s.ResponseBody = got.status, headers, body
			s.Own = p.Own
			changes = append(changes, fmt.Sprintf("%s %s\n\t%s", s.Method, s.Path, d))
		}
		if !p.Own {
			s.Own = false // a reference has said the same
		}
		return true
	})
	return changes, err
}

// play sends the requests of a recording, and shows each answer to a function that says
// whether to go on.
func (p *Player) play(ctx context.Context, r *Recording, next func(*Step, *answer) bool) error {
	fill := &placeholders{name: newName()}
	switch {
	case !r.needsNamespace():
	case r.harmless():
		fill.name = p.shared
	default:
		if err := p.makeNamespace(ctx, fill.name); err != nil {
			return err
		}
	}
	norm := &volatile{name: fill.name}
	for i := range r.Steps {
		s := &r.Steps[i]
		a, err := p.ask(ctx, s, fill, norm)
		if err != nil {
			return fmt.Errorf("step %d: %s %s: %w", i, s.Method, s.Path, err)
		}
		fill.answers = append(fill.answers, decode(a.raw))
		if !next(s, a) {
			return nil
		}
	}
	return nil
}

func newName() string { return "c" + strings.ToLower(rand.Text()[:9]) }

// makeNamespace makes a namespace and the service account of pods in it, as a
// controller would.
func (p *Player) makeNamespace(ctx context.Context, name string) error {
	for _, o := range [][3]string{{"", "Namespace", name}, {"/" + name + "/serviceaccounts", "ServiceAccount", "default"}} {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":%q,"metadata":{"name":%q}}`, o[1], o[2])
		status, _, text, err := p.send(ctx, "POST", "/api/v1/namespaces"+o[0], map[string]string{"Content-Type": "application/json"}, body)
		if err != nil {
			return err
		}
		if status != http.StatusCreated {
			return fmt.Errorf("%s %s: %s", o[1], o[2], text)
		}
	}
	return nil
}

var generateName = regexp.MustCompile(`"generateName": ?"([^"]+)"`)

// ask sends the request of a step, more than once if it says so.
func (p *Player) ask(ctx context.Context, s *Step, fill *placeholders, norm *volatile) (*answer, error) {
	path, err := fill.fill(s.Path)
	if err != nil {
		return nil, err
	}
	headers := map[string]string{}
	for k, v := range s.Headers {
		if headers[k], err = fill.fill(v); err != nil {
			return nil, err
		}
	}
	body, err := fill.body(s)
	if err != nil {
		return nil, err
	}
	a := &answer{}
	var h http.Header
	for deadline := time.Now().Add(retryFor); ; time.Sleep(retryEvery) {
		if a.status, h, a.raw, err = p.send(ctx, s.Method, path, headers, body); err != nil {
			return nil, err
		}
		a.matches = strings.Contains(a.raw, s.RetryMatch)
		if a.matches && (s.RetryUntil == 0 || s.RetryUntil == a.status) || time.Now().After(deadline) {
			break
		}
	}
	norm.prefix = ""
	if found := generateName.FindStringSubmatch(body); found != nil {
		norm.prefix = found[1]
	}
	// Of steps that only prepare, what the server has made up is all that
	// matters.
	if s.Brief && s.Status == a.status && norm.prefix == "" && !strings.Contains(a.raw, `"clusterIP"`) {
		return a, nil
	}
	a.headers = norm.headers(h)
	a.body = norm.body(h.Get("Content-Type"), a.raw, s.Watch && a.status == http.StatusOK)
	return a, nil
}

func (p *Player) send(ctx context.Context, method, path string, headers map[string]string, body string) (int, http.Header, string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.server+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, "", err
	}
	req.Header.Set("User-Agent", manager)
	who := p.admin
	for k, v := range headers {
		if k == "Authorization" {
			who = p.nobody
		}
		if v != "" {
			req.Header.Set(k, v)
		}
	}
	resp, err := who.RoundTrip(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(text), err
}

// headers returns those that are recorded.
func (n *volatile) headers(h http.Header) map[string]any {
	out := map[string]any{"Audit-Id": h.Get("Audit-Id") != ""}
	for _, k := range []string{"Content-Type", "Allow", "Location", "Retry-After", "Www-Authenticate"} {
		if v := h.Get(k); v != "" {
			out[k] = n.text(v)
		}
	}
	var warnings []any
	for _, w := range h.Values("Warning") {
		warnings = append(warnings, n.text(w))
	}
	if warnings != nil {
		out["Warning"] = warnings
	}
	return out
}

// body returns a body as it is recorded: JSON as it is, a stream as the list of
// its events, protobuf as the type that its envelope names.
func (n *volatile) body(contentType, text string, stream bool) any {
	switch {
	case text == "":
		return nil
	case strings.Contains(contentType, "protobuf"):
		return map[string]any{"$protobuf": envelope(text)}
	case !strings.Contains(contentType, "json"):
		return n.text(text)
	case stream:
		events := []any{}
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		for {
			var event any
			if d.Decode(&event) != nil {
				return events
			}
			events = append(events, n.value("", event))
		}
	}
	if v := decode(text); v != nil {
		return n.value("", v)
	}
	return n.text(text)
}

// envelope returns the type that the envelope of a protobuf message names.
func envelope(message string) string {
	var u runtime.Unknown
	raw, ok := strings.CutPrefix(message, "k8s\x00")
	if !ok || u.Unmarshal([]byte(raw)) != nil {
		return "not an enveloped message"
	}
	return u.APIVersion + " " + u.Kind
}
