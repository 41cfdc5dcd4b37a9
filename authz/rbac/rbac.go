// Package rbac is the RBAC authorizer: it decides by roles and role bindings. Start at
// Authorizer and table; Guard (escalation.go) checks writes of roles. It only allows:
// what no binding allows, it has no opinion about.
//
// # The index
//
// A decision looks up the user and each of the user's groups, once for the whole
// cluster and once for the namespace. The result of a lookup is a table (table.go) of
// everything that this subject is allowed there, by resource, name and verb. So the
// cost depends on how many groups the user has, not on how many roles and bindings
// there are. A table is built on first use, and again after a role or binding that it
// was built from has changed.
//
// # Freshness
//
// Roles and bindings come from a resource.Follower. Every decision asks it, at the cost of
// a few atomic loads, whether there are changes, and applies them first. So a change is
// effective for every request that begins after this server has acknowledged it.
//
// A change that another server on the same store has acknowledged is effective when its
// event arrives, as a rule within milliseconds. What it grants is effective at once:
// before a request is not allowed, Authorizer.Newest waits for those events. What it
// revokes is not: every request would have to ask the store. A client that must be sure
// reads the role or binding through this server first.
package rbac

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Authorizer implements authz.Authorizer with roles and bindings. mu guards the maps.
type Authorizer struct {
	// Newest, unless it is nil, waits until the source has the changes that other
	// servers have acknowledged by now. It is called before a request is not allowed.
	Newest func(ctx context.Context) error

	source resource.Follower

	mu sync.RWMutex
	// roles is by namespace and name; cluster roles have no namespace.
	roles    map[key]*role
	bindings map[key]*binding
	subjects map[subject]*grants
}

// key identifies a role or a binding.
type key struct{ namespace, name string }

// role is a role that exists or that a binding refers to.
type role struct {
	rules    []rbacv1.PolicyRule
	exists   bool
	bindings map[*binding]bool
}

// binding is a RoleBinding, or, if the namespace is empty, a ClusterRoleBinding.
type binding struct {
	key
	ref      rbacv1.RoleRef
	subjects []rbacv1.Subject
	// reasons has the text of a decision for each subject, created on first use.
	reasons []atomic.Pointer[string]
}

// subject is a user or group in a namespace, or in the whole cluster. A service account
// is the user name that it authenticates with.
type subject struct {
	group     bool
	name      string
	namespace string
}

// grants are the bindings of a subject, sorted by name.
type grants struct {
	bindings []*binding
	table    atomic.Pointer[table] // built from bindings on first use
}

// New returns an authorizer that reads roles and bindings from a source.
func New(source resource.Follower) *Authorizer {
	a := &Authorizer{source: source}
	a.clear()
	return a
}

func (a *Authorizer) clear() {
	a.roles, a.bindings, a.subjects = map[key]*role{}, map[key]*binding{}, map[subject]*grants{}
}

// Authorize implements authz.Authorizer.
func (a *Authorizer) Authorize(ctx context.Context, at *authz.Attributes) (authz.Decision, string, error) {
	if at.User == nil {
		return authz.NoOpinion, "", nil
	}
	if err := a.catchUp(ctx); err != nil {
		return authz.NoOpinion, "", err
	}
	decision, reason, err := a.decide(at)
	if decision == authz.Allow || a.Newest == nil {
		return decision, reason, err
	}
	bounded, cancel := context.WithTimeout(ctx, newestWait)
	defer cancel()
	// If the store does not answer, the request is decided by what is known.
	if a.Newest(bounded) != nil || a.source.Current() {
		return decision, reason, err
	}
	if err := a.catchUp(ctx); err != nil {
		return authz.NoOpinion, "", err
	}
	return a.decide(at)
}

// newestWait bounds the wait for changes of other servers.
const newestWait = time.Second

// decide decides by the roles and bindings that are known.
func (a *Authorizer) decide(at *authz.Attributes) (authz.Decision, string, error) {
	q := newQuery(at)
	a.mu.RLock()
	defer a.mu.RUnlock()
	incomplete := false
	// Cluster-wide bindings come before those of the namespace.
	for _, namespace := range []string{"", at.Namespace} {
		for i := -1; i < len(at.User.Groups); i++ {
			g := a.subjects[subjectOf(at.User, i, namespace)]
			if g == nil {
				continue
			}
			t := a.tableOf(g)
			if b := t.allows(&q); b != nil {
				return authz.Allow, b.reason(at.User), nil
			}
			incomplete = incomplete || t.incomplete
		}
		if at.Namespace == "" {
			break
		}
	}
	if incomplete {
		_, err := a.rulesFor(at.User, at.Namespace)
		return authz.NoOpinion, fmt.Sprintf("RBAC: %v", err), nil
	}
	return authz.NoOpinion, "", nil
}

