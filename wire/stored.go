package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unique"
	"unsafe"

	"github.com/apikeel/kelson/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// EncodeStored encodes an object of the hub version as it is stored, in the version that
// Definition.StoreAs names. The object is as before when it returns, but must not be read
// meanwhile. The error is ErrNotStorable for an object that DecodeStored would refuse.
func EncodeStored(def *resource.Definition, obj resource.Object) ([]byte, error) {
	if v := def.StorageVersion(); v != nil && v != def.HubVersion() && v.FromHub != nil {
		var err error
		if obj, err = v.FromHub(obj); err != nil {
			return nil, err
		}
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if err := checkMap(def, u); err != nil {
			return nil, err
		}
		data, err := encodeStoredMap(def, storedMap(u.Object))
		if err != nil {
			return nil, err
		}
		return data, checkMapDepth(data, u.Object)
	}
	if rv := obj.GetResourceVersion(); rv != "" {
		obj.SetResourceVersion("")
		defer obj.SetResourceVersion(rv)
	}
	if link := obj.GetSelfLink(); link != "" {
		obj.SetSelfLink("")
		defer obj.SetSelfLink(link)
	}
	if m, ok := obj.(message); ok && !def.StoreJSON && !def.StoreYAML {
		return encodeEnvelope(def.StorageAPIVersion(), def.Kind, m)
	}
	kind := obj.GetObjectKind()
	was := kind.GroupVersionKind()
	kind.SetGroupVersionKind(schema.FromAPIVersionAndKind(def.StorageAPIVersion(), def.Kind))
	defer kind.SetGroupVersionKind(was)
	if def.StoreYAML {
		return yaml.Marshal(obj)
	}
	data, err := encodeJSON(obj, true)
	if err != nil {
		return nil, err
	}
	return data, checkJSONDepth(data)
}

func encodeStoredMap(def *resource.Definition, object map[string]any) ([]byte, error) {
	if !def.StoreCBOR {
		return encodeMap(object, true)
	}
	body, err := direct.Marshal(object)
	if err != nil {
		return nil, err
	}
	return append([]byte(cborPrefix), body...), nil
}

// storedMap returns a map without what is not stored, sharing the rest.
func storedMap(object map[string]any) map[string]any {
	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		return object
	}
	_, version := metadata["resourceVersion"]
	_, link := metadata["selfLink"]
	if !version && !link {
		return object
	}
	stored := make(map[string]any, len(object))
	for k, v := range object {
		stored[k] = v
	}
	kept := make(map[string]any, len(metadata))
	for k, v := range metadata {
		if k != "resourceVersion" && k != "selfLink" {
			kept[k] = v
		}
	}
	stored["metadata"] = kept
	return stored
}

// DecodeStored decodes what EncodeStored, or kube-apiserver, has written, and
// returns it in the hub version. What the version of the stored object has a
// default for by now is filled in. Structs have no kind and apiVersion. The error is NotConverted if
// the object may be decoded later.
func DecodeStored(def *resource.Definition, data []byte) (resource.Object, error) {
	var version *resource.Version
	var obj resource.Object
	var err error
	switch {
	case bytes.HasPrefix(data, []byte(protoPrefix)):
		version, obj, err = decodeEnvelope(def, data)
	case IsCBOR(data):
		version, obj, err = decodeCBOR(def, data)
	default:
		version, obj, err = decodeJSON(def, data)
	}
	if err != nil {
		return nil, err
	}
	if obj, err = toHub(def, version, obj); err != nil {
		return nil, &NotConverted{err}
	}
	return obj, nil
}

// NotConverted is the error of DecodeStored for an object that was decoded, and is not in the hub version.
// That is no fault of the object's: a conversion webhook that does not answer fails for all objects, and
// will convert them later.
type NotConverted struct{ err error }

// Error implements error.
func (e *NotConverted) Error() string { return e.err.Error() }

// Unwrap returns why.
func (e *NotConverted) Unwrap() error { return e.err }

// toHub makes an object of the hub version of one that is as it was stored.
func toHub(def *resource.Definition, version *resource.Version, obj resource.Object) (resource.Object, error) {
	if version.Prune != nil {
		if _, err := version.Prune(obj, resource.PruneStored); err != nil {
			return nil, err
		}
	}
	if version.Default != nil {
		version.Default(obj)
	}
	if version != def.HubVersion() && version.ToHub != nil {
		return version.ToHub(obj)
	}
	return obj, nil
}

