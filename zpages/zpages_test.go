package zpages

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
)

func TestPages(t *testing.T) {
	pages := map[string]http.Handler{
		"Statusz": Status{Started: time.Now().Add(-3725 * time.Second), Version: "1.37.1", Emulated: "1.37", Paths: []string{"/flagz", "/statusz"}},
		"Flagz":   Flags{"b": "2", "a": "[x]"},
	}
	text := map[string]string{
		"Statusz": `(?s)^\napiserver statusz\nWarning: [^\n]*\n\nStarted(:|: |=| ) .* UTC \d+\nUp(:|: |=| ) 1 hr 02 min 0\d sec\nGo version.*\nBinary version(:|: |=| ) 1.37.1\nEmulation version(:|: |=| ) 1.37\nPaths(:|: |=| ) /flagz /statusz\n$`,
		"Flagz":   `^\napiserver flagz\nWarning: [^\n]*\na(:|: |=| )\[x\]\nb(:|: |=| )2\n$`,
	}
	for kind, page := range pages {
		for _, tt := range []struct {
			accept, media, version string // no media: 406
		}{
			{"", mediaText, ""},
			{"*/*", mediaText, ""},
			{"text/*", mediaText, ""},
			{"text/html,text/plain;q=0.5", mediaText, ""},
			{"application/json;v=v1beta1;g=config.k8s.io;as=" + kind, "application/json", "v1beta1"},
			{"application/json;v=v1alpha1;g=config.k8s.io;as=" + kind, "application/json", "v1alpha1"},
			{"application/yaml;v=v1beta1;g=config.k8s.io;as=" + kind + ",text/plain", "application/yaml", "v1beta1"},
			{"application/json;v=v1;g=config.k8s.io;as=" + kind, "", ""},
			{"application/json;v=v1beta1;g=config.k8s.io;as=Other", "", ""},
			{"application/vnd.kubernetes.protobuf;v=v1beta1;g=config.k8s.io;as=" + kind, "", ""},
			{"application/json", "", ""},
			{"text/plain;v=x", "", ""},
			{"text/html", "", ""},
		} {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("Accept", tt.accept)
			w := httptest.NewRecorder()
			page.ServeHTTP(w, r)
			body, media := w.Body.String(), w.Header().Get("Content-Type")
			switch tt.media {
			case "":
				if w.Code != 406 || !strings.Contains(body, "only the following media types are accepted: application/json, application/yaml, text/plain") {
					t.Errorf("%s, %q: %d %s", kind, tt.accept, w.Code, body)
				}
			case mediaText:
				if media != "text/plain; charset=utf-8" || !regexp.MustCompile(text[kind]).MatchString(body) {
					t.Errorf("%s, %q: %s %q", kind, tt.accept, media, body)
				}
			default:
				if media != tt.media+";g=config.k8s.io;v="+tt.version+";as="+kind || !strings.Contains(body, "config.k8s.io/"+tt.version) || !strings.Contains(body, "apiserver") {
					t.Errorf("%s, %q: %s %q", kind, tt.accept, media, body)
				}
				if deprecated := w.Header().Get("Warning") != ""; deprecated != (tt.version == "v1alpha1") {
					t.Errorf("%s, %q: warning %q", kind, tt.accept, w.Header().Get("Warning"))
				}
				if tt.media == "application/json" && !json.Valid(w.Body.Bytes()) {
					t.Errorf("%s is not JSON", body)
				}
			}
		}
	}
}

// TestPagesInCBOR serves pages in CBOR if the server speaks it.
func TestPagesInCBOR(t *testing.T) {
	for kind, page := range map[string]http.Handler{"Statusz": Status{Version: "1.37.1"}, "Flagz": Flags{"a": "1"}} {
		for _, on := range []bool{false, true} {
			r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
			r.Header.Set("Accept", "application/cbor;v=v1beta1;g=config.k8s.io;as="+kind)
			page.ServeHTTP(w, r.WithContext(request.With(r.Context(), &request.Request{CBOR: on})))
			if media := w.Header().Get("Content-Type"); on && (w.Code != 200 || media != "application/cbor;g=config.k8s.io;v=v1beta1;as="+kind || !strings.HasPrefix(w.Body.String(), "\xd9\xd9\xf7") || !strings.Contains(w.Body.String(), kind)) || !on && w.Code != 406 {
				t.Errorf("%s with CBOR %v: got %d %s %q", kind, on, w.Code, media, w.Body)
			}
		}
	}
}
