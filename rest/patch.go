package rest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/apikeel/kelson/internal/yamltext"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest/patch"
	"github.com/apikeel/kelson/storage"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// patch changes an object by one of the kinds of patches.
func (s *scope) patch() error {
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
	// Only the store looks at the name.
	if err := s.checkName(); err != nil {
		if isJSON := kind != types.ApplyYAMLPatchType && kind != types.ApplyCBORPatchType; isJSON {
			err = cmp.Or(patch.Valid(body), err)
		}
		return err
	}
	switch kind {
	case types.ApplyYAMLPatchType:
		s.auditPatch(body, true)
		err := s.apply(body)
		if errors.Is(err, storage.ErrNotFound) {
			// What is no YAML at all is refused before the object is looked for.
			if _, bad := yamltext.ToJSON(body); bad != nil && !yamltext.IsRefusal(bad) {
				return apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", bad))
			}
		}
		return err
	case types.ApplyCBORPatchType:
		if body, err = decodeCBORPatch(body); err != nil {
			return err
		}
		s.auditPatch(body, false)
		return s.apply(body)
	}
	body = asUTF8(body)
	if err := patch.Valid(body); err != nil {
		return err
	}
	s.auditPatch(body, false)
	if s.sub != nil && s.sub.Projection != nil {
		return s.changeProjection(func(current resource.Object) (resource.Object, error) {
			base := func() (resource.Object, error) { return current.DeepCopyObject().(resource.Object), nil }
			return s.patched(base, s.sub.New, s.sub.Kind, kind, body)
		})
	}
	return s.changeObject(func(live resource.Object) (resource.Object, error) {
		base := func() (resource.Object, error) {
			in := live.DeepCopyObject().(resource.Object)
			if s.def.Between != nil {
				return in, nil
			}
			return s.fromHub(in)
		}
		out, err := s.patched(base, s.served.Version.New, s.served.GroupVersionKind(), kind, body)
		if err != nil {
			return nil, err
		}
		if err := s.checkBodyName(out); err != nil {
			return nil, err
		}
		return s.complete(out)
	}, nil)
}

// patchType returns which kind of patch the body is.
func (s *scope) patchType() (types.PatchType, error) {
	accepted := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if !s.served.Unstructured {
		accepted = append(accepted, string(types.StrategicMergePatchType))
	}
	accepted = append(accepted, string(types.ApplyYAMLPatchType))
	if s.req.CBOR {
		accepted = append(accepted, string(types.ApplyCBORPatchType))
	}
	header := s.r.Header.Get("Content-Type")
	kind, _, _ := strings.Cut(header, ";")
	if slices.Contains(accepted, kind) {
		return types.PatchType(kind), nil
	}
	// A header may name several types, and one of them is enough to get here.
	listed := s.served.Unstructured
	for part := range strings.SplitSeq(header, ",") {
		part, _, _ = strings.Cut(part, ";")
		listed = listed || slices.Contains(accepted, strings.TrimSpace(part))
	}
	if listed {
		return "", errUnsupportedMedia(strings.Join(accepted, ", "))
	}
	return "", &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: "415: Unsupported Media Type", Details: &metav1.StatusDetails{},
	}}
}

// patchOptions reads the parameters of a patch.
func (s *scope) patchOptions(kind types.PatchType) error {
	q := s.req.Query
	var errs field.ErrorList
	if kind == types.ApplyYAMLPatchType || kind == types.ApplyCBORPatchType {
		if q.Get("fieldManager") == "" {
			errs = append(errs, field.Required(field.NewPath("fieldManager"), "is required for apply patch"))
		}
	} else if q.Has("force") {
		errs = append(errs, field.Forbidden(field.NewPath("force"), "may not be specified for non-apply patch"))
	}
	return s.writeOptions("PatchOptions", errs...)
}

// fromHub converts an object to the version of the request.
func (s *scope) fromHub(obj resource.Object) (resource.Object, error) {
	if s.served.IsHub() || s.served.Version.FromHub == nil {
		return obj, nil
	}
	return s.served.Version.FromHub(obj)
}

// patched returns the result of a patch on an object of some kind, of which base makes a
// copy.
func (s *scope) patched(base func() (resource.Object, error), empty func() resource.Object, gvk schema.GroupVersionKind, kind types.PatchType, body []byte) (resource.Object, error) {
	check := s.validation != metav1.FieldValidationIgnore
	obj, err := base()
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	if patch.Quick(obj, kind, body) && obj.GetObjectKind().GroupVersionKind() == gvk {
		return obj, nil
	}
	if obj, err = base(); err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	var strict []error
	var value string
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
			result, strict, err = patch.JSON(original, body, check, s.changes().HoldPatch)
		} else {
			result, strict, err = patch.Merge(original, body, check)
		}
		if err != nil {
			return nil, err
		}
		if kind == types.JSONPatchType && len(result) > len(original)+len(body) {
			if err := s.changes().HoldDecoded(result); err != nil {
				return nil, err
			}
			s.changes().Settle(true)
		}
		if u, isMap := out.(*unstructured.Unstructured); isMap {
			return s.patchedMap(u, gvk, result, strict)
		}
		problems, err := unmarshal(result, out, check)
		if got := out.GetObjectKind().GroupVersionKind(); got != gvk {
			bare, wrong := s.patchedKind(result, gvk)
			if wrong != nil {
				return nil, wrong
			}
			if bare {
				out = empty()
				problems, err = unmarshalBare(result, out, check)
			}
			out.GetObjectKind().SetGroupVersionKind(gvk)
		}
		if err != nil {
			return nil, patch.Invalid(string(result), err)
		}
		strict, value = append(strict, problems...), string(result)
	}
	if err := s.strict(strict); err != nil {
		return nil, patch.Invalid(value, err)
	}
	return out, nil
}

