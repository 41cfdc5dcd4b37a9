package main

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/kelsontest"
)

// control is what tests in other languages than Go can do with the server of 'kelson
// run': an endpoint on loopback, for who shows its token. Requests and answers are JSON;
// docs/languages.md has the list. It can do whatever kelsontest can, so the token is worth
// as much as the administrator's kubeconfig.
type control struct {
	server *kelsontest.Server
	http   *http.Server
	url    string
	token  string

	mu        sync.Mutex
	snapshots map[string]*kelsontest.Snapshot // mostSnapshots at most
	faults    []*kelsontest.Fault             // mostFaults at most
}

const (
	mostSnapshots = 64
	mostFaults    = 256
	// maxControlBody is the size of the largest request.
	maxControlBody = 1 << 20
)

// startControl listens on a free port.
func startControl(server *kelsontest.Server) (*control, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &control{server: server, url: "http://" + listener.Addr().String(), token: rand.Text(), snapshots: map[string]*kelsontest.Snapshot{}}
	mux := http.NewServeMux()
	handle(c, mux, "POST /snapshots", c.save)
	handle(c, mux, "POST /restore", c.restore)
	handle(c, mux, "POST /apply", c.apply)
	handle(c, mux, "POST /users", c.user)
	handle(c, mux, "POST /faults", c.addFault)
	handle(c, mux, "GET /faults", c.hits)
	handle(c, mux, "DELETE /faults", c.clearFaults)
	handle(c, mux, "POST /end-watches", c.endWatches)
	handle(c, mux, "POST /compact", c.compact)
	handle(c, mux, "POST /clock", c.clock)
	c.http = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go func() { _ = c.http.Serve(listener) }()
	return c, nil
}

func (c *control) close() { _ = c.http.Close() }

// environment is what the command is told.
func (c *control) environment() []string {
	return []string{"KELSON_CONTROL=" + c.url, "KELSON_CONTROL_TOKEN=" + c.token}
}

// handle adds a function from a decoded request to an answer. An error is answered with
// 400 and its text.
func handle[Q any](c *control, mux *http.ServeMux, pattern string, do func(*http.Request, *Q) (any, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		answer := func(code int, value any) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(value)
		}
		fail := func(code int, err error) { answer(code, map[string]string{"error": err.Error()}) }
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+c.token)) != 1 {
			fail(http.StatusUnauthorized, errors.New("the header Authorization must be Bearer and $KELSON_CONTROL_TOKEN"))
			return
		}
		question := new(Q)
		if r.Method == http.MethodPost {
			in := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxControlBody))
			in.DisallowUnknownFields()
			if err := in.Decode(question); err != nil {
				fail(http.StatusBadRequest, fmt.Errorf("the body is not what %s takes: %w", pattern, err))
				return
			}
		}
		result, err := do(r, question)
		if err != nil {
			fail(http.StatusBadRequest, err)
			return
		}
		answer(http.StatusOK, result)
	})
}

type nothing struct{}

type named struct{ Name string }

// save keeps the state of the server under a name.
func (c *control) save(_ *http.Request, q *named) (any, error) {
	if q.Name == "" {
		return nil, errors.New("a snapshot needs a name")
	}
	snapshot, err := c.server.Snapshot()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.snapshots[q.Name] == nil && len(c.snapshots) >= mostSnapshots {
		return nil, fmt.Errorf("there are %d snapshots already; save over one of them", mostSnapshots)
	}
	c.snapshots[q.Name] = snapshot
	return nothing{}, nil
}

// restore brings a state back.
func (c *control) restore(_ *http.Request, q *named) (any, error) {
	c.mu.Lock()
	snapshot := c.snapshots[q.Name]
	c.mu.Unlock()
	if snapshot == nil {
		return nil, fmt.Errorf("there is no snapshot %q", q.Name)
	}
	return nothing{}, c.server.Restore(snapshot)
}

// apply installs files and folders.
func (c *control) apply(r *http.Request, q *struct{ Paths []string }) (any, error) {
	return nothing{}, c.server.Apply(r.Context(), q.Paths...)
}

