package wire

import "github.com/apikeel/kelson/resource"

// Record is one object as it was at one revision: the stored bytes, the labels and
// fields that selectors look at, and the encodings that somebody has asked for.
// Records are never changed, and shared by all who read them.
type Record struct {
	// Key in storage.
	Key string
	// Namespace is empty for objects of the cluster.
	Namespace, Name string
	// Revision of the write that made the record: its resourceVersion. 0 is none.
	Revision int64
	// Stored is the object as it is in storage, without a resourceVersion.
	Stored []byte
	// Stale says that the backend would store the same object in other bytes now, for
	// example encrypted with a newer key. It is set only in records that were read from
	// the backend for a write.
	Stale bool

	labels    []string   // key, value, key, value…, as in the object
	fields    []string   // values in the order of the definition's Fields
	encodings *encodings // nil in records that no store has made
}

// NewRecord returns a record with labels, the values of the definition's selectable
// fields, and encodings that count in a budget.
func NewRecord(rec Record, labels map[string]string, fields []string, budget *EncodingBudget) *Record {
	rec.fields, rec.encodings = fields, &encodings{budget: budget}
	if len(labels) > 0 {
		rec.labels = make([]string, 0, 2*len(labels))
		for k, v := range labels {
			rec.labels = append(rec.labels, k, v)
		}
	}
	return &rec
}

// At returns the record as if it had been written at another revision: the last state
// of a deleted object carries the revision of its deletion.
func (r *Record) At(revision int64) *Record {
	rec := *r
	rec.Revision, rec.encodings = revision, &encodings{budget: r.encodings.budget}
	return &rec
}

// Committed returns a record that was made before its write, with the revision of that
// write. All callers for the same write share the encodings.
func (r *Record) Committed(revision int64) *Record {
	rec := *r
	rec.Revision = revision
	return &rec
}

// Size is how many bytes of memory the record takes, roughly, without its encodings.
func (r *Record) Size() int { return len(r.Stored) + len(r.Key) + 256 }

func (r *Record) label(key string) (string, bool) {
	for i := 0; i < len(r.labels); i += 2 {
		if r.labels[i] == key {
			return r.labels[i+1], true
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
			return f.record.fields[i], true
		}
	}
	return "", false
}
