// Package admission is what stands between a request that may be made and the
// object that is stored: plugins that change writes, and plugins that refuse
// them.
//
// A Plugin is a small value. It says once which writes it cares about; nothing
// runs for a write that no plugin does. The built-in ones are files and folders
// beside this one; a server of one's own adds its own to the Chain.
//
// # The place in a write
//
//	decode → defaults → owners of fields → Admit → strategy → rules → Validate → commit
//
// Admit sees the object as the client wants it, and may change it. Validate sees
// what will be stored, and must not. An update that has to be repeated, since
// somebody else was faster, goes through both again. Objects are of the hub
// version.
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

// The operations, as webhooks and policies call them.
const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Attributes is one write on its way to the store.
type Attributes struct {
	Operation Operation
	// Served is the resource in the version of the request.
	Served      *resource.Served
	Subresource string
	Namespace   string
	// Name is empty if the server is to make one up.
	Name string

	// Object as it will be, nil on delete. With a subresource that has a kind of
	// its own it is of that kind, as is Old. On connect it is the options.
	Object runtime.Object
	// Old is the object as it is, nil on create and connect.
	Old runtime.Object
	// Kind of Object and Old in the version of the request.
	Kind schema.GroupVersionKind
	// Options of the request: metav1.CreateOptions and so on.
	Options runtime.Object
	DryRun  bool

	// Request is who asks, and collects warnings and annotations.
	Request *request.Request

	// Round is 0, and 1 while the mutators are asked once more because one of
	// them said AskAgain.
	Round int
	again bool
	notes map[string]any

	ends []func(committed bool)
}

// AskAgain has all mutators asked once more: the object has changed in a way
// that those who were asked before may have something to say about.
func (a *Attributes) AskAgain() { a.again = true }

// Note returns what a plugin has noted about the write in the round before; nil
// at first.
func (a *Attributes) Note(plugin string) any { return a.notes[plugin] }

// SetNote keeps something for the next round.
func (a *Attributes) SetNote(plugin string, note any) {
	if a.notes == nil {
		a.notes = map[string]any{}
	}
	a.notes[plugin] = note
}

// OnEnd calls f when it is known what has become of the create or update of an
// object: whether it was committed. A plugin that has reserved something for it gives it back if not.
// What cannot be known, since the store did not answer, counts as committed.
func (a *Attributes) OnEnd(f func(committed bool)) { a.ends = append(a.ends, f) }

// End tells those who asked for it with OnEnd, once, the last first. A write
// that nobody cared about has nil Attributes.
func (a *Attributes) End(committed bool) {
	if a == nil {
		return
	}
	ends := a.ends
	a.ends = nil
	for i := len(ends) - 1; i >= 0; i-- {
		ends[i](committed)
	}
}

// Target returns the kind of write.
func (a *Attributes) Target() Target {
	return Target{a.Operation, a.Served.Definition.Group, a.Served.Definition.Resource, a.Subresource}
}

// GroupResource returns what is written.
func (a *Attributes) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: a.Served.Definition.Group, Resource: a.Served.Definition.Resource}
}

// Forbidden is the error of a plugin that refuses a write. What is such an error
// already stays as it is.
func (a *Attributes) Forbidden(err error) error {
	if apierrors.IsForbidden(err) {
		return err
	}
	name := a.Name
	if obj, ok := a.Object.(resource.Object); ok && name == "" {
		name = cmp.Or(obj.GetName(), obj.GetGenerateName())
	}
	return apierrors.NewForbidden(a.GroupResource(), cmp.Or(name, "Unknown"), err)
}

// Target is a kind of write: an operation on a resource, or on a subresource
// of one.
type Target struct {
	Operation   Operation
	Group       string
	Resource    string
	Subresource string
}

// Plugin has a say in the writes that it handles. It is a Mutator, a Validator,
// or both. Plugins are used by many goroutines at once.
type Plugin interface {
	// Name as the flags spell it: NamespaceLifecycle.
	Name() string
	// Handles reports whether the plugin wants to see such writes. It is asked
	// once for each kind.
	Handles(t Target) bool
}

// Mutator is a Plugin that may change objects.
type Mutator interface {
	Plugin
	Admit(ctx context.Context, a *Attributes) error
}

// Validator is a Plugin that only looks.
type Validator interface {
	Plugin
	Validate(ctx context.Context, a *Attributes) error
}

// Objects is how plugins look at what is stored. Reads are from memory, and
// may be a moment old unless a plugin asks for the newest.
type Objects interface {
	// Get returns an object that must not be changed; the error for one that is
	// not there is a NotFound.
	Get(ctx context.Context, group, resource, namespace, name string) (resource.Object, error)
	// GetNewest is Get after everything that has been acknowledged.
	GetNewest(ctx context.Context, group, resource, namespace, name string) (resource.Object, error)
	// List returns the objects of a namespace, or of all with an empty one.
	List(ctx context.Context, group, resource, namespace string) ([]resource.Object, error)
}

// Chain is plugins in the order in which they are asked. The zero value, and
// nil, admit everything.
type Chain struct {
	// Metrics measures how long plugins take; nil does not. It must not be changed
	// once the chain is in use.
	Metrics Metrics

	plugins []Plugin
	plans   sync.Map // Target → *plan
}

// plan is who is asked about a kind of write.
type plan struct {
	mutators   []Mutator
	validators []Validator

	admit, validate phase
}

// phase is what is measured of mutators, or of validators.
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

// Wants reports whether anybody looks at such writes; if not, nothing has to be
// prepared for it.
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

// rounds is how often mutators are asked at most.
const rounds = 2

// Admit lets the plugins change a write. The first error refuses it.
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
			err = m.Admit(ctx, a)
			if last = p.admit.plugins[i].end(last, err); err != nil {
				break
			}
		}
		p.admit.step.end(began, err)
		ask = a.again
	}
	return asStatus(err)
}

// Validate asks the plugins about a write as it will be stored. The first
// error refuses it.
func (c *Chain) Validate(ctx context.Context, a *Attributes) (err error) {
	if c == nil {
		return nil
	}
	p := c.plan(a.Target())
	began := time.Now()
	last := began
	for i, v := range p.validators {
		err = v.Validate(ctx, a)
		if last = p.validate.plugins[i].end(last, err); err != nil {
			break
		}
	}
	p.validate.step.end(began, err)
	return asStatus(err)
}

// asStatus is the error of a plugin as clients see it. One that is no status says
// nothing but its text.
func asStatus(err error) error {
	var known apierrors.APIStatus
	if err == nil || errors.As(err, &known) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &plainError{&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}}, err}
}

// plainError is an error that was none of the API.
type plainError struct {
	*apierrors.StatusError
	err error
}

// Unwrap returns what the plugin has returned.
func (e *plainError) Unwrap() error { return e.err }
