package expression

import (
	"cmp"
	"context"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
)

// Conditions are match conditions: expressions that all have to be true.
type Conditions struct {
	programs []*Program
	quick    bool // all of them have a quick form
	needs    []match.Need
	owner    Owner
	metrics  admission.Metrics
	// durations and exclusions are kept: many conditions are looked at for each
	// write.
	durations, exclusions [4]admission.Series
}

// Owner is whose conditions they are, as metrics call it.
type Owner struct {
	Name string
	// Kind is "policy" or "webhook".
	Kind, Type string
	// Step is what exclusions call the type; if it is not said, they do as others.
	Step string
}

func (o *Owner) step() string { return cmp.Or(o.Step, o.Type) }

// CompileConditions compiles match conditions. metrics may be nil.
func CompileConditions(c *policycel.Compiler, conditions []registrationv1.MatchCondition, vars policycel.Variables, owner Owner, metrics admission.Metrics) *Conditions {
	out := &Conditions{owner: owner, metrics: metrics, quick: len(conditions) > 0}
	cheap := true
	for i, m := range conditions {
		compiled, err := c.Compile(m.Expression, vars, true, cel.BoolType)
		p := newProgram(m.Expression, compiled, err)
		out.programs, out.quick = append(out.programs, p), out.quick && p.quick != nil
		needs, all := needsOf(compiled.AST)
		if i == 0 {
			out.needs = needs
		} else {
			cheap = cheap && all
		}
	}
	if !cheap {
		out.needs = nil
	}
	for _, op := range []admission.Operation{admission.Create, admission.Update, admission.Delete, admission.Connect} {
		out.durations[place(op)] = out.series(admission.ConditionDuration, owner.Type, op)
		out.exclusions[place(op)] = out.series(admission.ConditionExclusions, owner.step(), op)
	}
	return out
}

// place is that of an operation among all.
func place(op admission.Operation) int {
	switch op {
	case admission.Create:
		return 0
	case admission.Update:
		return 1
	case admission.Delete:
		return 2
	}
	return 3
}

func (c *Conditions) series(metric, step string, op admission.Operation) admission.Series {
	return admission.SeriesOf(c.metrics, metric, c.owner.Name, c.owner.Kind, step, string(op))
}

// Exclude counts writes that the conditions have kept from their owner.
func (c *Conditions) Exclude(op admission.Operation, n int) {
	c.exclusions[place(op)].Observe(float64(n))
}

// Excludes reports whether the conditions are known not to be met by a write, as
// Match would say without an error. It costs little, so it is asked before
// everything else where there are many owners of conditions. There must be no
// params.
func (c *Conditions) Excludes(ctx context.Context, w *match.Write, form *match.Form) bool {
	if !c.quick {
		return false
	}
	e := onObjects(w, form)
	if e == nil {
		return false
	}
	e.ctx, e.left, e.run.cost, e.ended = ctx, conditionBudget, 0, time.Time{}
	excluded := false
	for _, p := range c.programs {
		switch p.quick(&e.run) {
		case nil:
			return false
		case types.False:
			excluded = true
		}
	}
	if !excluded || e.run.cost > conditionBudget {
		return false
	}
	c.Excluded(w.Operation, 1)
	return true
}

// Excluded measures writes of which it was known that they do not meet the
// conditions: in less time than a clock can tell.
func (c *Conditions) Excluded(op admission.Operation, n int) {
	for range n {
		c.durations[place(op)].Observe(0)
	}
}

// Needs returns what has to hold for the conditions to be met; if it does not,
// they are not met, and none of them is an error.
func (c *Conditions) Needs() []match.Need { return c.needs }

// onObjects returns the evaluation that serves all conditions on a write, without
// params; nil if the objects cannot be had.
func onObjects(w *match.Write, form *match.Form) *Evaluation {
	e, ok := w.Scratch.(*Evaluation)
	if !ok {
		e = new(Evaluation)
		w.Scratch = e
	}
	var err error
	if e.Form == form && e.Params == nil {
		err = e.prepare()
	} else {
		err = e.begin(Input{Write: w, Form: form}, conditionBudget)
	}
	if err != nil {
		return nil
	}
	return e
}

// None reports whether there are no conditions, so that they are met.
func (c *Conditions) None() bool { return len(c.programs) == 0 }

// Match reports whether the conditions are met. One that is false counts more
// than others that fail; otherwise failures are the error.
func (c *Conditions) Match(ctx context.Context, in Input) (met bool, err error) {
	if c.None() {
		return true, nil
	}
	in.Namespace, in.Resource = nil, schema.GroupVersionResource{}
	// There may be many conditions of which none is met: one evaluation is enough
	// for all.
	e, ok := in.Write.Scratch.(*Evaluation)
	if !ok {
		e = new(Evaluation)
		in.Write.Scratch = e
	}
	began := e.ended
	if began.IsZero() {
		began = time.Now()
	}
	if e.Form == in.Form && e.Params == nil && in.Params == nil {
		err = e.next(&in, conditionBudget)
	} else {
		err = e.begin(in, conditionBudget)
	}
	if err == nil {
		met, err = c.evaluate(ctx, e)
	}
	if !met || err != nil {
		e.ended = time.Now()
		c.durations[place(in.Write.Operation)].Observe(e.ended.Sub(began).Seconds())
	}
	return met, err
}

func (c *Conditions) evaluate(ctx context.Context, e *Evaluation) (bool, error) {
	met := true
	var failures []error
	for _, p := range c.programs {
		v, failed, err := e.Eval(ctx, p)
		if err != nil {
			return false, err
		}
		if failed != nil {
			failures = append(failures, failed)
			if met { // once one is false, nobody looks at the rest
				c.series(admission.ConditionErrors, c.owner.Type, e.Write.Operation).Observe(1)
			}
		} else if v == types.False {
			met = false
		}
	}
	if !met || len(failures) == 0 {
		return met, nil
	}
	return false, utilerrors.NewAggregate(failures)
}
