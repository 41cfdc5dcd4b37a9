package rest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest/patch"
	"github.com/apikeel/kelson/storage"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// patch changes an object by one of the four kinds of patches.
func (s *scope) patch() error {
	if err := s.checkName(); err != nil {
		return err
	}
	kind, err := s.patchType()
	if err != nil {
		return err
	}
	body, err := s.readBody()
	if err != nil {
		return err
	}
	if err := s.patchOptions(kind); err != nil {
		return err
	}
	if kind == types.ApplyYAMLPatchType {
		s.sentPatch(body, true)
		return s.apply(body)
	}
	if err := patch.Valid(body); err != nil {
		return err
	}
	s.sentPatch(body, false)
	validation, err := s.fieldValidation("PatchOptions")
	if err != nil {
		return err
	}
	if s.sub != nil && s.sub.Projection != nil {
		return s.changeProjection(func(current resource.Object) (resource.Object, error) {
			return s.patched(current, s.sub.New, s.sub.Kind, kind, body, validation)
		})
	}
	return s.change(func(live resource.Object) (resource.Object, error) {
		in, err := s.fromHub(live.DeepCopyObject().(resource.Object))
		if err != nil {
			return nil, err
		}
		out, err := s.patched(in, s.served.Version.New, s.served.GroupVersionKind(), kind, body, validation)
		if err != nil {
			return nil, err
		}
		if err := s.nameFits(out); err != nil {
			return nil, err
		}
		return s.toHub(out)
	}, nil)
}

// patchType returns which kind of patch the body is.
func (s *scope) patchType() (types.PatchType, error) {
	accepted := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if !s.served.Unstructured {
		accepted = append(accepted, string(types.StrategicMergePatchType))
	}
	accepted = append(accepted, string(types.ApplyYAMLPatchType), string(types.ApplyCBORPatchType))
	m, _, err := mime.ParseMediaType(s.r.Header.Get("Content-Type"))
	if err == nil && m != string(types.ApplyCBORPatchType) {
		for _, a := range accepted {
			if m == a {
				return types.PatchType(m), nil
			}
		}
	}
	if s.served.Unstructured && s.sub == nil {
		return "", errUnsupportedMedia(strings.Join(accepted[:len(accepted)-1], ", "))
	}
	return "", &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: "415: Unsupported Media Type", Details: &metav1.StatusDetails{},
	}}
}

// patchOptions reads the parameters of a patch.
func (s *scope) patchOptions(kind types.PatchType) error {
	q := s.r.URL.Query()
	var errs field.ErrorList
	if kind == types.ApplyYAMLPatchType {
		if q.Get("fieldManager") == "" {
			errs = append(errs, field.Required(field.NewPath("fieldManager"), "is required for apply patch"))
		}
	} else if q.Has("force") {
		errs = append(errs, field.Forbidden(field.NewPath("force"), "may not be specified for non-apply patch"))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "PatchOptions"}, "", errs)
	}
	return s.writeOptions("PatchOptions")
}

// fromHub converts an object to the version of the request.
func (s *scope) fromHub(obj resource.Object) (resource.Object, error) {
	if s.served.IsHub() || s.served.Version.FromHub == nil {
		return obj, nil
	}
	return s.served.Version.FromHub(obj)
}

// patched returns the result of a patch on an object of some kind.
func (s *scope) patched(obj resource.Object, empty func() resource.Object, gvk schema.GroupVersionKind, kind types.PatchType, body []byte, validation fieldValidation) (resource.Object, error) {
	check := validation != metav1.FieldValidationIgnore
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	var strict []error
	var value string
	var err error
	out := empty()
	if kind == types.StrategicMergePatchType {
		strict, value, err = patch.Strategic(obj, out, body, check)
		if err != nil {
			return nil, err
		}
	} else {
		original, err := json.Marshal(obj)
		if err != nil {
			return nil, err
		}
		var result []byte
		if kind == types.JSONPatchType {
			result, strict, err = patch.JSON(original, body, check)
		} else {
			result, strict, err = patch.Merge(original, body, check)
		}
		if err != nil {
			return nil, err
		}
		problems, err := unmarshal(result, out, check)
		if err != nil {
			return nil, patch.Invalid(string(result), err)
		}
		strict, value = append(strict, problems...), string(result)
		if problems, err = s.prune(out, validation); err != nil {
			return nil, patch.Invalid(value, err)
		}
		strict = append(strict, problems...)
	}
	if len(strict) > 0 {
		if validation == metav1.FieldValidationStrict {
			texts := make([]string, len(strict))
			for i, e := range strict {
				texts[i] = e.Error()
			}
			return nil, patch.Invalid(value, errors.New("strict decoding error: "+strings.Join(texts, ", ")))
		}
		for _, e := range strict {
			s.req.Warn(e.Error())
		}
	}
	// A strategic merge patch cannot make another kind of an object.
	if got := out.GetObjectKind().GroupVersionKind(); got != gvk && kind != types.StrategicMergePatchType {
		got, err := kindOf([]byte(value))
		if err == nil && s.served.Unstructured && s.sub == nil && got.GroupVersion() == gvk.GroupVersion() {
			return nil, errOtherKind(got, gvk, out.GetName())
		}
		if err == nil {
			err = cmp.Or(s.unlike(orWanted(got, gvk), gvk), errUnregistered(got))
		}
		return nil, patch.Invalid(value, err)
	}
	return out, nil
}

// apply merges an applied configuration: server-side apply.
func (s *scope) apply(body []byte) error {
	if s.h.Owners == nil {
		return errUnsupportedMedia("application/json-patch+json, application/merge-patch+json")
	}
	validation, err := s.fieldValidation("PatchOptions")
	if err != nil {
		return err
	}
	force := parseBool(s.r.URL.Query(), "force")
	merge := func(live resource.Object) (resource.Object, error) {
		obj, err := s.h.Owners.Apply(s.served, s.req.Subresource, live, body, s.req.FieldManager, force, s.req.Received)
		if err != nil {
			return nil, err
		}
		if err := s.checkApplied(body, validation); err != nil {
			return nil, err
		}
		if live == nil {
			return obj, nil
		}
		return obj, s.nameFits(obj)
	}
	s.applied = true
	if s.sub != nil && s.sub.Projection != nil {
		return s.changeProjection(merge)
	}
	err = s.change(func(live resource.Object) (resource.Object, error) {
		return merge(live.DeepCopyObject().(resource.Object))
	}, nil)
	if !errors.Is(err, storage.ErrNotFound) || s.sub != nil {
		return err
	}
	obj, err := merge(nil)
	if err != nil {
		return err
	}
	if uid := obj.GetUID(); uid != "" {
		return apierrors.NewConflict(s.groupResource(), s.req.Name, fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	}
	if err := s.namespaceFits(obj); err != nil {
		return err
	}
	if err := s.nameFits(obj); err != nil {
		return err
	}
	return s.createInstead(obj)
}

// checkApplied looks for what a configuration says twice.
func (s *scope) checkApplied(body []byte, validation fieldValidation) error {
	if validation == metav1.FieldValidationIgnore {
		return nil
	}
	err := s.h.Owners.CheckPatch(body)
	if err == nil {
		return nil
	}
	if validation == metav1.FieldValidationStrict {
		return apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
	}
	s.warnStrict(err)
	return nil
}
