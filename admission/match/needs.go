package match

import "slices"

// Many policies differ in nothing but a name that they compare a field with. What
// is in the field is looked up once for all of them: who needs it to be something
// else is not about the write, and nothing more is asked of it.

// Needs are what has to hold for something to be about a write, besides its
// criteria.
type Needs struct {
	// All of them have to hold; what is not known does not count.
	All []Need
	// Excluded is told when one does not hold.
	Excluded func(w *Write)
}

// Need is that what is found at the end of a path is one of some values.
type Need struct {
	// Path tells what is found from what others find.
	Path string
	// Find returns what is there; it may not be known.
	Find func(w *Write, form *Form) (value string, known bool)
	Is   []string
	// Not: it has to be none of them.
	Not bool
}

// need is a Need of a path that is shared.
type need struct {
	path int
	one  string
	more []string
	not  bool
}

func (n *need) holds(value string) bool {
	return (value == n.one || len(n.more) > 0 && slices.Contains(n.more, value)) != n.not
}

// path is what is looked at in a form.
type path struct {
	name string
	form int
	find func(w *Write, form *Form) (string, bool)
}

// look notes the paths of needs.
func (f *Found[T]) look(form int, all []Need) []need {
	var out []need
	for _, n := range all {
		if len(n.Is) == 0 {
			continue
		}
		i := slices.IndexFunc(f.paths, func(p path) bool { return p.name == n.Path && p.form == form })
		if i < 0 {
			i = len(f.paths)
			f.paths = append(f.paths, path{n.Path, form, n.Find})
		}
		out = append(out, need{path: i, one: n.Is[0], more: n.Is[1:], not: n.Not})
	}
	return out
}

// Sieve passes over candidates for a write whose needs do not hold.
type Sieve[T any] struct {
	found   *Found[T]
	w       *Write
	values  []looked // by path
	changes int      // of the write, when they were looked at
}

type looked struct {
	value       string
	done, known bool
}

// Sieve returns a sieve for a write.
func (f *Found[T]) Sieve(w *Write) Sieve[T] { return Sieve[T]{found: f, w: w} }

// Excludes reports whether a candidate, by its place, is known not to be about
// the write as it is now.
func (s *Sieve[T]) Excludes(i int) bool {
	c := &s.found.Candidates[i]
	for j := range c.needs {
		n := &c.needs[j]
		if v := s.look(n.path); v.known && !n.holds(v.value) {
			c.excluded(s.w)
			return true
		}
	}
	return false
}

func (s *Sieve[T]) look(i int) *looked {
	if s.values == nil {
		s.values = make([]looked, len(s.found.paths))
	}
	if s.changes != s.w.changes {
		clear(s.values)
		s.changes = s.w.changes
	}
	v := &s.values[i]
	if !v.done {
		p := &s.found.paths[i]
		v.done = true
		v.value, v.known = p.find(s.w, s.w.forms()[p.form])
	}
	return v
}
