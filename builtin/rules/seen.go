package rules

// Seen is the values of a list so far, to find those that come again. The zero value has
// none.
type Seen[T comparable] struct{ values map[T]struct{} }

// Again adds a value, and reports whether it was there.
func (s *Seen[T]) Again(value T) bool {
	if _, ok := s.values[value]; ok {
		return true
	}
	if s.values == nil {
		s.values = map[T]struct{}{}
	}
	s.values[value] = struct{}{}
	return false
}

// Set returns the values of a list, by which it is asked often whether it has one.
func Set[E any, T comparable](list []E, value func(*E) T) map[T]struct{} {
	set := make(map[T]struct{}, len(list))
	for i := range list {
		set[value(&list[i])] = struct{}{}
	}
	return set
}
