package rest

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"unicode"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkName refuses names in paths that could not name anything.
func (s *scope) checkName() error { return checkName(s.req.Name) }

func checkName(name string) error {
	if msgs := content.IsPathSegmentName(name); name != "" && len(msgs) > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", name, strings.Join(msgs, ";")))
	}
	return nil
}

// errNameless is the error for a path that lacks the name of the object.
func errNameless() error { return apierrors.NewBadRequest("name must be provided") }

// errNoName is the error for an object without a name.
func errNoName() error { return apierrors.NewBadRequest("Name parameter required.") }

// writeOptions reads the parameters that all writes share. errs is what is wrong
// with others.
func (s *scope) writeOptions(kind string, errs ...*field.Error) error {
	var manager, validation string
	var dry []string
	if q := s.req.Query; !q.IsEmpty() {
		manager, dry, validation = q.Get("fieldManager"), q.All("dryRun"), q.Get("fieldValidation")
		errs = append(errs, metavalidation.ValidateFieldManager(manager, field.NewPath("fieldManager"))...)
		errs = append(errs, metavalidation.ValidateDryRun(field.NewPath("dryRun"), dry)...)
		errs = append(errs, metavalidation.ValidateFieldValidation(field.NewPath("fieldValidation"), validation)...)
	}
	if len(errs) > 0 {
		return problems.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
	}
	s.req.DryRun = s.req.DryRun || len(dry) > 0
	s.req.FieldManager = managerOrAgent(manager, s.r.UserAgent())
	s.validation = fieldValidation(cmp.Or(validation, metav1.FieldValidationWarn))
	return nil
}

// managerOrAgent names the field manager of a request that does not: the
// program in its User-Agent.
func managerOrAgent(manager, agent string) string {
	if manager != "" {
		return manager
	}
	name, _, _ := strings.Cut(agent, "/")
	if len(name) <= metavalidation.FieldManagerMaxLength && !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return name
	}
	var b strings.Builder
	for _, r := range name {
		if unicode.IsPrint(r) {
			if b.Len()+len(string(r)) > metavalidation.FieldManagerMaxLength {
				break
			}
			b.WriteRune(r)
		}
	}
	return b.String()
}

// checkEncodable refuses an object that not all codecs can write, whichever it came in.
func (s *scope) checkEncodable(obj resource.Object) error {
	if err := s.h.encodable.Check(obj); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("the object cannot be encoded: %v", err))
	}
	return nil
}

// checkBodyNamespace puts an object into the namespace of the path.
func (s *scope) checkBodyNamespace(obj resource.Object) error {
	if !s.def.Namespaced {
		obj.SetNamespace("")
		return nil
	}
	if obj.GetNamespace() == "" {
		obj.SetNamespace(s.req.Namespace)
	}
	if obj.GetNamespace() != s.req.Namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	return nil
}

// checkBodyName checks that an object is the one that the path names.
func (s *scope) checkBodyName(obj resource.Object) error {
	if err := s.checkBodyNamespace(obj); err != nil {
		return err
	}
	switch name := obj.GetName(); name {
	case s.req.Name:
		return nil
	case "":
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", s.req.Name))
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, s.req.Name))
	}
}

// wipeMeta clears what only the server gives to something new, before anybody sees
// it.
func wipeMeta(obj resource.Object) {
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetUID("")
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
}

// setNewMetadata sets the metadata that a new object gets from the server.
func (s *scope) setNewMetadata(obj resource.Object) {
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
	obj.SetUID(uuid.NewUUID())
	obj.SetCreationTimestamp(metav1.NewTime(s.req.Received.UTC().Truncate(1e9)))
	if s.strategy().Generation != nil {
		obj.SetGeneration(1)
	}
	if obj.GetName() == "" && obj.GetGenerateName() != "" {
		obj.SetName(generateName(obj.GetGenerateName()))
	}
}

// generateName appends a random part to a prefix.
func generateName(prefix string) string {
	const (
		letters = "bcdfghjklmnpqrstvwxz2456789"
		random  = 5
		maxName = 63
	)
	if len(prefix) > maxName-random {
		prefix = prefix[:maxName-random]
	}
	b := []byte(prefix)
	for range random {
		b = append(b, letters[rand.IntN(len(letters))])
	}
	return string(b)
}

