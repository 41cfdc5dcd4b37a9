// Package zpages serves what a component tells of itself to people and, in
// versions of config.k8s.io, to programs: /statusz and /flagz.
package zpages

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/status"
)

const (
	group = "config.k8s.io"

	mediaText = "text/plain"
)

// acceptedTypes are the media types of pages, in the order of kube-apiserver.
func acceptedTypes(r *http.Request) []string {
	if request.From(r.Context()).CBOR {
		return []string{status.JSON, status.YAML, mediaText, status.CBOR}
	}
	return []string{status.JSON, status.YAML, mediaText}
}

// Component is the name under which a server tells of itself.
const Component = "apiserver"

// document is what both pages have.
type document struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
}

// statusDocument is a Statusz, which is the same in all versions.
type statusDocument struct {
	document
	StartTime        metav1.Time `json:"startTime"`
	UptimeSeconds    int64       `json:"uptimeSeconds"`
	GoVersion        string      `json:"goVersion"`
	BinaryVersion    string      `json:"binaryVersion"`
	EmulationVersion string      `json:"emulationVersion,omitempty"`
	Paths            []string    `json:"paths,omitempty"`
}

// flagsDocument is a Flagz, which is the same in all versions.
type flagsDocument struct {
	document
	Flags map[string]string `json:"flags"`
}

// Status is what /statusz tells.
type Status struct {
	Started time.Time
	// Version is the one of the program, and Emulated the one that it behaves as.
	Version, Emulated string
	// Paths are where more is told.
	Paths []string
}

// ServeHTTP implements http.Handler.
func (s Status) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	up := max(0, int64(time.Since(s.Started).Seconds()))
	serve(w, r, "Statusz", func(d document) any {
		return statusDocument{
			document: d, StartTime: metav1.NewTime(s.Started), UptimeSeconds: up,
			GoVersion: runtime.Version(), BinaryVersion: s.Version, EmulationVersion: s.Emulated, Paths: s.Paths,
		}
	}, func(text *strings.Builder, is string) {
		fmt.Fprintln(text)
		for _, line := range [][2]string{
			{"Started", s.Started.UTC().Format(time.UnixDate)},
			{"Up", fmt.Sprintf("%d hr %02d min %02d sec", up/3600, up/60%60, up%60)},
			{"Go version", runtime.Version()}, {"Binary version", s.Version},
			{"Emulation version", s.Emulated}, {"Paths", strings.Join(s.Paths, " ")},
		} {
			if line[1] != "" {
				fmt.Fprintf(text, "%s%s %s\n", line[0], is, line[1])
			}
		}
	})
}

// Flags is what /flagz tells: the values of flags.
type Flags map[string]string

// ServeHTTP implements http.Handler.
func (f Flags) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	serve(w, r, "Flagz", func(d document) any {
		return flagsDocument{document: d, Flags: f}
	}, func(text *strings.Builder, is string) {
		for _, name := range slices.Sorted(maps.Keys(f)) {
			fmt.Fprintf(text, "%s%s%s\n", name, is, f[name])
		}
	})
}

// serve writes a page as the client wants it.
func serve(w http.ResponseWriter, r *http.Request, kind string, structured func(document) any, people func(text *strings.Builder, is string)) {
	media, version, ok := negotiate(r, kind)
	if !ok {
		if media, _, _ := status.Negotiate(r); media == status.Protobuf {
			// The pages have no such form, and neither has what is said of that.
			r = r.Clone(r.Context())
			r.Header.Set("Accept", "none")
		}
		status.Write(w, r, metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
			Message: "only the following media types are accepted: " + strings.Join(acceptedTypes(r), ", "),
		})
		return
	}
	page := strings.ToLower(kind)
	if media == mediaText {
		// Programs that read this would break: what it looks like is left to chance.
		is := []string{":", ": ", "=", " "}[rand.IntN(4)]
		var text strings.Builder
		fmt.Fprintf(&text, "\n%s %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n", Component, page)
		people(&text, is)
		w.Header().Set("Content-Type", mediaText+"; charset=utf-8")
		_, _ = w.Write([]byte(text.String()))
		return
	}
	if version == "v1alpha1" {
		w.Header().Set("Warning", `299 - "This version of the `+page+` endpoint is deprecated. Please use a newer version."`)
	}
	object := structured(document{metav1.TypeMeta{Kind: kind, APIVersion: group + "/" + version}, metav1.ObjectMeta{Name: Component}})
	var body []byte
	var err error
	switch {
	case media == status.YAML:
		body, err = yaml.Marshal(object)
	case media == status.CBOR:
		if body, err = cbor.Marshal(object); err == nil {
			body = append([]byte("\xd9\xd9\xf7"), body...) // the tag "self-described CBOR"
		}
	case status.Pretty(r):
		body, err = json.MarshalIndent(object, "", "  ")
	default:
		if body, err = json.Marshal(object); err == nil {
			body = append(body, '\n')
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", fmt.Sprintf("%s;g=%s;v=%s;as=%s", media, group, version, kind))
	_, _ = w.Write(body)
}

// negotiate returns the format of a page, and its version if it is for programs,
// which have to name it.
func negotiate(r *http.Request, kind string) (media, version string, ok bool) {
	accept := r.Header.Get("Accept")
	if strings.TrimSpace(accept) == "" {
		return mediaText, "", true
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		g, v, as := clause.Params["g"], clause.Params["v"], clause.Params["as"]
		plain := g == "" && v == "" && as == ""
		named := g == group && as == kind && (v == "v1alpha1" || v == "v1beta1")
		if clause.Params["sv"] != "" || clause.Params["stream"] != "" {
			continue
		}
		for _, media := range acceptedTypes(r) {
			main, sub, _ := strings.Cut(media, "/")
			if clause.Type != "*" && clause.Type != main || clause.SubType != "*" && clause.SubType != sub {
				continue
			}
			if media == mediaText && plain || media != mediaText && named {
				return media, v, true
			}
		}
	}
	return "", "", false
}
