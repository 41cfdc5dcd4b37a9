package cel

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/internal/celbound"
)

// Rules are the compiled rules of a schema and of all schemas below it.
type Rules struct {
	t          *Type
	items      *Rules
	other      *Rules
	properties map[string]*Rules
	// untyped says that CEL has no type for the values, because the schema above is of a
	// type without items or additional properties.
	untyped bool
	*shared

	once sync.Once
	// kept says that programs are those of the rules, which otherwise are compiled each time.
	kept     bool
	programs []Program
	err      error
	usesOld  bool
}

// shared is what the rules of all types of a schema share.
type shared struct {
	patterns *boundedregexp.Set // of the expressions
	// room is how many bytes of programs may still be kept.
	room atomic.Int64
}

// NewRules returns the rules of a type, nil if there are none. They keep so many bytes of
// compiled programs; rules for which there is no room are compiled one by one whenever they are
// evaluated.
func NewRules(t *Type, room int) *Rules {
	if t == nil || !t.ruled {
		return nil
	}
	s := &shared{patterns: boundedregexp.NewSet()}
	s.room.Store(int64(room))
	return newRules(t, s, false)
}

func newRules(t *Type, s *shared, untyped bool) *Rules {
	r := &Rules{t: t, shared: s, untyped: untyped}
	if t.items != nil && t.items.ruled {
		r.items = newRules(t.items, s, untyped || t.props.Type != "array")
	}
	if t.other != nil && t.other.ruled {
		r.other = newRules(t.other, s, untyped || t.props.Type != "object")
	}
	sees := t.nameable() && !untyped
	for name, p := range t.properties {
		// Properties without a CEL type are skipped, with all below them; so are those
		// that CEL could reach only through such properties.
		_, escapes := apiservercel.Escape(name)
		if p := p.(*Type); p.ruled && p.nameable() && (sees || !escapes) {
			if r.properties == nil {
				r.properties = map[string]*Rules{}
			}
			r.properties[name] = newRules(p, s, false)
		}
	}
	return r
}

// Weight returns the estimated memory in bytes of the compiled rules of a schema, without those
// of its properties (TestRulesWeighWhatTheyTake).
func Weight(rules []apiextensions.ValidationRule) (bytes int) {
	for i := range rules {
		bytes += ruleWeight + textWeight*(len(rules[i].Rule)+len(rules[i].MessageExpression))
	}
	return bytes
}

const (
	ruleWeight = 18 << 10
	textWeight = 60 // for each byte of an expression
	// compileWork is what compiling a rule costs a request, in the units of boundedregexp.Work,
	// beside what the check of its types does: a quarter of a millisecond. It is for rules that are
	// compiled each time, of which a request may have some ten thousand.
	compileWork = 20_000
)

// Check is the state of an evaluation that spans several calls of Validate.
type Check struct {
	// Budget is the remaining cost budget; once it is below 0 nothing is evaluated.
	Budget int64
	// Warn is called for errors in unchanged values (ratcheting).
	Warn func(err *field.Error)
	// Compiled, if set, is called with the time it took to compile the rules of a
	// type, which happens when they are first evaluated.
	Compiled func(took time.Duration)

	// work is what regular expressions may still spend.
	work *boundedregexp.Work
}

// Validate returns the rules that a value breaks. old is the value before, nil if it is
// new. correlation says which values are unchanged; errors in those become warnings.
func (r *Rules) Validate(ctx context.Context, path *field.Path, v, old any, correlation *common.CorrelatedObject, check *Check) field.ErrorList {
	if check.work == nil {
		check.work = boundedregexp.NewWork(ctx, boundedregexp.MaxWork)
	}
	e := &evaluation{ctx: ctx, check: check}
	e.value(r, path, v, old, unchanged{now: correlation})
	return e.errs
}

// evaluation applies rules to one object.
type evaluation struct {
	ctx   context.Context
	check *Check
	errs  field.ErrorList
}

// unchanged reports whether a value is as it was. Values that have no counterpart in the
// old object (items of lists without keys) count as unchanged if their parent is.
type unchanged struct{ now, above *common.CorrelatedObject }

func (u unchanged) isEqual() bool {
	if u.now != nil {
		return u.now.CachedDeepEqual()
	}
	return u.above.CachedDeepEqual()
}

func (u unchanged) key(name string) unchanged {
	switch {
	case u.now == nil:
		return u
	case u.above == nil && (name == "apiVersion" || name == "kind"):
		// Both objects have been converted to one version, so these always look equal.
		return unchanged{}
	}
	return unchanged{now: u.now.Key(name), above: u.now}
}

func (u unchanged) index(i int) unchanged {
	if u.now == nil {
		return u
	}
	return unchanged{now: u.now.Index(i), above: u.now}
}

