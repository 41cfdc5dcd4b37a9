package rbac

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Guard keeps users from giving away rights that they do not have. Who is in
// system:masters may; who has the verb escalate on a role may change it, who has
// bind on a role may bind it; all others must have all of the rights themselves.
type Guard struct {
	// Authorizer is asked for the verbs escalate and bind.
	Authorizer authz.Authorizer
	// Roles knows what the user has, and what a role to be bound contains.
	Roles *Authorizer
}

// Check returns an error if the user of a request may not write a role or a
// binding of one of the four kinds. old is nil on create. Deletions need no check,
// nor do changes that only garbage collection makes.
func (g *Guard) Check(ctx context.Context, obj, old resource.Object) error {
	req := request.From(ctx)
	if slices.Contains(req.User.Groups, authz.Masters) {
		return nil
	}
	switch obj := obj.(type) {
	case *rbacv1.Role:
		if g.mayEscalate(ctx, req) {
			return nil
		}
		return g.grants(ctx, req, "roles", obj.Name, obj.Rules)
	case *rbacv1.ClusterRole:
		if g.mayEscalate(ctx, req) {
			return nil
		}
		if err := g.grants(ctx, req, "clusterroles", obj.Name, obj.Rules); err != nil {
			return err
		}
		before, _ := old.(*rbacv1.ClusterRole)
		if !aggregates(obj) && !aggregates(before) {
			return nil
		}
		// What is aggregated can be anything, so it takes all rights.
		if g.grants(ctx, req, "clusterroles", obj.Name, everything()) != nil {
			return forbidden("clusterroles", obj.Name, errors.New("must have cluster-admin privileges to use the aggregationRule"))
		}
		return nil
	case *rbacv1.RoleBinding:
		return g.binds(ctx, req, "rolebindings", obj.Name, req.Namespace, obj.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		return g.binds(ctx, req, "clusterrolebindings", obj.Name, "", obj.RoleRef)
	}
	return fmt.Errorf("%T is neither a role nor a binding", obj)
}

func aggregates(r *rbacv1.ClusterRole) bool {
	return r != nil && r.AggregationRule != nil && len(r.AggregationRule.ClusterRoleSelectors) > 0
}

// everything is all rights.
func everything() []rbacv1.PolicyRule {
	all := []string{"*"}
	return []rbacv1.PolicyRule{{Verbs: all, APIGroups: all, Resources: all}, {Verbs: all, NonResourceURLs: all}}
}

func forbidden(resource, name string, err error) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, name, err)
}

// mayEscalate reports whether a request for a role comes from somebody who may
// put anything into it.
func (g *Guard) mayEscalate(ctx context.Context, req *request.Request) bool {
	if !req.IsResource || req.Group != rbacv1.GroupName || req.Resource != "roles" && req.Resource != "clusterroles" {
		return false
	}
	name := req.Name
	if req.Verb == request.Create {
		name = "" // the path has none, whatever the object is called
	}
	return g.allowed(ctx, &authz.Attributes{
		User: &req.User, Verb: "escalate", IsResource: true,
		Group: req.Group, Version: "*", Resource: req.Resource, Name: name, Namespace: req.Namespace,
	})
}

// binds checks a binding in a namespace to a role.
func (g *Guard) binds(ctx context.Context, req *request.Request, resource, name, namespace string, ref rbacv1.RoleRef) error {
	kinds := map[string]string{"Role": "roles", "ClusterRole": "clusterroles"}
	if plural := kinds[ref.Kind]; plural != "" && g.allowed(ctx, &authz.Attributes{
		User: &req.User, Verb: "bind", IsResource: true,
		Group: ref.APIGroup, Version: "*", Resource: plural, Name: ref.Name, Namespace: namespace,
	}) {
		return nil
	}
	rules, err := g.Roles.RoleRules(ctx, ref, namespace)
	if apierrors.IsNotFound(err) {
		// Clients know the error with the resource of their request.
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, ref.Name)
	}
	if err != nil {
		return err
	}
	return g.grants(ctx, req, resource, name, rules)
}

func (g *Guard) allowed(ctx context.Context, a *authz.Attributes) bool {
	if g.Authorizer == nil {
		return false
	}
	decision, _, _ := g.Authorizer.Authorize(ctx, a)
	return decision == authz.Allow
}

