package rules

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/crd/cel"
	"github.com/apikeel/kelson/metrics/measure"
)

// Limits of the estimated cost of one rule, and of all rules of a schema.
const (
	maxRuleCost   = 10_000_000
	maxSchemaCost = 100_000_000
)

// rules checks the rules of a schema. broken says that the schema has other errors, so
// that the rules cannot be compiled.
func (w *walk) rules(at place, broken bool) {
	path := at.path.Child("x-kubernetes-validations")
	before := len(w.errs)
	for i := range at.p.XValidations {
		w.rule(at.p, &at.p.XValidations[i], path.Index(i))
	}
	if broken || len(w.errs) > before || w.costs == nil || !at.rules {
		return
	}
	if at.t == nil {
		return
	}
	began := time.Now()
	programs, err := cel.Compile(w.t.work, at.t, func(expression string) bool { return w.t.stored[expression] })
	measure.Since(w.t.metrics, began, measure.CELCompilation)
	if errors.Is(err, cel.ErrUndeclared) {
		err = fmt.Errorf("internal error: failed to construct type information for x-kubernetes-validations rules: %w", err)
	}
	if err != nil {
		w.ruleErrs = append(w.ruleErrs, field.InternalError(path, err))
		return
	}
	for i := range programs {
		w.expression(at, &programs[i], &at.p.XValidations[i], path.Index(i))
	}
}

// rule checks the fields of a rule other than its expression.
func (w *walk) rule(p *v1.JSONSchemaProps, r *v1.ValidationRule, path *field.Path) {
	rule, message := strings.TrimSpace(r.Rule), strings.TrimSpace(r.Message)
	switch {
	case rule == "":
		w.add(field.Required(path.Child("rule"), "rule is not specified"))
	case r.Message != "" && message == "":
		w.add(field.Invalid(path.Child("message"), r.Message, "must be non-empty if specified"))
	case hasLineBreak(message):
		w.add(field.Invalid(path.Child("message"), r.Message, "must not contain line breaks"))
	case hasLineBreak(rule) && message == "":
		w.add(field.Required(path.Child("message"), "message must be specified if rule contains line breaks"))
	}
	if r.MessageExpression != "" && strings.TrimSpace(r.MessageExpression) == "" {
		w.add(field.Required(path.Child("messageExpression"), "messageExpression must be non-empty if specified"))
	}
	reasons := []string{string(v1.FieldValueDuplicate), string(v1.FieldValueForbidden), string(v1.FieldValueInvalid), string(v1.FieldValueRequired)}
	if r.Reason != nil && !slices.Contains(reasons, string(*r.Reason)) {
		w.add(field.NotSupported(path.Child("reason"), *r.Reason, reasons))
	}
	if r.FieldPath == "" {
		return
	}
	at := path.Child("fieldPath")
	if strings.TrimSpace(r.FieldPath) == "" {
		w.add(field.Invalid(at, r.FieldPath, "must be non-empty if specified"))
	}
	if hasLineBreak(r.FieldPath) {
		w.add(field.Invalid(at, r.FieldPath, "must not contain line breaks"))
	}
	if unsupported(p) == nil {
		if _, _, err := cel.FieldPath(r.FieldPath, p, true); err != nil {
			w.add(field.Invalid(at, r.FieldPath, "must be a valid path"))
		}
	}
}

// expression checks a compiled rule: its errors and its cost.
func (w *walk) expression(at place, e *cel.Program, r *v1.ValidationRule, path *field.Path) {
	add := func(err *field.Error) { w.ruleErrs = append(w.ruleErrs, err) }
	count := at.count
	if at.unbounded {
		count = e.Count
	}
	cost := multiply(e.Cost, count)
	if !w.t.costly && cost > maxRuleCost {
		add(field.Forbidden(path.Child("rule"), costText("estimated rule cost", cost, maxRuleCost)))
	}
	w.costs.add(path.Child("rule"), cost)
	if e.Error != nil {
		add(field.Invalid(path.Child("rule"), printedRule(r), e.Error.Error()))
	}
	if e.MessageError != nil {
		add(field.Invalid(path.Child("messageExpression"), printedRule(r), e.MessageError.Error()))
	} else if e.HasMessage {
		if !w.t.costly && e.MessageCost > maxRuleCost {
			add(field.Forbidden(path.Child("messageExpression"), costText("estimated messageExpression cost", e.MessageCost, maxRuleCost)))
		}
		w.costs.add(path.Child("messageExpression"), e.MessageCost)
	}
	switch {
	case e.UsesOld && at.uncorrelated != nil:
		add(field.Invalid(path.Child("rule"), r.Rule, fmt.Sprintf("oldSelf cannot be used on the uncorrelatable portion of the schema within %v", at.uncorrelated)))
	case !e.UsesOld && r.OptionalOldSelf != nil:
		add(field.Invalid(path.Child("optionalOldSelf"), *r.OptionalOldSelf, "may not be set if oldSelf is not used in rule"))
	}
}

// printedRule returns a rule in the type that error messages print.
func printedRule(r *v1.ValidationRule) apiextensions.ValidationRule {
	return apiextensions.ValidationRule{
		Rule: r.Rule, Message: r.Message, MessageExpression: r.MessageExpression,
		Reason: (*apiextensions.FieldValueErrorReason)(r.Reason), FieldPath: r.FieldPath, OptionalOldSelf: r.OptionalOldSelf,
	}
}

func costText(what string, cost, limit uint64) string {
	factor := float64(cost) / float64(limit)
	text := fmt.Sprintf("%.1fx", factor)
	switch {
	case factor > 100:
		text = "more than 100x"
	case factor < 1.5:
		text = fmt.Sprintf("%fx", factor)
	}
	return fmt.Sprintf("%s exceeds budget by factor of %s (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)", what, text)
}

// costs sums up the estimated costs of the rules of a schema.
type costs struct {
	total uint64
	// mostExpensive are the most expensive rules.
	mostExpensive []ruleCost
}

type ruleCost struct {
	path *field.Path
	cost uint64
}

// maxNamedRules is how many rules are named if the total is exceeded.
const maxNamedRules = 4

func (c *costs) add(path *field.Path, cost uint64) {
	if math.MaxUint64-c.total < cost {
		c.total = math.MaxUint64
	} else {
		c.total += cost
	}
	if cost < maxSchemaCost/100 {
		return
	}
	at := slices.IndexFunc(c.mostExpensive, func(d ruleCost) bool { return d.cost < cost })
	if at < 0 {
		at = len(c.mostExpensive)
	}
	c.mostExpensive = slices.Insert(c.mostExpensive, at, ruleCost{path, cost})
	c.mostExpensive = c.mostExpensive[:min(len(c.mostExpensive), maxNamedRules)]
}

func (c *costs) errors(path *field.Path) (errs field.ErrorList) {
	if c.total <= maxSchemaCost {
		return nil
	}
	for _, d := range c.mostExpensive {
		errs = append(errs, field.Forbidden(d.path, "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"))
	}
	return append(errs, field.Forbidden(path, costText("x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema", c.total, maxSchemaCost)))
}
