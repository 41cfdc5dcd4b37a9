package rest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The forms of a record that are kept, for each version of a resource.
const (
	formJSON          = iota
	formStored        // nothing: what is stored is the JSON, but for the resourceVersion
	formMetadata      // the metadata in formJSON
	formProto         // without a resourceVersion; not if it is what is stored
	formRow           // of a table
	formProtoMetadata // in runs of a list alone
	formKinds
)

// formID returns the number of a form in the version that the request is
// about.
func (s *scope) formID(kind int) wire.EncodingID {
	return wire.EncodingID(s.served.Index*formKinds + kind)
}

func revisionString(revision int64) string { return strconv.FormatInt(revision, 10) }

// jsonBody returns the JSON of a record, with its resourceVersion, without kind
// and apiVersion if it is of a Go type.
func (s *scope) jsonBody(rec *store.Record) ([]byte, error) {
	if b := rec.FindEncoding(s.formID(formJSON)); b != nil {
		return b, nil
	}
	if rec.HasEncoding(s.formID(formStored)) {
		return wire.AppendStored(nil, s.served, rec.Stored, revisionString(rec.Revision), true), nil
	}
	obj, err := wire.DecodeStored(s.def, rec.Stored)
	if err != nil {
		return nil, err
	}
	b, err := wire.JSONBody(s.def, s.served.Version, obj)
	if err != nil {
		return nil, err
	}
	if rec.Revision != 0 {
		same := wire.StoredAsBody(s.served, rec.Stored, b)
		b = wire.SpliceJSON(b, revisionString(rec.Revision))
		if same {
			// The same bytes need not be kept twice.
			_, err = rec.Alias(s.formID(formStored), func(*store.Record) ([]byte, error) { return nil, nil })
			return b, err
		}
	}
	return rec.Encoding(s.formID(formJSON), func(*store.Record) ([]byte, error) { return b, nil })
}

// appendRecord appends a record in JSON, as it goes over the wire on its own or, as
// an item of a list, without kind and apiVersion if it is of a Go type.
func (s *scope) appendRecord(dst []byte, rec *store.Record, item bool) ([]byte, error) {
	if rec.HasEncoding(s.formID(formStored)) {
		return wire.AppendStored(dst, s.served, rec.Stored, revisionString(rec.Revision), item), nil
	}
	body, err := s.jsonBody(rec)
	switch {
	case err != nil:
		return nil, err
	case item:
		return append(dst, body...), nil
	}
	return wire.AppendJSON(dst, s.served, body), nil
}

// appendMetadata appends the metadata of a record as PartialObjectMetadata, in
// JSON.
func (s *scope) appendMetadata(dst []byte, rec *store.Record) ([]byte, error) {
	meta := rec.FindEncoding(s.formID(formMetadata))
	if meta == nil {
		body, err := s.jsonBody(rec)
		if err != nil {
			return nil, err
		}
		var ok bool
		if meta, ok = wire.MetadataJSON(body); !ok {
			return nil, fmt.Errorf("%s has no metadata", rec.Key)
		}
		keep := rec.Alias
		if s.served.Unstructured {
			keep = rec.Encoding
			if meta, err = wire.OrderMetadata(meta); err != nil {
				return nil, err
			}
		}
		if s.annotated(meta) {
			keep = rec.Encoding
			if meta, err = withoutAnnotations(meta, s.def.FieldAnnotations); err != nil {
				return nil, err
			}
		}
		if rec.HasEncoding(s.formID(formJSON)) {
			if meta, err = keep(s.formID(formMetadata), func(*store.Record) ([]byte, error) { return meta, nil }); err != nil {
				return nil, err
			}
		}
	}
	dst = append(dst, `{"kind":"PartialObjectMetadata","apiVersion":"`...)
	dst = append(dst, s.out.metaVersion()...)
	dst = append(dst, `","metadata":`...)
	dst = append(dst, meta...)
	return append(dst, '}'), nil
}

