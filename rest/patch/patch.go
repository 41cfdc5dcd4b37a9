// Package patch applies the patches of RFC 6902 (JSON patch), RFC 7386 (merge
// patch) and Kubernetes' own strategic merge patch. Its functions know neither
// HTTP nor storage; their errors are the statuses that clients get.
//
// Each takes check, which is set for the field validations Strict and Warn: then
// what is wrong with a patch without keeping it from being applied, such as a
// field that is given twice, is returned beside the result. Under Warn it
// becomes warnings, under Strict the caller refuses with Invalid.
package patch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/jsonpatched"
	"github.com/apikeel/kelson/internal/jsonscan"
	"github.com/apikeel/kelson/internal/jsonstruct"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// Valid refuses a patch that is not JSON. Servers call it before anything else,
// even before they know whether the object exists.
func Valid(patch []byte) error {
	if !json.Valid(patch) {
		return apierrors.NewBadRequest("invalid JSON patch")
	}
	return nil
}

// jsonPatchOp is what a JSON patch is decoded into to find fields that an
// operation does not have. Errors of the decoder name the type, so its name is
// part of the API.
type jsonPatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

// JSON applies a JSON patch to a document. hold is that of jsonpatched.Apply, whose errors are those of
// the API, or budget.ErrBusy.
func JSON(original, patch []byte, check bool, hold func(bytes int64) error) (patched []byte, strict []error, err error) {
	if err := Valid(patch); err != nil {
		return nil, nil, err
	}
	if check {
		var ops []jsonPatchOp
		if strict, err = kjson.UnmarshalStrict(patch, &ops); err != nil {
			text := strings.ReplaceAll(err.Error(), "patch.jsonPatchOp", "handlers.jsonPatchOp")
			return nil, nil, apierrors.NewBadRequest("error decoding patch: " + text)
		}
		for i, e := range strict {
			strict[i] = fmt.Errorf("json patch %w", e)
		}
	}
	ops, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	switch patched, err = jsonpatched.Apply(original, ops, hold); {
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown, errors.Is(err, budget.ErrBusy):
		return nil, nil, err
	case errors.Is(err, jsonpatched.ErrTooManyOperations):
		return nil, nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", jsonpatched.MaxOperations, len(ops)))
	case errors.Is(err, jsonpatched.ErrMovesTooMuch), errors.Is(err, jsonpatched.ErrTooDeep):
		return nil, nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	case err != nil:
		return nil, nil, unprocessable(err)
	}
	return patched, strict, nil
}

// Merge applies a merge patch to a document.
func Merge(original, patch []byte, check bool) (patched []byte, strict []error, err error) {
	if err := Valid(patch); err != nil {
		return nil, nil, err
	}
	if check {
		fields := map[string]any{}
		if strict, err = kjson.UnmarshalStrict(patch, &fields); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
	}
	var document, fields map[string]any
	if isDeep(patch) || isDeep(original) {
		document, fields = object(original), object(patch)
	}
	if document != nil && fields != nil {
		mergeFields(document, fields)
		patched, err = json.Marshal(document)
	} else {
		patched, err = jsonpatch.MergePatch(original, patch) // it knows what is wrong
	}
	switch {
	case errors.Is(err, jsonpatch.ErrBadJSONPatch):
		return nil, nil, apierrors.NewBadRequest(err.Error())
	case err != nil:
		return nil, nil, internal(err)
	}
	return patched, strict, nil
}

// deep is the number of levels past which a merge patch is not left to jsonpatch, which
// parses the rest of the text again at every level: a patch of 60 KB that is 9,000
// levels deep would cost seconds. Other patches are, because the text of its outcome,
// with the order of fields, is part of errors.
const deep = 32

// isDeep reports whether a JSON text has more than deep levels.
func isDeep(text []byte) bool { return jsonscan.Depth(text) > deep }

// object decodes a JSON object, nil if it is none. Numbers are kept as they are written.
func object(text []byte) map[string]any {
	var fields map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&fields) != nil {
		return nil
	}
	return fields
}

// mergeFields merges a patch into a document as RFC 7396 has it. As jsonpatch.MergePatch
// does, it drops nulls also from objects in lists that are new.
func mergeFields(document, patch map[string]any) {
	for name, value := range patch {
		if value == nil {
			delete(document, name)
			continue
		}
		below, isObject := document[name].(map[string]any)
		fields, replaces := value.(map[string]any)
		switch {
		case isObject && replaces:
			mergeFields(below, fields)
		case isObject:
			document[name] = value
		default:
			dropNulls(value)
			document[name] = value
		}
	}
}

// dropNulls removes fields that are null from objects in a value.
func dropNulls(value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, below := range v {
			if below == nil {
				delete(v, name)
			} else {
				dropNulls(below)
			}
		}
	case []any:
		for _, item := range v {
			dropNulls(item)
		}
	}
}

// Invalid is the answer if the outcome of a patch cannot be decoded, or if it
// may not be under strict field validation. The value is what was decoded: the
// patched document, or the strategic merge patch.
func Invalid(value string, err error) *apierrors.StatusError {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), value, err.Error()),
	})
}

func unprocessable(err error) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
}

// internal is an error that kube-apiserver has no better code for.
func internal(err error) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error(),
	}}
}

// Quick applies a patch to obj itself, without a text of the object between. It returns
// false, and leaves obj undefined, for a patch in which anything is unusual: the other
// functions say what is wrong with it, if it is.
func Quick(obj runtime.Object, kind types.PatchType, patch []byte) bool {
	switch kind {
	case types.JSONPatchType:
		return jsonstruct.Patch(patch, obj)
	case types.MergePatchType:
		return jsonstruct.Merge(patch, obj)
	case types.StrategicMergePatchType:
		return jsonstruct.MergeStrategic(patch, obj)
	}
	return false
}