// RulesFor implements authz.Rules.
func (a *Authorizer) RulesFor(ctx context.Context, user *request.User, namespace string) (resources []authz.ResourceRule, paths []authz.PathRule, incomplete bool, err error) {
	rules, err := a.PolicyRules(ctx, user, namespace)
	for _, r := range rules {
		if len(r.Resources) > 0 {
			resources = append(resources, authz.ResourceRule{Verbs: r.Verbs, Groups: r.APIGroups, Resources: r.Resources, Names: r.ResourceNames})
		}
		if len(r.NonResourceURLs) > 0 {
			paths = append(paths, authz.PathRule{Verbs: r.Verbs, Paths: r.NonResourceURLs})
		}
	}
	return resources, paths, false, err
}

// PolicyRules returns the rules of a user in a namespace: cluster-wide ones first,
// sorted by the names of the bindings. The error is about bindings to roles that do not
// exist; the rules are valid all the same.
func (a *Authorizer) PolicyRules(ctx context.Context, user *request.User, namespace string) ([]rbacv1.PolicyRule, error) {
	if err := a.catchUp(ctx); err != nil {
		return nil, err
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.rulesFor(user, namespace)
}

// rulesFor is PolicyRules; the caller holds mu.
func (a *Authorizer) rulesFor(user *request.User, namespace string) (rules []rbacv1.PolicyRule, err error) {
	var errs []error
	scopes := []string{""}
	if namespace != "" {
		scopes = append(scopes, namespace)
	}
	for _, scope := range scopes {
		var found []*binding
		for i := -1; i < len(user.Groups); i++ {
			if g := a.subjects[subjectOf(user, i, scope)]; g != nil {
				found = append(found, g.bindings...)
			}
		}
		slices.SortFunc(found, byName)
		for _, b := range slices.Compact(found) {
			r, err := a.rulesOf(b.ref, b.namespace)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			rules = append(rules, r...)
		}
	}
	if len(errs) > 0 {
		err = problems.Join(errs)
	}
	return rules, err
}

// RoleRules returns the rules of the role that a binding in a namespace refers to.
func (a *Authorizer) RoleRules(ctx context.Context, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	if err := a.catchUp(ctx); err != nil {
		return nil, err
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.rulesOf(ref, namespace)
}

func (a *Authorizer) rulesOf(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	if k, ok := roleKey(ref, namespace); ok {
		if r := a.roles[k]; r != nil && r.exists {
			return r.rules, nil
		}
	} else if ref.Kind != "Role" {
		return nil, fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: strings.ToLower(ref.Kind)}, ref.Name)
}

// roleKey returns the key of the role that a binding in a namespace refers to.
func roleKey(ref rbacv1.RoleRef, namespace string) (key, bool) {
	switch ref.Kind {
	case "ClusterRole":
		return key{name: ref.Name}, true
	case "Role":
		// A ClusterRoleBinding cannot refer to a Role; without a namespace the key
		// would be that of a ClusterRole.
		return key{namespace: namespace, name: ref.Name}, namespace != ""
	}
	return key{}, false
}

// subjectOf returns the subject of the user (group -1) or of one of the user's groups.
func subjectOf(user *request.User, group int, namespace string) subject {
	if group < 0 {
		return subject{name: user.Name, namespace: namespace}
	}
	return subject{group: true, name: user.Groups[group], namespace: namespace}
}

func byName(a, b *binding) int { return strings.Compare(a.name, b.name) }

// catchUp applies the changes that the source has.
func (a *Authorizer) catchUp(ctx context.Context) error {
	if a.source.Current() {
		return nil
	}
	return a.source.Pull(ctx, func(reset bool, changes []resource.Change) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if reset {
			a.clear()
		}
		for i := range changes {
			a.apply(&changes[i])
		}
	})
}

// apply applies one change. The caller holds mu.
func (a *Authorizer) apply(c *resource.Change) {
	k := key{c.Object.GetNamespace(), c.Object.GetName()}
	switch obj := c.Object.(type) {
	case *rbacv1.Role:
		a.setRole(k, obj.Rules, !c.Deleted)
	case *rbacv1.ClusterRole:
		a.setRole(k, obj.Rules, !c.Deleted)
	case *rbacv1.RoleBinding:
		a.setBinding(k, obj.RoleRef, obj.Subjects, !c.Deleted)
	case *rbacv1.ClusterRoleBinding:
		a.setBinding(k, obj.RoleRef, obj.Subjects, !c.Deleted)
	}
}

