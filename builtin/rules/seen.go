package rules

import "slices"

// Seen is the values of a list so far, to find those that come again. The zero value has
// none.
type Seen[T comparable] struct {
	first [4]T // most lists have no more, and need no map
	n     int  // how many of first there are
	more  map[T]struct{}
}

// Again adds a value, and reports whether it was there.
func (s *Seen[T]) Again(value T) bool {
	if s.Has(value) {
		return true
	}
	if s.n < len(s.first) {
		s.first[s.n] = value
		s.n++
		return false
	}
	if s.more == nil {
		s.more = map[T]struct{}{}
	}
	s.more[value] = struct{}{}
	return false
}

// Has reports whether a value was there.
func (s *Seen[T]) Has(value T) bool {
	if slices.Contains(s.first[:s.n], value) {
		return true
	}
	_, ok := s.more[value]
	return ok
}

// Set returns the values of a list, by which it is asked often whether it has one.
func Set[E any, T comparable](list []E, value func(*E) T) map[T]struct{} {
	set := make(map[T]struct{}, len(list))
	for i := range list {
		set[value(&list[i])] = struct{}{}
	}
	return set
}
