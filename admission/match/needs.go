package match

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/admission"
)

// Many policies differ in nothing but a name that they compare a field with. What
// is in the field is looked up once for all of them: who needs it to be something
// else is not about the write, and nothing more is asked of it.

// Needs are what has to hold for something to be about a write, besides its
// criteria.
type Needs struct {
	// All of them have to hold; what is not known does not count.
	All []Need
	// Excluded is told, a little later, of how many writes one did not hold.
	Excluded func(op admission.Operation, n int)
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

// row is what is looked at of a candidate for every write. The rows of all lie
// close together: a hundred of them are a few cache lines.
type row struct {
	needs
	passed uint32 // writes that the owner was not yet told of
}

// needs are the first, and all others if there are some.
type needs struct {
	first need
	more  *[]need
}

// need is a Need of a path that is shared.
type need struct {
	one  string
	more *[]string // besides one
	path int32
	is   wanted
}

type wanted uint8

const (
	anything wanted = iota
	oneOf
	noneOf
)

func (n *need) holds(value string) bool {
	is := value == n.one || n.more != nil && slices.Contains(*n.more, value)
	return is == (n.is == oneOf)
}

// path is what is looked at in a form.
type path struct {
	name string
	form int
	find func(w *Write, form *Form) (string, bool)
}

// row notes the paths of needs.
func (f *Found[T]) row(form int, all []Need) (r row) {
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
		known := need{path: int32(i), one: n.Is[0], is: oneOf}
		if rest := n.Is[1:]; len(rest) > 0 {
			known.more = &rest
		}
		if n.Not {
			known.is = noneOf
		}
		out = append(out, known)
	}
	if len(out) > 0 {
		r.first = out[0]
	}
	if len(out) > 1 {
		rest := out[1:]
		r.more = &rest
	}
	return r
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
	r := &s.found.rows[i]
	if r.first.is == anything || !s.fails(&r.first) && (r.more == nil || !slices.ContainsFunc(*r.more, func(n need) bool { return s.fails(&n) })) {
		return false
	}
	atomic.AddUint32(&r.passed, 1)
	if f := s.found; !f.telling.Load() && f.telling.CompareAndSwap(false, true) {
		op := s.w.Operation
		time.AfterFunc(tellAfter, func() { f.tell(op) })
	}
	return true
}

func (s *Sieve[T]) fails(n *need) bool {
	v := s.look(int(n.path))
	return v.known && !n.holds(v.value)
}

// tellAfter is how much later owners are told what they were excluded from: many
// at once cost less than each at its time.
const tellAfter = 100 * time.Millisecond

func (f *Found[T]) tell(op admission.Operation) {
	f.telling.Store(false)
	for i := range f.rows {
		if n := atomic.SwapUint32(&f.rows[i].passed, 0); n > 0 {
			f.Candidates[i].excluded(op, int(n))
		}
	}
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