func (e *evaluation) value(r *Rules, path *field.Path, v, old any, u unchanged) {
	if r == nil || v == nil || e.check.Budget < 0 {
		return
	}
	e.rules(r, path, v, old, u)
	switch v := v.(type) {
	case []any:
		if r.items == nil {
			return
		}
		before, _ := old.([]any)
		// Only items of map lists can be correlated.
		known := common.MakeMapList(r.t, before)
		for i, item := range v {
			if e.check.Budget < 0 {
				return
			}
			e.value(r.items, path.Index(i), item, known.Get(item), u.index(i))
		}
	case map[string]any:
		e.members(r, path, v, old, u)
	}
}

func (e *evaluation) members(r *Rules, path *field.Path, v map[string]any, old any, u unchanged) {
	before, _ := old.(map[string]any)
	kind := r.t.XMapType()
	if kind != "" && kind != "granular" && kind != "atomic" {
		before = nil
	}
	if r.other == nil && len(r.properties) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if e.check.Budget < 0 {
			return
		}
		if r.other != nil {
			e.value(r.other, path.Key(name), v[name], before[name], u.key(name))
		}
		if p := r.properties[name]; p != nil {
			e.value(p, path.Child(name), v[name], before[name], u.key(name))
		}
	}
}

// overBudget is reported once, where the budget ends.
const overBudget = "validation failed due to running out of cost budget, no further validation rules will be run"

// rules evaluates the rules of the value itself.
func (e *evaluation) rules(r *Rules, path *field.Path, v, old any, u unchanged) {
	if len(r.t.props.XValidations) == 0 {
		return
	}
	r.once.Do(func() {
		if r.untyped {
			r.err = ErrNoType
			return
		}
		if weight := int64(Weight(r.t.props.XValidations)); r.room.Add(-weight) < 0 {
			r.room.Add(weight)
			r.usesOld = true // nobody knows yet
			return
		}
		began := time.Now()
		// Not the context of the request: others need what is compiled here.
		work := boundedregexp.NewWork(context.WithoutCancel(e.ctx), boundedregexp.MaxWork)
		r.kept = true
		r.programs, r.err = compile(r.t, r.compiler(work))
		if e.check.Compiled != nil {
			e.check.Compiled(time.Since(began))
		}
		for i := range r.programs {
			r.usesOld = r.usesOld || r.programs[i].UsesOld
		}
	})
	kind := r.t.props.Type
	add := func(text string) { e.errs = append(e.errs, field.Invalid(path, kind, text)) }
	err := r.err
	var c *compiler
	if err == nil && !r.kept {
		c = r.compiler(e.check.work)
		err = c.begin(r.t)
	}
	if err != nil {
		add(fmt.Sprintf("rule compiler initialization error: %v", err))
		return
	}
	if e.check.Budget <= 0 {
		add(overBudget)
		e.check.Budget = -1
		return
	}
	switch was := old.(type) {
	case map[string]any:
		if was == nil {
			old = nil
		}
	case []any:
		if was == nil {
			old = nil
		}
	}
	t := r.t
	if t.resource != nil {
		t = t.resource
	}
	plain, optional := variables(t, v, old, r.usesOld, e.check.work)
	for i := range r.t.props.XValidations {
		var p *Program
		if r.kept {
			p = &r.programs[i]
		} else {
			p = &Program{}
			if err := e.check.work.Spend(compileWork); err != nil {
				add(fmt.Sprintf("the schema has too many rules to keep them in memory, and to compile them for one object: %v", err))
				e.check.Budget = -1
				return
			}
			c.compile(p, &r.t.props.XValidations[i])
		}
		if p.Error != nil {
			add(fmt.Sprintf("rule compile error: %v", p.Error))
			continue
		}
		isOptional := p.rule.OptionalOldSelf != nil && *p.rule.OptionalOldSelf
		if p.program == nil || p.UsesOld && old == nil && !isOptional {
			continue
		}
		vars := plain
		if isOptional {
			vars = optional
		}
		if !e.rule(r, p, path, v, vars, plain, u) {
			e.check.Budget = -1
			return
		}
	}
}

// compiler returns what compiles rules that were accepted before.
func (r *Rules) compiler(work *boundedregexp.Work) *compiler {
	return &compiler{work: work, patterns: r.patterns, stored: func(string) bool { return true }, plan: true}
}

