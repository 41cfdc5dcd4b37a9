package rbac

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
)

// This file explains decisions: which rule of which role allows a request by which
// binding, or which bindings come closest. Rules are compared one by one instead of
// looked up in a table; the tests compare the results of both ways.

const (
	// maxGrants is the largest number of grants of each sort in an explanation.
	maxGrants = 20
	// maxListed is the largest number of entries of a list of a rule that is shown.
	maxListed = 20
	// bindingsPerCheck is the number of bindings between two looks at the context.
	bindingsPerCheck = 256
)

// The distance of a grant from a request is the sum of these weights, one for each
// thing that the grant lacks. Grants with more than maxDistance are not shown.
const (
	verbWeight      = 1
	nameWeight      = 1
	resourceWeight  = 2 // also of a path; 1 if only the subresource differs
	groupWeight     = 2
	namespaceWeight = 2
	subjectWeight   = 3
	maxDistance     = 3
)

// candidate is a binding with the rules that its role had when it was read.
type candidate struct {
	*binding
	rules []rbacv1.PolicyRule
	err   error // the role does not exist
}

// fit is how well a rule fits a request: distance 0 allows it.
type fit struct {
	rule     *rbacv1.PolicyRule // nil if there is no rule
	distance int
	lacks    []string
}

// Explain implements authz.Explainer.
func (a *Authorizer) Explain(ctx context.Context, at *authz.Attributes) (d authz.Detail, _ error) {
	if at.User == nil {
		return d, nil
	}
	if err := a.catchUp(ctx); err != nil {
		return d, err
	}
	_, reason, _ := a.decide(at)
	type near struct {
		authz.Grant
		distance int
	}
	var nearest []near
	q := newQuery(at)
	err := eachFit(ctx, a.candidates(nil), &q, func(c *candidate, f fit) bool {
		i := c.subjectFor(at.User)
		applies, inScope := i >= 0, c.namespace == "" || c.namespace == at.Namespace
		if c.err != nil {
			if applies && inScope && len(d.Dangling) < maxGrants {
				d.Dangling = append(d.Dangling, c.grant(i, nil))
			}
			return true
		}
		if applies && inScope && f.rule != nil && f.distance == 0 {
			g := c.grant(i, f.rule)
			if c.describe(&c.subjects[i]) == reason { // reason would be kept for every binding
				d.Grants = slices.Insert(d.Grants, 0, g)
			} else {
				d.Grants = append(d.Grants, g)
			}
			d.Grants = d.Grants[:min(len(d.Grants), maxGrants)]
			return true
		}
		if f.rule == nil {
			return true
		}
		n := near{distance: f.distance}
		lacks := slices.Clone(f.lacks)
		if !inScope {
			n.distance += namespaceWeight
			lacks = append(lacks, fmt.Sprintf("namespace %q", at.Namespace))
		}
		if !applies {
			if i = c.subjectLike(at.User); i < 0 {
				return true
			}
			n.distance += subjectWeight
			lacks = append(lacks, fmt.Sprintf("subject %q", at.User.Name))
		}
		if n.distance > maxDistance {
			return true
		}
		n.Grant = c.grant(i, f.rule)
		n.Lacks, n.Applies = lacks, applies
		nearest = append(nearest, n)
		if len(nearest) >= 4*maxGrants {
			slices.SortStableFunc(nearest, func(a, b near) int { return cmp.Compare(a.distance, b.distance) })
			nearest = nearest[:maxGrants]
		}
		return true
	})
	if len(d.Grants) > 0 {
		return d, err
	}
	slices.SortStableFunc(nearest, func(a, b near) int { return cmp.Compare(a.distance, b.distance) })
	for _, n := range nearest[:min(len(nearest), maxGrants)] {
		d.Near = append(d.Near, n.Grant)
	}
	for _, o := range Suggest(at) {
		d.Suggested = append(d.Suggested, o)
	}
	return d, err
}

// WhoCan implements authz.Finder.
func (a *Authorizer) WhoCan(ctx context.Context, at *authz.Attributes, found func(authz.Grant) bool) (unknown string, err error) {
	if err := a.catchUp(ctx); err != nil {
		return "", err
	}
	q := newQuery(at)
	inScope := func(b *binding) bool { return b.namespace == "" || b.namespace == at.Namespace }
	return "", eachFit(ctx, a.candidates(inScope), &q, func(c *candidate, f fit) bool {
		if f.rule == nil || f.distance > 0 {
			return true
		}
		for i := range c.subjects {
			if _, ok := subjectOfBinding(&c.subjects[i], c.namespace); ok && !found(c.grant(i, f.rule)) {
				return false
			}
		}
		return true
	})
}

// candidates returns the bindings that are wanted, cluster-wide ones first. It holds the
// lock only while it copies pointers: what they point to is not changed any more.
func (a *Authorizer) candidates(wanted func(*binding) bool) (all []candidate) {
	a.mu.RLock()
	for _, b := range a.bindings {
		if wanted == nil || wanted(b) {
			rules, err := a.rulesOf(b.ref, b.namespace)
			all = append(all, candidate{b, rules, err})
		}
	}
	a.mu.RUnlock()
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	return all
}

// eachFit calls f with each candidate and the rule of its role that fits best, until f
// returns false or ctx ends. A role with many bindings is compared once.
func eachFit(ctx context.Context, all []candidate, q *query, f func(*candidate, fit) bool) error {
	known := map[key]fit{}
	for i := range all {
		if i%bindingsPerCheck == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		c := &all[i]
		id, ok := roleKey(c.ref, c.namespace)
		best, seen := known[id]
		switch {
		case !ok:
			best = fit{} // the key is not that of a role
		case !seen:
			best = bestFit(c.rules, q)
			known[id] = best
		}
		if !f(c, best) {
			return nil
		}
	}
	return nil
}

