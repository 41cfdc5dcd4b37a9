// Package gate carries the feature gates that are switched against their defaults
// to the rules of the kinds that obey them.
package gate

import "context"

// Set has the gates that are not as they are by default.
type Set map[string]bool

// On reports whether a gate was switched on.
func (s Set) On(name string) bool { return s[name] }

// Off reports whether a gate was switched off.
func (s Set) Off(name string) bool {
	on, given := s[name]
	return given && !on
}

type contextKey struct{}

// With returns a context that carries the gates.
func With(ctx context.Context, s Set) context.Context {
	return context.WithValue(ctx, contextKey{}, s)
}

// From returns the gates that a context carries.
func From(ctx context.Context) Set {
	s, _ := ctx.Value(contextKey{}).(Set)
	return s
}
