package rest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/jsonstruct"
	"github.com/apikeel/kelson/internal/jsonvalue"
	"github.com/apikeel/kelson/internal/yamltext"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
)

// maxBody is how long the body of a request may be.
const maxBody = 3 << 20

// readBody reads the body of the request, up to the limit.
func (s *scope) readBody() ([]byte, error) {
	if err := s.holdBody(); err != nil {
		return nil, err
	}
	began := time.Now()
	body, err := readAll(http.MaxBytesReader(innermost(s.w), s.r.Body, maxBody), s.r.ContentLength)
	s.bodySize = len(body)
	s.noteResult("limitedReadBody succeeded", "limitedReadBody failed", len(body), err)
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
	if err := s.authorizeAgain(began); err != nil {
		return nil, err
	}
	return body, s.holdDecoded(body)
}

// readAll is io.ReadAll for a reader that should have size bytes, if that is not negative.
func readAll(r io.Reader, size int64) ([]byte, error) {
	const first = 64 << 10 // what a client says is not believed beyond that
	b := make([]byte, 0, min(max(size+1, 512), first))
	for {
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, err
		}
		if len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
	}
}

// innermost returns the writer of the HTTP server, below all that wrap it. Only that
// one can be told that a body was too large, so that the server does not close the
// connection while the client still sends, and loses the answer.
func innermost(w http.ResponseWriter) http.ResponseWriter {
	for {
		wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return w
		}
		w = wrapper.Unwrap()
	}
}

// sendsMaps reports whether bodies are maps, for which there is no protobuf: those of
// custom resources and their status, and not those of their scale.
func (s *scope) sendsMaps() bool {
	return s.served.Unstructured && (s.sub == nil || s.sub.Projection == nil)
}

// isProtobuf reports whether the body is in protobuf. One that should be a map is refused
// when it is decoded, and others before.
func (s *scope) isProtobuf() bool {
	m, _, err := mime.ParseMediaType(s.r.Header.Get("Content-Type"))
	return err == nil && m == wire.TypeProtobuf
}

// bodyMedia returns the format of the request's body.
func (s *scope) bodyMedia() (wire.MediaType, error) {
	header := s.r.Header.Get("Content-Type")
	if header == "" {
		return wire.JSON, nil
	}
	m, _, err := mime.ParseMediaType(header)
	if err == nil {
		switch m {
		case wire.TypeJSON:
			return wire.JSON, nil
		case wire.TypeYAML:
			return wire.YAML, nil
		case wire.TypeProtobuf:
			if !s.sendsMaps() {
				return wire.Protobuf, nil
			}
		case wire.TypeCBOR:
			if s.req.CBOR {
				return wire.CBOR, nil
			}
		}
	}
	return 0, errUnsupportedMedia(s.acceptedTypes())
}

// fieldValidation is what becomes of fields that the server does not know.
type fieldValidation string

// sentBody reads the body of a create or update, its format and the parameters,
// and says what is wrong with them in the order of the verb.
func (s *scope) sentBody() (body []byte, m wire.MediaType, err error) {
	create := s.req.Verb == request.Create
	var unread error // why a body is of no use that is read nevertheless
	if create {
		if m, err = s.bodyMedia(); err != nil && s.isProtobuf() {
			unread = err
		} else if err != nil {
			return nil, 0, err
		}
	}
	if body, err = s.readBody(); err != nil {
		return nil, 0, err
	}
	if create {
		return body, m, cmp.Or(s.writeOptions("CreateOptions"), unread)
	}
	if err := s.writeOptions("UpdateOptions"); err != nil {
		return nil, 0, err
	}
	m, err = s.bodyMedia()
	return body, m, err
}

// decodeBody decodes the body of a create or update into the form in which it is
// written, with defaults.
func (s *scope) decodeBody() (resource.Object, error) {
	body, m, err := s.sentBody()
	if err != nil {
		return nil, err
	}
	s.span.Event("About to convert to expected version")
	s.sent, s.sentAs = body, m
	obj, err := s.decodeSent()
	s.span.Event("Conversion done")
	return s.auditSent(obj, err)
}

