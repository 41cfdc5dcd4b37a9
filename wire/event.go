package wire

import (
	"encoding/binary"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EventType is the type of a watch event.
type EventType string

// The types of events.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
	bookmark EventType = "BOOKMARK"
	failure  EventType = "ERROR"
)

// initialEventsEnd is the annotation of the bookmark after the initial events.
const initialEventsEnd = "k8s.io/initial-events-end"

// EventEncoder encodes the events of one watch, which must be one after the other: the
// first table that a client gets has columns, the others have not.
type EventEncoder struct {
	Encoder *Encoder

	sentColumns bool
}

// AppendEvent appends an event about a record. After an error dst is as it was, in case
// it is written all the same.
func (w *EventEncoder) AppendEvent(dst []byte, event EventType, rec *Record) ([]byte, error) {
	e := w.Encoder
	if e.Format.Media == Protobuf {
		it, err := e.protoItem(rec)
		if err != nil {
			return dst, err
		}
		return e.appendProto(appendProtoFrame(dst, event, e.protoSize(&it)), &it), nil
	}
	if e.Format.Media == CBOR {
		out, err := appendCBOREvent(dst, event, func(dst []byte) ([]byte, error) { return e.AppendObject(dst, rec) })
		if err != nil {
			return dst, err
		}
		return out, nil
	}
	out := appendJSONFrame(dst, event)
	var err error
	if e.Format.Shape == ShapeTable {
		out, err = e.appendRowTable(out, rec, !w.sentColumns)
		w.sentColumns = true
	} else {
		out, err = e.AppendObject(out, rec)
	}
	if err != nil {
		return dst, err
	}
	return append(out, jsonFrameEnd...), nil
}

// AppendBookmark appends an event that says only how far the watch is, and whether that
// is the end of the initial events.
func (w *EventEncoder) AppendBookmark(dst []byte, revision int64, endsInitial bool) ([]byte, error) {
	def := w.Encoder.Served.Definition
	obj := def.HubVersion().New()
	obj.SetResourceVersion(RevisionString(revision))
	if endsInitial {
		obj.SetAnnotations(map[string]string{initialEventsEnd: "true"})
	}
	if def.Bookmark != nil {
		def.Bookmark(obj)
	}
	rec, err := w.Encoder.Unstored(obj)
	if err != nil {
		return dst, err
	}
	return w.AppendEvent(dst, bookmark, rec)
}

// AppendError appends an event that ends the watch with a Status.
func (w *EventEncoder) AppendError(dst []byte, status *metav1.Status) ([]byte, error) {
	switch w.Encoder.Format.Media {
	case CBOR:
		out, err := appendCBOREvent(dst, failure, func(dst []byte) ([]byte, error) { return AppendCBOR(dst, status) })
		if err != nil {
			return dst, err
		}
		return out, nil
	case Protobuf:
		raw, err := status.Marshal()
		if err != nil {
			return dst, err
		}
		body := AppendEnvelope(nil, "v1", "Status", raw)
		return append(appendProtoFrame(dst, failure, len(body)), body...), nil
	}
	return append(appendValue(appendJSONFrame(dst, failure), status), jsonFrameEnd...), nil
}

// appendJSONFrame appends a WatchEvent up to its object. jsonFrameEnd comes after it.
func appendJSONFrame(dst []byte, event EventType) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, event...)
	return append(dst, `","object":`...)
}

const jsonFrameEnd = "}\n"

// appendProtoFrame appends a WatchEvent up to its object, whose size is given: the length
// of the frame, the type, and a RawExtension that holds the object.
func appendProtoFrame(dst []byte, event EventType, object int) []byte {
	raw := 1 + uvarintSize(object) + object
	size := 1 + uvarintSize(len(event)) + len(event) + 1 + uvarintSize(raw) + raw
	dst = binary.BigEndian.AppendUint32(dst, uint32(size))
	dst = append(dst, 1<<3|2)
	dst = binary.AppendUvarint(dst, uint64(len(event)))
	dst = append(dst, event...)
	dst = append(dst, 2<<3|2)
	dst = binary.AppendUvarint(dst, uint64(raw))
	dst = append(dst, 1<<3|2)
	return binary.AppendUvarint(dst, uint64(object))
}