// patchedMap decodes the result of a patch that nothing but itself tells the kind
// of.
func (s *scope) patchedMap(obj *unstructured.Unstructured, gvk schema.GroupVersionKind, result []byte, strict []error) (resource.Object, error) {
	problems, err := unmarshal(result, obj, s.validation != metav1.FieldValidationIgnore)
	got, known := kindIn(obj.Object)
	if !known { // the text tells what is wrong
		_, bad := kindOf(result)
		err = cmp.Or(bad, err)
	}
	if err == nil && got.Kind == "" {
		err = missing("Kind", result)
	}
	strict = append(strict, problems...)
	if err == nil {
		problems, err = s.prune(obj, got)
	}
	if err != nil {
		return nil, patch.Invalid(string(result), err)
	}
	if err := s.strict(append(strict, problems...)); err != nil {
		return nil, patch.Invalid(string(result), err)
	}
	switch {
	case got.Version == "":
		if err := s.checkBodyName(obj); err != nil {
			return nil, err
		}
		return nil, apierrors.NewInternalError(errNoVersion())
	case got != gvk && s.sub == nil:
		return nil, errOtherKind(got, gvk, obj.GetName())
	}
	obj.SetGroupVersionKind(gvk)
	return obj, nil
}

// patchedKind judges the kind of what a patch has made of an object. A strategic
// merge patch cannot make another kind of it. An object that has lost its version
// is bare.
func (s *scope) patchedKind(result []byte, gvk schema.GroupVersionKind) (bare bool, err error) {
	got, err := kindOf(result)
	full := orWanted(got, gvk)
	lost := got.Version == "" && got.Group == ""
	switch {
	case err != nil:
	case full == gvk:
		return lost, nil
	case lost && s.isKnownKind(full):
		pkg := internalPackage(gvk.Group)
		err = fmt.Errorf("converting (%s.%s) to (%s.%s): unknown conversion", pkg, full.Kind, pkg, gvk.Kind)
	case lost:
		err = fmt.Errorf("no kind %q is registered for the internal version of group %q in scheme %q", full.Kind, gvk.Group, "pkg/runtime/scheme.go:111")
	default:
		err = cmp.Or(s.kindMismatch(full, gvk, result), errUnregistered(got))
	}
	return false, patch.Invalid(string(result), err)
}

// unmarshalBare decodes an object that does not say its version: in the form in
// which it is taken then nothing but the metadata has names that JSON could use,
// and those are not below another one.
func unmarshalBare(body []byte, obj resource.Object, strict bool) (problems []error, err error) {
	var bare struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ObjectMeta
	}
	if problems, err = kjson.UnmarshalStrict(body, &bare); err != nil {
		return nil, err
	}
	meta, err := json.Marshal(metav1.PartialObjectMetadata{ObjectMeta: bare.ObjectMeta})
	if err != nil {
		return nil, err
	}
	if !strict {
		problems = nil
	}
	return problems, kjson.UnmarshalCaseSensitivePreserveInts(meta, obj)
}

// apply merges an applied configuration: server-side apply.
func (s *scope) apply(body []byte) error {
	if s.h.Owners == nil {
		return errUnsupportedMedia("application/json-patch+json, application/merge-patch+json")
	}
	force := s.req.Query.Bool("force")
	merge := func(live resource.Object) (resource.Object, error) {
		obj, err := s.h.Owners.Apply(s.served, s.req.Subresource, live, body, s.req.FieldManager, force, s.req.Received)
		if err != nil {
			return nil, err
		}
		if err := s.checkApplied(body); err != nil {
			return nil, err
		}
		if live == nil {
			return obj, nil
		}
		return obj, s.checkBodyName(obj)
	}
	s.applied = true
	if s.sub != nil && s.sub.Projection != nil {
		return s.changeProjection(merge)
	}
	return s.changeOrCreate(func() error {
		err := s.changeObject(func(live resource.Object) (resource.Object, error) {
			return merge(live.DeepCopyObject().(resource.Object))
		}, nil)
		st := s.strategy()
		if !errors.Is(err, storage.ErrNotFound) || s.sub != nil && !st.CreateOnUpdate && !st.CreateOnApply {
			return err
		}
		return s.createApplied(merge)
	})
}

// createApplied creates the object that an apply did not find.
func (s *scope) createApplied(merge func(live resource.Object) (resource.Object, error)) error {
	obj, err := merge(nil)
	if err != nil {
		return err
	}
	if uid := obj.GetUID(); uid != "" {
		return apierrors.NewConflict(s.groupResource(), s.req.Name, fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	}
	if err := s.checkBodyNamespace(obj); err != nil {
		return err
	}
	if err := s.checkBodyName(obj); err != nil {
		return err
	}
	return s.createInstead(obj)
}

// checkApplied looks for what a configuration says twice.
func (s *scope) checkApplied(body []byte) error {
	if s.validation == metav1.FieldValidationIgnore {
		return nil
	}
	err := s.h.Owners.CheckPatch(body)
	if err == nil || yamltext.IsRefusal(err) {
		return err
	}
	if s.validation == metav1.FieldValidationStrict {
		return apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
	}
	s.warnStrict(err)
	return nil
}
