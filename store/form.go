package store

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// DefaultFormBytes is how many bytes of encodings a store keeps.
const DefaultFormBytes = 96 << 20

// FormID names a way to encode records of a resource. Those who encode give
// out the numbers.
type FormID int

// forms is the encodings of a record that somebody has asked for.
type forms struct {
	first  atomic.Pointer[form]
	used   atomic.Bool // since the last sweep
	note   atomic.Uint64
	budget *formBudget
}

// form is one encoding, in a list of those that the record has.
type form struct {
	id    FormID
	bytes []byte
	size  int // of what is kept for it
	next  *form
}

// Form returns the encoding of the record that make makes, which is called at
// most a few times however many ask, as long as there is room to keep it. The
// bytes are shared: do not change them.
func (r *Record) Form(id FormID, make func(*Record) ([]byte, error)) ([]byte, error) {
	return r.form(id, make, true)
}

// Note returns what SetNote was called with, 0 if it was not.
func (r *Record) Note() uint64 {
	if r.forms == nil {
		return 0
	}
	return r.forms.note.Load()
}

// SetNote keeps a word with the record: something about its bytes that those who
// encode it have found out, and can find out again.
func (r *Record) SetNote(note uint64) {
	if r.forms != nil {
		r.forms.note.Store(note)
	}
}

// Has reports whether an encoding is there already.
func (r *Record) Has(id FormID) bool { return r.forms != nil && r.forms.find(id) != nil }

// Find returns an encoding that is there already, nil if it is not.
func (r *Record) Find(id FormID) []byte {
	if r.forms != nil {
		if f := r.forms.find(id); f != nil {
			return f.bytes
		}
	}
	return nil
}

// Part is Form for bytes that are a part of another form, or of what is stored.
func (r *Record) Part(id FormID, make func(*Record) ([]byte, error)) ([]byte, error) {
	return r.form(id, make, false)
}

func (r *Record) form(id FormID, make func(*Record) ([]byte, error), own bool) ([]byte, error) {
	if r.forms == nil {
		r.forms = &forms{}
	}
	if f := r.forms.find(id); f != nil {
		return f.bytes, nil
	}
	b, err := make(r)
	if err != nil {
		return nil, err
	}
	const overhead = 64
	added := &form{id: id, bytes: b, size: overhead}
	if own {
		added.size += cap(b)
	}
	return r.forms.add(added), nil
}

func (fs *forms) find(id FormID) *form {
	for f := fs.first.Load(); f != nil; f = f.next {
		if f.id == id {
			if !fs.used.Load() {
				fs.used.Store(true)
			}
			return f
		}
	}
	return nil
}

// add keeps a form and returns its bytes, or those of one that somebody else
// has added meanwhile.
func (fs *forms) add(f *form) []byte {
	for {
		f.next = fs.first.Load()
		for other := f.next; other != nil; other = other.next {
			if other.id == f.id {
				return other.bytes
			}
		}
		if fs.first.CompareAndSwap(f.next, f) {
			break
		}
	}
	if fs.budget != nil {
		fs.budget.spend(int64(f.size))
	}
	return f.bytes
}

// formBudget bounds what the forms of a store take. When it is spent, those go
// that nobody has used since the last time, and if that is not enough, some of
// the others: a list of more than there is room for must not grow the memory
// by its size.
type formBudget struct {
	limit    int64
	spent    atomic.Int64
	sweeping sync.Mutex
	// each calls f for the forms of all records.
	each func(f func(*forms))
}

func (b *formBudget) spend(n int64) {
	// Who comes while another one sweeps leaves it to that one, who looks again; but not
	// for ever, if others add as fast.
	for try := 0; try < maxSweeps && b.spent.Add(n) > b.limit && b.sweeping.TryLock(); try++ {
		n = 0
		b.makeRoom()
		b.sweeping.Unlock()
	}
}

// maxSweeps is how often one who adds a form sweeps for it.
const maxSweeps = 8

func (b *formBudget) makeRoom() {
	before := b.spent.Load()
	kept := b.sweep(func(fs *forms) bool { return fs.used.Swap(false) })
	if kept > b.limit/4*3 {
		kept = b.sweep(func(*forms) bool { return rand.IntN(2) == 0 })
	}
	// What came meanwhile stays counted. Forms of records that are only in the
	// log of events are not counted any more: the log has a bound of its own.
	b.spent.Add(kept - before)
}

// sweep drops the forms that are not to be kept and returns the size of the
// others.
func (b *formBudget) sweep(keep func(*forms) bool) (kept int64) {
	b.each(func(fs *forms) {
		first := fs.first.Load()
		if first == nil {
			return
		}
		if !keep(fs) {
			fs.first.Store(nil)
			return
		}
		for f := first; f != nil; f = f.next {
			kept += int64(f.size)
		}
	})
	return kept
}

// eachForms calls f for the forms of all records in the caches.
func (s *Store) eachForms(f func(*forms)) {
	s.mu.Lock()
	resources := make([]*Resource, 0, len(s.resources))
	for _, r := range s.resources {
		resources = append(resources, r)
	}
	s.mu.Unlock()
	for _, r := range resources {
		if s := r.snap(); s != nil {
			s.Range(r.prefix, "", func(rec *Record) bool {
				f(rec.forms)
				return true
			})
		}
	}
}
