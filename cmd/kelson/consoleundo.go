package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/history"
)

// consoleUndo is the action undo of the console, which undoes as 'kelson undo' does. A
// request with "plan": true answers with a plan, which is kept here; one with the id of that
// plan does it. So what is done is what was shown: objects that have changed since are
// reported as conflicts and stay as they are.
type consoleUndo struct {
	t *target

	// writing is held while a plan is carried out: one at a time.
	writing sync.Mutex

	mu    sync.Mutex
	plans []*heldPlan // the oldest first; maxHeldPlans at most
}

// heldPlan is a plan that was shown and can be carried out once.
type heldPlan struct {
	id    string
	until time.Time
	undo  *undo
	steps []*undoStep
}

// Bounds of the action.
const (
	maxUndoBody  = 64 << 10
	maxHeldPlans = 4
	heldPlanAge  = 15 * time.Minute
	// maxUndoSteps is how many objects one plan may bring back.
	maxUndoSteps = 10_000
	// maxPlanBytes is how many bytes of changed fields a plan shows.
	maxPlanBytes = 4 << 20
	// maxPlanTime and maxUndoTime bound the planning and the writing.
	maxPlanTime = 3 * time.Minute
	maxUndoTime = 15 * time.Minute
)

// undoRequest asks for a plan of what is named, or to carry out the plan with the id.
type undoRequest struct {
	Plan bool   `json:"plan"`
	ID   string `json:"id"`

	Group     string `json:"group"`
	Version   string `json:"version"`
	Resource  string `json:"resource"` // empty is all resources
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Selector  string `json:"selector"` // labels
	// To is the moment to go back to.
	To string `json:"to"`
	// All says that no namespace means all of them, and the objects outside.
	All bool `json:"all"`
}

// undoAnswer is a plan, or what has become of it.
type undoAnswer struct {
	ID string `json:"id,omitempty"` // of a plan
	// From and To are revisions: now, and the moment to go back to.
	From   int64      `json:"from,omitempty"`
	To     int64      `json:"to,omitempty"`
	Steps  []undoView `json:"steps"`
	Hidden []string   `json:"hidden,omitempty"`
	Done   int        `json:"done"`
	Failed int        `json:"failed"`
	// Again: definitions have come back, and their objects take another plan.
	Again bool `json:"again,omitempty"`
}

// undoView is a step with the fields that it changes.
type undoView struct {
	*undoStep
	Fields []history.FieldChange `json:"fields,omitempty"`
	More   bool                  `json:"more,omitempty"`
}

// consoleActions are what the console can do for its page, by name.
func consoleActions(t *target) map[string]http.Handler {
	return map[string]http.Handler{"undo": newConsoleUndo(t)}
}

func newConsoleUndo(t *target) *consoleUndo { return &consoleUndo{t: t} }

func (c *consoleUndo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		writeUndo(w, nil, &undoError{http.StatusMethodNotAllowed, "an undo is asked for with POST"})
		return
	}
	var asked undoRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxUndoBody)).Decode(&asked); err != nil {
		writeUndo(w, nil, &undoError{http.StatusBadRequest, "an undo is a JSON object with plan or id: " + err.Error()})
		return
	}
	var answer *undoAnswer
	var err error
	if asked.Plan {
		answer, err = c.makePlan(r.Context(), &asked)
	} else {
		answer, err = c.carryOut(r.Context(), asked.ID)
	}
	writeUndo(w, answer, err)
}

