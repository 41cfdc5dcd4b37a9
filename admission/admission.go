// Package admission is the admission chain: plugins that mutate writes and plugins
// that validate them, between authorization and the store. Start at Plugin and
// Chain. A plugin must never write the object of a request itself: it changes
// Attributes.Object or returns an error.
//
// A Plugin says once which kinds of writes it handles; for other writes nothing
// runs. The built-in plugins are in the folders below; a library user adds plugins to
// the Chain.
//
// # The place in a write
//
//	decode → defaults → managedFields → Admit → strategy → validation → Validate → commit
//
// Admit sees the object as the client wants it and may change it. Validate sees what
// will be stored and must not change it. An update that is retried after a conflict
// runs both again. Objects are of the hub version, or of the version of the request if
// the definition has Between.
package admission

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Operation is a kind of write.
type Operation string

// The operations, in the words of webhooks and policies.
const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Attributes is one write that is being admitted.
type Attributes struct {
	Operation Operation
	// Served is the resource in the version of the request.
	Served      *resource.Served
	Subresource string
	Namespace   string
	// Name is empty if it is to be generated.
	Name string

	// Object to be written, nil on delete. For a subresource with its own kind it is of
	// that kind, as is Old. On connect it is the options of the connection.
	Object runtime.Object
	// Old is the stored object, nil on create and connect.
	Old runtime.Object
	// Kind of Object and Old in the version of the request.
	Kind schema.GroupVersionKind
	// Options of the request: metav1.CreateOptions and so on.
	Options runtime.Object
	DryRun  bool

	// Trace records what the plugins do; nil, as it is in all but a few dry runs, records
	// nothing.
	Trace *Trace

	// Request has the user, and collects warnings and audit annotations.
	Request *request.Request
	// Memory is asked before a plugin makes a large object of a small one; nil has no bound.
	Memory Memory

	// Abandon breaks the write off, as if its client had gone; nil where it cannot be.
	Abandon func()

	// Round is 0, and 1 during the second round of mutators that AskAgain asks for
	// (reinvocation).
	Round int
	again bool
	notes map[string]any

	ends []func(resource.Outcome)

	interrupted error // see Interrupt
}

// Memory is what writes hold of the memory of the server. Its errors are those of the API, or
// budget.ErrBusy.
type Memory interface {
	// HoldPatch waits until a patch may be applied that takes so many bytes.
	HoldPatch(bytes int64) error
	// HoldAnswer waits until an answer about the object that has so many bytes may be read.
	HoldAnswer(bytes int64) error
	// HoldDecoded waits until the JSON of an object that takes the place of another may be decoded.
	HoldDecoded(text []byte) error
	// Settle gives back what is held beside the object of the write. replaced says that the object that
	// was decoded last has taken its place.
	Settle(replaced bool)
}

// AskAgain requests a second round of all mutators, because the object was changed after
// some of them had run.
func (a *Attributes) AskAgain() { a.again = true }

// Note returns what a plugin stored with SetNote in the round before; nil in the first.
func (a *Attributes) Note(plugin string) any { return a.notes[plugin] }

// SetNote stores a value of a plugin for the next round.
func (a *Attributes) SetNote(plugin string, note any) {
	if a.notes == nil {
		a.notes = map[string]any{}
	}
	a.notes[plugin] = note
}

// OnEnd registers f to be called with what became of the create or update. A plugin that
// has reserved something releases it if nothing was written.
func (a *Attributes) OnEnd(f func(resource.Outcome)) { a.ends = append(a.ends, f) }

// End calls the functions of OnEnd, once, the last first. It does nothing for nil
// Attributes, which stand for a write that no plugin handles.
func (a *Attributes) End(o resource.Outcome) {
	if a == nil {
		return
	}
	ends := a.ends
	a.ends = nil
	for i := len(ends) - 1; i >= 0; i-- {
		ends[i](o)
	}
}

// Interrupt has Chain refuse the write with an error, whatever the plugin makes of it: the server could
// not find out what a webhook or a policy says about the write, but none of them has failed, so a
// failurePolicy does not apply. The first error is kept. Package match calls it when the server is short
// of memory.
func (a *Attributes) Interrupt(err error) {
	if a.interrupted == nil {
		a.interrupted = err
	}
}

// Interrupted returns the error of Interrupt, or that of the context if the client has gone or its time
// is over. A plugin with failurePolicies returns it instead of another error, before it counts or
// reports a failure.
func (a *Attributes) Interrupted(ctx context.Context) error {
	return cmp.Or(a.interrupted, ctx.Err())
}

// uninterrupted returns the error of Interrupt, or else that of a plugin.
func (a *Attributes) uninterrupted(err error) error { return cmp.Or(a.interrupted, err) }

// Target returns the kind of write, for Plugin.Handles.
func (a *Attributes) Target() Target {
	return Target{a.Operation, a.Served.Definition.Group, a.Served.Definition.Resource, a.Subresource}
}

// GroupResource returns the resource that is written.
func (a *Attributes) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: a.Served.Definition.Group, Resource: a.Served.Definition.Resource}
}

// Forbidden returns the 403 error of a plugin that refuses a write. An error that is
// Forbidden already is returned unchanged.
func (a *Attributes) Forbidden(err error) error {
	if apierrors.IsForbidden(err) {
		return err
	}
	name := a.Name
	if obj, ok := a.Object.(resource.Object); ok && name == "" {
		name = cmp.Or(obj.GetName(), obj.GetGenerateName())
	}
	asked := a.GroupResource()
	asked.Group = a.Served.GroupVersion.Group // in which it is served, as events are in two
	return apierrors.NewForbidden(asked, cmp.Or(name, "Unknown"), err)
}

