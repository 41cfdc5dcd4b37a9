package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// Trace records what the steps of admission did to one write, for somebody who asks. It is
// filled by the goroutine that admits the write. Only dry runs have one, and then only those
// whose context was made by WithTrace, so other writes do nothing for it.
type Trace struct {
	Steps []Step

	// last is the object as the previous step left it, decoded from JSON; nil before the
	// first, and not kept any more when validating: validators change nothing.
	last       any
	validating bool
}

// Bounds of a trace.
const (
	maxChanges    = 100 // of a step
	maxShownValue = 512 // bytes of a value
	maxParts      = 200 // of a step
)

// Step is what one plugin did in one phase.
type Step struct {
	// Phase is StepAdmit or StepValidate.
	Phase  string `json:"phase"`
	Plugin string `json:"plugin"`
	Round  int    `json:"round,omitempty"`
	// Microseconds is how long it took.
	Microseconds int64    `json:"microseconds"`
	Changes      []Change `json:"changes,omitempty"`
	// Error is why the plugin refused the write.
	Error string `json:"error,omitempty"`
	// Parts are the webhooks or policies that the plugin has run.
	Parts []Part `json:"parts,omitempty"`

	began time.Time
}

// Part is what one webhook or policy did.
type Part struct {
	// Resource and Config name the object that configures it, Name the webhook in it,
	// Binding the binding of a policy.
	Resource string `json:"resource"`
	Config   string `json:"config,omitempty"`
	Name     string `json:"name,omitempty"`
	Binding  string `json:"binding,omitempty"`

	Microseconds int64    `json:"microseconds"`
	Changes      []Change `json:"changes,omitempty"`
	// Answer is one of the constants below.
	Answer  string `json:"answer"`
	Message string `json:"message,omitempty"`
	// Expression is the one by which a policy answered, Values what it had read.
	Expression string  `json:"expression,omitempty"`
	Values     []Value `json:"values,omitempty"`
	// UsesParams: variables of the policy may depend on a parameter object.
	UsesParams bool `json:"-"`
}

// The answers of a Part.
const (
	PartAdmitted = "admitted"
	PartRefused  = "refused"
	PartWarned   = "warned"  // the write would be refused, but a policy only warns or audits
	PartIgnored  = "ignored" // it failed, and its failurePolicy is Ignore
)

// Value is what a part of an expression had as its value.
type Value struct {
	Expression string `json:"expression"`
	Value      string `json:"value"`
	// Root is the variable that it begins with: object, params and so on.
	Root string `json:"-"`
}

// Change is a field with its values before and after, in JSON; one that is not there is
// empty.
type Change struct {
	Field  string `json:"field"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

type traceKey struct{}

// WithTrace returns a context in which a dry run is traced.
func WithTrace(ctx context.Context, t *Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceFrom returns the trace of WithTrace, or nil.
func TraceFrom(ctx context.Context) *Trace {
	t, _ := ctx.Value(traceKey{}).(*Trace)
	return t
}

// begin begins the step of a plugin. A nil trace does nothing.
func (t *Trace) begin(phase, plugin string, a *Attributes) {
	if t == nil {
		return
	}
	switch {
	case t.validating && phase == StepValidate:
	case t.validating || t.last == nil: // the write is tried again, or begins
		t.last = snapshot(a.Object)
	default:
		t.addOwnChanges(phase, a)
	}
	t.validating = phase == StepValidate
	t.Steps = append(t.Steps, Step{Phase: phase, Plugin: plugin, Round: a.Round, began: time.Now()})
}

// addOwnChanges adds a step for what the server itself has changed since the last one.
func (t *Trace) addOwnChanges(phase string, a *Attributes) {
	if changes := t.changes(a.Object); len(changes) > 0 {
		t.Steps = append(t.Steps, Step{Phase: phase, Plugin: "the rules of the kind", Changes: changes})
	}
}

// end ends the step that began last.
func (t *Trace) end(a *Attributes, err error) {
	if t == nil {
		return
	}
	s := &t.Steps[len(t.Steps)-1]
	s.Microseconds = time.Since(s.began).Microseconds()
	s.Changes = t.changes(a.Object)
	if err != nil {
		s.Error = err.Error()
	}
}

// Part records what a webhook or policy did in the step that began last, and what it has
// changed in the object. A nil trace does nothing.
func (t *Trace) Part(a *Attributes, p Part, took time.Duration) {
	if t == nil || len(t.Steps) == 0 {
		return
	}
	s := &t.Steps[len(t.Steps)-1]
	if len(s.Parts) >= maxParts {
		return
	}
	p.Microseconds, p.Changes = took.Microseconds(), t.changes(a.Object)
	s.Parts = append(s.Parts, p)
}

// changes returns what has changed in the object since the last call.
func (t *Trace) changes(object runtime.Object) []Change {
	if t.validating {
		return nil
	}
	now := snapshot(object)
	changes := diff(nil, "", t.last, now)
	t.last = now
	return changes
}

// snapshot returns an object as JSON has it.
func snapshot(object runtime.Object) (value any) {
	if object == nil || reflect.ValueOf(object).IsNil() {
		return nil
	}
	if text, err := json.Marshal(object); err == nil {
		_ = json.Unmarshal(text, &value)
	}
	return value
}

// diff appends what differs between two values, up to maxChanges.
func diff(changes []Change, field string, before, after any) []Change {
	if len(changes) >= maxChanges || reflect.DeepEqual(before, after) {
		return changes
	}
	switch b := before.(type) {
	case map[string]any:
		a, ok := after.(map[string]any)
		if !ok {
			break
		}
		keys := map[string]bool{}
		for key := range b {
			keys[key] = true
		}
		for key := range a {
			keys[key] = true
		}
		sorted := make([]string, 0, len(keys))
		for key := range keys {
			sorted = append(sorted, key)
		}
		slices.Sort(sorted)
		for _, key := range sorted {
			changes = diff(changes, field+"."+key, b[key], a[key])
		}
		return changes
	case []any:
		a, ok := after.([]any)
		if !ok {
			break
		}
		for i := range max(len(a), len(b)) {
			var old, new any
			if i < len(b) {
				old = b[i]
			}
			if i < len(a) {
				new = a[i]
			}
			changes = diff(changes, field+"["+strconv.Itoa(i)+"]", old, new)
		}
		return changes
	}
	return append(changes, Change{field, Shown(before), Shown(after)})
}

// Shown returns a value as JSON of bounded length; "" for nil.
func Shown(value any) string {
	if value == nil {
		return ""
	}
	text, err := json.Marshal(value)
	if err != nil {
		text = fmt.Appendf(nil, "%v", value)
	}
	if len(text) > maxShownValue {
		return string(text[:maxShownValue]) + "..."
	}
	return string(text)
}
