package rest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apikeel/kelson/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateMetaChange returns everything that is wrong with the metadata of a
// changed object, each problem once unless the strategy wants it otherwise. names
// is what is wrong by the rules that the kind has for names.
func (s *scope) validateMetaChange(obj, old resource.Object) (errs, names field.ErrorList) {
	path := field.NewPath("metadata")
	var changed field.ErrorList
	if !isQuickChange(quickMeta{obj}, old, path) {
		changed = apivalidation.ValidateObjectMetaAccessorUpdate(quickMeta{obj}, quickMeta{old}, path)
	}
	prefix := obj.GetGenerateName()
	// What a part was changed by may have left a prefix that the whole object refuses.
	same := prefix == old.GetGenerateName() && (prefix == "" || !s.strategy().NameOnUpdate || len(s.validateName()(prefix, true)) == 0)
	if same && len(changed) == 0 &&
		len(apivalidation.ValidateFinalizers(obj.GetFinalizers(), path.Child("finalizers"))) == 0 {
		return nil, nil
	}
	alone := apivalidation.ValidateObjectMetaAccessor(quickMeta{obj}, s.def.Namespaced, validateSegment, path)
	if s.strategy().Repeats {
		return slices.Concat(alone, changed, changed), nil
	}
	seen := map[string]bool{}
	errs = dropRepeated(append(alone, changed...), seen)
	if s.strategy().NameOnUpdate {
		names = dropRepeated(apivalidation.ValidateObjectMetaAccessor(quickMeta{obj}, s.def.Namespaced, s.validateName(), path), seen)
	}
	return errs, names
}

// dropRepeated drops errors whose text is in seen, and adds the text of the others to it.
func dropRepeated(errs field.ErrorList, seen map[string]bool) (out field.ErrorList) {
	for _, err := range errs {
		if text := err.Error(); !seen[text] {
			seen[text] = true
			out = append(out, err)
		}
	}
	return out
}

// insertNames puts what is wrong with names into what else is: behind what a kind says
// of metadata and of fields that are frozen, before it looks at the object as a whole.
func insertNames(errs, names field.ErrorList) field.ErrorList {
	at := slices.IndexFunc(errs, func(err *field.Error) bool {
		return !strings.HasPrefix(err.Field, "metadata.") && !strings.HasPrefix(err.Detail, "field is immutable when")
	})
	if at < 0 {
		at = len(errs)
	}
	return slices.Insert(errs, at, names...)
}

// validateSegments wants names that can be in a path, whatever the rules of the kind
// are.
func validateSegments(obj resource.Object) (errs field.ErrorList) {
	for _, f := range []struct {
		field, name string
		prefix      bool
	}{{"generateName", obj.GetGenerateName(), true}, {"name", obj.GetName(), false}} {
		if f.name == "" {
			continue
		}
		for _, wrong := range validateSegment(f.name, f.prefix) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", f.field), f.name, wrong))
		}
	}
	return errs
}

// validateSegment is the rule for names that holds for every kind.
func validateSegment(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

// ownerKey is an owner reference by value.
type ownerKey struct {
	apiVersion, kind, name        string
	uid                           types.UID
	isController, isNotController bool
	blocks, doesNotBlock          bool
}

func keyOf(ref metav1.OwnerReference) ownerKey {
	c, b := ref.Controller, ref.BlockOwnerDeletion
	return ownerKey{ref.APIVersion, ref.Kind, ref.Name, ref.UID, c != nil && *c, c != nil && !*c, b != nil && *b, b != nil && !*b}
}

// dropDuplicateOwners drops owner references that are there twice, and tells the
// client. late is after the request's own part is done, when a patch is known
// by its result.
func (s *scope) dropDuplicateOwners(obj resource.Object, late bool) {
	refs := obj.GetOwnerReferences()
	if len(refs) < 2 {
		return
	}
	var kept []metav1.OwnerReference
	var twice []string
	seen := make(map[ownerKey]struct{}, len(refs))
	for _, ref := range refs {
		key := keyOf(ref)
		if _, ok := seen[key]; ok {
			twice = append(twice, string(ref.UID))
		} else {
			seen[key], kept = struct{}{}, append(kept, ref)
		}
	}
	if len(twice) == 0 {
		return
	}
	obj.SetOwnerReferences(kept)
	when := ""
	if late {
		when = " after mutating admission happens"
	}
	s.req.Warn(fmt.Sprintf(".metadata.ownerReferences contains duplicate entries%s; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %v", when, strings.Join(twice, ", ")))
}
