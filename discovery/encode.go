package discovery

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/yaml"
)

// This file negotiates, encodes and compresses discovery documents.

const (
	mediaJSON     = "application/json"
	mediaYAML     = "application/yaml"
	mediaProtobuf = "application/vnd.kubernetes.protobuf"
	mediaCBOR     = "application/cbor"
)

// media is a negotiated media type.
type media struct {
	name    string
	pretty  bool
	noPeers bool // the profile nopeer
}

// negotiate returns the first media type of the Accept header that is known, for the
// aggregated or the plain format.
func negotiate(r *http.Request, known []string, aggregated bool) (media, bool) {
	accept := r.Header.Get("Accept")
	if accept == "" {
		return media{name: mediaJSON}, !aggregated
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, name := range known {
			if status.Takes(clause, name) && matchesFormat(clause.Params, name, aggregated) {
				return media{name: name, pretty: clause.Params["pretty"] == "1", noPeers: clause.Params["profile"] == "nopeer"}, true
			}
		}
	}
	return media{}, false
}

// matchesFormat reports whether the parameters of a media type ask for the format.
func matchesFormat(params map[string]string, name string, aggregated bool) bool {
	if s := params["stream"]; s != "" && (s != "watch" || name == mediaYAML) {
		return false
	}
	if params["sv"] != "" {
		return false
	}
	_, as := params["as"]
	_, g := params["g"]
	_, v := params["v"]
	if !aggregated {
		return !as && !g && !v
	}
	return params["as"] == "APIGroupDiscoveryList" && params["g"] == "apidiscovery.k8s.io" && params["v"] == "v2"
}

// isPretty reports whether JSON is indented: if asked for, or for curl, wget and
// browsers.
func isPretty(r *http.Request) bool {
	if pretty := request.QueryOf(r).Get("pretty"); pretty != "" {
		yes, _ := strconv.ParseBool(pretty)
		return yes
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

func encode(obj runtime.Object, media string, pretty bool) ([]byte, error) {
	switch {
	case media == mediaYAML:
		return yaml.Marshal(obj)
	case media == mediaProtobuf:
		var buf bytes.Buffer
		err := protobuf.NewSerializer(nil, nil).Encode(obj, &buf)
		return buf.Bytes(), err
	case media == mediaCBOR:
		var buf bytes.Buffer
		err := cbor.NewSerializer(nil, nil).EncodeNondeterministic(obj, &buf)
		return buf.Bytes(), err
	case pretty:
		return json.MarshalIndent(obj, "", "  ")
	default:
		b, err := json.Marshal(obj)
		return append(b, '\n'), err
	}
}

// hash returns the ETag of a document. It is the same for all media types, which the
// Vary header distinguishes.
func hash(obj runtime.Object) (string, error) {
	b, err := json.Marshal(obj)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`"%X"`, sha512.Sum512(b)), nil
}

// gzipThreshold is the size in bytes above which documents are compressed.
const gzipThreshold = 128 << 10

func send(w http.ResponseWriter, r *http.Request, body []byte) error {
	if len(body) <= gzipThreshold || !request.AcceptsGzip(r) {
		_, err := w.Write(body)
		return ignoreClient(err)
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Add("Vary", "Accept-Encoding")
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if _, err := z.Write(body); err != nil {
		return ignoreClient(err)
	}
	return ignoreClient(z.Close())
}

// ignoreClient drops the error of writing to a client that has gone.
func ignoreClient(error) error { return nil }

// checkRequest refuses methods other than GET, and an Accept header without a known media
// type.
func checkRequest(r *http.Request) error {
	if r.Method != http.MethodGet {
		return apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "", 0, false)
	}
	accept, known := r.Header.Get("Accept"), status.Media(request.From(r.Context()))
	for clause := range strings.SplitSeq(accept, ",") {
		name, _, _ := strings.Cut(clause, ";")
		if name = strings.TrimSpace(name); name == "*/*" || slices.Contains(known, name) {
			return nil
		}
	}
	if accept == "" {
		return nil
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Details: &metav1.StatusDetails{},
		Message: "406: Not Acceptable\n\nAvailable representations: " + strings.Join(known, ", "),
	}}
}

func notAcceptable(known []string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: " + strings.Join(known, ", "),
	}}
}
