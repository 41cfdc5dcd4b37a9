package rest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The forms of a record that are kept, for each version of a resource.
const (
	formJSON = iota
	formProto
	formKinds
)

// formID returns the number of a form in the version that the request is
// about.
func (s *scope) formID(kind int) store.FormID {
	for i := range s.def.Versions {
		if &s.def.Versions[i] == s.served.Version {
			return store.FormID(i*formKinds + kind)
		}
	}
	return store.FormID(kind)
}

func revisionString(revision int64) string { return strconv.FormatInt(revision, 10) }

// jsonBody returns the JSON of a record, with its resourceVersion, without kind
// and apiVersion if it is of a Go type.
func (s *scope) jsonBody(rec *store.Record) ([]byte, error) {
	return rec.Form(s.formID(formJSON), func(rec *store.Record) ([]byte, error) {
		obj, err := resource.DecodeStored(s.def, rec.Stored)
		if err != nil {
			return nil, err
		}
		b, err := resource.JSONBody(s.def, s.served.Version, obj)
		if err != nil {
			return nil, err
		}
		return resource.SpliceJSON(b, revisionString(rec.Revision)), nil
	})
}

// protoBody returns the protobuf of a record, with its resourceVersion, without
// an envelope.
func (s *scope) protoBody(rec *store.Record) ([]byte, error) {
	return rec.Form(s.formID(formProto), func(rec *store.Record) ([]byte, error) {
		raw, ok := resource.StoredProtoBody(s.def, s.served.Version, rec.Stored)
		if !ok {
			obj, err := resource.DecodeStored(s.def, rec.Stored)
			if err != nil {
				return nil, err
			}
			if raw, err = resource.ProtoBody(s.def, s.served.Version, obj); err != nil {
				return nil, err
			}
		}
		return resource.SpliceProto(raw, revisionString(rec.Revision)), nil
	})
}

// metadataJSON appends the metadata of a record as PartialObjectMetadata.
func (s *scope) metadataJSON(dst []byte, rec *store.Record) ([]byte, error) {
	body, err := s.jsonBody(rec)
	if err != nil {
		return nil, err
	}
	meta, ok := resource.MetadataJSON(body)
	if !ok {
		return nil, fmt.Errorf("%s has no metadata", rec.Key)
	}
	dst = append(dst, `{"kind":"PartialObjectMetadata","apiVersion":"`...)
	dst = append(dst, s.out.metaVersion()...)
	dst = append(dst, `","metadata":`...)
	dst = append(dst, meta...)
	return append(dst, '}'), nil
}

// metadataProto returns the message PartialObjectMetadata of a record.
func (s *scope) metadataProto(rec *store.Record) ([]byte, error) {
	body, err := s.protoBody(rec)
	if err != nil {
		return nil, err
	}
	meta, ok := resource.MetadataProto(body)
	if !ok {
		return nil, fmt.Errorf("%s has no metadata", rec.Key)
	}
	return appendField(nil, 1, meta), nil
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
		return s.tableObject(dst, rec)
	case s.out.view == viewMetadata && s.out.media == mediaProto:
		raw, err := s.metadataProto(rec)
		if err != nil {
			return nil, err
		}
		return resource.AppendEnvelope(dst, s.out.metaVersion(), "PartialObjectMetadata", raw), nil
	case s.out.view == viewMetadata:
		return s.metadataJSON(dst, rec)
	case s.out.media == mediaProto:
		raw, err := s.protoBody(rec)
		if err != nil {
			return nil, err
		}
		return s.served.AppendProto(dst, raw), nil
	}
	body, err := s.jsonBody(rec)
	if err != nil {
		return nil, err
	}
	return s.served.AppendJSON(dst, body), nil
}

// respond answers with a record.
func (s *scope) respond(code int, rec *store.Record) error {
	if s.out.list {
		return errWrongList(s, false)
	}
	body, err := s.object(nil, rec)
	if err != nil {
		return err
	}
	s.write(code, body)
	return nil
}

// respondObject answers with an object of the hub version that is not in the
// store: a dry run.
func (s *scope) respondObject(code int, obj resource.Object) error {
	stored, err := resource.EncodeStored(s.def, obj)
	if err != nil {
		return err
	}
	rec := &store.Record{Namespace: obj.GetNamespace(), Name: obj.GetName(), Stored: stored}
	rec.Revision, _ = strconv.ParseInt(obj.GetResourceVersion(), 10, 64)
	if rec.Revision != 0 {
		return s.respond(code, rec)
	}
	// What was never stored has no resourceVersion.
	body, err := resource.JSONBody(s.def, s.served.Version, obj)
	if err != nil {
		return err
	}
	if _, err := rec.Form(s.formID(formJSON), func(*store.Record) ([]byte, error) { return body, nil }); err != nil {
		return err
	}
	return s.respond(code, rec)
}

// respondOther answers with an object of another kind: a projection, or the
// result of an action.
func (s *scope) respondOther(code int, apiVersion, kind string, obj any) error {
	if s.out.media == mediaProto {
		m, ok := obj.(interface{ Marshal() ([]byte, error) })
		if !ok {
			return errNotAcceptable(acceptedTypes)
		}
		raw, err := m.Marshal()
		if err != nil {
			return err
		}
		s.write(code, resource.AppendEnvelope(nil, apiVersion, kind, raw))
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
	writeStatus(s.w, s.out, code, status)
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
		}
		body = append(body, '\n')
	case mediaYAML:
		body = toYAML(body)
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

// bookmarkRecord makes a record of an object that was never stored.
func (s *scope) bookmarkRecord(obj resource.Object) (*store.Record, error) {
	body, err := resource.JSONBody(s.def, s.served.Version, obj)
	if err != nil {
		return nil, err
	}
	rec := &store.Record{}
	if _, err := rec.Form(s.formID(formJSON), func(*store.Record) ([]byte, error) { return body, nil }); err != nil {
		return nil, err
	}
	if s.out.media == mediaProto {
		raw, err := resource.ProtoBody(s.def, s.served.Version, obj)
		if err != nil {
			return nil, err
		}
		_, err = rec.Form(s.formID(formProto), func(*store.Record) ([]byte, error) { return raw, nil })
		return rec, err
	}
	return rec, nil
}

func appendStatusEnvelope(raw []byte) []byte {
	return resource.AppendEnvelope(nil, "v1", "Status", raw)
}