// bestFit returns the rule that fits best, the first of several.
func bestFit(rules []rbacv1.PolicyRule, q *query) (best fit) {
	for i := range rules {
		f := fitOf(&rules[i], q)
		if f.rule != nil && (best.rule == nil || f.distance < best.distance) {
			best = f
		}
		if best.rule != nil && best.distance == 0 {
			break
		}
	}
	return best
}

// fitOf compares a rule with a request. The result has no rule if nothing of the two is
// the same.
func fitOf(rule *rbacv1.PolicyRule, q *query) fit {
	f := fit{rule: rule}
	lack := func(weight int, what, value string) {
		f.distance += weight
		f.lacks = append(f.lacks, fmt.Sprintf("%s %q", what, value))
	}
	verb := contains(rule.Verbs, q.Verb)
	if !q.IsResource {
		if !slices.ContainsFunc(rule.NonResourceURLs, func(path string) bool { return pathCovers(path, q.Path) }) {
			if len(rule.NonResourceURLs) == 0 || !verb {
				return fit{}
			}
			lack(resourceWeight, "path", q.Path)
		}
	} else {
		group := contains(rule.APIGroups, q.Group)
		resource := contains(rule.Resources, q.resource) || q.anySub != "" && slices.Contains(rule.Resources, q.anySub)
		switch {
		case len(rule.Resources) == 0, !resource && !verb, !resource && !group:
			return fit{}
		case !resource && slices.ContainsFunc(rule.Resources, func(r string) bool { return isSameResource(r, q.Resource) }):
			lack(1, "resource", q.resource)
		case !resource:
			lack(resourceWeight, "resource", q.resource)
		}
		if !group {
			lack(groupWeight, "API group", q.Group)
		}
		if len(rule.ResourceNames) > 0 && !slices.Contains(rule.ResourceNames, q.Name) {
			lack(nameWeight, "name", q.Name)
		}
	}
	if !verb {
		lack(verbWeight, "verb", q.Verb)
	}
	return f
}

// isSameResource reports whether a resource of a rule, apart from its subresource, is
// the one of a request.
func isSameResource(ofRule, resource string) bool {
	name, _, _ := strings.Cut(ofRule, "/")
	return name == resource
}

// pathCovers reports whether a path of a rule includes a path.
func pathCovers(ofRule, path string) bool {
	if !strings.HasSuffix(ofRule, "*") {
		return ofRule == path
	}
	return strings.HasPrefix(path, strings.TrimRight(ofRule, "*"))
}

// subjectFor returns the index of the first subject of the binding that is the user or a
// group of the user, or -1.
func (b *binding) subjectFor(user *request.User) int {
	return slices.IndexFunc(b.subjects, func(s rbacv1.Subject) bool {
		id, ok := subjectOfBinding(&s, b.namespace)
		return ok && (id.group && slices.Contains(user.Groups, id.name) || !id.group && id.name == user.Name)
	})
}

// subjectLike returns the index of the first subject of the binding that is of the sort of
// the user: a service account, or a user or group. It is -1 if there is none, and for what
// every cluster has: nobody is helped by being told to become a controller.
func (b *binding) subjectLike(user *request.User) int {
	if strings.HasPrefix(b.name, "system:") || b.name == "cluster-admin" {
		return -1
	}
	isAccount := strings.HasPrefix(user.Name, authz.ServiceAccountPrefix)
	return slices.IndexFunc(b.subjects, func(s rbacv1.Subject) bool { return (s.Kind == rbacv1.ServiceAccountKind) == isAccount })
}

// grant returns what the binding gives to one of its subjects; i may be -1.
func (b *binding) grant(i int, rule *rbacv1.PolicyRule) authz.Grant {
	g := authz.Grant{
		Binding: &authz.Object{Group: rbacv1.GroupName, Resource: "clusterrolebindings", Kind: "ClusterRoleBinding", Name: b.name},
		Role:    &authz.Object{Group: rbacv1.GroupName, Resource: "clusterroles", Kind: b.ref.Kind, Name: b.ref.Name},
	}
	if b.namespace != "" {
		g.Binding = &authz.Object{Group: rbacv1.GroupName, Resource: "rolebindings", Kind: "RoleBinding", Namespace: b.namespace, Name: b.name}
	}
	if b.ref.Kind == "Role" {
		g.Role.Resource, g.Role.Namespace = "roles", b.namespace
	}
	if i >= 0 {
		s := &b.subjects[i]
		g.Subject = &authz.Subject{Kind: s.Kind, Name: s.Name}
		if s.Kind == rbacv1.ServiceAccountKind {
			g.Subject.Namespace = cmp.Or(s.Namespace, b.namespace)
		}
	}
	if rule != nil {
		g.Rule = &authz.Rule{
			Verbs: listed(rule.Verbs), APIGroups: listed(rule.APIGroups), Resources: listed(rule.Resources),
			ResourceNames: listed(rule.ResourceNames), NonResourceURLs: listed(rule.NonResourceURLs),
		}
	}
	return g
}

// listed returns at most maxListed entries, and how many there are besides.
func listed(list []string) []string {
	if len(list) <= maxListed {
		return list
	}
	return append(slices.Clone(list[:maxListed]), fmt.Sprintf("(and %d more)", len(list)-maxListed))
}
