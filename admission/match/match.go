// Package match decides which writes a webhook or a policy applies to: rules, namespace
// selectors and object selectors. Start at Criteria, and at Write, a write with its
// equivalent forms in other versions. The package must not know what webhooks or policies
// do with a write.
package match

import (
	"context"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission"
)

// Criteria are the match criteria of a webhook, policy or binding. They are immutable.
type Criteria struct {
	rules, exclude []rule
	// all: there are no rules, and every write matches.
	all        bool
	equivalent bool
	namespaces labels.Selector
	objects    labels.Selector
	// err is the error of parsing the selectors.
	err error
}

// ForPolicy returns the criteria of a policy or a binding.
func ForPolicy(m *admissionv1.MatchResources) *Criteria {
	c := &Criteria{
		equivalent: isEquivalent(m.MatchPolicy), all: len(m.ResourceRules) == 0,
		rules: named(m.ResourceRules), exclude: named(m.ExcludeResourceRules),
	}
	c.selectors(m.NamespaceSelector, m.ObjectSelector)
	return c
}

// ForWebhook returns the criteria of a webhook.
func ForWebhook(rules []admissionv1.RuleWithOperations, policy *admissionv1.MatchPolicyType, namespaces, objects *metav1.LabelSelector) *Criteria {
	c := &Criteria{equivalent: isEquivalent(policy)}
	for i := range rules {
		c.rules = append(c.rules, newRule(&rules[i], nil))
	}
	c.selectors(namespaces, objects)
	return c
}

func isEquivalent(p *admissionv1.MatchPolicyType) bool {
	return p != nil && *p == admissionv1.Equivalent
}

func (c *Criteria) selectors(namespaces, objects *metav1.LabelSelector) {
	if c.namespaces, c.err = metav1.LabelSelectorAsSelector(namespaces); c.err != nil {
		return
	}
	c.objects, c.err = metav1.LabelSelectorAsSelector(objects)
}

// Match returns the form in which the write matches, nil if it does not. An error is
// returned only for a write that matches the rules.
func (c *Criteria) Match(ctx context.Context, w *Write) (*Form, error) {
	if w.find(c.exclude, c.equivalent, true) != nil {
		return nil, nil
	}
	form := w.forms()[0]
	if !c.all {
		if form = w.find(c.rules, c.equivalent, true); form == nil {
			return nil, nil
		}
	}
	if c.err != nil {
		return nil, apierrors.NewInternalError(c.err)
	}
	// A selector that does not match takes precedence over an error of the other.
	in, err := c.inNamespace(ctx, w)
	if !in && err == nil || !c.objects.Empty() && !selects(c.objects, w.Object) && !selects(c.objects, w.Old) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return form, nil
}

func (c *Criteria) inNamespace(ctx context.Context, w *Write) (bool, error) {
	if c.namespaces.Empty() || w.Namespace == "" && w.Served.Definition.Resource != "namespaces" {
		return true, nil
	}
	set, err := w.namespaceLabels(ctx)
	if err != nil {
		return false, err
	}
	return c.namespaces.Matches(set), nil
}

func selects(s labels.Selector, obj runtime.Object) bool {
	m, ok := obj.(metav1.Object)
	return ok && s.Matches(labels.Set(m.GetLabels()))
}

// rule is a rule of a webhook or a policy.
type rule struct {
	operations, groups, versions []string
	resources                    [][2]string // and subresources
	scope                        admissionv1.ScopeType
	names                        []string
}

func named(rules []admissionv1.NamedRuleWithOperations) []rule {
	var out []rule
	for i := range rules {
		out = append(out, newRule(&rules[i].RuleWithOperations, rules[i].ResourceNames))
	}
	return out
}

func newRule(r *admissionv1.RuleWithOperations, names []string) rule {
	out := rule{groups: r.APIGroups, versions: r.APIVersions, scope: admissionv1.AllScopes, names: names}
	if r.Scope != nil {
		out.scope = *r.Scope
	}
	for _, op := range r.Operations {
		out.operations = append(out.operations, string(op))
	}
	for _, name := range r.Resources {
		resource, sub, _ := strings.Cut(name, "/")
		out.resources = append(out.resources, [2]string{resource, sub})
	}
	return out
}

func among(items []string, item string) bool {
	return slices.Contains(items, item) || slices.Contains(items, "*")
}

// matches reports whether the rule matches a resource, and with names also the name.
func (r *rule) matches(a *admission.Attributes, resource schema.GroupVersionResource, names bool) bool {
	if !among(r.operations, string(a.Operation)) || !among(r.groups, resource.Group) || !among(r.versions, resource.Version) {
		return false
	}
	if !slices.ContainsFunc(r.resources, func(want [2]string) bool {
		return (want[0] == "*" || want[0] == resource.Resource) && (want[1] == "*" || want[1] == a.Subresource)
	}) {
		return false
	}
	// A namespace has itself as its namespace, but is cluster-scoped.
	ofCluster := a.Namespace == "" || resource == schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	if r.scope != admissionv1.AllScopes && ofCluster != (r.scope == admissionv1.ClusterScope) {
		return false
	}
	return !names || len(r.names) == 0 || slices.Contains(r.names, a.Name)
}

// mayMatch reports whether writes of the kind can match, whatever their names and labels.
func (c *Criteria) mayMatch(w *Write) bool {
	return c.all || w.find(c.rules, c.equivalent, false) != nil
}

// always returns the index of the form, plus 1, in which all writes of the kind match,
// whatever their names and labels; 0 if it depends on those.
func (c *Criteria) always(w *Write) int {
	if c.err != nil || len(c.exclude) > 0 || !c.namespaces.Empty() || !c.objects.Empty() {
		return 0
	}
	if c.all {
		return 1
	}
	if slices.ContainsFunc(c.rules, func(r rule) bool { return len(r.names) > 0 }) {
		return 0
	}
	return 1 + slices.Index(w.forms(), w.find(c.rules, c.equivalent, false))
}
