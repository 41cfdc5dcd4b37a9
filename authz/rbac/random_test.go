package rbac

import (
	"math/rand/v2"

	rbacv1 "k8s.io/api/rbac/v1"
)

// random makes rules out of few words, so that they meet often.
type random struct{ *rand.Rand }

func (r random) pick(from ...string) string { return from[r.IntN(len(from))] }

// some returns one or two words.
func (r random) some(from ...string) (out []string) {
	for range 1 + r.IntN(2) {
		out = append(out, r.pick(from...))
	}
	return out
}

// rule returns a rule for resources or for paths, also one that no request can match: an
// empty name, and a star that is not at the end.
func (r random) rule() rbacv1.PolicyRule {
	verbs := r.some("get", "list", "create", "*")
	if r.IntN(4) == 0 {
		return rbacv1.PolicyRule{Verbs: verbs, NonResourceURLs: r.some("/a", "/a/*", "/a/b", "/ab*", "*", "/a/**")}
	}
	rule := rbacv1.PolicyRule{Verbs: verbs, APIGroups: r.some("", "apps", "*"), Resources: r.some("pods", "pods/log", "*/log", "*", "nodes", "pods/*")}
	if r.IntN(2) == 0 {
		rule.ResourceNames = r.some("x", "y", "")
	}
	return rule
}
