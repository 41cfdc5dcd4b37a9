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

// This file prevents privilege escalation when roles and bindings are written.

// Guard prevents users from granting permissions that they do not have. Allowed are:
// members of system:masters; users with the verb escalate on a role, who may write it;
// users with the verb bind on a role, who may bind it. All others must have every
// permission that they grant.
type Guard struct {
	// Authorizer decides about the verbs escalate and bind.
	Authorizer authz.Authorizer
	// Roles returns the rules of the user, and those of the role to be bound.
	Roles *Authorizer
}

// Check returns an error if the user of the request may not write obj, a role or
// binding of one of the four kinds. old is nil on create. Deletions, and updates that
// change only what the garbage collector changes, need no check.
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
		return g.checkGrants(ctx, req, "roles", obj.Name, obj.Rules)
	case *rbacv1.ClusterRole:
		if g.mayEscalate(ctx, req) {
			return nil
		}
		if err := g.checkGrants(ctx, req, "clusterroles", obj.Name, obj.Rules); err != nil {
			return err
		}
		before, _ := old.(*rbacv1.ClusterRole)
		if !aggregates(obj) && !aggregates(before) {
			return nil
		}
		// An aggregated role can get any rule, so writing one takes all permissions.
		if g.checkGrants(ctx, req, "clusterroles", obj.Name, allRules()) != nil {
			return forbidden("clusterroles", obj.Name, errors.New("must have cluster-admin privileges to use the aggregationRule"))
		}
		return nil
	case *rbacv1.RoleBinding:
		return g.checkBinding(ctx, req, "rolebindings", obj.Name, req.Namespace, obj.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		return g.checkBinding(ctx, req, "clusterrolebindings", obj.Name, "", obj.RoleRef)
	}
	return fmt.Errorf("%T is neither a role nor a binding", obj)
}

func aggregates(r *rbacv1.ClusterRole) bool {
	return r != nil && r.AggregationRule != nil && len(r.AggregationRule.ClusterRoleSelectors) > 0
}

// allRules returns rules for all permissions.
func allRules() []rbacv1.PolicyRule {
	all := []string{"*"}
	return []rbacv1.PolicyRule{{Verbs: all, APIGroups: all, Resources: all}, {Verbs: all, NonResourceURLs: all}}
}

func forbidden(resource, name string, err error) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, name, err)
}

// mayEscalate reports whether the request writes a role and the user has the verb
// escalate on it.
func (g *Guard) mayEscalate(ctx context.Context, req *request.Request) bool {
	if !req.IsResource || req.Group != rbacv1.GroupName || req.Resource != "roles" && req.Resource != "clusterroles" {
		return false
	}
	name := req.Name
	if req.Verb == request.Create {
		name = "" // the path of a create has no name
	}
	return g.allowed(ctx, &authz.Attributes{
		User: &req.User, Verb: "escalate", IsResource: true,
		Group: req.Group, Version: "*", Resource: req.Resource, Name: name, Namespace: req.Namespace,
	})
}

// checkBinding checks that the user may bind the role of a binding.
func (g *Guard) checkBinding(ctx context.Context, req *request.Request, resource, name, namespace string, ref rbacv1.RoleRef) error {
	kinds := map[string]string{"Role": "roles", "ClusterRole": "clusterroles"}
	if plural := kinds[ref.Kind]; plural != "" && g.allowed(ctx, &authz.Attributes{
		User: &req.User, Verb: "bind", IsResource: true,
		Group: ref.APIGroup, Version: "*", Resource: plural, Name: ref.Name, Namespace: namespace,
	}) {
		return nil
	}
	if kinds[ref.Kind] != "" && ref.Name == "" {
		return apierrors.NewBadRequest("Name parameter required.")
	}
	rules, err := g.Roles.RoleRules(ctx, ref, namespace)
	if apierrors.IsNotFound(err) {
		// kube-apiserver's error names the resource of the request.
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, ref.Name)
	}
	if err != nil {
		return err
	}
	return g.checkGrants(ctx, req, resource, name, rules)
}

func (g *Guard) allowed(ctx context.Context, a *authz.Attributes) bool {
	if g.Authorizer == nil {
		return false
	}
	decision, _, _ := g.Authorizer.Authorize(ctx, a)
	return decision == authz.Allow
}

// checkGrants checks that the user has all of the rules in the namespace of the request.
func (g *Guard) checkGrants(ctx context.Context, req *request.Request, resource, name string, rules []rbacv1.PolicyRule) error {
	has, err := g.Roles.PolicyRules(ctx, &req.User, req.Namespace)
	missing := Uncovered(has, rules)
	if len(missing) == 0 {
		return nil
	}
	var lines []string
	for _, rule := range mergeVerbs(missing) {
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

// Uncovered returns the permissions of wanted that has does not include, each as a rule
// of its own.
func Uncovered(has, wanted []rbacv1.PolicyRule) (missing []rbacv1.PolicyRule) {
	for i := range wanted {
		for _, single := range splitRule(&wanted[i]) {
			if !slices.ContainsFunc(has, func(rule rbacv1.PolicyRule) bool { return covers(&rule, &single) }) {
				missing = append(missing, single)
			}
		}
	}
	return missing
}

// splitRule splits a rule into rules with one verb and one resource or path each.
func splitRule(rule *rbacv1.PolicyRule) (out []rbacv1.PolicyRule) {
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

// covers reports whether a rule includes a single rule.
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

// contains reports whether a list contains an item or "*".
func contains(list []string, what string) bool {
	return slices.Contains(list, "*") || slices.Contains(list, what)
}

// mergeVerbs merges single rules that differ only in their verbs.
func mergeVerbs(rules []rbacv1.PolicyRule) (out []rbacv1.PolicyRule) {
	at := map[namedTarget]int{}
	for _, rule := range rules {
		if len(rule.NonResourceURLs) > 0 {
			out = append(out, rule)
			continue
		}
		k := namedTarget{target: target{rule.APIGroups[0], rule.Resources[0]}}
		if len(rule.ResourceNames) > 0 {
			k.name = "/" + rule.ResourceNames[0] // distinct from a rule without names
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

// describe formats a rule as kube-apiserver does in this error.
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