// grants checks that the user has all of some rights, where the request is.
func (g *Guard) grants(ctx context.Context, req *request.Request, resource, name string, rules []rbacv1.PolicyRule) error {
	has, err := g.Roles.PolicyRules(ctx, &req.User, req.Namespace)
	missing := Uncovered(has, rules)
	if len(missing) == 0 {
		return nil
	}
	var lines []string
	for _, rule := range compact(missing) {
		lines = append(lines, describe(&rule))
	}
	slices.Sort(lines)
	text := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		req.User.Name, req.User.Groups, strings.Join(slices.Compact(lines), "\n"))
	if err != nil {
		text += fmt.Sprintf("; resolution errors: %v", []error{err})
	}
	return forbidden(resource, name, errors.New(text))
}

// Uncovered returns those rights of wanted that has does not contain, each as
// a rule of its own.
func Uncovered(has, wanted []rbacv1.PolicyRule) (missing []rbacv1.PolicyRule) {
	for i := range wanted {
		for _, single := range singles(&wanted[i]) {
			if !slices.ContainsFunc(has, func(rule rbacv1.PolicyRule) bool { return covers(&rule, &single) }) {
				missing = append(missing, single)
			}
		}
	}
	return missing
}

// singles takes a rule apart into rules about one verb on one thing.
func singles(rule *rbacv1.PolicyRule) (out []rbacv1.PolicyRule) {
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				single := rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{verb}}
				if len(rule.ResourceNames) == 0 {
					out = append(out, single)
				}
				for _, name := range rule.ResourceNames {
					single.ResourceNames = []string{name}
					out = append(out, single)
				}
			}
		}
	}
	for _, path := range rule.NonResourceURLs {
		for _, verb := range rule.Verbs {
			out = append(out, rbacv1.PolicyRule{NonResourceURLs: []string{path}, Verbs: []string{verb}})
		}
	}
	return out
}

// covers reports whether a rule contains what a single rule allows.
func covers(rule, single *rbacv1.PolicyRule) bool {
	if !contains(rule.Verbs, single.Verbs[0]) {
		return false
	}
	if len(single.NonResourceURLs) > 0 {
		path := single.NonResourceURLs[0]
		return len(rule.ResourceNames) == 0 && slices.ContainsFunc(rule.NonResourceURLs, func(p string) bool {
			return p == path || strings.HasSuffix(p, "*") && strings.HasPrefix(path, strings.TrimRight(p, "*"))
		})
	}
	resource := single.Resources[0]
	_, sub, isSub := strings.Cut(resource, "/")
	return contains(rule.APIGroups, single.APIGroups[0]) &&
		(contains(rule.Resources, resource) || isSub && slices.Contains(rule.Resources, "*/"+sub)) &&
		(len(rule.ResourceNames) == 0 || len(single.ResourceNames) > 0 && slices.Contains(rule.ResourceNames, single.ResourceNames[0]))
}

// contains reports whether a list that may have a star has something.
func contains(list []string, what string) bool {
	return slices.Contains(list, "*") || slices.Contains(list, what)
}

// compact joins single rules that differ in their verbs only.
func compact(rules []rbacv1.PolicyRule) (out []rbacv1.PolicyRule) {
	at := map[namedTarget]int{}
	for _, rule := range rules {
		if len(rule.NonResourceURLs) > 0 {
			out = append(out, rule)
			continue
		}
		k := namedTarget{target: target{rule.APIGroups[0], rule.Resources[0]}}
		if len(rule.ResourceNames) > 0 {
			k.name = "/" + rule.ResourceNames[0] // unlike no name at all
		}
		if i, ok := at[k]; ok {
			out[i].Verbs = append(slices.Clip(out[i].Verbs), rule.Verbs...)
			continue
		}
		at[k] = len(out)
		out = append(out, rule)
	}
	return out
}

// describe writes a rule as clients know it from this error.
func describe(r *rbacv1.PolicyRule) string {
	var parts []string
	for _, part := range []struct {
		name   string
		values []string
	}{
		{"APIGroups", r.APIGroups}, {"Resources", r.Resources}, {"NonResourceURLs", r.NonResourceURLs},
		{"ResourceNames", r.ResourceNames}, {"Verbs", r.Verbs},
	} {
		if len(part.values) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", part.name, part.values))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
