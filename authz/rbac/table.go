package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/apikeel/kelson/authz"
)

// table holds everything that the bindings of one subject in one scope allow, so that a
// decision is a few map lookups. If several bindings allow the same, the first is named
// as the reason.
type table struct {
	resources map[target]verbs
	named     map[namedTarget]verbs
	paths     map[string]verbs
	// prefixes are the paths that end with a star, without the star; lengths are the
	// distinct lengths of these prefixes.
	prefixes map[string]verbs
	lengths  []int
	// incomplete: a binding refers to a role that does not exist.
	incomplete bool
}

// target is a resource as a rule names it: "pods/log", "*", "*/scale".
type target struct{ group, resource string }

type namedTarget struct {
	target
	name string
}

// verbs are the allowed verbs, each with the binding that allows it.
type verbs []allowed

type allowed struct {
	verb string
	by   *binding
}

func (v verbs) allow(verb string) *binding {
	for i := range v {
		if v[i].verb == verb || v[i].verb == rbacv1.VerbAll {
			return v[i].by
		}
	}
	return nil
}

func (v verbs) add(rule *rbacv1.PolicyRule, by *binding) verbs {
	for _, verb := range rule.Verbs {
		if v.allow(verb) == nil {
			v = append(v, allowed{verb, by})
		}
	}
	return v
}

// query is what a decision looks up, in the notation of rules.
type query struct {
	*authz.Attributes
	resource string // with the subresource: pods/log
	anySub   string // "*/" and the subresource, empty if there is none
}

func newQuery(a *authz.Attributes) query {
	q := query{Attributes: a, resource: a.Resource}
	if a.Subresource != "" {
		q.resource = a.Resource + "/" + a.Subresource
		q.anySub = "*/" + a.Subresource
	}
	return q
}

// tableOf returns the table of a subject. The caller holds mu at least for reading;
// several goroutines may build the same table.
func (a *Authorizer) tableOf(g *grants) *table {
	t := g.table.Load()
	if t == nil {
		t = &table{}
		// Of several bindings to one role the first is the reason for all that it allows, so
		// that a role is added once: the cost is that of roles, not of roles times bindings.
		added := make(map[key]bool, len(g.bindings))
		for _, b := range g.bindings {
			if k, ok := roleKey(b.ref, b.namespace); ok {
				if added[k] {
					continue
				}
				added[k] = true
			}
			rules, err := a.rulesOf(b.ref, b.namespace)
			if err != nil {
				t.incomplete = true
			}
			for i := range rules {
				t.add(&rules[i], b)
			}
		}
		g.table.Store(t)
	}
	return t
}

func (t *table) add(rule *rbacv1.PolicyRule, by *binding) {
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			at := target{group, resource}
			if len(rule.ResourceNames) == 0 {
				addTo(&t.resources, at, rule, by)
			}
			for _, name := range rule.ResourceNames {
				addTo(&t.named, namedTarget{at, name}, rule, by)
			}
		}
	}
	for _, path := range rule.NonResourceURLs {
		if !strings.HasSuffix(path, "*") {
			addTo(&t.paths, path, rule, by)
			continue
		}
		prefix := strings.TrimRight(path, "*")
		addTo(&t.prefixes, prefix, rule, by)
		if !slices.Contains(t.lengths, len(prefix)) {
			t.lengths = append(t.lengths, len(prefix))
		}
	}
}

func addTo[K comparable](m *map[K]verbs, k K, rule *rbacv1.PolicyRule, by *binding) {
	if *m == nil {
		*m = map[K]verbs{}
	}
	(*m)[k] = (*m)[k].add(rule, by)
}

// allows returns the binding that allows the query, or nil.
func (t *table) allows(q *query) *binding {
	if !q.IsResource {
		if b := t.paths[q.Path].allow(q.Verb); b != nil {
			return b
		}
		for _, n := range t.lengths {
			if n <= len(q.Path) {
				if b := t.prefixes[q.Path[:n]].allow(q.Verb); b != nil {
					return b
				}
			}
		}
		return nil
	}
	if len(t.resources) == 0 && len(t.named) == 0 {
		return nil
	}
	for _, group := range [...]string{q.Group, rbacv1.APIGroupAll} {
		for i, resource := range [...]string{q.resource, rbacv1.ResourceAll, q.anySub} {
			if i == 2 && resource == "" {
				continue
			}
			at := target{group, resource}
			if b := t.resources[at].allow(q.Verb); b != nil {
				return b
			}
			if len(t.named) > 0 {
				if b := t.named[namedTarget{at, q.Name}].allow(q.Verb); b != nil {
					return b
				}
			}
		}
	}
	return nil
}

// RuleSet is a list of rules without bindings: all of them apply.
type RuleSet struct{ table table }

// NewRuleSet returns a RuleSet.
func NewRuleSet(rules []rbacv1.PolicyRule) *RuleSet {
	s := &RuleSet{}
	for i := range rules {
		s.table.add(&rules[i], &binding{})
	}
	return s
}

// Allows reports whether one of the rules allows a.
func (s *RuleSet) Allows(a *authz.Attributes) bool {
	q := newQuery(a)
	return s.table.allows(&q) != nil
}