// rule evaluates one rule, and reports whether the next one may be evaluated.
func (e *evaluation) rule(r *Rules, p *Program, path *field.Path, v any, vars, plain *activation, u unchanged) (goOn bool) {
	kind := r.t.props.Type
	add := func(text string) { e.errs = append(e.errs, field.Invalid(path, kind, text)) }
	result, cost, err := e.run(p.program, vars)
	switch {
	case cost == nil:
		add(fmt.Sprintf("runtime cost could not be calculated for validation rule: %v, no further validation rules will be run", name(&p.rule)))
		return false
	case *cost > math.MaxInt64 || int64(*cost) > e.check.Budget:
		add(overBudget)
		return false
	}
	e.check.Budget -= int64(*cost)
	switch {
	case err != nil && strings.HasPrefix(err.Error(), "no such overload"):
		// Only values of a dynamic type get here.
		add(fmt.Sprintf("'%v': call arguments did not match a supported operator, function or macro signature for rule: %v", err, name(&p.rule)))
		return true
	case err != nil && strings.HasPrefix(err.Error(), "operation cancelled: actual cost limit exceeded"):
		add(fmt.Sprintf("'%v': no further validation rules will be run due to call cost exceeds limit for rule: %v", err, name(&p.rule)))
		return false
	case err != nil:
		add(fmt.Sprintf("%v evaluating rule: %v", err, name(&p.rule)))
		return true
	case result == types.True:
		return true
	}
	at := path
	if p.path != "" {
		at = at.Child(p.path)
	}
	report := func(err *field.Error) {
		if p.UsesOld || !u.isEqual() {
			e.errs = append(e.errs, err)
		} else if e.check.Warn != nil {
			e.check.Warn(err)
		}
	}
	text := strings.TrimSpace(p.rule.Message)
	if p.rule.Message == "" {
		text = "failed rule: " + name(&p.rule)
	}
	if p.message != nil {
		said, problem := e.message(p, plain)
		switch {
		case problem != nil:
			report(problem(at, kind))
			return false
		case said != "":
			text = said
		}
	}
	if kind == "object" || kind == "array" {
		v = field.OmitValueType{}
	}
	report(errorWithReason(at, v, text, p.rule.Reason))
	return true
}

// run evaluates an expression; a nil cost means that the cost is unknown.
func (e *evaluation) run(p celgo.Program, vars *activation) (ref.Val, *uint64, error) {
	result, details, err := p.ContextEval(e.ctx, vars)
	if details == nil {
		return nil, nil, err
	}
	return result, details.ActualCost(), err
}

// message evaluates a messageExpression. It returns "" if that fails, and a function that
// makes an error if the budget is exhausted.
func (e *evaluation) message(p *Program, vars *activation) (string, func(*field.Path, string) *field.Error) {
	text := p.rule.MessageExpression
	problem := func(said string) func(*field.Path, string) *field.Error {
		return func(path *field.Path, kind string) *field.Error { return field.Invalid(path, kind, said) }
	}
	result, cost, err := e.run(p.message, vars)
	switch {
	case cost == nil:
		said := fmt.Errorf("runtime cost could not be calculated for messageExpression: %q", text)
		return "", func(path *field.Path, _ string) *field.Error { return field.InternalError(path, said) }
	case *cost > math.MaxInt64 || int64(*cost) > e.check.Budget:
		return "", problem("messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run")
	case err != nil && strings.HasPrefix(err.Error(), "operation cancelled: actual cost limit exceeded"):
		return "", problem(fmt.Sprintf("no further validation rules will be run due to call cost exceeds limit for messageExpression: %q", text))
	}
	e.check.Budget -= int64(*cost)
	if err != nil {
		return "", nil
	}
	said, _ := result.Value().(string)
	said = strings.TrimSpace(said)
	if len(said) > maxMessage || strings.Contains(said, "\n") {
		return "", nil
	}
	return said, nil
}

// errorWithReason makes an error of the type that the rule's reason names.
func errorWithReason(path *field.Path, v any, text string, reason *apiextensions.FieldValueErrorReason) *field.Error {
	if reason != nil {
		switch *reason {
		case apiextensions.FieldValueForbidden:
			return field.Forbidden(path, text)
		case apiextensions.FieldValueRequired:
			return field.Required(path, text)
		case apiextensions.FieldValueDuplicate:
			return field.Duplicate(path, v)
		}
	}
	return field.Invalid(path, v, text)
}

// name returns the name of a rule for errors: its message or its expression.
func name(r *apiextensions.ValidationRule) string {
	if r.Message != "" {
		return strings.TrimSpace(r.Message)
	}
	return strings.TrimSpace(r.Rule)
}

// activation has the variables of a rule.
type activation struct {
	self, old ref.Val
	work      *boundedregexp.Work
}

// variables returns the activations with oldSelf as a plain and as an optional value.
func variables(t *Type, v, old any, usesOld bool, work *boundedregexp.Work) (plain, optional *activation) {
	plain = &activation{self: common.UnstructuredToVal(v, t), work: work}
	if !usesOld {
		return plain, plain
	}
	optional = &activation{self: plain.self, old: types.OptionalNone, work: work}
	if old != nil {
		plain.old = common.UnstructuredToVal(old, t)
		optional.old = types.OptionalOf(plain.old)
	}
	return plain, optional
}

// ResolveName implements interpreter.Activation.
func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case selfName:
		return a.self, true
	case oldName:
		return a.old, a.old != nil
	case celbound.WorkName:
		return a.work, true
	}
	return nil, false
}

// Parent implements interpreter.Activation.
func (a *activation) Parent() interpreter.Activation { return nil }