// Target is a kind of write: an operation on a resource, or on a subresource
// of one.
type Target struct {
	Operation   Operation
	Group       string
	Resource    string
	Subresource string
}

// Plugin is a Mutator, a Validator, or both. It must be safe for concurrent use.
type Plugin interface {
	// Name as the flags spell it: NamespaceLifecycle.
	Name() string
	// Handles reports whether the plugin runs for such writes. It is called once for
	// each Target.
	Handles(t Target) bool
}

// Mutator is a Plugin that may change objects.
type Mutator interface {
	Plugin
	Admit(ctx context.Context, a *Attributes) error
}

// Validator is a Plugin that may refuse writes but not change them.
type Validator interface {
	Plugin
	Validate(ctx context.Context, a *Attributes) error
}

// Objects gives plugins read access to stored objects. Reads are from the watch cache, and
// may be behind; GetNewest is a consistent read.
type Objects interface {
	// Get returns an object, which must not be changed, or a NotFound error.
	Get(ctx context.Context, group, resource, namespace, name string) (resource.Object, error)
	// GetNewest is Get that includes every acknowledged write.
	GetNewest(ctx context.Context, group, resource, namespace, name string) (resource.Object, error)
	// List returns the objects of a namespace, or of all namespaces for "".
	List(ctx context.Context, group, resource, namespace string) ([]resource.Object, error)
}

// Chain is the plugins in the order in which they run. The zero value, and nil, admit
// everything.
type Chain struct {
	// Metrics measures how long plugins take; nil for none. It must not be changed
	// once the chain is in use.
	Metrics Metrics

	plugins []Plugin
	plans   sync.Map // Target → *plan
}

// plan is the plugins that run for one Target.
type plan struct {
	mutators   []Mutator
	validators []Validator

	admit, validate phase
}

// phase has the metrics of all mutators, or of all validators.
type phase struct {
	step    outcomes
	plugins []outcomes // in their order
}

func (c *Chain) phase(step string, op Operation) phase {
	return phase{step: outcomesOf(c.Metrics, StepDuration, step, string(op))}
}

func (p *phase) add(c *Chain, plugin, step string, op Operation) {
	p.plugins = append(p.plugins, outcomesOf(c.Metrics, PluginDuration, plugin, step, string(op)))
}

// NewChain returns a chain of plugins.
func NewChain(plugins ...Plugin) *Chain { return &Chain{plugins: plugins} }

// Wants reports whether a plugin handles such writes. If not, the caller need not prepare
// Attributes.
func (c *Chain) Wants(t Target) bool {
	if c == nil {
		return false
	}
	p := c.plan(t)
	return len(p.mutators)+len(p.validators) > 0
}

func (c *Chain) plan(t Target) *plan {
	if p, ok := c.plans.Load(t); ok {
		return p.(*plan)
	}
	p := &plan{admit: c.phase(StepAdmit, t.Operation), validate: c.phase(StepValidate, t.Operation)}
	for _, plugin := range c.plugins {
		if !plugin.Handles(t) {
			continue
		}
		if m, ok := plugin.(Mutator); ok {
			p.mutators = append(p.mutators, m)
			p.admit.add(c, m.Name(), StepAdmit, t.Operation)
		}
		if v, ok := plugin.(Validator); ok {
			p.validators = append(p.validators, v)
			p.validate.add(c, v.Name(), StepValidate, t.Operation)
		}
	}
	c.plans.Store(t, p)
	return p
}

// rounds is how often mutators run at most.
const rounds = 2

// Admit runs the mutators. The first error refuses the write.
func (c *Chain) Admit(ctx context.Context, a *Attributes) (err error) {
	if c == nil {
		return nil
	}
	p := c.plan(a.Target())
	for ask := true; ask && err == nil && a.Round < rounds; a.Round++ {
		a.again = false
		began := time.Now()
		last := began
		for i, m := range p.mutators {
			a.Trace.begin(StepAdmit, m.Name(), a)
			err = a.uninterrupted(m.Admit(ctx, a))
			a.Trace.end(a, err)
			if last = p.admit.plugins[i].end(last, err); err != nil {
				break
			}
		}
		p.admit.step.end(began, err)
		ask = a.again
	}
	return asStatus(err)
}

// Validate runs the validators on the object as it will be stored. The first error refuses
// the write.
func (c *Chain) Validate(ctx context.Context, a *Attributes) (err error) {
	if c == nil {
		return nil
	}
	p := c.plan(a.Target())
	began := time.Now()
	last := began
	for i, v := range p.validators {
		a.Trace.begin(StepValidate, v.Name(), a)
		err = a.uninterrupted(v.Validate(ctx, a))
		a.Trace.end(a, err)
		if last = p.validate.plugins[i].end(last, err); err != nil {
			break
		}
	}
	p.validate.step.end(began, err)
	return asStatus(err)
}

// asStatus makes an API status of an error of a plugin. An error that is none becomes a
// status with nothing but its text.
func asStatus(err error) error {
	var known apierrors.APIStatus
	if err == nil || errors.As(err, &known) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &plainError{&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}}, err}
}

// plainError is a status made from an error that was none.
type plainError struct {
	*apierrors.StatusError
	err error
}

// Unwrap returns the error of the plugin.
func (e *plainError) Unwrap() error { return e.err }
