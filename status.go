package kelson

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/request"
)

const (
	mediaJSON     = "application/json"
	mediaYAML     = "application/yaml"
	mediaProtobuf = "application/vnd.kubernetes.protobuf"
)

// writeError answers with the Status of an error, in the form that the client
// prefers. It is for the stages; the API writes its own answers.
func writeError(w http.ResponseWriter, r *http.Request, err *apierrors.StatusError) {
	status := err.ErrStatus
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	media, pretty := negotiate(r)
	body, media := encodeStatus(&status, media, pretty)
	w.Header().Set("Content-Type", media)
	w.WriteHeader(int(status.Code))
	_, _ = w.Write(body)
}

func encodeStatus(status *metav1.Status, media string, pretty bool) (body []byte, used string) {
	switch media {
	case mediaYAML:
		if body, err := yaml.Marshal(status); err == nil {
			return body, mediaYAML
		}
	case mediaProtobuf:
		raw, err := status.Marshal()
		if err == nil {
			envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: status.APIVersion, Kind: status.Kind}, Raw: raw}
			raw, err = envelope.Marshal()
		}
		if err == nil {
			return append([]byte("k8s\x00"), raw...), mediaProtobuf
		}
	}
	if pretty {
		body, _ = json.MarshalIndent(status, "", "  ")
		return body, mediaJSON
	}
	var buffer bytes.Buffer
	_ = json.NewEncoder(&buffer).Encode(status)
	return buffer.Bytes(), mediaJSON
}

// negotiate returns the form of an error that the client likes best. One that
// likes none gets JSON that a person can read.
func negotiate(r *http.Request) (media string, pretty bool) {
	pretty = wantsPretty(r)
	accept := strings.Join(r.Header["Accept"], ",")
	if accept == "" || accept == mediaJSON {
		return mediaJSON, pretty
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		// An error is neither a table nor a stream.
		if clause.Params["as"] != "" || clause.Params["stream"] != "" {
			continue
		}
		for _, media := range []string{mediaJSON, mediaYAML, mediaProtobuf} {
			kind, subtype, _ := strings.Cut(media, "/")
			if (clause.Type == "*" || clause.Type == kind) && (clause.SubType == "*" || clause.SubType == subtype) {
				return media, pretty || clause.Params["pretty"] == "1"
			}
		}
	}
	return mediaJSON, true
}

// wantsPretty: people ask with the tools that people use.
func wantsPretty(r *http.Request) bool {
	if value, _ := request.Param(r.URL.RawQuery, "pretty"); value != "" {
		pretty, _ := strconv.ParseBool(value)
		return pretty
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
