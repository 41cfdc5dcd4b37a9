package store

import (
	"strings"

	"github.com/apikeel/kelson/resource"
)

// Record is one object as it was at one revision: the stored bytes, what
// selectors look at, and the forms that somebody has asked for. Records are
// never changed, and shared by all who read them.
type Record struct {
	// Key in storage.
	Key string
	// Namespace is empty for objects of the cluster.
	Namespace, Name string
	// Revision of the write that made the record: its resourceVersion.
	Revision int64
	// Stored is the object as it is in storage, without a resourceVersion.
	Stored []byte

	stale  bool     // known for what was just read from the backend only
	labels []string // key, value, key, value…, as in the object
	fields []string // values in the order of the definition's Fields
	forms  *forms   // nil in records that no store has made
}

// at returns the record as if it had been written at another revision: the
// last state of an object that is gone carries the revision of its deletion.
func (r *Record) at(revision int64) *Record {
	rec := *r
	rec.Revision, rec.forms = revision, &forms{budget: r.forms.budget}
	return &rec
}

// committed returns a record that was made before its write, with the revision
// of it. All who call it for that write share the forms.
func (r *Record) committed(revision int64) *Record {
	rec := *r
	rec.Revision = revision
	return &rec
}

// size is what the record holds in memory, roughly.
func (r *Record) size() int { return len(r.Stored) + len(r.Key) + 256 }

// Label returns the value of a label. Record and Labels below let selectors
// work without a map.
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

// Fields returns the selectable fields of a record of this resource.
func (r *Resource) Fields(record *Record) Fields { return Fields{record, r.def} }

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

// newRecord extracts what selectors need from an object. obj may be nil, then
// it is decoded from the stored bytes.
func (r *Resource) newRecord(key string, revision int64, stored []byte, obj resource.Object) (*Record, error) {
	var labels map[string]string
	known := false
	if r.def.ReadDefaults {
		obj = nil // selectors see what readers see
	} else if obj == nil && len(r.def.Fields) == 0 {
		// When many are loaded, decoding them is most of the work.
		labels, known = resource.StoredLabels(r.def, stored)
	}
	if obj == nil && !known {
		var err error
		if obj, err = r.codec.Decode(stored); err != nil {
			return nil, err
		}
	}
	rec := &Record{Key: key, Revision: revision, Stored: stored, forms: &forms{budget: &r.store.forms}}
	rec.Namespace, rec.Name = r.split(key)
	if !known {
		labels = obj.GetLabels()
	}
	if len(labels) > 0 {
		rec.labels = make([]string, 0, 2*len(labels))
		for k, v := range labels {
			rec.labels = append(rec.labels, k, v)
		}
	}
	if n := len(r.def.Fields); n > 0 {
		rec.fields = make([]string, n)
		for i := range r.def.Fields {
			rec.fields[i] = r.def.Fields[i].Get(obj)
		}
	}
	return rec, nil
}

// split returns the namespace and the name in a key of this resource.
func (r *Resource) split(key string) (namespace, name string) {
	rest := key[len(r.prefix):]
	if r.def.Namespaced {
		if ns, n, ok := strings.Cut(rest, "/"); ok {
			return ns, n
		}
	}
	return "", rest
}