// decodeSent is decodeBody for a body that was read. A write that has to be tried again
// calls it again, as the first attempt may have changed the object.
func (s *scope) decodeSent() (resource.Object, error) {
	body, m := s.sent, s.sentAs
	obj := s.served.Version.New()
	kind := s.served.GroupVersionKind()
	if err := s.decodeInto(obj, kind, body, m); err != nil {
		return nil, err
	}
	if check := s.served.Version.Check; check != nil {
		if err := check(obj); errors.Is(err, resource.ErrNotJSON) {
			panic(http.ErrAbortHandler) // as kube-apiserver does, in which it is a fault
		} else if err != nil {
			return nil, s.decodeError(err, kind, kind, body)
		}
	}
	return s.complete(obj)
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
		if errors.Is(err, budget.ErrBusy) {
			return nil, err
		}
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

// toWriteVersion converts an object of the hub version to the one in which writes work on
// it: the version of the request if versions convert to each other directly
// (Definition.Between), else the hub.
func (s *scope) toWriteVersion(obj resource.Object) (resource.Object, error) {
	if s.def.Between == nil {
		return obj, nil
	}
	obj, err := s.fromHub(obj)
	if err != nil {
		return nil, &wire.ConversionError{Err: err}
	}
	return obj, nil
}

// toStoredVersion converts an object from the version in which writes work on it to the
// hub version, with the defaults that it will be read with.
func (s *scope) toStoredVersion(obj resource.Object) (_ resource.Object, err error) {
	hub := s.def.HubVersion()
	if s.def.Between == nil || s.served.IsHub() {
		return obj, nil
	}
	if obj, err = s.served.Version.ToHub(obj); err != nil {
		return nil, reserveError(err)
	}
	if hub.Default != nil {
		hub.Default(obj)
	}
	return obj, nil
}

// decodeInto decodes a body that should be of a kind.
func (s *scope) decodeInto(obj resource.Object, want schema.GroupVersionKind, body []byte, m wire.MediaType) error {
	var got schema.GroupVersionKind
	sent := body
	if m == wire.Protobuf {
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
			return errUnsupportedMedia(wire.TypeJSON + ", " + wire.TypeYAML)
		}
		if err := um.Unmarshal(raw); err != nil {
			return s.decodeError(err, got, want, body)
		}
		return nil
	}
	if m == wire.CBOR {
		return s.decodeCBOR(obj, want, body)
	}
	var strict []error
	if m == wire.YAML {
		j, err := yamltext.ToJSONStrict(body)
		if err != nil {
			if yamltext.IsRefusal(err) {
				return err
			}
			twice := err
			if j, err = yamltext.ToJSON(body); err != nil {
				return s.decodeError(err, got, want, sent)
			}
			if s.validation != metav1.FieldValidationIgnore {
				strict = append(strict, twice)
			}
		}
		body = j
	}
	body = asUTF8(body)
	if u, isMap := obj.(*unstructured.Unstructured); isMap {
		return s.decodeMap(u, want, body, sent, strict)
	}
	// The object is decoded first: with nothing wrong with it, it says its kind, and the
	// body need not be read for that before.
	report := s.validation != metav1.FieldValidationIgnore
	problems, failed := unmarshal(body, obj, report)
	got, known := kindOfDecoded(obj)
	if !known || !report || failed != nil || len(problems) > 0 {
		var err error
		if got, err = kindOf(body); err != nil {
			return s.decodeError(err, got, want, sent)
		}
	}
	if err := s.checkKind(got, want, body); err != nil {
		return err
	}
	got = orWanted(got, want)
	if failed != nil {
		return s.decodeError(failed, got, want, body)
	}
	if err := s.strict(append(strict, problems...)); err != nil {
		return s.decodeError(err, got, want, body)
	}
	return nil
}

// asUTF8 replaces every byte of JSON that is not UTF-8, as decoders do in strings: they
// leave raw JSON as it is, which would make lists with it invalid.
func asUTF8(body []byte) []byte {
	if utf8.Valid(body) {
		return body
	}
	return []byte(string([]rune(string(body))))
}

// decodeMap decodes a body in JSON that nothing but itself tells the kind of. sent
// is what it was before, strict what is wrong with it so far. The kind is that of the
// object as it was decoded: the text is only read for what is wrong with it.
func (s *scope) decodeMap(obj *unstructured.Unstructured, want schema.GroupVersionKind, body, sent []byte, strict []error) error {
	lax := s.validation == metav1.FieldValidationIgnore
	problems, err := unmarshal(body, obj, !lax)
	got, known := kindIn(obj.Object)
	if err != nil || !known {
		said, bad := kindOf(body)
		if bad != nil {
			return s.decodeError(bad, schema.GroupVersionKind{}, want, sent)
		}
		if err != nil {
			return s.decodeError(err, orWanted(said, want), want, body)
		}
	}
	strict = append(strict, problems...)
	switch {
	case got.Kind == "" && lax:
		return s.decodeError(missing("Kind", body), orWanted(got, want), want, sent)
	case got.Kind == "":
		return s.decodeError(missing("Kind", sent), got, want, sent)
	}
	if problems, err = s.prune(obj, got); err != nil {
		return s.decodeError(err, got, want, body)
	}
	if err := s.strict(append(strict, problems...)); err != nil && got.Version == "" {
		return apierrors.NewBadRequest(errNoVersion().Error())
	} else if err != nil {
		return s.decodeError(err, got, got, body)
	}
	return s.checkMapKind(got, want, obj)
}

