package resource

import "slices"

// ServedVerbs returns the verbs of a subresource, sorted. If Verbs is nil, they follow
// from whether the subresource is an Action, a Connect or a part of the object.
func (s *Subresource) ServedVerbs() []string {
	switch {
	case s.Verbs != nil:
		return slices.Sorted(slices.Values(s.Verbs))
	case s.Action != nil:
		return []string{"create"}
	case s.Connect != nil:
		return s.Connect.verbs()
	default:
		return []string{"get", "patch", "update"}
	}
}
