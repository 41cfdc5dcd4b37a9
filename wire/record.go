package wire

import (
	"slices"
	"strings"
	"unique"

	"github.com/apikeel/kelson/resource"
)

// Record is one object as it was at one revision: the labels and fields that selectors
// look at, the stored bytes, which may be out of memory (ValueCache), and the encodings
// that somebody has asked for. Records are never changed, and shared by all who read
// them.
type Record struct {
	// Key in storage.
	Key string
	// Namespace is empty for objects of the cluster.
	Namespace, Name string
	// Revision of the write that made the record: its resourceVersion. 0 is none.
	Revision int64
	// Created is the revision of the write that made the object, 0 if that is not known or
	// the object is known to expire.
	Created int64
	// Stale says that the backend would store the same object in other bytes now, for
	// example encrypted with a newer key. It is set only in records that were read from
	// the backend for a write.
	Stale bool

	// attributes are the values of the definition's Fields, in their order, and behind
	// them the labels: key, value, key, value…, as in the object.
	attributes []string
	fields     int // how many of the attributes are fields
	// written says that this process has written the object, with the defaults of its
	// version by now: reading it back does not change it, but for ReadDefaults.
	written   bool
	value     *value
	encodings *encodings // nil in records that no store has made
}

// LetGo drops the stored bytes of a record that nobody else has yet. They are read from
// the cache when they are needed.
func (r *Record) LetGo(from *ValueCache) {
	r.value.cache = from
	r.value.first.Store(nil)
}

// NewRecord returns a record with its stored bytes, its labels (key, value, key, value…),
// and the values of the definition's selectable fields. What it keeps in memory counts in
// the budgets, which may be nil.
func NewRecord(rec Record, stored []byte, labels, fields []string, budget *EncodingBudget, values *ValueCache) *Record {
	rec.attributes, rec.fields = labels, len(fields)
	if len(fields) > 0 {
		rec.attributes = slices.Concat(fields, labels)
	}
	if rec.Revision == 0 {
		rec.written = true
		rec.encodings = &encodings{budget: budget} // on their own: they outlive the record, see Committed
		return rec.with(stored, values)
	}
	// There may be a million of them: one allocation, not three.
	all := &struct {
		Record
		value     value
		encodings encodings
	}{Record: rec}
	all.value.init(stored, rec.Revision, values)
	all.encodings.budget = budget
	all.Record.value, all.Record.encodings = &all.value, &all.encodings
	return &all.Record
}

// with returns a copy of the record with other stored bytes.
func (r *Record) with(stored []byte, values *ValueCache) *Record {
	both := &struct {
		Record
		value value
	}{Record: *r}
	both.value.init(stored, r.Revision, values)
	both.Record.value = &both.value
	return &both.Record
}

// LabelPairs returns labels as NewRecord wants them.
func LabelPairs(labels map[string]string) []string {
	if len(labels) == 0 {
		return nil
	}
	pairs := make([]string, 0, 2*len(labels))
	for key, value := range labels {
		pairs = append(pairs, unique.Make(key).Value(), value)
	}
	return pairs
}

// OwnAttributes gives labels, as LabelPairs returns them, and fields a memory of their own:
// those of an object are parts of a request's body, or of its stored bytes. It is one piece,
// since there are many records, and the garbage collector looks at each piece.
func OwnAttributes(labels, fields []string) {
	size := 0
	for _, field := range fields {
		size += len(field)
	}
	for i := 1; i < len(labels); i += 2 { // keys are kept once for all
		size += len(labels[i])
	}
	var own strings.Builder
	own.Grow(size)
	keep := func(s *string) {
		own.WriteString(*s)
		*s = own.String()[own.Len()-len(*s):]
	}
	for i := range fields {
		keep(&fields[i])
	}
	for i := 1; i < len(labels); i += 2 {
		keep(&labels[i])
	}
}

// Stored returns the object as it is in storage, without a resourceVersion. The bytes
// are shared: do not change them. An error is that of storage, from where they may have
// to be read again: ErrCompacted for a record that was replaced long ago.
func (r *Record) Stored() ([]byte, error) { return r.value.get(r.Key) }

// InMemory returns what Stored does, and false if it would have to be read for that.
func (r *Record) InMemory() ([]byte, bool) { return r.value.inMemory() }

// StoredSize is the length of the stored bytes.
func (r *Record) StoredSize() int { return r.value.len() }

// At returns the record as if it had been written at another revision: the last state
// of a deleted object carries the revision of its deletion.
func (r *Record) At(revision int64) *Record {
	rec := *r
	rec.Revision, rec.encodings = revision, &encodings{budget: r.encodings.budget}
	return &rec
}

// Committed returns a record that was made before its write, with the revision of that
// write. stored are its bytes: those that it was made with, or a copy. All callers for
// the same write share the encodings.
func (r *Record) Committed(revision int64, stored []byte) *Record {
	rec := *r
	rec.Revision = revision
	return rec.with(stored, r.value.cache)
}

// Size is how many bytes of memory the record takes, roughly, with its stored bytes and
// without its encodings.
func (r *Record) Size() int { return r.StoredSize() + len(r.Key) + recordSize }

// MemorySize is Size without the stored bytes if they are out of memory.
func (r *Record) MemorySize() int {
	if r.value.isOut() {
		return len(r.Key) + recordSize
	}
	return r.Size()
}

// recordSize is what a record takes without its key and its stored bytes, roughly.
const recordSize = 256

func (r *Record) label(key string) (string, bool) {
	for i := r.fields; i < len(r.attributes); i += 2 {
		if r.attributes[i] == key {
			return r.attributes[i+1], true
		}
	}
	return "", false
}

// Labels is the labels of a record, as selectors of apimachinery want them.
type Labels struct{ record *Record }

// Labels returns the labels of the record.
func (r *Record) Labels() Labels { return Labels{r} }

// Has implements labels.Labels.
func (l Labels) Has(key string) bool { _, ok := l.record.label(key); return ok }

// Get implements labels.Labels.
func (l Labels) Get(key string) string { v, _ := l.record.label(key); return v }

// Lookup implements labels.Labels.
func (l Labels) Lookup(key string) (string, bool) { return l.record.label(key) }

// Fields is the selectable fields of a record, as selectors want them.
type Fields struct {
	record *Record
	def    *resource.Definition
}

// Fields returns the selectable fields of the record, which is of a definition.
func (r *Record) Fields(def *resource.Definition) Fields { return Fields{r, def} }

// Has implements fields.Fields.
func (f Fields) Has(path string) bool { _, ok := f.lookup(path); return ok }

// Get implements fields.Fields.
func (f Fields) Get(path string) string { v, _ := f.lookup(path); return v }

func (f Fields) lookup(path string) (string, bool) {
	switch path {
	case "metadata.name":
		return f.record.Name, true
	case "metadata.namespace":
		return f.record.Namespace, f.def.Namespaced
	}
	for i := range f.def.Fields {
		if f.def.Fields[i].Path == path {
			return f.record.attributes[i], true
		}
	}
	return "", false
}
