package resource

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"github.com/apikeel/kelson/internal/jsonvalue"
)

// Objects have three forms besides the one in memory:
//
//   - stored: what kube-apiserver keeps in etcd. A struct with protobuf methods
//     is protobuf in an envelope that names its kind; others are JSON. There is
//     no resourceVersion in it.
//   - a body: one version's JSON or protobuf, without what depends on where it
//     is sent. Objects, lists and events are put together from the same body.
//   - on the wire: a body with its kind and apiVersion around it.

// ErrNotEncodable: the kind has no protobuf form.
var ErrNotEncodable = errors.New("object has no protobuf form")

// protoPrefix begins every envelope.
const protoPrefix = "k8s\x00"

// message is a struct with the protobuf methods that Kubernetes generates.
type message interface {
	runtime.ProtobufMarshaller
	runtime.ProtobufReverseMarshaller
	Reset()
	Unmarshal(data []byte) error
}

// EncodeStored encodes an object of the hub version as it is stored. The object
// is as before when it returns, but must not be read meanwhile.
func EncodeStored(def *Definition, obj Object) ([]byte, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return encodeMap(storedMap(u.Object), true)
	}
	if rv := obj.GetResourceVersion(); rv != "" {
		obj.SetResourceVersion("")
		defer obj.SetResourceVersion(rv)
	}
	if link := obj.GetSelfLink(); link != "" {
		obj.SetSelfLink("")
		defer obj.SetSelfLink(link)
	}
	if m, ok := obj.(message); ok && !def.StoreJSON {
		return encodeEnvelope(def.HubAPIVersion(), def.Kind, m)
	}
	kind := obj.GetObjectKind()
	was := kind.GroupVersionKind()
	kind.SetGroupVersionKind(schema.FromAPIVersionAndKind(def.HubAPIVersion(), def.Kind))
	defer kind.SetGroupVersionKind(was)
	return encodeJSON(obj, true)
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
// default for by now is filled in. Structs have no kind and apiVersion.
func DecodeStored(def *Definition, data []byte) (Object, error) {
	var version *Version
	var obj Object
	var err error
	if bytes.HasPrefix(data, []byte(protoPrefix)) {
		version, obj, err = decodeEnvelope(def, data)
	} else {
		version, obj, err = decodeJSON(def, data)
	}
	if err != nil {
		return nil, err
	}
	if version.Prune != nil {
		if _, err := version.Prune(obj, PruneStored); err != nil {
			return nil, err
		}
	}
	if version.Default != nil {
		version.Default(obj)
	}
	if version != def.HubVersion() && version.ToHub != nil {
		if obj, err = version.ToHub(obj); err != nil {
			return nil, err
		}
	}
	return obj, nil
}

func decodeEnvelope(def *Definition, data []byte) (*Version, Object, error) {
	env, ok := openEnvelope(data)
	if !ok {
		return nil, nil, errors.New("malformed protobuf envelope")
	}
	version, err := def.storedVersion(env.apiVersion, env.kind)
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

func decodeJSON(def *Definition, data []byte) (*Version, Object, error) {
	version := def.HubVersion()
	obj := version.New()
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if err := DecodeMap(data, u); err != nil {
			return nil, nil, err
		}
		version, err := def.storedVersion([]byte(u.GetAPIVersion()), []byte(u.GetKind()))
		return version, obj, err
	}
	// Structs of different versions cannot take each other's JSON.
	var kind metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &kind); err != nil {
		return nil, nil, err
	}
	stored, err := def.storedVersion([]byte(kind.APIVersion), []byte(kind.Kind))
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
func StoredJSONIsHub(def *Definition, stored []byte) bool {
	head, err := encodeJSON(metav1.TypeMeta{Kind: def.Kind, APIVersion: def.HubAPIVersion()}, false)
	return err == nil && bytes.HasPrefix(stored, bytes.TrimSuffix(head, []byte("}")))
}

// storedVersion returns the version that stored bytes are in. Bytes that do not
// say are in the hub version.
func (d *Definition) storedVersion(apiVersion, kind []byte) (*Version, error) {
	if len(kind) > 0 && string(kind) != d.Kind {
		return nil, fmt.Errorf("is of kind %q", kind)
	}
	if len(apiVersion) == 0 {
		return d.HubVersion(), nil
	}
	for i := range d.Versions {
		v := &d.Versions[i]
		group := d.group(v)
		name, ok := bytes.CutPrefix(apiVersion, []byte(group))
		if ok && group != "" {
			name, ok = bytes.CutPrefix(name, []byte("/"))
		}
		if ok && string(name) == v.Name {
			return v, nil
		}
	}
	if d.Between != nil {
		return nil, fmt.Errorf("request to convert CR from an invalid group/version: %s", apiVersion)
	}
	return nil, fmt.Errorf("no kind %q is registered for version %q in scheme %q", kind, apiVersion, "pkg/runtime/scheme.go:111")
}

