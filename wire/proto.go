package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/apikeel/kelson/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// protoItem is a record in protobuf, or its metadata, whose size is known and which is
// about to be appended.
type protoItem struct {
	raw      []byte
	splice   protoSplice
	revision int64
	size     int // of the message
	metadata bool
}

// protoItem returns what is to be written of a record.
func (e *Encoder) protoItem(rec *Record) (it protoItem, err error) {
	it.revision, it.metadata = rec.Revision, e.Format.Shape == ShapeMetadata
	if it.raw, it.splice, err = e.recordProto(rec); err != nil {
		return it, err
	}
	if it.metadata && e.hasFieldAnnotations(it.raw) {
		if it.raw, err = e.metadataProto(rec); err != nil {
			return it, err
		}
		it.splice = newProtoSplice(it.raw, revisionDigits(rec.Revision))
	}
	it.size = it.splice.size
	if it.metadata {
		if it.splice.metadata == 0 {
			return it, fmt.Errorf("%s has no metadata", rec.Key)
		}
		it.size = 1 + uvarintSize(it.splice.metadata) + it.splice.metadata
	}
	return it, nil
}

// protoItemSize returns the size of what is to be written of a record. The stored bytes
// are not looked at if their layout is known: they may be out of memory.
func (e *Encoder) protoItemSize(rec *Record) (int, error) {
	if e.Format.Shape != ShapeMetadata {
		if splice, _, ok := rec.layout().splice(e.Served.Index, rec.StoredSize(), revisionDigits(rec.Revision)); ok {
			return splice.size, nil
		}
	}
	it, err := e.protoItem(rec)
	return it.size, err
}

// append appends the message.
func (it *protoItem) append(dst []byte) []byte {
	var digits [20]byte
	rv := strconv.AppendInt(digits[:0], it.revision, 10)
	if it.revision == 0 {
		rv = nil
	}
	if it.metadata {
		dst = append(dst, metadataTag)
		dst = binary.AppendUvarint(dst, uint64(it.splice.metadata))
		return it.splice.appendMetadata(dst, it.raw, rv)
	}
	return it.splice.append(dst, it.raw, rv)
}

// recordProto returns a record in protobuf, and how to add its resourceVersion. The bytes
// are within the stored ones, if these are of the version that is wanted.
func (e *Encoder) recordProto(rec *Record) (raw []byte, splice protoSplice, err error) {
	digits := revisionDigits(rec.Revision)
	if raw = rec.findEncoding(e.id(encodingProto)); raw != nil {
		return raw, newProtoSplice(raw, digits), nil
	}
	stored, err := rec.Stored()
	if err != nil {
		return nil, splice, err
	}
	splice, head, ok := rec.layout().splice(e.Served.Index, len(stored), digits)
	if ok {
		return stored[head : len(stored)-len(envelopeTail)], splice, nil
	}
	if raw, ok = storedProtoBody(e.Served.Definition, e.Served.Version, stored); ok {
		splice = newProtoSplice(raw, digits)
		if digits > 0 {
			rec.setLayout(splice.layout(e.Served.Index, stored, raw))
		}
		return raw, splice, nil
	}
	raw, err = rec.Encoding(e.id(encodingProto), func(rec *Record) ([]byte, error) {
		obj, err := DecodeStored(e.Served.Definition, stored)
		if err != nil {
			return nil, err
		}
		return e.encodeProto(rec, obj)
	})
	return raw, newProtoSplice(raw, digits), err
}

// encodeProto returns the protobuf of the object of a record.
func (e *Encoder) encodeProto(rec *Record, obj resource.Object) ([]byte, error) {
	b, err := protoBody(e.Served.Definition, e.Served.Version, obj)
	if e.Format.Shape == ShapeMetadata && errors.Is(err, ErrNotEncodable) {
		return e.metadataProto(rec)
	}
	return b, err
}

// metadataProto returns the metadata of a record in the protobuf of PartialObjectMetadata,
// where it has the field that it has in all kinds.
func (e *Encoder) metadataProto(rec *Record) ([]byte, error) {
	body, err := e.recordJSON(rec)
	if err != nil {
		return nil, err
	}
	var obj metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &obj); err != nil {
		return nil, err
	}
	obj.TypeMeta = metav1.TypeMeta{}
	if rec.Revision != 0 {
		obj.ResourceVersion = "" // it is spliced in
	}
	for _, name := range e.Served.Definition.FieldAnnotations {
		delete(obj.Annotations, name)
	}
	return obj.Marshal()
}

// protoKind is what an item on its own is.
func (e *Encoder) protoKind() (apiVersion, kind string) {
	if e.Format.Shape == ShapeMetadata {
		return e.Format.MetaVersion(), "PartialObjectMetadata"
	}
	return e.Served.APIVersion, e.Served.Definition.Kind
}

// appendProto appends an item in its envelope.
func (e *Encoder) appendProto(dst []byte, it *protoItem) []byte {
	apiVersion, kind := e.protoKind()
	dst = appendEnvelopeHead(dst, apiVersion, kind, it.size)
	return append(it.append(dst), envelopeTail...)
}

// protoSize is the size of an item in its envelope.
func (e *Encoder) protoSize(it *protoItem) int {
	apiVersion, kind := e.protoKind()
	return envelopeSize(apiVersion, kind, it.size)
}

// revisionDigits is the length of a resourceVersion; what was never stored has none.
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
