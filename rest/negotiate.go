package rest

import (
	"errors"
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

// acceptedTypes returns the media types that bodies can have, as errors list them.
func (s *scope) acceptedTypes() string { return strings.Join(status.Media(s.req), ", ") }

// streamTypes returns the media types of watches.
func (s *scope) streamTypes() string {
	const types = wire.TypeJSON + ";stream=watch, " + wire.TypeProtobuf + ";stream=watch"
	if s.req.CBOR {
		return types + ", " + wire.TypeCBORSequence
	}
	return types
}

// negotiate decides how the answer is written.
func (s *scope) negotiate() (wire.Format, error) {
	watch := s.req.Verb == request.Watch
	tables := s.def.Answer == nil && s.def.CreateOn == "" && (s.sub == nil || s.sub.Action == nil && s.sub.Connect == nil && !s.sub.NoTable)
	if !s.served.Unstructured { // whose paths no router has looked at
		if err := s.representable(); err != nil {
			return wire.Format{}, err
		}
	}
	out, err := s.negotiateHeader(s.r.Header.Get("Accept"), tables)
	out.Stream = watch
	out.Pretty = out.Pretty || status.Pretty(s.r)
	return out, err
}

// representable refuses clients that like no format that is known, whatever else
// they want of it.
func (s *scope) representable() error {
	streams := s.req.Verb == request.Watch || s.req.Verb == request.List
	if header := s.r.Header.Get("Accept"); header != "" && !representable(header, s.req.CBOR, streams) {
		types := s.acceptedTypes()
		if streams {
			types += ", " + s.streamTypes()
		}
		return errNoRepresentation(types)
	}
	return nil
}

// negotiateHeader returns the first format of an Accept header that the resource has.
func (s *scope) negotiateHeader(header string, tables bool) (wire.Format, error) {
	if header == "" {
		return wire.Format{}, nil
	}
	for _, clause := range goautoneg.ParseAccept(header) {
		for _, m := range []wire.MediaType{wire.JSON, wire.YAML, wire.Protobuf, wire.CBOR} {
			if m == wire.CBOR && !s.req.CBOR || !status.Takes(clause, m.String()) {
				continue
			}
			out, ok := accept(m, clause.Params, tables)
			switch {
			case !ok, m == wire.Protobuf && s.sendsMaps() && out.Shape == wire.ShapeObject:
			default:
				return out, nil
			}
		}
	}
	return wire.Format{}, errNotAcceptable(s.acceptedTypes())
}

// representable reports whether an Accept header names a format that is known,
// whatever else it wants of it. That of watches in CBOR is known where there are watches,
// although no response is negotiated by it.
func representable(header string, cbor, streams bool) bool {
	for clause := range strings.SplitSeq(header, ",") {
		m, _, _ := strings.Cut(clause, ";")
		m = strings.TrimSpace(m)
		switch m {
		case "*/*", wire.TypeJSON, wire.TypeYAML, wire.TypeProtobuf:
			return true
		case wire.TypeCBOR, wire.TypeCBORSequence:
			if cbor && (streams || m == wire.TypeCBOR) {
				return true
			}
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
		return out, tables && m != wire.Protobuf && m != wire.CBOR
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
	if pkg == "unstructured" && !isList {
		return errBare(errors.New("content is not a list")) // a map may have been one
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
func errNoRepresentation(types string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "406: Not Acceptable\n\nAvailable representations: " + types,
		Details: &metav1.StatusDetails{},
	}}
}
