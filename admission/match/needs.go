package match

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/admission"
)

// Many policies differ only in the string that they compare a field with. The field is read
// once for all of them; policies that need another value are skipped without evaluating
// anything else.

// Needs are conditions for an item to apply to a write, besides its criteria.
type Needs struct {
	// All must hold; a need whose value is not known is ignored.
	All []Need
	// Excluded is called, with some delay, with the number of writes that were skipped.
	Excluded func(op admission.Operation, n int)
}

// Need is the condition that the value at a path is one of some strings.
type Need struct {
	// Path identifies what Find reads; needs with equal paths share one read.
	Path string
	// Find returns the value; known is false if it cannot be read.
	Find func(w *Write, form *Form) (value string, known bool)
	Is   []string
	// Not inverts the condition: the value must be none of them.
	Not bool
}

// row is what is read of a candidate for every write. Rows are compact: a hundred of them
// are a few cache lines.
type row struct {
	needs
	passed uint32 // skipped writes not yet reported to Excluded
}

// needs is the first need inline, and further ones behind a pointer.
type needs struct {
	first need
	more  *[]need
}

// need is a Need with its path as an index into Found.paths.
type need struct {
	one  string
	more *[]string // further values
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

// path is what is read from a form.
type path struct {
	name string
	form int
	find func(w *Write, form *Form) (string, bool)
}

// row makes the row of a candidate, and adds the paths of its needs.
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

// Sieve skips candidates for a write whose needs do not hold.
type Sieve[T any] struct {
	found   *Found[T]
	w       *Write
	values  []looked // by path
	changes int      // Write.Changes when values were read
}

type looked struct {
	value       string
	done, known bool
}

// Sieve returns a sieve for a write.
func (f *Found[T]) Sieve(w *Write) Sieve[T] { return Sieve[T]{found: f, w: w} }

// Excludes reports whether the candidate at index i surely does not apply to the write as it
// is now.
func (s *Sieve[T]) Excludes(i int) bool {
	r := &s.found.rows[i]
	if r.first.is == anything || !s.fails(&r.first) && (r.more == nil || !slices.ContainsFunc(*r.more, func(n need) bool { return s.fails(&n) })) {
		return false
	}
	atomic.AddUint32(&r.passed, 1)
	if f := s.found; !f.telling.Load() && f.telling.CompareAndSwap(false, true) {
		op := s.w.Operation
		time.AfterFunc(reportDelay, func() { f.tell(op) })
	}
	return true
}

func (s *Sieve[T]) fails(n *need) bool {
	v := s.look(int(n.path))
	return v.known && !n.holds(v.value)
}

// reportDelay is the delay before Excluded is called, so that many writes are reported at once.
const reportDelay = 100 * time.Millisecond

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