// UID returns the UID of the object in a record, without decoding the rest of it if that
// can be avoided.
func UID(def *resource.Definition, rec *Record) (types.UID, error) {
	stored, err := rec.Stored()
	if err != nil {
		return "", err
	}
	if env, ok := openEnvelope(stored); ok {
		if meta, ok := MetadataProto(env.raw); ok {
			if uid, ok := findUIDProto(meta); ok {
				return types.UID(uid), nil
			}
		}
	} else if encoded, ok := MetadataJSON(stored); ok {
		var meta struct {
			UID types.UID `json:"uid"`
		}
		err := json.Unmarshal(encoded, &meta)
		return meta.UID, err
	}
	obj, err := DecodeStored(def, stored)
	if err != nil {
		return "", err
	}
	return obj.GetUID(), nil
}

// decode returns the object of a record, in the hub version.
func (r *Record) decode(def *resource.Definition) (resource.Object, error) {
	stored, err := r.Stored()
	if err != nil {
		return nil, err
	}
	return DecodeStored(def, stored)
}

// StoredMetadata returns the metadata of a stored object that is not protobuf, in JSON.
func StoredMetadata(stored []byte) ([]byte, bool) {
	switch {
	case IsCBOR(stored):
		var object map[string]any
		if err := direct.Unmarshal(stored, &object); err != nil {
			return nil, false
		}
		meta, ok := object["metadata"].(map[string]any)
		if !ok {
			return nil, false
		}
		encoded, err := json.Marshal(meta)
		return encoded, err == nil
	case mayBeYAML(stored):
		text, err := yaml.YAMLToJSON(stored)
		if err != nil {
			return nil, false
		}
		stored = text
	}
	return MetadataJSON(stored)
}

// mayBeYAML reports whether a stored object is neither protobuf, CBOR nor JSON.
func mayBeYAML(stored []byte) bool {
	text := bytes.TrimLeft(stored, " \t\r\n")
	return len(text) > 0 && text[0] != '{' && !IsCBOR(stored) && !bytes.HasPrefix(stored, []byte(protoPrefix))
}

// DecodeRecord returns the object of a record, in the hub version, with its
// resourceVersion.
func DecodeRecord(def *resource.Definition, rec *Record) (resource.Object, error) {
	obj, err := rec.decode(def)
	if err != nil {
		return nil, err
	}
	if rec.Revision != 0 {
		obj.SetResourceVersion(RevisionString(rec.Revision))
	}
	return obj, nil
}

func decodeEnvelope(def *resource.Definition, data []byte) (*resource.Version, resource.Object, error) {
	env, ok := openEnvelope(data)
	if !ok {
		return nil, nil, errors.New("malformed protobuf envelope")
	}
	version, err := storedVersion(def, env.apiVersion, env.kind)
	if err != nil {
		return nil, nil, err
	}
	obj := version.New()
	m, ok := obj.(message)
	if !ok {
		return nil, nil, fmt.Errorf("%T: %w", obj, ErrNotEncodable)
	}
	if err := m.Unmarshal(env.raw); err != nil {
		return nil, nil, err
	}
	return version, obj, nil
}

func decodeJSON(def *resource.Definition, data []byte) (*resource.Version, resource.Object, error) {
	version := def.HubVersion()
	obj := version.New()
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if err := decodeMap(data, u); err != nil {
			return nil, nil, err
		}
		version, err := storedVersion(def, []byte(u.GetAPIVersion()), []byte(u.GetKind()))
		return version, obj, err
	}
	if mayBeYAML(data) {
		if text, err := yaml.YAMLToJSON(data); err == nil {
			data = text
		}
	}
	if text := bytes.TrimLeft(data, " \t\r\n"); len(text) == 0 || text[0] != '{' {
		return nil, nil, errNotAnObject // null would be an object without a name
	}
	// Structs of different versions cannot take each other's JSON.
	var kind metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &kind); err != nil {
		return nil, nil, err
	}
	stored, err := storedVersion(def, []byte(kind.APIVersion), []byte(kind.Kind))
	if err != nil {
		return nil, nil, err
	}
	if stored != version {
		version, obj = stored, stored.New()
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, obj); err != nil {
		return nil, nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return version, obj, nil
}

// StoredJSONIsHub reports whether stored JSON is of the hub version. It looks at
// the bytes that EncodeStored begins with: what begins otherwise may be, too.
func StoredJSONIsHub(def *resource.Definition, stored []byte) bool {
	head, err := encodeJSON(metav1.TypeMeta{Kind: def.Kind, APIVersion: def.HubAPIVersion()}, false)
	return err == nil && bytes.HasPrefix(stored, bytes.TrimSuffix(head, []byte("}")))
}

