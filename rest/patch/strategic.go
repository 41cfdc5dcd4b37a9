package patch

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kjson "sigs.k8s.io/json"
)

// Strategic applies a strategic merge patch to an object and stores the result
// in into, an empty object of the same type, whose struct tags say how lists
// are merged. Neither is defaulted.
//
// The error is of the kind that Invalid makes if the result does not fit the
// type. The strict errors hold unknown fields as well, since here the decoding
// is part of the work; value is what Invalid should show with them.
func Strategic(original, into runtime.Object, patch []byte, check bool) (strict []error, value string, err error) {
	if err := Valid(patch); err != nil {
		return nil, "", err
	}
	fields := map[string]any{}
	if check {
		strict, err = kjson.UnmarshalStrict(patch, &fields)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(patch, &fields)
	}
	if err != nil {
		return nil, "", apierrors.NewBadRequest(err.Error())
	}
	document, err := runtime.DefaultUnstructuredConverter.ToUnstructured(original)
	if err != nil {
		return nil, "", internal(err)
	}
	patched, err := merge(document, fields, into)
	if err != nil {
		return nil, "", err
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(patched, into, check)
	unknown, isStrict := runtime.AsStrictDecodingError(err)
	switch {
	case isStrict:
		strict = append(strict, unknown.Errors()...)
	case err != nil:
		return nil, "", Invalid(fmt.Sprintf("%+v", fields), err)
	}
	if len(strict) > 0 {
		value = fmt.Sprintf("%+v", fields)
	}
	return strict, value, nil
}

// merge guards against directives of a type that the library does not expect.
func merge(document, fields map[string]any, tags any) (patched map[string]any, err error) {
	defer func() {
		if p := recover(); p != nil {
			patched, err = nil, internal(fmt.Errorf("cannot apply patch: %v", p))
		}
	}()
	if isLong(document) || isLong(fields) {
		patched, err = mergeLong(document, fields, tags)
	} else {
		patched, err = strategicpatch.StrategicMergeMapPatch(document, fields, tags)
	}
	for _, bad := range []error{
		mergepatch.ErrBadJSONDoc, mergepatch.ErrBadPatchFormatForPrimitiveList, mergepatch.ErrBadPatchFormatForRetainKeys,
		mergepatch.ErrBadPatchFormatForSetElementOrderList, mergepatch.ErrUnsupportedStrategicMergePatchFormat,
	} {
		if errors.Is(err, bad) {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	switch {
	case errors.Is(err, mergepatch.ErrNoListOfLists), errors.Is(err, mergepatch.ErrPatchContentNotMatchRetainKeys):
		return nil, unprocessable(err)
	case err != nil:
		return nil, internal(err)
	}
	return patched, nil
}
