package status

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"github.com/apikeel/kelson/request"
)

func TestNegotiate(t *testing.T) {
	for _, tt := range []struct {
		accept, agent, query string
		media                string
		pretty, liked        bool
	}{
		{"", "", "", JSON, false, true},
		{"*/*", "kubectl/v1.37", "", JSON, false, true},
		{"application/*", "", "", JSON, false, true},
		{"application/vnd.kubernetes.protobuf,application/json", "", "", Protobuf, false, true},
		{"application/json;q=0.5,application/yaml", "", "", YAML, false, true},
		{"application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "", "", JSON, false, true},
		{"application/json;as=Table;v=v1;g=meta.k8s.io", "", "", JSON, true, false},
		{"application/vnd.kubernetes.protobuf;stream=watch", "", "", Protobuf, false, true},
		{"application/yaml;stream=watch", "", "", JSON, true, false},
		{"application/json;stream=other", "", "", JSON, true, false},
		{"application/json;v=v1", "", "", JSON, true, false},
		{"text/html", "", "", JSON, true, false},
		{"application/json;pretty=1", "", "", JSON, true, true},
		{"", "curl/8", "", JSON, true, true},
		{"", "curl/8", "pretty=0", JSON, false, true},
		{"", "", "a=b&pretty=true", JSON, true, true},
	} {
		r := httptest.NewRequest("GET", "/?"+tt.query, nil)
		r.Header.Set("Accept", tt.accept)
		r.Header.Set("User-Agent", tt.agent)
		if media, pretty, liked := Negotiate(r); media != tt.media || pretty != tt.pretty || liked != tt.liked {
			t.Errorf("%+v: got %s %v %v", tt, media, pretty, liked)
		}
	}
}

// TestTheFirstAcceptHeaderCounts: handlers negotiate by it, so errors are in the same format.
func TestTheFirstAcceptHeaderCounts(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	r.Header["Accept"] = []string{"text/html", YAML}
	if media, _, liked := Negotiate(r); media != JSON || liked {
		t.Errorf("got %s, liked: %t, want JSON for a client that accepts nothing", media, liked)
	}
}

func TestWrite(t *testing.T) {
	s := metav1.Status{Status: metav1.StatusFailure, Code: 429, Message: "slow", Reason: metav1.StatusReasonTooManyRequests}
	// A client is told when to come back only if the server knows.
	for accept, want := range map[string]string{
		"":                   `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"slow","reason":"TooManyRequests","code":429}` + "\n",
		"application/yaml":   "apiVersion: v1\ncode: 429\nkind: Status\nmessage: slow\nmetadata: {}\nreason: TooManyRequests\nstatus: Failure\n",
		"application/json;a": `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"slow","reason":"TooManyRequests","code":429}` + "\n",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		w := httptest.NewRecorder()
		Write(w, r, s)
		if w.Body.String() != want || w.Code != 429 || w.Header().Get("Retry-After") != "" {
			t.Errorf("%s: %d %q %v", accept, w.Code, w.Body, w.Header())
		}
	}
	r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
	r.Header.Set("Accept", Protobuf)
	Write(w, r, metav1.Status{Message: "broken", Details: &metav1.StatusDetails{RetryAfterSeconds: 7}})
	var envelope runtime.Unknown
	var got metav1.Status
	if err := errors.Join(envelope.Unmarshal(w.Body.Bytes()[4:]), got.Unmarshal(envelope.Raw)); err != nil {
		t.Fatal(err)
	}
	if w.Code != 500 || w.Header().Get("Content-Type") != Protobuf || w.Header().Get("Retry-After") != "7" ||
		envelope.Kind != "Status" || envelope.APIVersion != "v1" || got.Message != "broken" {
		t.Errorf("%d %v %+v %+v", w.Code, w.Header(), envelope.TypeMeta, got)
	}
}

// TestWriteCBOR writes a Status in CBOR, if the server speaks it.
func TestWriteCBOR(t *testing.T) {
	for _, on := range []bool{false, true} {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.Header.Set("Accept", CBOR)
		r = r.WithContext(request.With(r.Context(), &request.Request{CBOR: on}))
		Write(w, r, metav1.Status{Message: "broken", Code: 400})
		media, body := w.Header().Get("Content-Type"), w.Body.Bytes()
		if !on {
			if media != JSON {
				t.Errorf("without CBOR: got %s, want %s", media, JSON)
			}
			continue
		}
		var got metav1.Status
		err := direct.Unmarshal(body, &got)
		if err != nil || media != CBOR || !bytes.HasPrefix(body, []byte("\xd9\xd9\xf7")) || got.Kind != "Status" || got.APIVersion != "v1" || got.Message != "broken" {
			t.Errorf("got %s %x: %+v, %v", media, body, got, err)
		}
	}
}
