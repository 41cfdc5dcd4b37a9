// Package status writes a metav1.Status, the answer to a request that failed. Start at
// Write. Every stage of the server answers errors through it.
package status

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/request"
)

// Media types of a Status.
const (
	JSON     = "application/json"
	YAML     = "application/yaml"
	Protobuf = "application/vnd.kubernetes.protobuf"
	CBOR     = "application/cbor"
)

// Media returns the media types that a request can have its response in, in the order of
// preference for clients that accept several of them.
func Media(req *request.Request) []string {
	if req.CBOR {
		return media
	}
	return media[:3:3]
}

var media = []string{JSON, YAML, Protobuf, CBOR}

// TimeoutMessage is the message of a request whose deadline has passed.
const TimeoutMessage = "request did not complete within the allotted timeout"

// WriteTimeout answers a request whose deadline has passed, in the form of kube-apiserver,
// which differs from other errors: JSON without a kind, whatever the client accepts.
func WriteTimeout(w http.ResponseWriter) {
	s := apierrors.NewTimeoutError(TimeoutMessage, 0).ErrStatus
	w.WriteHeader(http.StatusGatewayTimeout)
	_ = json.NewEncoder(w).Encode(&s)
}

// Write answers with a Status, in the format that the client prefers.
func Write(w http.ResponseWriter, r *http.Request, s metav1.Status) {
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if s.Code == 0 {
		s.Code = http.StatusInternalServerError
	}
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	media, pretty, liked := Negotiate(r)
	// A format that the client did not accept is not recorded in the audit.
	if record := request.From(r.Context()).Audit; record != nil && liked {
		record.AnsweredStatus(&s, func() ([]byte, error) { return json.Marshal(&s) })
	}
	body, media := Encode(&s, media, pretty)
	h := w.Header()
	h.Set("Content-Type", media)
	if len(body) <= gzipFrom || !request.AcceptsGzip(r) {
		w.WriteHeader(int(s.Code))
		_, _ = w.Write(body)
		return
	}
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	h.Del("Content-Length")
	w.WriteHeader(int(s.Code))
	z := gzip.NewWriter(w)
	_, _ = z.Write(body)
	_ = z.Close()
}

// WriteJSON answers with a document as JSON: one page for the user who asks, which no cache
// keeps. A json.RawMessage is written as it is. If there is an error, or the document
// cannot be encoded, it answers with that; an error without a Status is an internal one.
func WriteJSON(w http.ResponseWriter, r *http.Request, document any, err error) {
	body, isEncoded := document.(json.RawMessage)
	if err == nil && !isEncoded {
		body, err = json.Marshal(document)
	}
	if err != nil {
		var known apierrors.APIStatus
		if !errors.As(err, &known) {
			known = apierrors.NewInternalError(err)
		}
		Write(w, r, known.Status())
		return
	}
	w.Header().Set("Content-Type", JSON)
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(body, '\n'))
}

// gzipFrom is the size in bytes above which a Status is compressed, if the client
// accepts that.
const gzipFrom = 128 << 10

// cborEncoder encodes objects that know their kind; it needs no scheme for that.
var cborEncoder = cbor.NewSerializer(nil, nil)

// Encode encodes a Status as media; as JSON if that fails.
func Encode(s *metav1.Status, media string, pretty bool) (body []byte, used string) {
	switch media {
	case YAML:
		if body, err := yaml.Marshal(s); err == nil {
			return body, YAML
		}
	case Protobuf:
		raw, err := s.Marshal()
		if err == nil {
			envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: s.APIVersion, Kind: s.Kind}, Raw: raw}
			raw, err = envelope.Marshal()
		}
		if err == nil {
			return append([]byte("k8s\x00"), raw...), Protobuf
		}
	case CBOR:
		var buffer bytes.Buffer
		if err := cborEncoder.EncodeNondeterministic(s, &buffer); err == nil {
			return buffer.Bytes(), CBOR
		}
	}
	if pretty {
		body, _ = json.MarshalIndent(s, "", "  ")
		return body, JSON
	}
	var buffer bytes.Buffer
	_ = json.NewEncoder(&buffer).Encode(s)
	return buffer.Bytes(), JSON
}

// Negotiate returns the preferred format of the client among those of a Status. If it
// accepts none, it gets indented JSON and liked is false.
func Negotiate(r *http.Request) (media string, pretty, liked bool) {
	pretty = Pretty(r)
	accept := r.Header.Get("Accept") // the first, as in handlers
	if accept == "" || accept == JSON {
		return JSON, pretty, true
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, media := range Media(request.From(r.Context())) {
			if Takes(clause, media) && wantsUnconverted(clause.Params, media) {
				return media, pretty || clause.Params["pretty"] == "1", true
			}
		}
	}
	return JSON, true, false
}

// Takes reports whether a clause of an Accept header matches a media type: exactly,
// type/*, or */*.
func Takes(clause goautoneg.Accept, media string) bool {
	kind, subtype, _ := strings.Cut(media, "/")
	switch clause.SubType {
	case "*":
		return clause.Type == "*" || clause.Type == kind
	case subtype:
		return clause.Type == kind
	}
	return false
}

// wantsUnconverted reports whether the parameters of a clause ask for no conversion: a Status
// cannot become a Table, for example. A watch may get a Status.
func wantsUnconverted(params map[string]string, media string) bool {
	for _, kind := range []string{"as", "g", "v"} {
		if _, wanted := params[kind]; wanted {
			return false
		}
	}
	stream := params["stream"]
	return params["sv"] == "" && (stream == "" || stream == "watch" && media != YAML)
}

// Pretty reports whether JSON is indented: if asked for, or for curl, wget and
// browsers.
func Pretty(r *http.Request) bool {
	if value := request.QueryOf(r).Get("pretty"); value != "" {
		pretty, _ := strconv.ParseBool(value)
		return pretty
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
