package managedfields

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxUpdaters is how many entries of operation Update an object keeps.
const maxUpdaters = 10

// Field managers that stand for others.
const (
	ancientChanges   = "ancient-changes"
	beforeFirstApply = "before-first-apply"
	unknownManager   = "unknown"
)

// owner identifies an entry of managedFields. The apiVersion is not part of the identity
// of appliers.
type owner struct {
	manager     string
	operation   metav1.ManagedFieldsOperationType
	apiVersion  string // empty for appliers
	subresource string
}

// id returns the owner as the JSON that kube-apiserver sorts owners by.
func (o owner) id() string {
	e := metav1.ManagedFieldsEntry{Manager: o.manager, Operation: o.operation, APIVersion: o.apiVersion, Subresource: o.subresource}
	text, err := json.Marshal(&e)
	if err != nil {
		return o.manager
	}
	return string(text)
}

// entry is a decoded entry of managedFields.
type entry struct {
	owner
	version string
	time    *metav1.Time
	set     *cachedSet
}

func (e *entry) applied() bool { return e.operation == metav1.ManagedFieldsOperationApply }

// decodeEntries decodes managedFields. Of several entries of one owner the last one
// counts.
func (c *Cache) decodeEntries(in []metav1.ManagedFieldsEntry) ([]entry, error) {
	out := make([]entry, 0, len(in)+1)
	index := make(map[owner]int, len(in))
	for i := range in {
		e, err := c.decodeEntry(i, &in[i])
		if err != nil {
			return nil, err
		}
		if j, ok := index[e.owner]; ok {
			out[j] = e
		} else {
			index[e.owner] = len(out)
			out = append(out, e)
		}
	}
	return out, nil
}

func (c *Cache) decodeEntry(i int, in *metav1.ManagedFieldsEntry) (e entry, err error) {
	switch in.Operation {
	case metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate:
	default:
		return e, errors.New("operation must be `Apply` or `Update`")
	}
	if in.APIVersion == "" {
		return e, errors.New("apiVersion must not be empty")
	}
	switch in.FieldsType {
	case "FieldsV1":
	case "":
		return e, fmt.Errorf("missing fieldsType in managed fields entry %d", i)
	default:
		return e, fmt.Errorf("invalid fieldsType %q in managed fields entry %d", in.FieldsType, i)
	}
	raw := []byte("{}")
	if in.FieldsV1 != nil {
		raw = in.FieldsV1.GetRawBytes()
	}
	set, err := c.decoded(raw)
	if err != nil {
		return e, fmt.Errorf("error decoding versioned set from %v: error decoding set: %w", *in, err)
	}
	e = entry{owner: owner{in.Manager, in.Operation, in.APIVersion, in.Subresource}, version: in.APIVersion, time: in.Time, set: set}
	if e.applied() {
		e.apiVersion = ""
	}
	return e, nil
}

// Validate checks managedFields that were changed by others, such as admission webhooks.
func (c *Cache) Validate(in []metav1.ManagedFieldsEntry) error {
	_, err := c.decodeEntries(in)
	return err
}

// encodeEntries encodes managedFields: appliers first, then by time.
func encodeEntries(in []entry) []metav1.ManagedFieldsEntry {
	if len(in) == 0 {
		return nil
	}
	out := make([]metav1.ManagedFieldsEntry, 0, len(in))
	for i := range in {
		e := &in[i]
		out = append(out, metav1.ManagedFieldsEntry{
			Manager: e.manager, Operation: e.operation, APIVersion: e.version, Time: e.time,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(e.set.canonical), Subresource: e.subresource,
		})
	}
	slices.SortFunc(out, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(
			cmp.Compare(a.Operation, b.Operation),
			cmp.Compare(seconds(a.Time), seconds(b.Time)),
			cmp.Compare(a.Manager, b.Manager),
			cmp.Compare(a.APIVersion, b.APIVersion),
			cmp.Compare(a.Subresource, b.Subresource),
		)
	})
	return out
}

func seconds(t *metav1.Time) int64 {
	if t == nil {
		return 0
	}
	return t.Unix()
}

// reset reports whether managedFields of a request ask to remove all entries.
func reset(in []metav1.ManagedFieldsEntry) bool {
	switch len(in) {
	case 0:
		return in != nil
	case 1:
		return reflect.DeepEqual(in[0], metav1.ManagedFieldsEntry{})
	}
	return false
}

// liveOrNew returns the entries before a write: those that the request carries, or those
// of the live object if the request has none or invalid ones.
func (c *Cache) liveOrNew(live, new []metav1.ManagedFieldsEntry, subresource bool) []entry {
	if !subresource {
		if reset(new) {
			return nil
		}
		if entries, err := c.decodeEntries(new); err == nil && len(entries) > 0 {
			return entries
		}
	}
	entries, err := c.decodeEntries(live)
	if err != nil {
		return nil
	}
	return entries
}

// capUpdaters merges the oldest Update entries of each apiVersion into one, until there
// are at most maxUpdaters.
func (c *Cache) capUpdaters(in []entry) []entry {
	if len(in) <= maxUpdaters {
		return in
	}
	var updaters []owner
	byOwner := map[owner]entry{}
	for _, e := range in {
		byOwner[e.owner] = e
		if !e.applied() {
			updaters = append(updaters, e.owner)
		}
	}
	slices.SortFunc(updaters, func(a, b owner) int {
		return cmp.Or(cmp.Compare(seconds(byOwner[a].time), seconds(byOwner[b].time)), cmp.Compare(a.id(), b.id()))
	})
	firsts := map[string]owner{}
	count := len(updaters)
	for _, o := range updaters {
		if count <= maxUpdaters {
			break
		}
		e := byOwner[o]
		first, seen := firsts[e.version]
		if !seen {
			firsts[e.version] = o
			continue
		}
		bucket := owner{manager: ancientChanges, operation: metav1.ManagedFieldsOperationUpdate, apiVersion: e.version}
		into, ok := byOwner[bucket]
		if !ok {
			into = byOwner[first]
			delete(byOwner, first)
		}
		delete(byOwner, o)
		byOwner[bucket] = entry{
			owner: bucket, version: e.version, time: e.time,
			set: c.encoded(e.set.tree().plus(into.set.tree())),
		}
		count--
	}
	out := make([]entry, 0, len(byOwner))
	for _, e := range byOwner {
		out = append(out, e)
	}
	return out
}

func stamp(now time.Time) *metav1.Time { return &metav1.Time{Time: now.UTC()} }