// user answers with a kubeconfig for a user.
func (c *control) user(_ *http.Request, q *struct {
	Name   string
	Groups []string
}) (any, error) {
	if q.Name == "" {
		return nil, errors.New("a user needs a name")
	}
	path, err := c.server.KubeconfigFile(c.server.User(q.Name, q.Groups...))
	return map[string]string{"kubeconfig": path}, err
}

// rule selects requests, as kelsontest.Rule does.
type rule struct {
	Verb, Resource, Namespace, Name, User, UserAgent string
}

func (r rule) selects() kelsontest.Rule {
	return kelsontest.Rule{Verb: r.Verb, Resource: r.Resource, Namespace: r.Namespace, Name: r.Name, User: r.User, UserAgent: r.UserAgent}
}

// fault is what happens to the requests of a rule: one of Delay, Fail, Drop and
// LoseAnswer. Times, if it is not 0, is how often.
type fault struct {
	Rule  rule
	Delay string
	Fail  *struct {
		Code            int32
		Reason, Message string
	}
	Drop, LoseAnswer bool
	Times            int
}

func (f *fault) action() (kelsontest.Action, error) {
	var actions []kelsontest.Action
	if f.Delay != "" {
		d, err := time.ParseDuration(f.Delay)
		if err != nil {
			return nil, fmt.Errorf("delay: %w", err)
		}
		actions = append(actions, kelsontest.Delay(d))
	}
	if f.Fail != nil {
		if f.Fail.Code < 400 || f.Fail.Code > 599 {
			return nil, fmt.Errorf("fail.code is %d, and not between 400 and 599", f.Fail.Code)
		}
		actions = append(actions, kelsontest.Fail(&apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: f.Fail.Code, Reason: metav1.StatusReason(f.Fail.Reason), Message: f.Fail.Message,
		}}))
	}
	if f.Drop {
		actions = append(actions, kelsontest.Drop())
	}
	if f.LoseAnswer {
		actions = append(actions, kelsontest.LoseAnswer())
	}
	if len(actions) != 1 {
		return nil, fmt.Errorf("a fault has one of delay, fail, drop and loseAnswer, not %d", len(actions))
	}
	if f.Times > 0 {
		return kelsontest.First(f.Times, actions[0]), nil
	}
	return actions[0], nil
}

// addFault makes requests slow, fail or get lost, and answers with the number of the fault.
func (c *control) addFault(_ *http.Request, f *fault) (any, error) {
	action, err := f.action()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.faults) >= mostFaults {
		return nil, fmt.Errorf("there are %d faults already; DELETE /faults removes them", mostFaults)
	}
	c.faults = append(c.faults, c.server.On(f.Rule.selects(), action))
	return map[string]int{"fault": len(c.faults) - 1}, nil
}

// hits answers with how often each fault met a request.
func (c *control) hits(_ *http.Request, _ *nothing) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	hits := make([]int, len(c.faults))
	for i, f := range c.faults {
		hits[i] = f.Hits()
	}
	return map[string][]int{"hits": hits}, nil
}

func (c *control) clearFaults(_ *http.Request, _ *nothing) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		f.Remove()
	}
	c.faults = nil
	return nothing{}, nil
}

func (c *control) endWatches(_ *http.Request, r *rule) (any, error) {
	return map[string]int{"ended": c.server.EndWatches(r.selects())}, nil
}

// compact forgets the history, so that clients have to list again.
func (c *control) compact(_ *http.Request, _ *nothing) (any, error) {
	return nothing{}, c.server.CompactHistory()
}

// clock stops, moves and resets the server's clock, in this order, and answers what it
// shows.
func (c *control) clock(_ *http.Request, q *struct {
	Freeze  *time.Time
	Advance string
	Resume  bool
	Reset   bool
}) (any, error) {
	clock := c.server.Clock()
	if q.Freeze != nil {
		clock.Freeze(*q.Freeze)
	}
	if q.Advance != "" {
		d, err := time.ParseDuration(q.Advance)
		if err != nil {
			return nil, fmt.Errorf("advance: %w", err)
		}
		clock.Advance(d)
	}
	if q.Resume {
		clock.Resume()
	}
	if q.Reset {
		clock.Reset()
	}
	return map[string]time.Time{"now": clock.Now()}, nil
}
