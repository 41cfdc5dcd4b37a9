// Package impersonate is the stage that lets a request go on in the name of another
// user, if the one who asks may do that. Start at Stage. It decides nothing by itself:
// it asks an authorizer for rights.
//
// There are several ways to be allowed it, the modes. All but the last are
// constrained: one right says whom one may impersonate (impersonate:<mode>), and a
// second what one may do then (impersonate-on:<mode>:<verb>). The last is the
// right to impersonate, whatever for. The mode by which a user succeeded last is
// tried first, and what it finds missing is what the client is told.
package impersonate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/lru"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
)

const (
	// rememberedModes is of how many users it is known how they impersonate.
	rememberedModes = 10_000
	// manyChecks is from how many values on it is worth asking first whether a
	// user may impersonate all.
	manyChecks = 4

	nodeNameExtra = "authentication.kubernetes.io/node-name"
	nodeKeysExtra = "authentication.kubernetes.io/associated-node-keys"
)

// Metrics counts attempts, and the checks that they make; took is how long each was.
type Metrics interface {
	Impersonated(mode string, allowed bool, took time.Duration)
	ImpersonationChecked(mode string, allowed bool, took time.Duration)
}

// Stage judges who wants to be somebody else.
type Stage struct {
	// OnlyUnconstrained makes the right to impersonate whatever for the only one that
	// counts.
	OnlyUnconstrained bool

	authorizer authz.Authorizer
	metrics    Metrics    // nil counts nothing
	lastModes  *lru.Cache // by the name of a user, the mode by which it last succeeded
}

// New returns a stage that asks an authorizer; nil allows everything. Metrics may be
// nil.
func New(authorizer authz.Authorizer, metrics Metrics) *Stage {
	if authorizer == nil {
		authorizer = authz.AlwaysAllow{}
	}
	return &Stage{authorizer: authorizer, metrics: metrics, lastModes: lru.New(rememberedModes)}
}

// Result is whom a request goes on as.
type Result struct {
	User request.User
	// Wanted is the user that the headers name, without what belongs to it.
	Wanted *request.User
	// Constraint is the verb of the right that allowed it, "" if it was the right to
	// impersonate whatever for.
	Constraint string
	// Took is how long it took to decide.
	Took time.Duration
}

// Judge decides about a request with headers and attributes, those of the user who
// asks. It returns nil if the headers want nobody. If they want somebody, they are
// gone afterwards: nobody further on should behave differently because of them.
func (s *Stage) Judge(ctx context.Context, h http.Header, attributes func() *authz.Attributes) (*Result, *apierrors.StatusError) {
	wanted, err := s.impersonated(h)
	if err != nil || wanted == nil {
		return nil, err
	}
	i := impersonation{authorizer: s.authorizer, metrics: s.metrics, wanted: wanted, attributes: attributes()}
	last := -1
	if mode, ok := s.lastModes.Get(i.attributes.User.Name); ok {
		last = mode.(int)
	}
	began := time.Now()
	if s.OnlyUnconstrained {
		i.first, last = unconstrained, -1
	}
	user, mode, err := i.try(ctx, last)
	took := time.Since(began)
	if err != nil {
		i.attempted("", false, took)
		return &Result{Took: took}, err
	}
	i.attempted(modeLabel(mode), true, took)
	s.lastModes.Add(i.attributes.User.Name, mode)
	r := &Result{User: *user, Wanted: wanted, Took: took}
	if mode != unconstrained {
		r.Constraint = "impersonate:" + modeNames()[mode]
	}
	return r, nil
}

// impersonated returns whom the headers want to be, as they say it, nil if
// nobody. If somebody, the headers are gone afterwards: nobody further on should
// behave differently because of them.
func (s *Stage) impersonated(h http.Header) (*request.User, *apierrors.StatusError) {
	user := request.User{
		Name:   h.Get(authenticationv1.ImpersonateUserHeader),
		UID:    h.Get(authenticationv1.ImpersonateUIDHeader),
		Groups: slices.Clone(h[authenticationv1.ImpersonateGroupHeader]),
	}
	hasExtra := false
	for name, values := range h {
		if len(name) == 0 || name[0] != 'I' || !strings.HasPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix) {
			continue
		}
		hasExtra = true
		if len(values) == 0 {
			continue
		}
		key := strings.ToLower(name[len(authenticationv1.ImpersonateUserExtraHeaderPrefix):])
		if plain, err := url.PathUnescape(key); err == nil {
			key = plain
		}
		if user.Extra == nil {
			user.Extra = map[string][]string{}
		}
		user.Extra[key] = append(user.Extra[key], values...)
	}
	if user.Name == "" {
		if user.UID != "" || len(user.Groups) > 0 || hasExtra {
			if s.OnlyUnconstrained {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("requested %v without impersonating a user", references(&user)))
			}
			return nil, apierrors.NewBadRequest(fmt.Sprintf(
				"requested &user.DefaultInfo{Name:%#v, UID:%#v, Groups:%#v, Extra:%#v} without impersonating a user name",
				user.Name, user.UID, user.Groups, user.Extra))
		}
		return nil, nil
	}
	for name := range h {
		switch name {
		case authenticationv1.ImpersonateUserHeader, authenticationv1.ImpersonateUIDHeader, authenticationv1.ImpersonateGroupHeader:
			delete(h, name)
		default:
			if strings.HasPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix) {
				delete(h, name)
			}
		}
	}
	return &user, nil
}

