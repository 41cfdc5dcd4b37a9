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
	// requestTimeout is for a watch that should have ended.
	requestTimeout = 15 * time.Second
)

// player sends requests to a server.
type player struct {
	server string
	// admin has the credentials, nobody has none.
	admin, nobody http.RoundTripper
	// shared is a namespace for harmless recordings.
	shared string
}

// answer is what came back, without what is volatile.
type answer struct {
	status  int
	headers map[string]any
	body    any
	matches bool // has the text that was to be waited for
	raw     string
}

// play plays a recording, and returns where an answer differs first.
func (p *player) play(ctx context.Context, r *recording) (string, error) {
	fill := &placeholders{name: newName()}
	switch {
	case !r.needsNamespace():
	case r.harmless():
		fill.name = p.shared
	default:
		if err := p.makeNamespace(ctx, fill.name); err != nil {
			return "", err
		}
	}
	norm := &volatile{name: fill.name}
	for i := range r.Steps {
		s := &r.Steps[i]
		a, err := p.ask(ctx, s, fill, norm)
		if err != nil {
			return "", fmt.Errorf("step %d: %s %s: %w", i, s.Method, s.Path, err)
		}
		fill.answers = append(fill.answers, decode(a.raw))
		if d := compare(s, a); d != "" {
			return fmt.Sprintf("%s %s\n\t%s", s.Method, s.Path, d), nil
		}
	}
	return "", nil
}

func newName() string { return "c" + strings.ToLower(rand.Text()[:9]) }

// makeNamespace makes a namespace and the service account of pods in it, as a
// controller would.
func (p *player) makeNamespace(ctx context.Context, name string) error {
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
func (p *player) ask(ctx context.Context, s *step, fill *placeholders, norm *volatile) (*answer, error) {
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

func (p *player) send(ctx context.Context, method, path string, headers map[string]string, body string) (int, http.Header, string, error) {
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
