package rest

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// media is a format of bodies.
type media uint8

const (
	mediaJSON media = iota
	mediaYAML
	mediaProto
)

const (
	typeJSON  = "application/json"
	typeYAML  = "application/yaml"
	typeProto = "application/vnd.kubernetes.protobuf"

	acceptedTypes = typeJSON + ", " + typeYAML + ", " + typeProto
	streamTypes   = typeJSON + ";stream=watch, " + typeProto + ";stream=watch"
)

func (m media) String() string {
	switch m {
	case mediaYAML:
		return typeYAML
	case mediaProto:
		return typeProto
	}
	return typeJSON
}

// view is what of an object the client wants to see.
type view uint8

const (
	viewObject view = iota
	viewTable
	viewMetadata
)

// output is how an answer is wanted.
type output struct {
	media  media
	view   view
	list   bool // the view of a list was asked for
	beta   bool // of meta.k8s.io/v1beta1 instead of v1
	stream bool
	pretty bool
}

func (o output) contentType() string {
	if o.stream && o.media == mediaProto {
		return typeProto + ";stream=watch"
	}
	return o.media.String()
}

// metaVersion is the apiVersion of tables and partial metadata.
func (o output) metaVersion() string {
	if o.beta {
		return "meta.k8s.io/v1beta1"
	}
	return "meta.k8s.io/v1"
}

// negotiate decides how the answer is written.
func (s *scope) negotiate() (output, error) {
	watch := s.req.Verb == request.Watch
	tables := s.def.Answer == nil && s.def.CreateOn == "" && (s.sub == nil || s.sub.Action == nil && s.sub.Connect == nil && !s.sub.NoTable)
	if err := s.representable(); err != nil {
		return output{}, err
	}
	out, err := negotiateHeader(s.r.Header.Get("Accept"), tables, watch, s.served.Unstructured)
	out.stream = watch
	out.pretty = out.pretty || status.Pretty(s.r)
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

func negotiateHeader(header string, tables, watch, noProto bool) (output, error) {
	if header == "" {
		return output{}, nil
	}
	for _, clause := range goautoneg.ParseAccept(header) {
		for _, m := range []media{mediaJSON, mediaYAML, mediaProto} {
			if !status.Takes(clause, m.String()) {
				continue
			}
			out, ok := accept(m, clause.Params, tables)
			switch {
			case !ok, m == mediaProto && noProto && out.view == viewObject:
			case watch && m == mediaYAML: // a stream of documents has no frames
				return output{}, errNotAcceptable(streamTypes)
			default:
				return out, nil
			}
		}
	}
	return output{}, errNotAcceptable(acceptedTypes)
}

// representable reports whether an Accept header names a format that is known,
// whatever else it wants of it.
func representable(header string) bool {
	for clause := range strings.SplitSeq(header, ",") {
		m, _, _ := strings.Cut(clause, ";")
		switch strings.TrimSpace(m) {
		case "*/*", typeJSON, typeYAML, typeProto:
			return true
		}
	}
	return false
}

// accept reads what a clause of an Accept header wants of a format, and reports
// whether it can have it.
func accept(m media, params map[string]string, tables bool) (out output, ok bool) {
	out.media = m
	switch params["stream"] {
	case "":
	case "watch":
		if m == mediaYAML {
			return out, false
		}
	default:
		return out, false
	}
	out.pretty = params["pretty"] == "1"
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
	out.beta = version == "v1beta1"
	switch as {
	case "Table":
		out.view = viewTable
		return out, tables && m != mediaProto
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		out.view, out.list = viewMetadata, as == "PartialObjectMetadataList"
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