// makePlan returns a plan, and keeps it.
func (c *consoleUndo) makePlan(ctx context.Context, asked *undoRequest) (*undoAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, maxPlanTime)
	defer cancel()
	if asked.Namespace == "" && asked.Name == "" && !asked.All {
		return nil, &undoError{http.StatusBadRequest, "an undo needs a namespace, an object, or all: true"}
	}
	if asked.To == "" {
		return nil, &undoError{http.StatusBadRequest, "an undo needs the moment to go back to"}
	}
	to, err := moment(asked.To, time.Now())
	if err != nil {
		return nil, &undoError{http.StatusBadRequest, err.Error()}
	}
	q := url.Values{"from": {"now"}, "to": {to}}
	for name, value := range map[string]string{
		"group": asked.Group, "version": asked.Version, "resource": asked.Resource, "namespace": asked.Namespace, "name": asked.Name, "labelSelector": asked.Selector,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	u := &undo{past: past{s: streams{in: strings.NewReader(""), out: io.Discard, err: io.Discard}}, t: c.t, q: q, uids: map[types.UID]types.UID{}, owners: map[types.UID]bool{}}
	if asked.Resource == "" && asked.Namespace != "" {
		if err := u.awaitEndOf(ctx, asked.Namespace); err != nil {
			return nil, err
		}
	}
	found, err := differences(ctx, c.t, withWriters(q))
	if err != nil {
		return nil, err
	}
	steps, err := u.plan(found)
	if err != nil {
		return nil, err
	}
	if len(steps) > maxUndoSteps {
		return nil, &undoError{http.StatusRequestEntityTooLarge, fmt.Sprintf("%d objects are different, and one plan has at most %d: name a namespace, a resource or labels", len(steps), maxUndoSteps)}
	}
	plan := &heldPlan{id: rand.Text(), until: time.Now().Add(heldPlanAge), undo: u, steps: steps}
	c.keep(plan)
	answer := showSteps(steps)
	answer.ID, answer.From, answer.To, answer.Hidden = plan.id, found.From, found.To, found.Hidden
	return answer, nil
}

// keep keeps a plan until it is carried out, too old, or others are newer.
func (c *consoleUndo) keep(plan *heldPlan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.plans) == maxHeldPlans {
		c.plans = c.plans[1:]
	}
	c.plans = append(c.plans, plan)
}

// take returns a plan, which is no longer kept then; nil if there is none.
func (c *consoleUndo) take(id string) *heldPlan {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, plan := range c.plans {
		if plan.id == id && time.Now().Before(plan.until) {
			c.plans = append(c.plans[:i:i], c.plans[i+1:]...)
			return plan
		}
	}
	return nil
}

// carryOut writes what a plan has. It goes on if the page that asked is closed.
func (c *consoleUndo) carryOut(ctx context.Context, id string) (*undoAnswer, error) {
	if !c.writing.TryLock() {
		return nil, &undoError{http.StatusConflict, "another undo is under way; wait for its end, and plan again"}
	}
	defer c.writing.Unlock()
	plan := c.take(id)
	if plan == nil {
		return nil, &undoError{http.StatusGone, "that plan is too old, or was carried out already: plan again"}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxUndoTime)
	defer cancel()
	failed := plan.undo.apply(ctx, plan.steps)
	answer := showSteps(plan.steps)
	answer.Failed = failed
	for _, s := range plan.steps {
		if s.Result == "done" {
			answer.Done++
			answer.Again = answer.Again || s.first() && s.Resource != "namespaces"
		}
	}
	return answer, nil
}

// showSteps returns steps with their fields, as many as there is room for. Values of
// secrets are not shown.
func showSteps(steps []*undoStep) *undoAnswer {
	answer := &undoAnswer{Steps: make([]undoView, len(steps))}
	size := 0
	for i, s := range steps {
		view := undoView{undoStep: s, More: s.more}
		for _, f := range s.fields {
			if s.ownStatus && isBelow(f.Path, "status") {
				continue // it is left alone
			}
			f.Old, f.New = maskValue(&s.Ref, &f, f.Old), maskValue(&s.Ref, &f, f.New)
			if size += len(f.Path) + len(f.Old) + len(f.New); size > maxPlanBytes {
				view.More = true
				break
			}
			view.Fields = append(view.Fields, f)
		}
		answer.Steps[i] = view
	}
	return answer
}

// maskValue is the value of a field as JSON, or how long it is if it is a secret.
func maskValue(ref *history.Ref, f *history.FieldChange, v json.RawMessage) json.RawMessage {
	if v == nil || ref.Group != "" || ref.Resource != "secrets" {
		return v
	}
	text, err := json.Marshal(value(ref, f, v))
	if err != nil || !isBelow(f.Path, "data") && !isBelow(f.Path, "stringData") {
		return v
	}
	return text
}

// undoError is an error with a status of HTTP.
type undoError struct {
	code    int
	message string
}

func (e *undoError) Error() string { return e.message }

// writeUndo answers in JSON; an error as an API server would, so that the page has one way
// to read errors.
func writeUndo(w http.ResponseWriter, answer *undoAnswer, err error) {
	code, document := http.StatusOK, any(answer)
	if err != nil {
		code = http.StatusBadRequest
		var known *undoError
		if errors.As(err, &known) {
			code = known.code
		}
		document = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Message: err.Error()}
	}
	text, err := json.Marshal(document)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n'))
}