// validateName is the rule for names of the kind.
func (s *scope) validateName() apivalidation.ValidateNameFunc {
	if f := s.def.Strategy.ValidateName; f != nil {
		return f
	}
	return validateSubdomain
}

// validateNew checks a new object.
func (s *scope) validateNew(obj resource.Object) error {
	var errs field.ErrorList
	if !s.strategy().JudgesMetadata {
		errs = dropRepeated(apivalidation.ValidateObjectMetaAccessor(quickMeta{obj}, s.def.Namespaced, s.validateName(), field.NewPath("metadata")), map[string]bool{})
	}
	if f := s.strategy().Validate; f != nil {
		errs = append(errs, f(s.ctx(), obj)...)
	}
	if len(errs) == 0 && s.strategy().JudgesMetadata {
		// Only what is left of it.
		errs = apivalidation.ValidateObjectMetaAccessor(quickMeta{obj}, s.def.Namespaced, validateSegment, field.NewPath("metadata"))
	} else if len(errs) == 0 {
		errs = validateSegments(obj)
	}
	if errs = resource.DeclaredLast(errs); len(errs) > 0 {
		return s.invalid(obj, errs)
	}
	s.warn(obj, nil)
	return nil
}

// validateChange checks a change of an object.
func (s *scope) validateChange(obj, old resource.Object) error {
	errs, names := s.validateMetaChange(obj, old)
	st := s.strategy()
	switch {
	case st.ValidateUpdate != nil:
		errs = append(errs, insertNames(st.ValidateUpdate(s.ctx(), obj, old), names)...)
	case st.Validate != nil:
		errs = append(errs, insertNames(st.Validate(s.ctx(), obj), names)...)
	default:
		errs = append(errs, names...)
	}
	if errs = resource.DeclaredLast(errs); len(errs) > 0 {
		return s.invalid(obj, errs)
	}
	s.warn(obj, old)
	return nil
}

// invalid returns the Invalid error for an object that fails validation.
func (s *scope) invalid(obj resource.Object, errs field.ErrorList) error {
	return problems.Invalid(s.groupKind(), obj.GetName(), errs)
}

func (s *scope) warn(obj, old resource.Object) {
	if f := s.strategy().Warnings; f != nil {
		for _, text := range f(s.ctx(), obj, old) {
			s.req.Warn(text)
		}
	}
}

func (s *scope) groupKind() schema.GroupKind {
	return schema.GroupKind{Group: s.def.Group, Kind: s.def.Kind}
}

func (s *scope) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: s.served.GroupVersion.Group, Resource: s.def.Resource}
}

// updateManagedFields records in the metadata which fields the request has set.
func (s *scope) updateManagedFields(live, obj resource.Object) (resource.Object, error) {
	if s.applied {
		return obj, nil
	}
	if s.h.Owners == nil {
		resource.SetManagedFields(obj, nil)
		return obj, nil
	}
	owned, err := s.h.Owners.Update(s.served, s.req.Subresource, live, obj, s.req.FieldManager, s.req.Received)
	if errors.Is(err, budget.ErrBusy) {
		return nil, err // with the owners as they were, later writers would miss conflicts
	}
	if err != nil && owned != nil {
		// Who owns what is worth less than the write: it stays as it was. Of what
		// is not stored nobody wants to know it.
		if s.def.Answer != nil {
			return owned, nil
		}
		s.h.log().Warn("owners of fields could not be updated", "resource", s.def.Resource, "name", obj.GetName(), "error", err)
		return owned, nil
	}
	return owned, err
}

// shownKey returns the key in etcd that errors name.
func (h *Handler) shownKey(key string) string {
	below, ok := strings.CutPrefix(key, storage.Root)
	if h.KeyRoot == "" || !ok {
		return key
	}
	return path.Join("/", h.KeyRoot) + "/" + below
}

// sameUID checks that an object is the one that a writer means.
func (s *scope) sameUID(live resource.Object, uid types.UID) error {
	if uid == live.GetUID() {
		return nil
	}
	key := s.h.shownKey(s.key())
	if s.req.DryRun {
		key = "/" + strings.TrimPrefix(s.key(), storage.Root) // nothing gets as far as there
	}
	return apierrors.NewConflict(s.groupResource(), s.req.Name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: %v, UID in object meta: %v",
		key, uid, live.GetUID()))
}
