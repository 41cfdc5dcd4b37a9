package resource

import "slices"

// ServedVerbs returns the verbs of a subresource, sorted: those that it names,
// or the usual ones of what it is.
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
