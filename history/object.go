package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
)

// Ref names an object.
type Ref struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Resource  string `json:"resource"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func (p *part) ref(key string) Ref {
	namespace, name := p.split(key)
	return Ref{Group: p.GroupVersion.Group, Version: p.GroupVersion.Version, Resource: p.Definition.Resource, Kind: p.Definition.Kind, Namespace: namespace, Name: name}
}

// Manager is a writer as managedFields name it.
type Manager struct {
	Name        string `json:"name"`
	Operation   string `json:"operation,omitempty"`
	Subresource string `json:"subresource,omitempty"`
}

// record returns what the server's encoder needs of a stored object.
func (p *part) record(kv *storage.KeyValue) (*wire.Record, error) {
	if kv.Err != nil {
		return nil, kv.Err
	}
	stored := bytes.Clone(kv.Value)
	obj, err := wire.DecodeStored(p.Definition, stored)
	if err != nil {
		return nil, err
	}
	fields := make([]string, len(p.Definition.Fields))
	for i := range fields {
		fields[i] = p.Definition.Fields[i].Get(obj)
	}
	rec := wire.Record{Key: kv.Key, Revision: kv.ModRevision}
	rec.Namespace, rec.Name = p.split(kv.Key)
	return wire.NewRecord(rec, stored, wire.LabelPairs(obj.GetLabels()), fields, nil, nil), nil
}

// object is an object of the past in JSON, in the version that was asked for.
type object struct {
	json   []byte
	fields map[string]any
	meta   metav1.ObjectMeta
}

// object decodes a stored object.
func (p *part) object(kv *storage.KeyValue) (*object, error) {
	if kv.Err != nil {
		return nil, kv.Err
	}
	obj, err := wire.DecodeStored(p.Definition, kv.Value)
	if err != nil {
		return nil, err
	}
	obj.SetResourceVersion(wire.RevisionString(kv.ModRevision))
	return p.show(obj)
}

func (p *part) show(obj resource.Object) (*object, error) {
	body, err := wire.JSONBody(p.Definition, p.Version, obj)
	if err != nil {
		return nil, err
	}
	o := &object{json: wire.AppendWithKind(nil, p.Served, body)}
	var meta struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	// Numbers keep their digits.
	d := json.NewDecoder(bytes.NewReader(o.json))
	d.UseNumber()
	err = errors.Join(d.Decode(&o.fields), json.Unmarshal(o.json, &meta))
	o.meta = meta.Metadata
	return o, err
}

// writers returns who has written an object: whose entries in managedFields are new, have
// another time, or have gained fields. Times are whole seconds, so if no entry tells, it is
// the newest one. Before may be nil.
func writers(before, after *object) (all []Manager) {
	if after == nil {
		return nil
	}
	var newest *metav1.ManagedFieldsEntry
	for i := range after.meta.ManagedFields {
		e := &after.meta.ManagedFields[i]
		if newest == nil || e.Time != nil && newest.Time != nil && newest.Time.Before(e.Time) {
			newest = e
		}
		if before == nil || hasWritten(before.meta.ManagedFields, e) {
			all = append(all, Manager{e.Manager, string(e.Operation), e.Subresource})
		}
	}
	if len(all) == 0 && newest != nil {
		all = append(all, Manager{newest.Manager, string(newest.Operation), newest.Subresource})
	}
	return all
}

// hasWritten reports whether an entry tells of a write since the entries before.
func hasWritten(before []metav1.ManagedFieldsEntry, e *metav1.ManagedFieldsEntry) bool {
	i := slices.IndexFunc(before, func(old metav1.ManagedFieldsEntry) bool {
		return old.Manager == e.Manager && old.Operation == e.Operation && old.Subresource == e.Subresource && old.APIVersion == e.APIVersion
	})
	if i < 0 {
		return true
	}
	old := &before[i]
	if !old.Time.Equal(e.Time) {
		return true
	}
	return !isSubset(fieldSet(e), fieldSet(old))
}

func fieldSet(e *metav1.ManagedFieldsEntry) (set map[string]any) {
	if e.FieldsV1 != nil {
		_ = json.Unmarshal(e.FieldsV1.GetRawBytes(), &set)
	}
	return set
}

// isSubset reports whether all fields of a set are in another one.
func isSubset(set, of map[string]any) bool {
	for name, below := range set {
		other, ok := of[name]
		if !ok {
			return false
		}
		a, _ := below.(map[string]any)
		b, _ := other.(map[string]any)
		if !isSubset(a, b) {
			return false
		}
	}
	return true
}

// timeOf is when an object was last written as its own metadata say, for stores that do not
// know it; nil if they do not say.
func timeOf(o *object) *time.Time {
	last := o.meta.CreationTimestamp.Time
	for _, e := range o.meta.ManagedFields {
		if e.Time != nil && e.Time.After(last) {
			last = e.Time.Time
		}
	}
	if d := o.meta.DeletionTimestamp; d != nil && d.After(last) && o.meta.DeletionGracePeriodSeconds == nil {
		last = d.Time
	}
	if last.IsZero() {
		return nil
	}
	last = last.UTC()
	return &last
}
