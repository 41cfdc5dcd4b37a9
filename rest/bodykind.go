package rest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// What a body says it is, and what is answered if it is something else.

// kindIn returns of what kind an object is that was decoded as a map, as far as it says so:
// what is not a string, or not a version, counts as missing. It is known if both are there.
func kindIn(obj map[string]any) (got schema.GroupVersionKind, known bool) {
	apiVersion, versioned := obj["apiVersion"].(string)
	kind, named := obj["kind"].(string)
	gv, err := schema.ParseGroupVersion(apiVersion)
	return gv.WithKind(kind), versioned && named && err == nil
}

// kindOf reads of what kind a body in JSON is, for errors and for structs, which have one
// kind only. A map is of the kind that kindIn finds in it.
func kindOf(body []byte) (schema.GroupVersionKind, error) {
	// Errors name the type, so its form is part of the API.
	var head struct {
		APIVersion string `json:"apiVersion,omitempty"`
		Kind       string `json:"kind,omitempty"`
	}
	// The case of the names does not matter here, as it does everywhere else.
	if err := json.Unmarshal(body, &head); err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("couldn't get version/kind; json parse error: %w", err)
	}
	gv, err := schema.ParseGroupVersion(head.APIVersion)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	return gv.WithKind(head.Kind), nil
}

// kindOfDecoded returns of what kind an object says it is that was decoded from JSON. It is
// what kindOf reads in the body, if that has no unknown fields, as names in another case
// are; false for a type that decodes itself, which may let them pass.
func kindOfDecoded(obj resource.Object) (schema.GroupVersionKind, bool) {
	said, ok := obj.GetObjectKind().(*metav1.TypeMeta)
	if _, own := obj.(json.Unmarshaler); own || !ok {
		return schema.GroupVersionKind{}, false
	}
	gv, err := schema.ParseGroupVersion(said.APIVersion)
	return gv.WithKind(said.Kind), err == nil
}

// checkKind refuses bodies of another kind or version than the path is about, of objects
// that are structs.
func (s *scope) checkKind(got, want schema.GroupVersionKind, body []byte) error {
	got = orWanted(got, want)
	if s.isKindOf(got, want) {
		return nil
	}
	if err := s.kindMismatch(got, want, body); err != nil {
		return s.decodeError(err, got, want, body)
	}
	return errOtherVersion(got, want)
}

// checkMapKind is checkKind for objects that are maps. It judges what was decoded, since
// that is what will be stored.
func (s *scope) checkMapKind(got, want schema.GroupVersionKind, obj *unstructured.Unstructured) error {
	switch {
	case s.isKindOf(got, want):
		return nil
	case got.GroupVersion() != want.GroupVersion():
		return errOtherVersion(got, want)
	case s.sub != nil:
		return nil // of which nothing but the part is taken
	case s.req.Verb == request.Update && obj.GetResourceVersion() == "" && s.def.Strategy.RequireVersion:
		// That is said first. A plugin may fill in the version, but not make it another object.
		obj.SetGroupVersionKind(want)
		return nil
	}
	return errOtherKind(got, want, obj.GetName())
}

// isKindOf reports whether a body may be of a kind where want is wanted.
func (s *scope) isKindOf(got, want schema.GroupVersionKind) bool {
	return got == want || s.sub != nil && got.GroupKind() == want.GroupKind() && slices.Contains(s.sub.Also, got.Version)
}

// errOtherKind refuses an object of another kind or version, for kinds that are
// known by what objects say only.
func errOtherKind(got, want schema.GroupVersionKind, name string) error {
	var errs field.ErrorList
	if got.Kind != want.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), got.Kind, "must be "+want.Kind))
	}
	if got.GroupVersion() != want.GroupVersion() {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), got.GroupVersion().String(), "must be "+want.GroupVersion().String()))
	}
	return problems.Invalid(got.GroupKind(), name, errs)
}

func errOtherVersion(got, want schema.GroupVersionKind) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", got.GroupVersion(), want.GroupVersion()))
}

// orWanted fills in what a body does not say of its kind.
func orWanted(got, want schema.GroupVersionKind) schema.GroupVersionKind {
	if got.Kind == "" {
		got.Kind = want.Kind
	}
	if got.Version == "" && (got.Group == "" || got.Group == want.Group) {
		got.Group, got.Version = want.Group, want.Version
	}
	return got
}

