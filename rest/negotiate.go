package rest

import (
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/request"
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

// clause is one part of an Accept header.
type clause struct {
	media  string
	params map[string]string
	q      float64
}

// parseAccept reads an Accept header into its clauses, the most wanted first.
// A clause that cannot be read is left out.
func parseAccept(header string) []clause {
	var clauses []clause
	for part := range strings.SplitSeq(header, ",") {
		m, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		c := clause{media: m, params: params, q: 1}
		if q, ok := params["q"]; ok {
			if f, err := strconv.ParseFloat(q, 64); err == nil {
				c.q = f
			}
		}
		clauses = append(clauses, c)
	}
	slices.SortStableFunc(clauses, func(a, b clause) int {
		switch {
		case a.q > b.q:
			return -1
		case a.q < b.q:
			return 1
		}
		return 0
	})
	return clauses
}

// negotiate decides how the answer is written.
func (s *scope) negotiate() (output, error) {
	watch := s.req.Verb == request.Watch
	transforms := s.def.Answer == nil && (s.sub == nil || s.sub.Part != nil)
	out, err := negotiateHeader(s.r.Header.Get("Accept"), transforms, watch, s.served.Unstructured)
	out.stream = watch
	out.pretty = isPretty(s.r)
	return out, err
}

// negotiateStatus decides how a Status is written, which has no other views.
func negotiateStatus(r *http.Request) (output, error) {
	out, err := negotiateHeader(r.Header.Get("Accept"), true, false, false)
	out.view = viewObject
	return out, err
}

func negotiateHeader(header string, transforms, watch, noProto bool) (output, error) {
	if header == "" {
		return output{}, nil
	}
	known := false
	for _, c := range parseAccept(header) {
		var out output
		switch c.media {
		case typeJSON, "*/*":
			out.media = mediaJSON
		case typeYAML:
			out.media = mediaYAML
		case typeProto:
			out.media = mediaProto
		default:
			continue
		}
		known = true
		if watch && out.media == mediaYAML {
			continue // a stream of documents has no frames
		}
		switch as := c.params["as"]; {
		case as == "":
		case !transforms || c.params["g"] != metav1.GroupName:
			continue
		case as == "Table" && out.media != mediaProto:
			out.view = viewTable
		case as == "PartialObjectMetadata", as == "PartialObjectMetadataList":
			out.view, out.list = viewMetadata, as == "PartialObjectMetadataList"
		default:
			continue
		}
		if out.view != viewObject {
			switch c.params["v"] {
			case "v1":
			case "v1beta1":
				out.beta = true
			default:
				continue
			}
		}
		if out.media == mediaProto && noProto && out.view == viewObject {
			continue
		}
		return out, nil
	}
	if !known {
		return output{}, errNoRepresentation(watch)
	}
	return output{}, errNotAcceptable(acceptedTypes)
}

// errWrongList is the answer to who wants one object's metadata of a list, or
// the reverse.
func errWrongList(s *scope, isList bool) error {
	pkg := internalPackage(s.def.Group)
	text := fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (*%s.%s)", pkg, s.def.Kind)
	if isList {
		text = fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (*%s.%s)", pkg, s.def.ListKind)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Message: text,
	}}
}

// errNoRepresentation is the answer to an Accept header without any format
// that is known.
func errNoRepresentation(watch bool) error {
	types := acceptedTypes
	if watch {
		types += ", " + typeJSON + ";stream=watch, " + typeProto + ";stream=watch"
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "406: Not Acceptable\n\nAvailable representations: " + types,
		Details: &metav1.StatusDetails{},
	}}
}

// isPretty reports whether JSON should be indented: asked for, or a person
// is reading.
func isPretty(r *http.Request) bool {
	if v, ok := r.URL.Query()["pretty"]; ok {
		return len(v) > 0 && (v[0] == "" || v[0] == "1" || v[0] == "true")
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// toYAML converts JSON that this server made.
func toYAML(b []byte) []byte {
	y, err := yaml.JSONToYAML(b)
	if err != nil {
		return b
	}
	return y
}
