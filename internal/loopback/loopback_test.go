package loopback

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// handler is a transport that ends in a handler.
type handler func(w http.ResponseWriter, r *http.Request)

func (h handler) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h(w, r)
	return w.Result(), nil
}

// TestUpdate lets others be faster a few times, or always.
func TestUpdate(t *testing.T) {
	for _, c := range []struct {
		name      string
		conflicts int
		value     string // that is set
		writes    int
		conflict  bool
	}{
		{"at once", 0, "new", 1, false},
		{"nothing to do", 0, "old", 0, false},
		{"others are faster", 3, "new", 4, false},
		{"others are always faster", 1000, "new", maxConflicts, true},
	} {
		writes := 0
		client := &Client{Agent: "me", Transport: handler(func(w http.ResponseWriter, r *http.Request) {
			if r.UserAgent() != "me" {
				t.Errorf("%s: got agent %q, want %q", c.name, r.UserAgent(), "me")
			}
			if r.Method == http.MethodGet {
				fmt.Fprint(w, `{"metadata":{"name":"m"},"data":{"key":"old"}}`)
				return
			}
			body, _ := io.ReadAll(r.Body)
			if r.URL.Path != "/path/status" || !strings.Contains(string(body), `"key":"new"`) {
				t.Errorf("%s: got %s %s, want the new object", c.name, r.URL.Path, body)
			}
			if writes++; writes <= c.conflicts {
				w.WriteHeader(http.StatusConflict)
				fmt.Fprint(w, `{"kind":"Status","reason":"Conflict","code":409}`)
			}
		})}
		err := Update(t.Context(), client, "/path", "/status", func(m *corev1.ConfigMap) error {
			m.Data["key"] = c.value
			return nil
		})
		if apierrors.IsConflict(err) != c.conflict || err != nil && !c.conflict || writes != c.writes {
			t.Errorf("%s: got %v after %d writes, want %d and a conflict is %v", c.name, err, writes, c.writes, c.conflict)
		}
	}
}

// TestErrors wants an answer without a Status to be an error with its code.
func TestErrors(t *testing.T) {
	client := &Client{Transport: handler(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such page", http.StatusNotFound)
	})}
	err := client.Do(t.Context(), Call{Method: http.MethodGet, Path: "/x"})
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Code != http.StatusNotFound || !strings.Contains(err.Error(), "no such page") {
		t.Errorf("got %v, want the text and the code 404", err)
	}
}

// TestErrorsInProtobuf wants the reason of an error that the server sends in protobuf,
// as it does to a request for an object that can be decoded from it.
func TestErrorsInProtobuf(t *testing.T) {
	client := &Client{Transport: handler(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Accept"), Protobuf) {
			t.Errorf("got Accept %q, want protobuf", r.Header.Get("Accept"))
		}
		status := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "configmaps"}, "m").Status()
		raw, err := status.Marshal()
		if err == nil {
			raw, err = (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Status"}, Raw: raw}).Marshal()
		}
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", Protobuf)
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintf(w, "k8s\x00%s", raw)
	})}
	err := client.Do(t.Context(), Call{Method: http.MethodPost, Path: "/x", Body: &corev1.ConfigMap{}, Into: &corev1.ConfigMap{}})
	if want := `configmaps "m" already exists`; !apierrors.IsAlreadyExists(err) || err.Error() != want {
		t.Errorf("got %v with reason %q, want %q", err, apierrors.ReasonForError(err), want)
	}
}
