package expression

import (
	"cmp"
	"context"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/internal/problems"
)

// Conditions are the matchConditions of a webhook or policy, which all have to be true.
type Conditions struct {
	programs []*Program
	quick    bool // all of them have a quick form
	needs    []match.Need
	owner    Owner
	metrics  admission.Metrics
	// durations and exclusions are metrics series by operation, cached because many
	// conditions are evaluated for each write.
	durations, exclusions [4]admission.Series
}

// Owner is the webhook or policy that the conditions belong to, in the words of metrics.
type Owner struct {
	Name string
	// Kind is "policy" or "webhook".
	Kind, Type string
	// Step is the label type of the exclusion metric; "" is Type.
	Step string
}

func (o *Owner) step() string { return cmp.Or(o.Step, o.Type) }

// CompileConditions compiles match conditions. metrics may be nil.
func CompileConditions(c *policycel.Compiler, conditions []registrationv1.MatchCondition, vars policycel.Variables, owner Owner, metrics admission.Metrics) *Conditions {
	out := &Conditions{owner: owner, metrics: metrics, quick: len(conditions) > 0}
	cheap := true
	for i, m := range conditions {
		compiled, err := c.Compile(nil, m.Expression, vars, true, cel.BoolType)
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
		out.durations[opIndex(op)] = out.series(admission.ConditionDuration, owner.Type, op)
		out.exclusions[opIndex(op)] = out.series(admission.ConditionExclusions, owner.step(), op)
	}
	return out
}

// opIndex returns the index of an operation in series.
func opIndex(op admission.Operation) int {
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

// Exclude counts writes that the conditions have excluded.
func (c *Conditions) Exclude(op admission.Operation, n int) {
	c.exclusions[opIndex(op)].Observe(float64(n))
}

// Excludes reports whether Match would surely return false without an error. It is cheap,
// and is called first where there are many webhooks or policies. There must be no params.
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

// Excluded records evaluations of writes that needs have excluded, with a duration of 0.
func (c *Conditions) Excluded(op admission.Operation, n int) {
	for range n {
		c.durations[opIndex(op)].Observe(0)
	}
}

// Needs returns what must hold for the conditions to be true. If one does not hold, the
// conditions are false and none of them is an error.
func (c *Conditions) Needs() []match.Need { return c.needs }

// onObjects returns the evaluation that all conditions on a write share, without params;
// nil if the objects cannot be converted.
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

// Match reports whether all conditions are true. If one is false, errors of others are
// ignored; otherwise they are returned.
func (c *Conditions) Match(ctx context.Context, in Input) (met bool, err error) {
	if c.None() {
		return true, nil
	}
	in.Namespace, in.Resource = nil, schema.GroupVersionResource{}
	// Many conditions may be false for a write: one Evaluation serves all.
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
		c.durations[opIndex(in.Write.Operation)].Observe(e.ended.Sub(began).Seconds())
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
			if met { // after one is false the rest is not evaluated
				c.series(admission.ConditionErrors, c.owner.Type, e.Write.Operation).Observe(1)
			}
		} else if v == types.False {
			met = false
		}
	}
	if !met || len(failures) == 0 {
		return met, nil
	}
	return false, problems.Join(failures)
}
