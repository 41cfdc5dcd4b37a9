package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/apikeel/kelson/internal/protojson"
	"github.com/apikeel/kelson/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Encoder turns records of a resource into bytes of one version and format. It is a
// value with no state of its own: copy it, change a field, and use both.
type Encoder struct {
	// Served is the resource and the version.
	Served *resource.Served
	// Format is what the client wants.
	Format Format
	// Include is what the rows of tables have of their objects.
	Include Include
	// Now is the time at which ages in tables are shown.
	Now time.Time
	// ForWriter says that the answer is for who has written the object: JSON that can be made of
	// the stored bytes is not kept for readers, who may never come.
	ForWriter bool
	// Chunks keeps encoded items of long lists; nil keeps none.
	Chunks *ChunkCache
	// Err is asked before each item of a list; an error ends it, since its client is gone. Nil
	// is never one.
	Err func() error
	// Decode decodes records for tables, for callers that want to know how long that
	// takes; nil is DecodeRecord.
	Decode func(*Record) (resource.Object, error)
}

// err is the error of Err.
func (e *Encoder) err() error {
	if e.Err == nil {
		return nil
	}
	return e.Err()
}

// encodingKind is an encoding of records in one version.
type encodingKind int

// The encodings that are kept with records.
const (
	encodingJSON          encodingKind = iota
	encodingStored                     // no bytes: the stored bytes are the JSON, but for the resourceVersion
	encodingMetadata                   // the metadata in encodingJSON
	encodingProto                      // without a resourceVersion; not kept if it is what is stored
	encodingRow                        // of a table
	encodingProtoMetadata              // in chunks of lists only
	encodingCBOR
	encodingCBORMetadata
	encodingKinds
)

// id returns the ID of an encoding in the version of the encoder.
func (e *Encoder) id(kind encodingKind) EncodingID {
	return EncodingID(e.Served.Index*int(encodingKinds) + int(kind))
}

// RevisionString returns a revision as a resourceVersion.
func RevisionString(revision int64) string { return strconv.FormatInt(revision, 10) }

// AsJSON returns an encoder for the same in JSON.
func (e *Encoder) AsJSON() *Encoder {
	as := *e
	as.Format.Media = JSON
	return &as
}

// AppendObject appends a record as an answer of its own, in JSON, protobuf or CBOR. There are
// no tables in protobuf or CBOR.
func (e *Encoder) AppendObject(dst []byte, rec *Record) ([]byte, error) {
	switch {
	case e.Format.Shape == ShapeTable:
		return e.appendRowTable(dst, rec, true)
	case e.Format.Media == Protobuf:
		it, err := e.protoItem(rec)
		if err != nil {
			return nil, err
		}
		return e.appendProto(dst, &it), nil
	case e.Format.Media == CBOR:
		return e.appendCBOR(dst, rec)
	case e.Format.Shape == ShapeMetadata:
		return e.appendMetadata(dst, rec, true)
	}
	return e.appendJSON(dst, rec, false, true)
}

// AppendAny appends an object of another kind than the records, in JSON, protobuf or CBOR. The
// error is ErrNotEncodable if it has no protobuf form.
func (e *Encoder) AppendAny(dst []byte, apiVersion, kind string, obj any) ([]byte, error) {
	switch e.Format.Media {
	case Protobuf:
	case CBOR:
		return AppendCBOR(dst, obj)
	default:
		body, err := json.Marshal(obj)
		return append(dst, body...), err
	}
	m, ok := obj.(interface{ Marshal() ([]byte, error) })
	if !ok {
		return nil, fmt.Errorf("%T: %w", obj, ErrNotEncodable)
	}
	raw, err := m.Marshal()
	if err != nil {
		return nil, err
	}
	return AppendEnvelope(dst, apiVersion, kind, raw), nil
}