// references returns what is wanted of a user without a name, as an error lists it.
func references(u *request.User) []corev1.ObjectReference {
	const version = "authentication.k8s.io/v1"
	var out []corev1.ObjectReference
	for _, group := range u.Groups {
		out = append(out, corev1.ObjectReference{Kind: "Group", Name: group})
	}
	for _, key := range slices.Sorted(maps.Keys(u.Extra)) {
		for _, value := range u.Extra[key] {
			out = append(out, corev1.ObjectReference{Kind: "UserExtra", APIVersion: version, Name: value, FieldPath: key})
		}
	}
	if u.UID != "" {
		out = append(out, corev1.ObjectReference{Kind: "UID", APIVersion: version, Name: u.UID})
	}
	return out
}

// impersonation is one attempt of somebody to be somebody else.
type impersonation struct {
	authorizer authz.Authorizer
	metrics    Metrics // nil counts nothing
	wanted     *request.User
	// attributes of the request, with the user who asks.
	attributes *authz.Attributes
	first      int // mode that is tried
}

// The modes, in the order in which they are tried.
const (
	associatedNode = iota // a service account, the node that its pod is on
	arbitraryNode
	anyServiceAccount
	userInfo
	unconstrained
)

// modeNames are in the verbs.
func modeNames() []string {
	return []string{"associated-node", "arbitrary-node", "serviceaccount", "user-info", ""}
}

// modeLabel is what metrics call a mode.
func modeLabel(mode int) string { return cmp.Or(modeNames()[mode], "legacy") }

func (i *impersonation) attempted(mode string, allowed bool, took time.Duration) {
	if i.metrics != nil {
		i.metrics.Impersonated(mode, allowed, took)
	}
}

