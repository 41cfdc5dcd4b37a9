package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	celgo "github.com/google/cel-go/cel"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/resource"
)

// maxTypes bounds how many kinds a policy is type-checked against.
const maxTypes = 10

// Checker type-checks the expressions of policies against the schemas of the kinds that they
// match. The result is for status.typeChecking; it does not prevent the use of a policy.
type Checker struct {
	// Catalog of the resources that are served. Required.
	Catalog func() *resource.Catalog
	// Schema returns the schema of a kind with references resolved; nil if it has none.
	// Required.
	Schema func(served *resource.Served) (*spec.Schema, error)
	// Expressions compiles CEL. Required.
	Expressions *policycel.Environment
}

// Check returns the warnings about the expressions of a policy.
func (c *Checker) Check(p *registrationv1.ValidatingAdmissionPolicy) []registrationv1.ExpressionWarning {
	kinds := c.kinds(p)
	if len(kinds) == 0 {
		return nil
	}
	vars := policycel.Variables{Authorizer: true, Params: p.Spec.ParamKind != nil}
	var params *apiservercel.DeclType
	if k := p.Spec.ParamKind; k != nil {
		params = c.declared(schema.FromAPIVersionAndKind(k.APIVersion, k.Kind))
	}
	var warnings []registrationv1.ExpressionWarning
	compilers := map[schema.GroupVersionKind]*policycel.Compiler{}
	check := func(path *field.Path, text string) {
		var found []string
		for _, kind := range kinds {
			compiler := compilers[kind]
			if compiler == nil {
				object := c.declared(kind)
				if object == nil {
					continue
				}
				compiler = c.Expressions.Typed(object, params)
				for _, v := range p.Spec.Variables {
					_, _ = compiler.Define(nil, v.Name, v.Expression, vars, true)
				}
				compilers[kind] = compiler
			}
			if _, err := compiler.Compile(nil, text, vars, true, celgo.AnyType); err != nil {
				what := "%v: %s\n"
				if err.Internal {
					what = "%v: type checking error: %v\n"
				}
				found = append(found, fmt.Sprintf(what, kind, strings.TrimPrefix(err.Detail, "compilation failed: ")))
			}
		}
		if len(found) > 0 {
			warnings = append(warnings, registrationv1.ExpressionWarning{FieldRef: path.String(), Warning: strings.Join(found, "\n")})
		}
	}
	for i, v := range p.Spec.Validations {
		path := field.NewPath("spec", "validations").Index(i)
		check(path.Child("expression"), v.Expression)
		if v.MessageExpression != "" {
			check(path.Child("messageExpression"), v.MessageExpression)
		}
	}
	return warnings
}

// declared returns the CEL type of a kind, nil if it has no schema.
func (c *Checker) declared(kind schema.GroupVersionKind) *apiservercel.DeclType {
	served, ok := c.Catalog().LookupKind(kind)
	if !ok {
		return nil
	}
	s, err := c.Schema(served)
	if err != nil || s == nil {
		return nil
	}
	t := common.SchemaDeclType(&openapi.Schema{Schema: s}, true)
	if t == nil {
		return nil
	}
	// The name differs every time, so that no expression can depend on it.
	return t.MaybeAssignTypeName(fmt.Sprintf("%s%d", kind.Kind, time.Now().Nanosecond()))
}

// kinds returns the kinds that the rules of a policy name, sorted. Rules with wildcards are
// skipped.
func (c *Checker) kinds(p *registrationv1.ValidatingAdmissionPolicy) []schema.GroupVersionKind {
	if p.Spec.MatchConstraints == nil {
		return nil
	}
	wild := func(s string) bool { return strings.Contains(s, "*") }
	var kinds []schema.GroupVersionKind
	for _, rule := range p.Spec.MatchConstraints.ResourceRules {
		if slices.ContainsFunc(rule.APIGroups, wild) || slices.ContainsFunc(rule.APIVersions, wild) {
			continue
		}
		count := 0
		for _, group := range slices.Sorted(slices.Values(rule.APIGroups)) {
			for _, version := range slices.Sorted(slices.Values(rule.APIVersions)) {
				for _, name := range slices.Sorted(slices.Values(rule.Resources)) {
					for _, served := range c.named(group, version, name) {
						kinds = append(kinds, served.GroupVersionKind())
						if count++; count == maxTypes {
							return inOrder(kinds) // further rules are ignored
						}
					}
				}
			}
		}
	}
	return inOrder(kinds)
}

// named returns the resources that a rule may mean; none for wildcards and subresources.
// Without a group, all groups are searched.
func (c *Checker) named(group, version, name string) (found []*resource.Served) {
	catalog := c.Catalog()
	if served, ok := catalog.Lookup(group, version, name); ok {
		found = append(found, served)
	}
	if group != "" {
		return found
	}
	for _, g := range catalog.Groups() {
		if served, ok := catalog.Lookup(g.Name, version, name); ok && g.Name != "" {
			found = append(found, served)
		}
	}
	return found
}

func inOrder(kinds []schema.GroupVersionKind) []schema.GroupVersionKind {
	slices.SortFunc(kinds, func(a, b schema.GroupVersionKind) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Kind, b.Kind))
	})
	return slices.Compact(kinds)
}