// Unstored returns a record of an object of the hub version that is not in a store. It
// has the encodings that the format needs, and shows the object as it is.
func (e *Encoder) Unstored(obj resource.Object) (*Record, error) {
	rec := &Record{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	// Everything but protobuf is made of the JSON, and the audit wants it.
	_, err := rec.Encoding(e.id(encodingJSON), func(*Record) ([]byte, error) {
		return JSONBody(e.Served.Definition, e.Served.Version, obj)
	})
	switch {
	case err != nil:
	case e.Format.Shape == ShapeTable:
		rec.Revision, _ = strconv.ParseInt(obj.GetResourceVersion(), 10, 64)
		_, err = rec.Encoding(e.id(encodingRow), func(*Record) ([]byte, error) { return e.makeRow(obj) })
	case e.Format.Media == CBOR && e.Format.Shape == ShapeObject:
		_, err = rec.Encoding(e.id(encodingCBOR), func(*Record) ([]byte, error) { return cborBody(e.Served.Definition, e.Served.Version, obj) })
	case e.Format.Media == Protobuf:
		_, err = rec.Encoding(e.id(encodingProto), func(*Record) ([]byte, error) { return e.encodeProto(rec, obj) })
	}
	return rec, err
}

// NoteWritten notes with a record which object has just been written to it. If that is
// sure to be read back unchanged, the record is served from its stored bytes, which need
// not be decoded first.
func (e *Encoder) NoteWritten(rec *Record, obj resource.Object) error {
	settled := e.Served.Version.Settled
	if settled == nil || !e.Served.IsHub() || rec.Revision == 0 || e.Served.Definition.StoreCBOR || !settled(obj) {
		return nil
	}
	_, err := rec.alias(e.id(encodingStored), func(*Record) ([]byte, error) { return nil, nil })
	return err
}

// decode returns the object of a record for a table.
func (e *Encoder) decode(rec *Record) (resource.Object, error) {
	if e.Decode != nil {
		return e.Decode(rec)
	}
	return DecodeRecord(e.Served.Definition, rec)
}

// recordJSON returns the JSON of a record, with its resourceVersion, without kind and
// apiVersion if the object is a struct.
func (e *Encoder) recordJSON(rec *Record) ([]byte, error) {
	if b := rec.findEncoding(e.id(encodingJSON)); b != nil {
		return b, nil
	}
	stored, err := rec.Stored()
	if err != nil {
		return nil, err
	}
	if rec.hasEncoding(e.id(encodingStored)) {
		return appendStored(nil, e.Served, stored, RevisionString(rec.Revision), true), nil
	}
	if b, ok := e.appendJSONOfProto(nil, rec, stored); ok {
		return rec.Encoding(e.id(encodingJSON), func(*Record) ([]byte, error) { return b, nil })
	}
	obj, err := DecodeStored(e.Served.Definition, stored)
	if err != nil {
		return nil, err
	}
	b, err := JSONBody(e.Served.Definition, e.Served.Version, obj)
	if err != nil {
		return nil, err
	}
	if !e.Served.IsHub() {
		rec.noteConverted()
	}
	if rec.Revision != 0 {
		same := storedIsBody(e.Served, stored, b)
		b = spliceJSON(b, RevisionString(rec.Revision))
		if same {
			// The same bytes need not be kept twice.
			_, err = rec.alias(e.id(encodingStored), func(*Record) ([]byte, error) { return nil, nil })
			return b, err
		}
	}
	return rec.Encoding(e.id(encodingJSON), func(*Record) ([]byte, error) { return b, nil })
}

// mayDefault reports whether defaults may change a record when it is read: those of objects
// that this process has written are stored with them.
func (e *Encoder) mayDefault(rec *Record) bool {
	v := e.Served.Version
	return v.Default != nil && !v.DefaultsSentOnly && !rec.written
}

// appendJSONOfProto appends the JSON of a record with its resourceVersion, made of its
// stored protobuf without decoding that. It is false if reading the object may change it.
func (e *Encoder) appendJSONOfProto(dst []byte, rec *Record, stored []byte) ([]byte, bool) {
	version := e.Served.Version
	if e.Served.Type == nil || !e.Served.IsHub() || e.mayDefault(rec) {
		return nil, false
	}
	raw, ok := storedProtoBody(e.Served.Definition, version, stored)
	if !ok {
		return nil, false
	}
	if rec.Revision != 0 {
		// It gets its resourceVersion before: in JSON it would have to be searched for.
		var digits [20]byte
		rv := strconv.AppendInt(digits[:0], rec.Revision, 10)
		splice := newProtoSplice(raw, len(rv))
		if splice.metadata == 0 {
			return nil, false
		}
		buf := scratch.Get().(*[]byte)
		defer putScratch(buf)
		*buf = splice.append((*buf)[:0], raw, rv)
		raw = *buf
	}
	if dst != nil {
		return protojson.Append(dst, e.Served.Type, raw)
	}
	// The caller keeps it, in as many bytes as it has.
	buf := scratch.Get().(*[]byte)
	defer putScratch(buf)
	*buf, ok = protojson.Append((*buf)[:0], e.Served.Type, raw)
	if !ok {
		return nil, false
	}
	return bytes.Clone(*buf), true
}

// scratch are buffers for an object while it is encoded.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// maxScratch is the capacity of the largest of those buffers that are kept.
const maxScratch = 64 << 10

func putScratch(buf *[]byte) {
	if cap(*buf) > maxScratch {
		*buf = nil
	}
	scratch.Put(buf)
}

// appendJSON appends a record in JSON: on its own, or as an item of a list, where a
// struct has neither kind nor apiVersion. With keep it is kept for others, if it was asked for
// before.
func (e *Encoder) appendJSON(dst []byte, rec *Record, item, keep bool) ([]byte, error) {
	if rec.hasEncoding(e.id(encodingStored)) {
		stored, err := rec.Stored()
		if err != nil {
			return nil, err
		}
		return appendStored(dst, e.Served, stored, RevisionString(rec.Revision), item), nil
	}
	if (!keep || e.ForWriter || !rec.wasAsked()) && !rec.hasEncoding(e.id(encodingJSON)) {
		stored, err := rec.Stored()
		if err != nil {
			return nil, err
		}
		start := dst
		if !item {
			start = jsonHead(dst, e.Served)
		}
		if out, ok := e.appendJSONOfProto(start, rec, stored); ok {
			if !item {
				out[len(start)] = ',' // behind kind and apiVersion; there is always metadata
			}
			return out, nil
		}
	}
	body, err := e.recordJSON(rec)
	switch {
	case err != nil:
		return nil, err
	case item:
		return append(dst, body...), nil
	}
	return AppendWithKind(dst, e.Served, body), nil
}

// appendMetadata appends the metadata of a record as PartialObjectMetadata, in JSON. With keep
// they are kept for others.
func (e *Encoder) appendMetadata(dst []byte, rec *Record, keep bool) (_ []byte, err error) {
	dst = append(dst, `{"kind":"PartialObjectMetadata","apiVersion":"`...)
	dst = append(dst, e.Format.MetaVersion()...)
	dst = append(dst, `","metadata":`...)
	meta := rec.findEncoding(e.id(encodingMetadata))
	if meta == nil && !keep && !rec.hasEncoding(e.id(encodingJSON)) {
		out, ok, err := e.appendMetadataOfProto(dst, rec)
		if err != nil || ok {
			return append(out, '}'), err
		}
	}
	if meta == nil {
		if meta, err = e.recordMetadata(rec); err != nil {
			return nil, err
		}
	}
	dst = append(dst, meta...)
	return append(dst, '}'), nil
}

// recordMetadata makes the metadata of a record in JSON. It is kept, but for what is a part of
// the JSON of the whole object: that stays only as long as the whole does.
func (e *Encoder) recordMetadata(rec *Record) ([]byte, error) {
	if !rec.hasEncoding(e.id(encodingJSON)) {
		buf := scratch.Get().(*[]byte)
		defer putScratch(buf)
		meta, ok, err := e.appendMetadataOfProto((*buf)[:0], rec)
		switch {
		case err != nil:
			return nil, err
		case ok:
			*buf = meta
			return rec.Encoding(e.id(encodingMetadata), func(*Record) ([]byte, error) { return bytes.Clone(meta), nil })
		}
	}
	body, err := e.recordJSON(rec)
	if err != nil {
		return nil, err
	}
	meta, ok := MetadataJSON(body)
	if !ok {
		return nil, fmt.Errorf("%s has no metadata", rec.Key)
	}
	keep := rec.alias
	if e.Served.Unstructured {
		keep = rec.Encoding
		if meta, err = orderMetadata(meta); err != nil {
			return nil, err
		}
	}
	if e.hasFieldAnnotations(meta) {
		keep = rec.Encoding
		if meta, err = withoutAnnotations(meta, e.Served.Definition.FieldAnnotations); err != nil {
			return nil, err
		}
	}
	if !rec.hasEncoding(e.id(encodingJSON)) {
		return meta, nil
	}
	return keep(e.id(encodingMetadata), func(*Record) ([]byte, error) { return meta, nil })
}

// appendMetadataOfProto appends the metadata of a record in JSON, made of its stored protobuf
// without the rest of the object. It is false if they may be others in the version that is served.
func (e *Encoder) appendMetadataOfProto(dst []byte, rec *Record) (_ []byte, ok bool, err error) {
	stored, err := rec.Stored()
	if err != nil {
		return nil, false, err
	}
	def, version := e.Served.Definition, e.Served.Version
	raw, ok := storedProtoBody(def, version, stored)
	if !ok || version != def.HubVersion() || e.mayDefault(rec) {
		return nil, false, nil
	}
	var digits [20]byte
	rv := digits[:0]
	if rec.Revision != 0 {
		rv = strconv.AppendInt(rv, rec.Revision, 10)
	}
	splice := newProtoSplice(raw, len(rv))
	if splice.metadata == 0 {
		return nil, false, nil
	}
	meta := scratch.Get().(*[]byte)
	defer putScratch(meta)
	*meta = splice.appendMetadata((*meta)[:0], raw, rv)
	if e.hasFieldAnnotations(*meta) {
		return nil, false, nil
	}
	dst, ok = protojson.Append(dst, objectMetaType, *meta)
	return dst, ok, nil
}

var objectMetaType = reflect.TypeFor[metav1.ObjectMeta]()

// PartialMetadata returns the metadata of an object that is in no record.
func (e *Encoder) PartialMetadata(obj resource.Object) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: e.Format.MetaVersion()}}
	if o, ok := obj.(metav1.ObjectMetaAccessor); ok {
		if meta, ok := o.GetObjectMeta().(*metav1.ObjectMeta); ok {
			m.ObjectMeta = *meta
		}
	}
	return m
}

// hasFieldAnnotations reports whether encoded metadata may have annotations that stand
// for fields: those are not shown with the metadata alone.
func (e *Encoder) hasFieldAnnotations(meta []byte) bool {
	return slices.ContainsFunc(e.Served.Definition.FieldAnnotations, func(name string) bool { return bytes.Contains(meta, []byte(name)) })
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