// JSONBody encodes an object of the hub version in the version given. The JSON
// of a struct has neither kind nor apiVersion, like the items of lists; that of
// a map has both. A struct is as before when it returns, but must not be read
// meanwhile.
func JSONBody(def *Definition, version *Version, obj Object) ([]byte, error) {
	obj, err := fromHub(def, version, obj)
	if err != nil {
		return nil, err
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return encodeMap(u.Object, false)
	}
	kind := obj.GetObjectKind()
	if was := kind.GroupVersionKind(); !was.Empty() {
		kind.SetGroupVersionKind(schema.GroupVersionKind{})
		defer kind.SetGroupVersionKind(was)
	}
	return encodeJSON(obj, false)
}

// ProtoBody encodes an object of the hub version in the version given, without
// an envelope.
func ProtoBody(def *Definition, version *Version, obj Object) ([]byte, error) {
	obj, err := fromHub(def, version, obj)
	if err != nil {
		return nil, err
	}
	m, ok := obj.(message)
	if !ok {
		return nil, fmt.Errorf("%T: %w", obj, ErrNotEncodable)
	}
	data := make([]byte, m.Size())
	n, err := m.MarshalToSizedBuffer(data)
	if err != nil {
		return nil, err
	}
	return data[len(data)-n:], nil
}

// StoredProtoBody returns the protobuf body inside stored bytes, without
// copying, if they are one of the version given, and are read as they are.
func StoredProtoBody(def *Definition, version *Version, stored []byte) ([]byte, bool) {
	env, ok := openEnvelope(stored)
	if !ok || def.ReadDefaults {
		return nil, false
	}
	if v, err := def.storedVersion(env.apiVersion, env.kind); err != nil || v != version {
		return nil, false
	}
	return env.raw, true
}

func fromHub(def *Definition, version *Version, obj Object) (Object, error) {
	if version.FromHub == nil || version == def.HubVersion() {
		return obj, nil
	}
	out, err := version.FromHub(obj)
	if err != nil {
		return nil, &ConversionError{err}
	}
	return out, nil
}

// ConversionError is that an object could not be shown in a version.
type ConversionError struct{ Err error }

// Error implements error.
func (e *ConversionError) Error() string { return "convert: " + e.Err.Error() }

// Unwrap returns what went wrong.
func (e *ConversionError) Unwrap() error { return e.Err }

// AppendJSON appends an object as it goes over the wire on its own, given its
// body, without a newline.
func (s *Served) AppendJSON(dst, body []byte) []byte {
	if s.Unstructured || len(body) < 2 {
		return append(dst, body...)
	}
	dst = s.jsonHead(dst)
	if body[1] != '}' {
		dst = append(dst, ',')
	}
	return append(dst, body[1:]...)
}

// StoredAsBody reports whether stored bytes are, but for the resourceVersion,
// what goes over the wire for a body: then that need not be kept, and
// AppendStored makes it.
func (s *Served) StoredAsBody(stored, body []byte) bool {
	stored = bytes.TrimSuffix(stored, []byte("\n"))
	if s.Unstructured {
		return bytes.Equal(stored, body)
	}
	head := s.jsonHead(nil)
	return len(body) > 2 && len(stored) == len(head)+len(body) &&
		bytes.HasPrefix(stored, head) && stored[len(head)] == ',' && bytes.HasSuffix(stored, body[1:])
}

// AppendStored appends the object that stored bytes are, or with item its body,
// with a resourceVersion.
func (s *Served) AppendStored(dst, stored []byte, rv string, item bool) []byte {
	start := len(dst)
	dst = AppendSpliceJSON(dst, bytes.TrimSuffix(stored, []byte("\n")), rv)
	if item && !s.Unstructured {
		var buf [256]byte
		head := len(s.jsonHead(buf[:0]))
		n := copy(dst[start+1:], dst[start+head+1:])
		dst = dst[:start+1+n]
	}
	return dst
}

// jsonHead appends how a struct begins, up to the comma before its first field.
func (s *Served) jsonHead(dst []byte) []byte {
	dst = append(dst, `{"kind":`...)
	dst = jsonvalue.AppendString(dst, s.Definition.Kind)
	dst = append(dst, `,"apiVersion":`...)
	return jsonvalue.AppendString(dst, s.APIVersion)
}

// AppendProto appends an object as it goes over the wire on its own, given its
// body.
func (s *Served) AppendProto(dst, body []byte) []byte {
	return AppendEnvelope(dst, s.APIVersion, s.Definition.Kind, body)
}

// AppendEnvelope appends a protobuf message in the envelope that says what it
// is.
func AppendEnvelope(dst []byte, apiVersion, kind string, raw []byte) []byte {
	dst = AppendEnvelopeHead(dst, apiVersion, kind, len(raw))
	dst = append(dst, raw...)
	return append(dst, EnvelopeTail...)
}

// The fields of the envelope: what it is, the message, and two that are always
// empty and always there: content encoding and content type.
const (
	envelopeTypeTag = 1<<3 | 2
	envelopeRawTag  = 2<<3 | 2
	apiVersionTag   = 1<<3 | 2
	kindTag         = 2<<3 | 2
)

