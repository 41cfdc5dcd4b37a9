package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/apikeel/kelson/internal/jsonvalue"
	"github.com/apikeel/kelson/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
)

// An object has three forms besides the one in memory:
//
//   - stored: what kube-apiserver keeps in etcd. A struct with protobuf methods is protobuf
//     in an envelope that names its kind; a map is JSON, or CBOR if its definition says so;
//     everything else is JSON. A stored object has no resourceVersion.
//   - a body: the JSON, protobuf or CBOR of one version, without what depends on where it is
//     sent. Objects, lists and events are put together from the same body.
//   - on its own: a body with its kind and apiVersion.

// ErrNotEncodable says that a kind has no protobuf form.
var ErrNotEncodable = errors.New("object has no protobuf form")

var (
	errNotAnObject     = errors.New("not an object")
	errNotStoredAsCBOR = errors.New("is stored in CBOR, which only custom resources can be")
)

// message is a struct with the protobuf methods that Kubernetes generates.
type message interface {
	runtime.ProtobufMarshaller
	runtime.ProtobufReverseMarshaller
	Reset()
	Unmarshal(data []byte) error
}

// JSONBody encodes an object of the hub version in the version given. The JSON
// of a struct has neither kind nor apiVersion, like the items of lists; that of
// a map has both. A struct is as before when it returns, but must not be read
// meanwhile.
func JSONBody(def *resource.Definition, version *resource.Version, obj resource.Object) ([]byte, error) {
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

// protoBody encodes an object of the hub version in the version given, without
// an envelope.
func protoBody(def *resource.Definition, version *resource.Version, obj resource.Object) ([]byte, error) {
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

// fromHub converts an object of the hub version. The error is a ConversionError.
func fromHub(def *resource.Definition, version *resource.Version, obj resource.Object) (resource.Object, error) {
	if version.FromHub == nil || version == def.HubVersion() {
		return obj, nil
	}
	out, err := version.FromHub(obj)
	if err != nil {
		return nil, &ConversionError{err}
	}
	return out, nil
}

// ConversionError says that an object could not be converted to a version.
type ConversionError struct{ Err error }

// Error implements error.
func (e *ConversionError) Error() string { return "convert: " + e.Err.Error() }

// Unwrap returns what went wrong.
func (e *ConversionError) Unwrap() error { return e.Err }

// AppendWithKind appends the JSON of an object on its own, given its body: with kind and
// apiVersion, which the body of a map has already.
func AppendWithKind(dst []byte, s *resource.Served, body []byte) []byte {
	if s.Unstructured || len(body) < 2 {
		return append(dst, body...)
	}
	dst = jsonHead(dst, s)
	if body[1] != '}' {
		dst = append(dst, ',')
	}
	return append(dst, body[1:]...)
}

// storedIsBody reports whether stored bytes are, but for the resourceVersion, what a
// client gets for a body: then the body need not be kept, and appendStored makes it.
func storedIsBody(s *resource.Served, stored, body []byte) bool {
	stored = bytes.TrimSuffix(stored, []byte("\n"))
	if s.Unstructured {
		return bytes.Equal(stored, body)
	}
	head := jsonHead(nil, s)
	return len(body) > 2 && len(stored) == len(head)+len(body) &&
		bytes.HasPrefix(stored, head) && stored[len(head)] == ',' && bytes.HasSuffix(stored, body[1:])
}

// appendStored appends stored JSON with a resourceVersion; as an item of a list, a struct
// has neither kind nor apiVersion.
func appendStored(dst []byte, s *resource.Served, stored []byte, rv string, item bool) []byte {
	start := len(dst)
	dst = appendSpliceJSON(dst, bytes.TrimSuffix(stored, []byte("\n")), rv)
	if item && !s.Unstructured {
		var buf [256]byte
		head := len(jsonHead(buf[:0], s))
		n := copy(dst[start+1:], dst[start+head+1:])
		dst = dst[:start+1+n]
	}
	return dst
}

// jsonHead appends how a struct begins, up to the comma before its first field.
func jsonHead(dst []byte, s *resource.Served) []byte {
	dst = append(dst, `{"kind":`...)
	dst = jsonvalue.AppendString(dst, s.Definition.Kind)
	dst = append(dst, `,"apiVersion":`...)
	return jsonvalue.AppendString(dst, s.APIVersion)
}

// decodeMap decodes JSON into an object that is a map.
func decodeMap(data []byte, into *unstructured.Unstructured) error {
	var ok bool
	if into.Object, ok = jsonvalue.Parse(data); ok {
		return nil
	}
	into.Object = nil
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &into.Object); err != nil {
		return err
	}
	if into.Object == nil {
		return errNotAnObject
	}
	return nil
}

// encodeMap is encodeJSON for objects that are maps.
func encodeMap(v map[string]any, newline bool) ([]byte, error) {
	data, err := jsonvalue.Append(make([]byte, 0, 8<<10), v)
	if err != nil {
		return nil, err
	}
	return exactCopy(data, newline), nil
}

// encodeJSON encodes with the escapes that Kubernetes' encoders use. Stored
// JSON ends in a newline, as kube-apiserver's does.
func encodeJSON(v any, newline bool) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil || !newline {
		return data, err
	}
	return exactCopy(data, true), nil
}

// exactCopy returns a copy without the spare capacity that a buffer has, for bytes that
// are kept for long.
func exactCopy(data []byte, newline bool) []byte {
	if !newline {
		return bytes.Clone(data)
	}
	out := make([]byte, len(data)+1)
	copy(out, data)
	out[len(data)] = '\n'
	return out
}