// storedVersion returns the version that stored bytes are in. Bytes that do not
// say are in the hub version.
func storedVersion(d *resource.Definition, apiVersion, kind []byte) (*resource.Version, error) {
	if len(kind) > 0 && string(kind) != d.Kind {
		return nil, fmt.Errorf("is of kind %q", kind)
	}
	if len(apiVersion) == 0 {
		return d.HubVersion(), nil
	}
	for _, versions := range [][]resource.Version{d.Versions, d.Old} {
		for i := range versions {
			v := &versions[i]
			group := d.GroupOf(v)
			name, ok := bytes.CutPrefix(apiVersion, []byte(group))
			if ok && group != "" {
				name, ok = bytes.CutPrefix(name, []byte("/"))
			}
			if ok && string(name) == v.Name {
				return v, nil
			}
		}
	}
	if d.Between != nil {
		return nil, fmt.Errorf("request to convert CR from an invalid group/version: %s", apiVersion)
	}
	return nil, fmt.Errorf("no kind %q is registered for version %q in scheme %q", kind, apiVersion, "pkg/runtime/scheme.go:111")
}

// StoredLabels returns the labels of a stored object without decoding the rest of
// it: key, value, key, value…. It is false for what is neither JSON nor protobuf of the
// hub version, or may be read otherwise than it stands there.
func StoredLabels(def *resource.Definition, stored []byte) ([]string, bool) {
	if raw, ok := storedProtoBody(def, def.HubVersion(), stored); ok {
		return protoLabels(raw)
	}
	meta, ok := MetadataJSON(stored)
	if !ok || !StoredJSONIsHub(def, stored) || !json.Valid(stored) {
		return nil, false
	}
	var m struct {
		Labels map[string]*string `json:"labels"`
	}
	if err := json.Unmarshal(meta, &m); err != nil {
		return nil, false
	}
	labels := make([]string, 0, 2*len(m.Labels))
	for name, value := range m.Labels {
		if value == nil {
			return nil, false
		}
		labels = append(labels, unique.Make(name).Value(), *value)
	}
	return labels, true
}

// Numbers of fields in protobuf: the metadata of an object, the labels in that, and the key
// and the value of a map entry.
const (
	metadataField, labelsField = 1, 11
	keyField, valueField       = 1, 2
)

// protoLabels returns the labels of an object in protobuf. It is false if the fields of the
// object, of its metadata or of a label are not well formed, or are there twice, or if the
// labels are not in the order of their keys.
func protoLabels(raw []byte) ([]string, bool) {
	var meta []byte
	found := 0
	if !eachProtoField(raw, func(field uint64, value []byte) {
		if field == metadataField {
			meta, found = value, found+1
		}
	}) || found != 1 {
		return nil, false
	}
	var some [16]string
	labels, last, good := some[:0], []byte(nil), true
	ok := eachProtoField(meta, func(field uint64, entry []byte) {
		if field != labelsField {
			return
		}
		var key, value []byte
		keys, values := 0, 0
		good = eachProtoField(entry, func(field uint64, text []byte) {
			switch field {
			case keyField:
				key, keys = text, keys+1
			case valueField:
				value, values = text, values+1
			}
		}) && keys == 1 && values == 1 && (len(labels) == 0 || bytes.Compare(last, key) < 0) && good
		last = key
		// Make copies a key that it has not seen.
		labels = append(labels, unique.Make(unsafe.String(unsafe.SliceData(key), len(key))).Value(), string(value))
	})
	if !ok || !good || len(labels) == 0 {
		return nil, ok && good
	}
	kept := make([]string, len(labels)) // unlike a clone, it leaves some on the stack
	copy(kept, labels)
	return kept, true
}

// eachProtoField calls f with the fields of ProtoBytes in a protobuf message, and reports
// whether all fields are well formed.
func eachProtoField(b []byte, f func(field uint64, value []byte)) bool {
	for len(b) > 0 {
		field, kind, value, rest, ok := ProtoField(b)
		if !ok {
			return false
		}
		if kind == ProtoBytes {
			f(field, value)
		}
		b = rest
	}
	return true
}

// storedProtoBody returns the protobuf body inside stored bytes, without
// copying, if they are one of the version given, and are read as they are.
func storedProtoBody(def *resource.Definition, version *resource.Version, stored []byte) ([]byte, bool) {
	env, ok := openEnvelope(stored)
	if !ok || def.ReadDefaults {
		return nil, false
	}
	if v, err := storedVersion(def, env.apiVersion, env.kind); err != nil || v != version {
		return nil, false
	}
	return env.raw, true
}