// AppendEnvelopeHead appends what comes before a message of a size, for who
// writes it in pieces. EnvelopeTail comes after it.
func AppendEnvelopeHead(dst []byte, apiVersion, kind string, size int) []byte {
	dst = append(dst, protoPrefix...)
	dst = append(dst, envelopeTypeTag)
	dst = binary.AppendUvarint(dst, uint64(typeSize(apiVersion, kind)))
	dst = append(dst, apiVersionTag)
	dst = binary.AppendUvarint(dst, uint64(len(apiVersion)))
	dst = append(dst, apiVersion...)
	dst = append(dst, kindTag)
	dst = binary.AppendUvarint(dst, uint64(len(kind)))
	dst = append(dst, kind...)
	dst = append(dst, envelopeRawTag)
	return binary.AppendUvarint(dst, uint64(size))
}

// EnvelopeTail is what comes after the message in an envelope: the two empty
// fields.
const EnvelopeTail = "\x1a\x00\x22\x00"

func typeSize(apiVersion, kind string) int {
	return 2 + uvarintSize(len(apiVersion)) + len(apiVersion) + uvarintSize(len(kind)) + len(kind)
}

// EnvelopeSize returns how long a message of the size is with its envelope.
func EnvelopeSize(apiVersion, kind string, size int) int {
	n := typeSize(apiVersion, kind)
	return len(protoPrefix) + 1 + uvarintSize(n) + n + 1 + uvarintSize(size) + size + len(EnvelopeTail)
}

func encodeEnvelope(apiVersion, kind string, m message) ([]byte, error) {
	size := m.Size()
	data := make([]byte, 0, EnvelopeSize(apiVersion, kind, size))
	data = AppendEnvelopeHead(data, apiVersion, kind, size)
	at := len(data)
	data = data[:at+size]
	n, err := m.MarshalToSizedBuffer(data[at:])
	if err != nil {
		return nil, err
	}
	if n != size {
		return nil, fmt.Errorf("%T: encoded into %d bytes instead of %d", m, n, size)
	}
	return append(data, EnvelopeTail...), nil
}

type envelope struct {
	apiVersion, kind, raw []byte
}

// OpenEnvelope returns what is in a protobuf envelope. The message shares
// memory with the data.
func OpenEnvelope(data []byte) (apiVersion, kind string, raw []byte, ok bool) {
	env, ok := openEnvelope(data)
	return string(env.apiVersion), string(env.kind), env.raw, ok
}

func openEnvelope(data []byte) (env envelope, ok bool) {
	data, ok = bytes.CutPrefix(data, []byte(protoPrefix))
	if !ok {
		return env, false
	}
	var types []byte
	if !eachField(data, func(field uint64, value []byte) {
		switch field {
		case 1:
			types = value
		case 2:
			env.raw = value
		}
	}) {
		return env, false
	}
	return env, eachField(types, func(field uint64, value []byte) {
		switch field {
		case 1:
			env.apiVersion = value
		case 2:
			env.kind = value
		}
	})
}

// eachField calls f with every field of a protobuf message that consists of
// strings and messages only, and reports whether it is one.
func eachField(data []byte, f func(field uint64, value []byte)) bool {
	for len(data) > 0 {
		tag, n := binary.Uvarint(data)
		if n <= 0 || tag&7 != 2 {
			return false
		}
		size, m := binary.Uvarint(data[n:])
		if m <= 0 || size > uint64(len(data)-n-m) {
			return false
		}
		end := n + m + int(size)
		f(tag>>3, data[n+m:end:end])
		data = data[end:]
	}
	return true
}

// DecodeMap decodes JSON into an object that is a map.
func DecodeMap(data []byte, into *unstructured.Unstructured) error {
	var ok bool
	if into.Object, ok = jsonvalue.Parse(data); ok {
		return nil
	}
	into.Object = nil
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &into.Object); err != nil {
		return err
	}
	if into.Object == nil {
		return errors.New("not an object")
	}
	return nil
}

// encodeMap is encodeJSON for objects that are maps.
func encodeMap(v map[string]any, newline bool) ([]byte, error) {
	data, err := jsonvalue.Append(make([]byte, 0, 8<<10), v)
	if err != nil {
		return nil, err
	}
	return kept(data, newline), nil
}

// encodeJSON encodes with the escapes that Kubernetes' encoders use. Stored
// JSON ends in a newline, as kube-apiserver's does.
func encodeJSON(v any, newline bool) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil || !newline {
		return data, err
	}
	return kept(data, true), nil
}

// kept returns a copy of what is going to be kept for long, without the room that
// a buffer has to grow.
func kept(data []byte, newline bool) []byte {
	if !newline {
		return bytes.Clone(data)
	}
	out := make([]byte, len(data)+1)
	copy(out, data)
	out[len(data)] = '\n'
	return out
}
