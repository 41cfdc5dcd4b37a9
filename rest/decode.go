package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/apikeel/kelson/internal/jsonvalue"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxBody is how long the body of a request may be.
const maxBody = 3 << 20

// readBody reads the body of the request, up to the limit.
func (s *scope) readBody() ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(s.w, s.r.Body, maxBody))
	s.bodySize = len(body)
	s.result("limitedReadBody succeeded", "limitedReadBody failed", len(body), err)
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, context.DeadlineExceeded // of the request: its client was too slow
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("failed to read the request body: %v", err))
	}
	return body, nil
}

// bodyMedia returns the format of the request's body.
func (s *scope) bodyMedia() (media, error) {
	header := s.r.Header.Get("Content-Type")
	if header == "" {
		return mediaJSON, nil
	}
	m, _, err := mime.ParseMediaType(header)
	if err == nil {
		switch m {
		case typeJSON:
			return mediaJSON, nil
		case typeYAML:
			return mediaYAML, nil
		case typeProto:
			if !s.served.Unstructured {
				return mediaProto, nil
			}
		}
	}
	return 0, errUnsupportedMedia(acceptedTypes)
}

// fieldValidation is what becomes of fields that the server does not know.
type fieldValidation string

func (s *scope) fieldValidation(kind string) (fieldValidation, error) {
	v := s.r.URL.Query().Get("fieldValidation")
	switch v {
	case "":
		return metav1.FieldValidationWarn, nil
	case metav1.FieldValidationIgnore, metav1.FieldValidationWarn, metav1.FieldValidationStrict:
		return fieldValidation(v), nil
	}
	return "", apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", field.ErrorList{
		field.NotSupported(field.NewPath("fieldValidation"), v, []string{"", metav1.FieldValidationIgnore, metav1.FieldValidationStrict, metav1.FieldValidationWarn})})
}

// decodeBody decodes the body of a create or update into the form in which it is
// written, with defaults.
func (s *scope) decodeBody(optionsKind string) (resource.Object, error) {
	validation, err := s.fieldValidation(optionsKind)
	if err != nil {
		return nil, err
	}
	m, err := s.bodyMedia()
	if err != nil {
		return nil, err
	}
	body, err := s.readBody()
	if err != nil {
		return nil, err
	}
	s.span.Event("About to convert to expected version")
	obj := s.served.Version.New()
	kind := s.served.GroupVersionKind()
	if err := s.decodeInto(obj, kind, body, m, validation); err != nil {
		return nil, err
	}
	if check := s.served.Version.Check; check != nil {
		if err := check(obj); err != nil {
			return nil, s.decodeError(err, kind, kind, body)
		}
	}
	obj, err = s.complete(obj)
	s.span.Event("Conversion done")
	return s.sent(obj, err)
}