// annotated reports whether metadata may have annotations that stand for fields.
func (s *scope) annotated(meta []byte) bool {
	return slices.ContainsFunc(s.def.FieldAnnotations, func(name string) bool { return bytes.Contains(meta, []byte(name)) })
}

// withoutAnnotations returns metadata in JSON without some of its annotations.
func withoutAnnotations(meta []byte, names []string) ([]byte, error) {
	var m metav1.ObjectMeta
	if err := json.Unmarshal(meta, &m); err != nil {
		return nil, err
	}
	for _, name := range names {
		delete(m.Annotations, name)
	}
	return json.Marshal(m)
}

// protoItem is a record in protobuf, or its metadata, about to be written.
type protoItem struct {
	raw      []byte
	plan     wire.ProtoPlan
	revision int64
	size     int // of the message
	metadata bool
}

// protoItem returns what is to be written of a record.
func (s *scope) protoItem(rec *store.Record) (it protoItem, err error) {
	it.revision, it.metadata = rec.Revision, s.out.view == viewMetadata
	if it.raw, it.plan, err = s.protoBody(rec); err != nil {
		return it, err
	}
	if it.metadata && s.annotated(it.raw) {
		if it.raw, err = s.metadataProto(rec); err != nil {
			return it, err
		}
		it.plan = wire.PlanProto(it.raw, revisionDigits(rec.Revision))
	}
	it.size = it.plan.Size
	if it.metadata {
		if it.plan.Metadata == 0 {
			return it, fmt.Errorf("%s has no metadata", rec.Key)
		}
		it.size = 1 + uvarintSize(it.plan.Metadata) + it.plan.Metadata
	}
	return it, nil
}

// protoBody returns a record in protobuf, and how to add its resourceVersion. It is
// the stored bytes as they are, if these have the version that is wanted.
func (s *scope) protoBody(rec *store.Record) (raw []byte, plan wire.ProtoPlan, err error) {
	digits := revisionDigits(rec.Revision)
	raw, plan, ok := wire.ProtoLayout(rec.Note()).Plan(s.served.Index, rec.Stored, digits)
	if ok {
		return raw, plan, nil
	}
	if raw, ok = wire.StoredProtoBody(s.def, s.served.Version, rec.Stored); ok {
		plan = wire.PlanProto(raw, digits)
		if digits > 0 {
			rec.SetNote(uint64(plan.Layout(s.served.Index, rec.Stored, raw)))
		}
		return raw, plan, nil
	}
	raw, err = rec.Encoding(s.formID(formProto), func(rec *store.Record) ([]byte, error) {
		obj, err := wire.DecodeStored(s.def, rec.Stored)
		if err != nil {
			return nil, err
		}
		return s.makeProto(rec, obj)
	})
	return raw, wire.PlanProto(raw, digits), err
}

// makeProto returns the protobuf of the object of a record.
func (s *scope) makeProto(rec *store.Record, obj resource.Object) ([]byte, error) {
	b, err := wire.ProtoBody(s.def, s.served.Version, obj)
	if s.out.view == viewMetadata && errors.Is(err, wire.ErrNotEncodable) {
		return s.metadataProto(rec)
	}
	return b, err
}

// metadataProto returns the metadata of a record as that of PartialObjectMetadata,
// which is where kinds that have a protobuf form have theirs, too.
func (s *scope) metadataProto(rec *store.Record) ([]byte, error) {
	body, err := s.jsonBody(rec)
	if err != nil {
		return nil, err
	}
	var obj metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &obj); err != nil {
		return nil, err
	}
	obj.TypeMeta = metav1.TypeMeta{}
	if rec.Revision != 0 {
		obj.ResourceVersion = "" // it is added
	}
	for _, name := range s.def.FieldAnnotations {
		delete(obj.Annotations, name)
	}
	return obj.Marshal()
}