// strict returns what a strict decoder refuses, as one error, if the client wants
// it refused, and warns of it otherwise.
func (s *scope) strict(problems []error) error {
	if len(problems) == 0 || s.validation != metav1.FieldValidationStrict {
		s.warnStrict(problems...)
		return nil
	}
	texts := make([]string, len(problems))
	for i, e := range problems {
		texts[i] = e.Error()
	}
	return fmt.Errorf("strict decoding error: %s", strings.Join(texts, ", "))
}

// errNoVersion is said of a map that does not say its version.
func errNoVersion() error { return missing("apiVersion", []byte("object has no apiVersion field")) }

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

// openEnvelope returns what is in a protobuf envelope.
func openEnvelope(body []byte) (apiVersion, kind string, raw []byte, err error) {
	if len(body) == 0 {
		return "", "", nil, errors.New("empty data")
	}
	if !bytes.HasPrefix(body, []byte("k8s\x00")) {
		return "", "", nil, errors.New("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
	}
	apiVersion, kind, raw, ok := wire.OpenEnvelope(body)
	if !ok {
		return "", "", nil, io.ErrUnexpectedEOF
	}
	return apiVersion, kind, raw, nil
}

// unmarshal decodes JSON into an empty object; the problems are what a strict decoder
// refuses.
func unmarshal(body []byte, obj resource.Object, strict bool) (problems []error, err error) {
	var into any = obj
	u, isMap := obj.(*unstructured.Unstructured)
	if isMap {
		fields, _ := jsonvalue.Parse(body)
		if _, known := kindIn(fields); known {
			u.Object = fields // nothing is wrong with it
			return nil, nil
		}
		u.Object = nil // without what a new object says of its kind: the body has to
		into = &u.Object
	} else if jsonstruct.Decode(body, obj) {
		return nil, nil
	} else {
		reflect.ValueOf(obj).Elem().SetZero()
	}
	if !strict {
		return nil, kjson.UnmarshalCaseSensitivePreserveInts(body, into)
	}
	return kjson.UnmarshalStrict(body, into)
}

// prune takes out of an object that is a map what the version that it is in does
// not know; the problems are that.
func (s *scope) prune(obj *unstructured.Unstructured, in schema.GroupVersionKind) (problems []error, err error) {
	for _, name := range []string{"kind", "apiVersion"} {
		if _, _, err := unstructured.NestedString(obj.Object, name); err != nil {
			return nil, err
		}
	}
	how := resource.PruneReporting
	if s.validation == metav1.FieldValidationIgnore {
		how = resource.PruneSent
	}
	version, ofKind := s.def.VersionNamed(in.Version), in.Group == s.def.Group && in.Kind == s.def.Kind
	pruned := obj
	if version == nil || !ofKind {
		// Nothing is known but what the metadata of all objects is.
		version, pruned = s.served.Version, &unstructured.Unstructured{Object: map[string]any{}}
		if meta, ok := obj.Object["metadata"]; ok {
			pruned.Object["metadata"] = meta
		}
	}
	var unknown []string
	if version.Prune != nil {
		if unknown, err = version.Prune(pruned, how); err != nil {
			return nil, err
		}
	}
	if pruned != obj && ofKind && how == resource.PruneReporting {
		unknown = append(unknown, slices.DeleteFunc(slices.Sorted(maps.Keys(obj.Object)), func(name string) bool {
			return name == "apiVersion" || name == "kind" || name == "metadata"
		})...)
	}
	for _, path := range unknown {
		problems = append(problems, fmt.Errorf("unknown field %q", path))
	}
	return problems, nil
}

func missing(what string, body []byte) error {
	//lint:ignore ST1005 the words that clients know
	return fmt.Errorf("Object '%s' is missing in '%s'", what, body)
}

func (s *scope) decodeError(err error, got, want schema.GroupVersionKind, body []byte) error {
	if s.served.Unstructured && s.sub != nil && s.sub.Projection != nil {
		// Those who name the kind here know no types of Go but those of options.
		return apierrors.NewBadRequest(fmt.Sprintf("no kind is registered for the type %s.%s in scheme %q", want.Version, want.Kind, "pkg/runtime/scheme.go:111"))
	}
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
	obj, err := wire.DecodeRecord(s.def, rec)
	clock.stop(request.Decode)
	return obj, err
}