// complete fills in the defaults of an object of the request's version, and
// brings it into the form in which it is written: the hub's, or its own.
func (s *scope) complete(obj resource.Object) (resource.Object, error) {
	v := s.served.Version
	if v.Default != nil {
		v.Default(obj)
	}
	if s.def.Between == nil && v.ToHub != nil && !s.served.IsHub() {
		hub, err := v.ToHub(obj)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		obj = hub
	}
	if !s.served.Unstructured {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return obj, nil
}

// written returns an object of the hub version in the form in which it is
// written.
func (s *scope) written(obj resource.Object) (resource.Object, error) {
	if s.def.Between == nil {
		return obj, nil
	}
	obj, err := s.fromHub(obj)
	if err != nil {
		return nil, &resource.ConversionError{Err: err}
	}
	return obj, nil
}

// settled returns an object of the form in which it is written as it is stored:
// as the hub version will be read.
func (s *scope) settled(obj resource.Object) (_ resource.Object, err error) {
	hub := s.def.HubVersion()
	if s.def.Between == nil || s.served.IsHub() {
		return obj, nil
	}
	if obj, err = s.served.Version.ToHub(obj); err != nil {
		return nil, errBare(err)
	}
	if hub.Default != nil {
		hub.Default(obj)
	}
	return obj, nil
}

// decodeInto decodes a body that should be of a kind.
func (s *scope) decodeInto(obj resource.Object, want schema.GroupVersionKind, body []byte, m media, validation fieldValidation) error {
	var got schema.GroupVersionKind
	sent := body
	if m == mediaProto {
		apiVersion, kind, raw, err := openEnvelope(body)
		if err != nil {
			return s.decodeError(err, got, want, body)
		}
		got = schema.FromAPIVersionAndKind(apiVersion, kind)
		if err := s.checkKind(got, want, nil); err != nil {
			return err
		}
		um, ok := obj.(interface{ Unmarshal([]byte) error })
		if !ok {
			return errUnsupportedMedia(typeJSON + ", " + typeYAML)
		}
		if err := um.Unmarshal(raw); err != nil {
			return s.decodeError(err, got, want, body)
		}
		return nil
	}
	var strict []error
	if m == mediaYAML {
		j, err := yaml.YAMLToJSONStrict(body)
		if err != nil {
			twice := err
			if j, err = yaml.YAMLToJSON(body); err != nil {
				return s.decodeError(err, got, want, sent)
			}
			if validation != metav1.FieldValidationIgnore {
				strict = append(strict, twice)
			}
		}
		body = j
	}
	var parsed map[string]any
	u, isMap := obj.(*unstructured.Unstructured)
	if isMap {
		parsed, _ = jsonvalue.Parse(body)
	}
	got, known := kindIn(parsed)
	var err error
	if !known {
		got, err = kindOf(body)
	}
	if err != nil {
		return s.decodeError(err, got, want, sent)
	}
	if err := s.checkKind(got, want, body); err != nil {
		return err
	}
	got = orWanted(got, want)
	var problems []error
	if known {
		u.Object = parsed // nothing is wrong with it
	} else if problems, err = unmarshal(body, obj, validation != metav1.FieldValidationIgnore); err != nil {
		return s.decodeError(err, got, want, body)
	}
	strict = append(strict, problems...)
	if problems, err = s.prune(obj, validation); err != nil {
		return s.decodeError(err, got, want, body)
	}
	strict = append(strict, problems...)
	if len(strict) == 0 {
		return nil
	}
	if validation == metav1.FieldValidationStrict {
		texts := make([]string, len(strict))
		for i, e := range strict {
			texts[i] = e.Error()
		}
		return s.decodeError(fmt.Errorf("strict decoding error: %s", strings.Join(texts, ", ")), got, want, body)
	}
	s.warnStrict(strict...)
	return nil
}

// warnStrict warns of what a strict decoder refuses; that for YAML puts several
// problems into one error.
func (s *scope) warnStrict(problems ...error) {
	const head = "yaml: unmarshal errors:\n"
	for _, problem := range problems {
		text := strings.TrimPrefix(problem.Error(), "error converting YAML to JSON: "+head)
		text = strings.TrimPrefix(text, head)
		if text == problem.Error() {
			s.req.Warn(text)
			continue
		}
		for line := range strings.SplitSeq(text, "\n") {
			s.req.Warn(strings.TrimSpace(line))
		}
	}
}

// kindIn returns of what kind an object that has been parsed is, if it says so.
func kindIn(obj map[string]any) (schema.GroupVersionKind, bool) {
	apiVersion, ok := obj["apiVersion"].(string)
	kind, named := obj["kind"].(string)
	gv, err := schema.ParseGroupVersion(apiVersion)
	return gv.WithKind(kind), ok && named && err == nil
}

// kindOf reads of what kind a body in JSON is.
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

// openEnvelope returns what is in a protobuf envelope.
func openEnvelope(body []byte) (apiVersion, kind string, raw []byte, err error) {
	if len(body) == 0 {
		return "", "", nil, errors.New("empty data")
	}
	if !bytes.HasPrefix(body, []byte("k8s\x00")) {
		return "", "", nil, errors.New("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
	}
	apiVersion, kind, raw, ok := resource.OpenEnvelope(body)
	if !ok {
		return "", "", nil, io.ErrUnexpectedEOF
	}
	return apiVersion, kind, raw, nil
}

// unmarshal decodes JSON; the problems are what a strict decoder refuses.
func unmarshal(body []byte, obj resource.Object, strict bool) (problems []error, err error) {
	var into any = obj
	u, isMap := obj.(*unstructured.Unstructured)
	if isMap {
		fields, _ := jsonvalue.Parse(body)
		if _, known := kindIn(fields); known {
			u.Object = fields // nothing is wrong with it
			return nil, nil
		}
		into = &u.Object
	}
	if !strict {
		return nil, kjson.UnmarshalCaseSensitivePreserveInts(body, into)
	}
	return kjson.UnmarshalStrict(body, into)
}

// prune takes out of an object that is a map what its version does not know; the
// problems are that.
func (s *scope) prune(obj resource.Object, validation fieldValidation) (problems []error, err error) {
	if _, isMap := obj.(*unstructured.Unstructured); !isMap || s.served.Version.Prune == nil {
		return nil, nil
	}
	how := resource.PruneReporting
	if validation == metav1.FieldValidationIgnore {
		how = resource.PruneSent
	}
	unknown, err := s.served.Version.Prune(obj, how)
	for _, path := range unknown {
		problems = append(problems, fmt.Errorf("unknown field %q", path))
	}
	return problems, err
}

// checkKind refuses bodies of another kind or version than the path is about.
func (s *scope) checkKind(got, want schema.GroupVersionKind, body []byte) error {
	if s.served.Unstructured {
		// Without a type of Go nothing else tells what it is.
		switch {
		case got.Kind == "":
			return s.decodeError(missing("Kind", body), schema.GroupVersionKind{}, want, body)
		case got.Version == "":
			return s.decodeError(missing("apiVersion", body), schema.GroupVersionKind{}, want, body)
		}
	}
	got = orWanted(got, want)
	if got == want || s.sub != nil && got.GroupKind() == want.GroupKind() && slices.Contains(s.sub.Also, got.Version) {
		return nil
	}
	if s.served.Unstructured && s.sub == nil && got.GroupVersion() != want.GroupVersion() {
		return errOtherVersion(got, want)
	}
	if s.served.Unstructured && s.sub == nil {
		var named metav1.PartialObjectMetadata
		_ = kjson.UnmarshalCaseSensitivePreserveInts(body, &named)
		return errOtherKind(got, want, named.Name)
	}
	if err := s.unlike(got, want, body); err != nil {
		return s.decodeError(err, got, want, body)
	}
	return errOtherVersion(got, want)
}

// errOtherKind refuses an object of another kind, for kinds that are known by
// what objects say only.
func errOtherKind(got, want schema.GroupVersionKind, name string) error {
	return apierrors.NewInvalid(got.GroupKind(), name, field.ErrorList{field.Invalid(field.NewPath("kind"), got.Kind, "must be "+want.Kind)})
}

func errOtherVersion(got, want schema.GroupVersionKind) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", got.GroupVersion(), want.GroupVersion()))
}

// orWanted fills in what a body does not say of its kind.
func orWanted(got, want schema.GroupVersionKind) schema.GroupVersionKind {
	if got.Kind == "" {
		got.Kind = want.Kind
	}
	if got.Version == "" && got.Group == "" {
		got.Group, got.Version = want.Group, want.Version
	}
	return got
}

// unlike tells what is wrong with a kind that is not the wanted one: nobody
// knows it, or it is another one. It is nil if only the version differs.
func (s *scope) unlike(got, want schema.GroupVersionKind, body []byte) error {
	switch {
	case got.Version == "":
		return missing("apiVersion", body)
	case !s.known(got) && !s.formerly(got, want):
		return errUnregistered(got)
	case got.Kind != want.Kind:
		if other, ok := s.h.Catalog().LookupKind(got); ok && len(body) > 0 {
			// It is read before it is found to be another one.
			if _, err := unmarshal(body, other.Version.New(), false); err != nil {
				return err
			}
		}
		return fmt.Errorf("converting (%s.%s) to (%s.%s): unknown conversion", got.Version, got.Kind, internalPackage(want.Group), want.Kind)
	}
	return nil
}

// known reports whether anything is of a kind, or it is a list of such things,
// or one of the kinds that every version of a group has.
func (s *scope) known(kind schema.GroupVersionKind) bool {
	catalog := s.h.Catalog()
	if _, ok := catalog.LookupKind(kind); ok {
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
	_, ok := catalog.LookupKind(kind.GroupVersion().WithKind(item))
	return isList && ok
}

// formerly reports whether a kind is the wanted one in a version of the past.
func (s *scope) formerly(got, want schema.GroupVersionKind) bool {
	return s.sub != nil && got.Kind == want.Kind && slices.Contains(s.sub.Former, got.GroupVersion())
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

func missing(what string, body []byte) error {
	//lint:ignore ST1005 the words that clients know
	return fmt.Errorf("Object '%s' is missing in '%s'", what, body)
}

func (s *scope) decodeError(err error, got, want schema.GroupVersionKind, body []byte) error {
	if got.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", got.Kind, got.Version, want.Kind, err))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", want.Kind, err, summarize(body)))
}

// summarize shows the beginning of a body that could not be understood: as it
// is if it looks like JSON.
func summarize(body []byte) string {
	const show = 30
	format := "%x"
	if bytes.HasPrefix(body, []byte("{")) {
		format = "%s"
	}
	switch {
	case len(body) == 0:
		return "<empty>"
	case len(body) > show:
		return fmt.Sprintf(format+" ...", body[:show])
	}
	return fmt.Sprintf(format, body)
}

// decode returns the object of a record, with its resourceVersion.
func (s *scope) decode(rec *store.Record) (resource.Object, error) {
	clock := s.clock()
	obj, err := resource.DecodeStored(s.def, rec.Stored)
	clock.stop(request.Decode)
	if err != nil {
		return nil, err
	}
	if rec.Revision != 0 {
		obj.SetResourceVersion(revisionString(rec.Revision))
	}
	return obj, nil
}