func (a *Authorizer) setRole(k key, rules []rbacv1.PolicyRule, exists bool) {
	r := a.role(k)
	r.rules, r.exists = rules, exists
	if !exists {
		r.rules = nil
		a.dropUnused(k, r)
	}
	for b := range r.bindings {
		a.eachGrant(b, func(s subject, g *grants) { g.table.Store(nil) })
	}
}

func (a *Authorizer) setBinding(k key, ref rbacv1.RoleRef, subjects []rbacv1.Subject, exists bool) {
	if old := a.bindings[k]; old != nil {
		delete(a.bindings, k)
		if rk, ok := roleKey(old.ref, k.namespace); ok {
			r := a.roles[rk]
			delete(r.bindings, old)
			a.dropUnused(rk, r)
		}
		a.eachGrant(old, func(s subject, g *grants) {
			g.table.Store(nil)
			if g.bindings = slices.DeleteFunc(g.bindings, func(b *binding) bool { return b == old }); len(g.bindings) == 0 {
				delete(a.subjects, s)
			}
		})
	}
	if !exists {
		return
	}
	b := &binding{key: k, ref: ref, subjects: subjects, reasons: make([]atomic.Pointer[string], len(subjects))}
	a.bindings[k] = b
	if rk, ok := roleKey(ref, k.namespace); ok {
		a.role(rk).bindings[b] = true
	}
	for _, s := range subjects {
		id, ok := subjectOfBinding(&s, k.namespace)
		if !ok {
			continue
		}
		g := a.subjects[id]
		if g == nil {
			g = &grants{}
			a.subjects[id] = g
		}
		g.table.Store(nil)
		if at, found := slices.BinarySearchFunc(g.bindings, b, byName); !found {
			g.bindings = slices.Insert(g.bindings, at, b)
		}
	}
}

// role returns the entry of a role, which is created if the role does not exist yet.
func (a *Authorizer) role(k key) *role {
	r := a.roles[k]
	if r == nil {
		r = &role{bindings: map[*binding]bool{}}
		a.roles[k] = r
	}
	return r
}

// dropUnused removes a role that does not exist and that no binding refers to.
func (a *Authorizer) dropUnused(k key, r *role) {
	if !r.exists && len(r.bindings) == 0 {
		delete(a.roles, k)
	}
}

// eachGrant calls f for the grants of each subject of a binding.
func (a *Authorizer) eachGrant(b *binding, f func(subject, *grants)) {
	for i := range b.subjects {
		if id, ok := subjectOfBinding(&b.subjects[i], b.namespace); ok {
			if g := a.subjects[id]; g != nil {
				f(id, g)
			}
		}
	}
}

// subjectOfBinding converts a subject of a binding in a namespace.
func subjectOfBinding(s *rbacv1.Subject, namespace string) (subject, bool) {
	switch s.Kind {
	case rbacv1.UserKind:
		return subject{name: s.Name, namespace: namespace}, true
	case rbacv1.GroupKind:
		return subject{group: true, name: s.Name, namespace: namespace}, true
	case rbacv1.ServiceAccountKind:
		home := s.Namespace
		if home == "" {
			home = namespace
		}
		return subject{name: authz.ServiceAccountPrefix + home + ":" + s.Name, namespace: namespace}, home != ""
	}
	return subject{}, false
}

// reason returns the text of the decision: the first subject of the binding that
// matches the user.
func (b *binding) reason(user *request.User) string {
	i := b.subjectFor(user)
	if i < 0 {
		return ""
	}
	if text := b.reasons[i].Load(); text != nil {
		return *text
	}
	text := b.describe(&b.subjects[i])
	b.reasons[i].Store(&text)
	return text
}

func (b *binding) describe(s *rbacv1.Subject) string {
	kind, name, who := "ClusterRoleBinding", b.name, s.Name
	if b.namespace != "" {
		kind, name = "RoleBinding", b.name+"/"+b.namespace
	}
	if s.Kind == rbacv1.ServiceAccountKind {
		home := s.Namespace
		if home == "" {
			home = b.namespace
		}
		who += "/" + home
	}
	return fmt.Sprintf("RBAC: allowed by %s %q of %s %q to %s %q", kind, name, b.ref.Kind, b.ref.Name, s.Kind, who)
}