// kindMismatch tells what is wrong with a kind that is not the wanted one: nobody
// knows it, or it is another one. It is nil if only the version differs.
func (s *scope) kindMismatch(got, want schema.GroupVersionKind, body []byte) error {
	switch {
	case got.Version == "":
		return missing("apiVersion", body)
	case !s.isKnownKind(got) && !s.wasKind(got, want):
		return errUnregistered(got)
	}
	// It is read before it is found to be another one.
	var problems []error
	if into := s.emptyOf(got); into != nil && len(body) > 0 {
		var err error
		if problems, err = kjson.UnmarshalStrict(body, into); err != nil {
			return err
		}
	}
	if got.Kind != want.Kind {
		group := want.Group
		if s.sub == nil {
			group = s.def.Group // of the hub
		}
		version := got.Version
		if got.Kind == "Status" {
			version = "v1" // in all versions
		}
		return fmt.Errorf("converting (%s.%s) to (%s.%s): unknown conversion", version, got.Kind, internalPackage(group), want.Kind)
	}
	return s.strict(problems)
}

// emptyOf returns an empty object of a kind that a body is of by mistake, nil if it
// is not known well enough to read one.
func (s *scope) emptyOf(kind schema.GroupVersionKind) any {
	catalog := s.h.Catalog()
	if served, ok := catalog.LookupKind(kind); ok && !served.Unstructured {
		return served.Version.New()
	}
	if item, isList := strings.CutSuffix(kind.Kind, "List"); isList {
		if served, ok := catalog.LookupKind(kind.GroupVersion().WithKind(item)); ok && !served.Unstructured && served.Version.NewList != nil {
			return served.Version.NewList()
		}
	}
	if v := s.formerVersion(kind); v != nil {
		return v.New()
	}
	if sub := s.subresourceOf(kind); sub != nil {
		return sub.New()
	}
	switch kind.Kind {
	case "Status":
		return &metav1.Status{}
	case "DeleteOptions":
		return &metav1.DeleteOptions{}
	}
	return nil
}

// isKnownKind reports whether anything is of a kind, or it is a list of such things,
// or one of the kinds that every version of a group has.
func (s *scope) isKnownKind(kind schema.GroupVersionKind) bool {
	catalog := s.h.Catalog()
	if _, ok := catalog.LookupKind(kind); ok {
		return true
	}
	if s.subresourceOf(kind) != nil {
		return true
	}
	switch kind.Kind {
	case "List":
		return kind.GroupVersion() == schema.GroupVersion{Version: "v1"}
	case "Status", "APIVersions", "APIGroup", "APIGroupList", "APIResourceList":
		return true // in all versions
	case "CreateOptions", "DeleteOptions", "GetOptions", "ListOptions", "PatchOptions", "UpdateOptions", "WatchEvent":
		g, ok := catalog.Group(kind.Group)
		if ok {
			_, ok = g.Version(kind.Version)
		}
		return ok
	}
	item, isList := strings.CutSuffix(kind.Kind, "List")
	served, ok := catalog.LookupKind(kind.GroupVersion().WithKind(item))
	// Of what is only sent, such as a Binding, there are no lists.
	return isList && ok && (served.Unstructured || served.Version.NewList != nil)
}

// subresourceOf returns a subresource whose bodies are of a kind.
func (s *scope) subresourceOf(kind schema.GroupVersionKind) *resource.Subresource {
	for _, def := range s.h.Catalog().Definitions() {
		for i := range def.Subresources {
			if sub := &def.Subresources[i]; sub.Kind == kind && sub.New != nil {
				return sub
			}
		}
	}
	return nil
}

// wasKind reports whether a kind is the wanted one in a version of the past.
func (s *scope) wasKind(got, want schema.GroupVersionKind) bool {
	return got.Kind == want.Kind && (s.formerVersion(got) != nil || s.sub != nil && slices.Contains(s.sub.Former, got.GroupVersion()))
}

// formerVersion returns the version of the resource that a kind is in, also if it is not
// served; nil if there is none.
func (s *scope) formerVersion(kind schema.GroupVersionKind) *resource.Version {
	for i := range s.def.Versions {
		v := &s.def.Versions[i]
		if kind.Kind == s.def.Kind && kind.Version == v.Name && kind.Group == cmp.Or(v.Group, s.def.Group) {
			return v
		}
	}
	return nil
}

// errUnregistered is about a kind that nobody knows. The words name a place in
// the source of kube-apiserver, and clients see them.
func errUnregistered(got schema.GroupVersionKind) error {
	return fmt.Errorf("no kind %q is registered for version %q in scheme %q", got.Kind, got.GroupVersion(), "pkg/runtime/scheme.go:111")
}

// internalPackage is what messages call a group where they name types.
func internalPackage(group string) string {
	name, _, _ := strings.Cut(group, ".")
	if name == "" {
		return "core"
	}
	return name
}
