package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
)

// Named is an Authorizer with a name, which prefixes its reasons.
type Named struct {
	Name string
	Authorizer
	// Allowed and Denied count its decisions; nil counts nothing.
	Allowed, Denied measure.Series
}

func (n *Named) count(decision Decision) {
	series := n.Allowed
	if decision == Deny {
		series = n.Denied
	}
	if series != nil {
		series.Observe(1)
	}
}

// Union asks several authorizers in their order until one allows or denies.
type Union []Named

// NewUnion returns a Union. The names must be unique and not empty.
func NewUnion(authorizers ...Named) (Union, error) {
	seen := map[string]bool{}
	for _, a := range authorizers {
		switch {
		case a.Name == "":
			return nil, errors.New("an authorizer without a name cannot be part of a union")
		case seen[a.Name]:
			return nil, fmt.Errorf("two authorizers of a union have the name %q", a.Name)
		}
		seen[a.Name] = true
	}
	return authorizers, nil
}

// Authorize implements Authorizer. The reason is that of the authorizer that decides;
// if none does, the reasons of all are joined, each with its name.
func (u Union) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	return u.ask(ctx, a, nil)
}

// ask is Authorize. If note is not nil, it is called with what each authorizer said, and
// the decision is not counted.
func (u Union) ask(ctx context.Context, a *Attributes, note func(*Named, Decision, string, error)) (Decision, string, error) {
	var (
		reasons []string
		errs    []error
	)
	for i := range u {
		decision, reason, err := u[i].Authorizer.Authorize(ctx, a)
		if note != nil {
			note(&u[i], decision, reason, err)
		}
		if decision != NoOpinion {
			if note == nil {
				u[i].count(decision)
			}
			return decision, reason, err
		}
		if err != nil {
			errs = append(errs, err)
		}
		if reason != "" {
			reasons = append(reasons, u[i].Name+": "+reason)
		}
	}
	return NoOpinion, strings.Join(reasons, "\n"), aggregate(errs)
}

// RulesFor implements Rules with the rules of those authorizers that implement it.
func (u Union) RulesFor(ctx context.Context, user *request.User, namespace string) (resources []ResourceRule, paths []PathRule, incomplete bool, err error) {
	var errs []error
	for i := range u {
		rules, ok := u[i].Authorizer.(Rules)
		if !ok {
			continue
		}
		r, p, part, err := rules.RulesFor(ctx, user, namespace)
		resources, paths = append(resources, r...), append(paths, p...)
		incomplete = incomplete || part
		if err != nil {
			errs = append(errs, err)
		}
	}
	return resources, paths, incomplete, aggregate(errs)
}

// aggregate joins errors with Kubernetes' text; nil if there are none.
func aggregate(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return utilerrors.NewAggregate(errs)
}