// try tries the modes, and returns the user with all that belongs to it, and
// the mode that allows it. The error is that of the first mode that does not.
func (i *impersonation) try(ctx context.Context, last int) (*request.User, int, *apierrors.StatusError) {
	order := make([]int, 0, unconstrained+1)
	if last >= 0 {
		order = append(order, last)
	}
	for mode := i.first; mode <= unconstrained; mode++ {
		if mode != last {
			order = append(order, mode)
		}
	}
	var first *apierrors.StatusError
	for _, mode := range order {
		if !i.fits(mode) {
			continue
		}
		user, err := i.check(ctx, mode)
		if err == nil {
			return user, mode, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, 0, first
}

// fits reports whether a mode is about the user wanted. Where the server knows
// what belongs to a user, only the name can be wanted.
func (i *impersonation) fits(mode int) bool {
	w := i.wanted
	onlyName := w.UID == "" && len(w.Groups) == 0 && len(w.Extra) == 0
	node, isNode := nodeUser(w.Name)
	_, _, isAccount := serviceAccountUser(w.Name)
	switch mode {
	case associatedNode:
		_, _, fromAccount := serviceAccountUser(i.attributes.User.Name)
		on := i.attributes.User.Extra[nodeNameExtra]
		return onlyName && isNode && fromAccount && len(on) == 1 && on[0] == node
	case arbitraryNode:
		return onlyName && isNode
	case anyServiceAccount:
		return onlyName && isAccount
	case userInfo:
		return !isNode && !isAccount
	}
	return true
}

// check asks for all the rights that a mode needs.
func (i *impersonation) check(ctx context.Context, mode int) (*request.User, *apierrors.StatusError) {
	name := modeNames()[mode]
	requestor := i.attributes.User
	if mode == associatedNode {
		// What is asked must not depend on the node, which has been compared: a
		// right to this holds for all nodes.
		stripped := *requestor
		stripped.Extra = map[string][]string{nodeKeysExtra: slices.Sorted(maps.Keys(requestor.Extra))}
		requestor = &stripped
	}
	verb, group := "impersonate", ""
	if mode != unconstrained {
		on := *i.attributes
		on.User, on.Verb = requestor, "impersonate-on:"+name+":"+on.Verb
		if err := i.allowed(ctx, mode, &on); err != nil {
			return nil, err
		}
		verb, group = "impersonate:"+name, authenticationv1.GroupName
	}
	c := check{i, ctx, mode, authz.Attributes{User: requestor, Verb: verb, IsResource: true, Version: "v1"}}
	user := *i.wanted
	for _, step := range []func() *apierrors.StatusError{
		func() *apierrors.StatusError { return c.name(group, &user) },
		c.uid,
		func() *apierrors.StatusError { return c.groups(group) },
		c.extra,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	always := authz.Authenticated
	if user.Name == authz.Anonymous {
		always = authz.Unauthenticated
	}
	if !slices.Contains(user.Groups, always) && !slices.Contains(user.Groups, authz.Unauthenticated) {
		user.Groups = append(slices.Clip(user.Groups), always)
	}
	return &user, nil
}

// allowed asks for one right.
func (i *impersonation) allowed(ctx context.Context, mode int, a *authz.Attributes) *apierrors.StatusError {
	began := time.Now()
	decision, reason, err := i.authorizer.Authorize(ctx, a)
	if i.metrics != nil {
		i.metrics.ImpersonationChecked(modeLabel(mode), decision == authz.Allow, time.Since(began))
	}
	switch {
	case decision == authz.Allow:
		return nil
	case err != nil && reason != "":
		reason = err.Error() + ": " + reason
	case err != nil:
		reason = err.Error()
	}
	return authz.Forbidden(a, reason)
}

// check is the check of one mode: whether one may be this user.
type check struct {
	*impersonation
	ctx  context.Context
	mode int
	base authz.Attributes
}

// may asks for the right to impersonate one thing.
func (c *check) may(group, resource, subresource, name string) *apierrors.StatusError {
	return c.allowed(c.ctx, c.mode, c.about(group, resource, subresource, name))
}

func (c *check) about(group, resource, subresource, name string) *authz.Attributes {
	a := c.base
	a.Group, a.Resource, a.Subresource, a.Name = group, resource, subresource, name
	return &a
}

// name checks the name of the user, and adds the groups that belong to it.
func (c *check) name(group string, user *request.User) *apierrors.StatusError {
	if node, ok := nodeUser(user.Name); ok && c.mode != unconstrained {
		user.Groups = []string{authz.Nodes}
		if c.mode == associatedNode {
			node = "*"
		}
		return c.may(group, "nodes", "", node)
	}
	namespace, account, ok := serviceAccountUser(user.Name)
	if !ok {
		return c.may(group, "users", "", user.Name)
	}
	if len(user.Groups) == 0 {
		user.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
	}
	a := c.about(group, "serviceaccounts", "", account)
	a.Namespace = namespace
	return c.allowed(c.ctx, c.mode, a)
}

func (c *check) uid() *apierrors.StatusError {
	if c.wanted.UID == "" {
		return nil
	}
	return c.may(authenticationv1.GroupName, "uids", "", c.wanted.UID)
}

func (c *check) groups(group string) *apierrors.StatusError {
	groups := c.wanted.Groups
	if c.mode != unconstrained {
		switch {
		case slices.Contains(groups, ""):
			return authz.Forbidden(c.about(group, "groups", "", ""), "impersonating the empty string group is not allowed")
		case slices.Contains(groups, authz.Masters):
			return authz.Forbidden(c.about(group, "groups", "", authz.Masters), "impersonating the system:masters group is not allowed")
		case len(groups) >= manyChecks && c.may(group, "groups", "", "*") == nil:
			return nil
		}
	}
	for _, name := range groups {
		if err := c.may(group, "groups", "", name); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) extra() *apierrors.StatusError {
	const group, resource = authenticationv1.GroupName, "userextras"
	extra := c.wanted.Extra
	keys := slices.Sorted(maps.Keys(extra))
	if c.mode != unconstrained && len(extra) > 0 {
		values := 0
		for _, key := range keys {
			if problem := extraProblem(key, extra[key]); problem != "" {
				return authz.Forbidden(c.about(group, resource, "", ""), problem)
			}
			values += len(extra[key])
		}
		if values >= manyChecks && c.may(group, resource, "*", "*") == nil {
			return nil
		}
	}
	for _, key := range keys {
		for _, value := range extra[key] {
			if err := c.may(group, resource, key, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// extraProblem says what is wrong with an extra that is to be impersonated.
func extraProblem(key string, values []string) string {
	if key == "" {
		return "impersonating the empty string key in extra is not allowed"
	}
	if err := utilvalidation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key).ToAggregate(); err != nil {
		return fmt.Sprintf("impersonating an invalid key in extra is not allowed: %v", err)
	}
	switch {
	case key != strings.ToLower(key):
		return fmt.Sprintf("impersonating a non-lowercase key in extra is not allowed: %q", key)
	case len(values) == 0:
		return "impersonating empty values in extra is not allowed"
	case slices.Contains(values, ""):
		return "impersonating the empty string value in extra is not allowed"
	}
	return ""
}

// nodeUser returns the node whose kubelet has a user name.
func nodeUser(user string) (node string, ok bool) {
	node, ok = strings.CutPrefix(user, authz.NodePrefix)
	return node, ok && len(validation.NameIsDNSSubdomain(node, false)) == 0
}

// serviceAccountUser returns the service account that has a user name.
func serviceAccountUser(user string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(user, authz.ServiceAccountPrefix)
	if !ok {
		return "", "", false
	}
	namespace, name, ok = strings.Cut(rest, ":")
	return namespace, name, ok &&
		len(validation.ValidateNamespaceName(namespace, false)) == 0 && len(validation.ValidateServiceAccountName(name, false)) == 0
}