// append appends the message.
func (it *protoItem) append(dst []byte) []byte {
	var digits [20]byte
	rv := strconv.AppendInt(digits[:0], it.revision, 10)
	if it.revision == 0 {
		rv = nil
	}
	if it.metadata {
		dst = append(dst, 1<<3|2)
		dst = binary.AppendUvarint(dst, uint64(it.plan.Metadata))
		return it.plan.AppendMetadata(dst, it.raw, rv)
	}
	return it.plan.Append(dst, it.raw, rv)
}

// protoKind is what an item on its own is.
func (s *scope) protoKind() (apiVersion, kind string) {
	if s.out.view == viewMetadata {
		return s.out.metaVersion(), "PartialObjectMetadata"
	}
	return s.served.APIVersion, s.def.Kind
}

// appendProtoItem appends an item in its envelope.
func (s *scope) appendProtoItem(dst []byte, it *protoItem) []byte {
	apiVersion, kind := s.protoKind()
	dst = wire.AppendEnvelopeHead(dst, apiVersion, kind, it.size)
	return append(it.append(dst), wire.EnvelopeTail...)
}

// protoItemSize is the size of an item in its envelope.
func (s *scope) protoItemSize(it *protoItem) int {
	apiVersion, kind := s.protoKind()
	return wire.EnvelopeSize(apiVersion, kind, it.size)
}

// revisionDigits is the length of a resourceVersion; what was never stored has
// none.
func revisionDigits(revision int64) int {
	if revision == 0 {
		return 0
	}
	var digits [20]byte
	return len(strconv.AppendInt(digits[:0], revision, 10))
}

// appendField appends a length-delimited protobuf field.
func appendField(dst []byte, field int, value []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(field<<3|2))
	dst = binary.AppendUvarint(dst, uint64(len(value)))
	return append(dst, value...)
}

// object appends a record as it goes over the wire on its own, in JSON or
// protobuf.
func (s *scope) object(dst []byte, rec *store.Record) ([]byte, error) {
	switch {
	case s.out.view == viewTable:
		return s.tableObject(dst, rec, true)
	case s.out.media == mediaProto:
		it, err := s.protoItem(rec)
		if err != nil {
			return nil, err
		}
		return s.appendProtoItem(dst, &it), nil
	case s.out.view == viewMetadata:
		return s.appendMetadata(dst, rec)
	}
	return s.appendRecord(dst, rec, false)
}

// noteWritten notes that a record shows what is stored, if an object that has just
// been written to it is sure to be read as it is: what has been encoded need not
// be decoded to be shown.
func (s *scope) noteWritten(rec *store.Record, obj resource.Object) error {
	settled := s.served.Version.Settled
	if settled == nil || !s.served.IsHub() || rec.Revision == 0 || !settled(obj) {
		return nil
	}
	_, err := rec.Alias(s.formID(formStored), func(*store.Record) ([]byte, error) { return nil, nil })
	return err
}

// respondWritten answers with a record that an object has just been written to.
func (s *scope) respondWritten(code int, rec *store.Record, obj resource.Object) error {
	if err := s.noteWritten(rec, obj); err != nil {
		return err
	}
	return notShown(s.respond(code, rec))
}

// notShown is the error of a write if it is that the object could not be shown.
func notShown(err error) error {
	var failed *wire.ConversionError
	if errors.As(err, &failed) {
		return errBare(failed.Err)
	}
	return err
}

// respond answers with a record.
func (s *scope) respond(code int, rec *store.Record) error {
	if s.out.list {
		return errWrongList(s, false)
	}
	s.span.Event(aboutToWrite)
	clock := s.clock()
	body, err := s.object(nil, rec)
	if err != nil {
		return err
	}
	if s.out.view == viewTable {
		clock.stop(request.Transform)
	}
	s.answered(rec)
	s.write(code, body)
	clock.stop(request.Serialize)
	s.span.Last(writingDone)
	return nil
}

