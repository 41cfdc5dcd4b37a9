package store

import (
	"maps"
	"slices"
	"strings"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
)

// Record is one object as it was at one revision; see wire.Record.
type Record = wire.Record

// Fields returns the selectable fields of a record of this resource.
func (r *Resource) Fields(record *Record) wire.Fields { return record.Fields(r.def) }

// newRecord extracts what selectors need from an object. obj may be nil, then
// it is decoded from the stored bytes.
func (r *Resource) newRecord(key string, revision int64, stored []byte, obj resource.Object) (*Record, error) {
	var labels []string
	known := false
	if r.def.ReadDefaults {
		obj = nil // selectors see what readers see
	} else if obj == nil && len(r.def.Fields) == 0 {
		// When many are loaded, decoding them is most of the work.
		labels, known = wire.StoredLabels(r.def, stored)
	}
	if obj == nil && !known {
		var err error
		if obj, err = wire.DecodeStored(r.def, stored); err != nil {
			return nil, err
		}
	}
	if !known {
		labels = wire.LabelPairs(obj.GetLabels())
	}
	var fields []string
	if n := len(r.def.Fields); n > 0 {
		fields = make([]string, n)
		for i := range r.def.Fields {
			fields[i] = r.def.Fields[i].Get(obj)
		}
	}
	if !known {
		wire.OwnAttributes(labels, fields)
	}
	namespace, name := r.split(key)
	rec := Record{Key: key, Namespace: namespace, Name: name, Revision: revision}
	return wire.NewRecord(rec, stored, labels, fields, &r.store.budget, r.store.values), nil
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

// all returns the resources that somebody has used.
func (s *Store) all() []*Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.resources))
}

// eachRecord calls f for all records in the caches.
func (s *Store) eachRecord(f func(*Record)) {
	for _, r := range s.all() {
		if s := r.snap(); s != nil {
			s.Range(r.prefix, "", func(rec *Record) bool {
				f(rec)
				return true
			})
		}
	}
}
