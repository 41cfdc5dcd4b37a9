package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

// This file decodes bodies in CBOR. Decoding is left to apimachinery's serializer, which
// refuses what is not well-formed before it allocates memory for it, duplicate keys, and what
// JSON has no words for.

// onlyKind tells a serializer that every object is of one kind.
type onlyKind schema.GroupVersionKind

// ObjectKinds implements runtime.ObjectTyper.
func (k onlyKind) ObjectKinds(runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return []schema.GroupVersionKind{schema.GroupVersionKind(k)}, false, nil
}

// Recognizes implements runtime.ObjectTyper.
func (onlyKind) Recognizes(schema.GroupVersionKind) bool { return true }

// New implements runtime.ObjectCreater: objects are decoded into those that there are.
func (onlyKind) New(schema.GroupVersionKind) (runtime.Object, error) { return nil, errNotCreated }

var errNotText = errors.New("cbor: a string is not UTF-8")

var errNotCreated = errors.New("no object to decode into")

// cborKind reads of what kind a body in CBOR is.
func cborKind(body []byte) (schema.GroupVersionKind, error) {
	if !wire.IsTextCBOR(body) {
		return schema.GroupVersionKind{}, errNotText
	}
	// It returns the kind with the error that it has no object to go on with.
	_, kind, err := cbor.NewSerializer(onlyKind{}, onlyKind{}).Decode(body, nil, nil)
	if kind == nil {
		return schema.GroupVersionKind{}, err
	}
	return *kind, nil
}

// unmarshalCBOR decodes a body that is of a kind; the problems are what a strict decoder
// refuses.
func unmarshalCBOR(body []byte, kind schema.GroupVersionKind, obj runtime.Object, strict bool) (problems []error, err error) {
	only := onlyKind(kind)
	_, _, err = cbor.NewSerializer(only, only, cbor.Strict(strict)).Decode(body, &kind, obj)
	if unknown, ok := runtime.AsStrictDecodingError(err); ok {
		return unknown.Errors(), nil
	}
	return nil, err
}

// decodeCBOR decodes a body in CBOR that should be of a kind.
func (s *scope) decodeCBOR(obj resource.Object, want schema.GroupVersionKind, body []byte) error {
	report := s.validation != metav1.FieldValidationIgnore
	if u, isMap := obj.(*unstructured.Unstructured); isMap {
		return s.decodeCBORMap(u, want, body)
	}
	got, err := cborKind(body)
	if err != nil {
		return s.decodeError(err, got, want, body)
	}
	if orWanted(got, want) != want {
		text, err := cborToJSON(body)
		if err != nil {
			return s.decodeError(err, got, want, body)
		}
		if err := s.checkKind(got, want, text); err != nil {
			return err
		}
	}
	got = orWanted(got, want)
	problems, err := unmarshalCBOR(body, got, obj, report)
	if err == nil {
		err = s.strict(problems)
	}
	if err != nil {
		return s.decodeError(err, got, want, body)
	}
	return nil
}

// decodeCBORMap decodes a body in CBOR that nothing but itself tells the kind of.
func (s *scope) decodeCBORMap(obj *unstructured.Unstructured, want schema.GroupVersionKind, body []byte) error {
	if !wire.IsTextCBOR(body) {
		return s.decodeError(errNotText, schema.GroupVersionKind{}, want, body)
	}
	_, said, err := cbor.NewSerializer(onlyKind(want), onlyKind(want)).Decode(body, &want, obj)
	if err != nil {
		var got schema.GroupVersionKind
		if said != nil {
			got = *said
		}
		return s.decodeError(err, got, want, body)
	}
	got, _ := kindIn(obj.Object)
	problems, err := s.prune(obj, got)
	if err == nil {
		err = s.strict(problems)
	}
	if err != nil {
		return s.decodeError(err, got, want, body)
	}
	return s.checkMapKind(got, want, obj)
}

// cborToJSON returns the JSON of a body in CBOR.
func cborToJSON(body []byte) ([]byte, error) {
	var v any
	if err := direct.Unmarshal(body, &v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// decodeCBORPatch returns the JSON of a configuration in CBOR that is to be applied, which
// is YAML, too.
func decodeCBORPatch(body []byte) ([]byte, error) {
	if !wire.IsTextCBOR(body) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", errNotText))
	}
	var fields map[string]any
	if err := direct.Unmarshal(body, &fields); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
	}
	return escapeForYAML(text), nil
}

// escapeForYAML escapes the characters of JSON text that YAML does not allow.
func escapeForYAML(text []byte) []byte {
	forbidden := func(r rune) bool { return r >= 0x7f && r < 0xa0 || r == 0xfeff || r == 0xfffe || r == 0xffff }
	if !bytes.ContainsFunc(text, forbidden) {
		return text
	}
	out := make([]byte, 0, len(text)+64)
	for _, r := range string(text) {
		if forbidden(r) {
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}