// unshown says why a record cannot be read in the version that is wanted, in
// words that clients know.
func (s *scope) unshown(rec *store.Record, err error) error {
	var failed *wire.ConversionError
	if !errors.As(err, &failed) {
		return err
	}
	return s.unreadable(&store.Unreadable{Key: rec.Key, Revision: rec.Revision, Err: failed.Err})
}

// respondObject answers with an object of the hub version that is not in the
// store: a dry run.
func (s *scope) respondObject(code int, obj resource.Object) error {
	rec, err := s.unstored(obj)
	if err != nil {
		return notShown(err)
	}
	return notShown(s.respond(code, rec))
}

// respondOther answers with an object of another kind: a projection, or the
// result of an action.
func (s *scope) respondOther(code int, apiVersion, kind string, obj any) error {
	s.span.Event(aboutToWrite)
	defer s.span.Last(writingDone)
	clock := s.clock()
	defer clock.stop(request.Serialize)
	s.answeredOther(obj)
	if s.out.media == mediaProto {
		m, ok := obj.(interface{ Marshal() ([]byte, error) })
		if !ok {
			return errNotAcceptable(acceptedTypes)
		}
		raw, err := m.Marshal()
		if err != nil {
			return err
		}
		s.write(code, wire.AppendEnvelope(nil, apiVersion, kind, raw))
		return nil
	}
	body, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	s.write(code, body)
	return nil
}

// respondStatus answers with a Status of success.
func (s *scope) respondStatus(code int, status *metav1.Status) {
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	s.span.Event(aboutToWrite)
	clock := s.clock()
	answeredStatus(s.req, status)
	writeStatus(s.w, s.out, code, status)
	clock.stop(request.Serialize)
	s.span.Last(writingDone)
}

// write sends a body that is JSON or protobuf, in the format that is wanted.
func (s *scope) write(code int, body []byte) {
	switch s.out.media {
	case mediaJSON:
		if s.out.pretty {
			var b bytes.Buffer
			if json.Indent(&b, body, "", "  ") == nil {
				body = b.Bytes()
			}
		} else {
			body = append(body, '\n')
		}
	case mediaYAML:
		text, err := yaml.JSONToYAML(body)
		if err != nil { // a key is too long for it
			code, s.out.pretty = http.StatusInternalServerError, false
			writeStatus(s.w, s.out, code, &metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Status:   metav1.StatusFailure, Message: err.Error(), Code: int32(code),
			})
			return
		}
		body = text
	}
	h := s.w.Header()
	h.Set("Content-Type", s.out.contentType())
	if len(body) >= gzipFrom && acceptsGzip(s.r) {
		writeGzip(s.w, code, body)
		return
	}
	s.w.WriteHeader(code)
	_, _ = s.w.Write(body)
}

// unstored makes a record of an object of the hub version that is not in the
// store, in the form that the request wants. It shows the object as it is.
func (s *scope) unstored(obj resource.Object) (*store.Record, error) {
	rec := &store.Record{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	// All forms but protobuf are made of this one, and the audit wants it.
	_, err := rec.Encoding(s.formID(formJSON), func(*store.Record) ([]byte, error) {
		return wire.JSONBody(s.def, s.served.Version, obj)
	})
	switch {
	case err != nil:
	case s.out.view == viewTable:
		rec.Revision, _ = strconv.ParseInt(obj.GetResourceVersion(), 10, 64)
		_, err = rec.Encoding(s.formID(formRow), func(*store.Record) ([]byte, error) { return s.makeRowOf(obj, nil) })
	case s.out.media == mediaProto:
		_, err = rec.Encoding(s.formID(formProto), func(*store.Record) ([]byte, error) { return s.makeProto(rec, obj) })
	}
	return rec, err
}

func appendStatusEnvelope(raw []byte) []byte {
	return wire.AppendEnvelope(nil, "v1", "Status", raw)
}
