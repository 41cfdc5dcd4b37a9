package rest

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/status"
	"github.com/apikeel/kelson/wire"
	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The media types that bodies and streams can have, as errors list them.
const (
	acceptedTypes = wire.TypeJSON + ", " + wire.TypeYAML + ", " + wire.TypeProtobuf
	streamTypes   = wire.TypeJSON + ";stream=watch, " + wire.TypeProtobuf + ";stream=watch"
)

// negotiate decides how the answer is written.
func (s *scope) negotiate() (wire.Format, error) {
	watch := s.req.Verb == request.Watch
	tables := s.def.Answer == nil && s.def.CreateOn == "" && (s.sub == nil || s.sub.Action == nil && s.sub.Connect == nil && !s.sub.NoTable)
	if err := s.representable(); err != nil {
		return wire.Format{}, err
	}
	out, err := negotiateHeader(s.r.Header.Get("Accept"), tables, watch, s.served.Unstructured)
	out.Stream = watch
	out.Pretty = out.Pretty || status.Pretty(s.r)
	return out, err
}

// representable refuses clients that like no format that is known, whatever else
// they want of it.
func (s *scope) representable() error {
	if header := s.r.Header.Get("Accept"); header != "" && !representable(header) {
		return errNoRepresentation(s.req.Verb == request.Watch || s.req.Verb == request.List)
	}
	return nil
}

func negotiateHeader(header string, tables, watch, noProto bool) (wire.Format, error) {
	if header == "" {
		return wire.Format{}, nil
	}
	for _, clause := range goautoneg.ParseAccept(header) {
		for _, m := range []wire.MediaType{wire.JSON, wire.YAML, wire.Protobuf} {
			if !status.Takes(clause, m.String()) {
				continue
			}
			out, ok := accept(m, clause.Params, tables)
			switch {
			case !ok, m == wire.Protobuf && noProto && out.Shape == wire.ShapeObject:
			case watch && m == wire.YAML: // a stream of documents has no frames
				return wire.Format{}, errNotAcceptable(streamTypes)
			default:
				return out, nil
			}
		}
	}
	return wire.Format{}, errNotAcceptable(acceptedTypes)
}

// representable reports whether an Accept header names a format that is known,
// whatever else it wants of it.
func representable(header string) bool {
	for clause := range strings.SplitSeq(header, ",") {
		m, _, _ := strings.Cut(clause, ";")
		switch strings.TrimSpace(m) {
		case "*/*", wire.TypeJSON, wire.TypeYAML, wire.TypeProtobuf:
			return true
		}
	}
	return false
}

// accept reads what a clause of an Accept header wants of a format, and reports
// whether it can have it.
func accept(m wire.MediaType, params map[string]string, tables bool) (out wire.Format, ok bool) {
	out.Media = m
	switch params["stream"] {
	case "":
	case "watch":
		if m == wire.YAML {
			return out, false
		}
	default:
		return out, false
	}
	out.Pretty = params["pretty"] == "1"
	if params["sv"] != "" {
		return out, false
	}
	as, kind := params["as"]
	group, ofGroup := params["g"]
	version, ofVersion := params["v"]
	if !kind && !ofGroup && !ofVersion {
		return out, true
	}
	if group != metav1.GroupName || version != "v1" && version != "v1beta1" {
		return out, false
	}
	out.Beta = version == "v1beta1"
	switch as {
	case "Table":
		out.Shape = wire.ShapeTable
		return out, tables && m != wire.Protobuf
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		out.Shape, out.List = wire.ShapeMetadata, as == "PartialObjectMetadataList"
		return out, true
	}
	return out, false
}

// errWrongList is the answer to who wants one object's metadata of a list, or
// the reverse.
func errWrongList(s *scope, isList bool) error {
	pkg, kind := internalPackage(s.def.Group), s.def.Kind
	if s.sub != nil && s.sub.Kind.Kind != "" {
		pkg, kind = internalPackage(s.sub.Kind.Group), s.sub.Kind.Kind
	}
	list := s.def.ListKind
	if s.served.Unstructured && (s.sub == nil || s.sub.Part != nil) {
		pkg, kind, list = "unstructured", "Unstructured", "UnstructuredList"
	}
	text := fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (*%s.%s)", pkg, kind)
	if isList {
		text = fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (*%s.%s)", pkg, list)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Message: text,
	}}
}

// errNoRepresentation is the answer to an Accept header without any format
// that is known.
func errNoRepresentation(streams bool) error {
	types := acceptedTypes
	if streams {
		types += ", " + streamTypes
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "406: Not Acceptable\n\nAvailable representations: " + types,
		Details: &metav1.StatusDetails{},
	}}
}
