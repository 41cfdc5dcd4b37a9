package rest

import (
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/request"
)

// timekeeper is a request.Timekeeper that remembers which parts have worked.
type timekeeper struct{ parts []request.Part }

func (*timekeeper) Annotate(string, string)                               {}
func (*timekeeper) AnnotateBody(string, string)                           {}
func (*timekeeper) SentObject(metav1.Object, func() ([]byte, error))      {}
func (*timekeeper) SentPatch([]byte)                                      {}
func (*timekeeper) AnsweredObject(func() ([]byte, error))                 {}
func (*timekeeper) AnsweredStatus(*metav1.Status, func() ([]byte, error)) {}
func (k *timekeeper) Spent(part request.Part, _ time.Duration) {
	if !slices.Contains(k.parts, part) {
		k.parts = append(k.parts, part)
	}
}

// TestTiming: the steps of each verb are known when it is done, and the parts of the
// server that have worked on it are told to the audit.
func TestTiming(t *testing.T) {
	h, _ := serve(t, nil)
	const (
		table     = "application/json;as=Table;v=v1;g=meta.k8s.io"
		answered  = "About to write a response, Writing http response done"
		converted = "limitedReadBody succeeded, About to convert to expected version, Conversion done, About to store object in database, "
		wrote     = converted + "Write to database call succeeded, "
	)
	for _, c := range []struct {
		method, path, body, header, name, steps string
		parts                                   []request.Part
	}{
		{"POST", configMaps, `{"metadata":{"name":"a"}}`, "", "Create", wrote + answered, []request.Part{request.Serialize}},
		{"POST", configMaps, `{"metadata":{"name":"a"}}`, "", "Create", converted + "Write to database call failed", []request.Part{request.Decode}},
		{"GET", configMaps + "/a", "", "", "Get", "About to Get from storage, " + answered, []request.Part{request.Serialize}},
		{"GET", configMaps + "/a", "", table, "Get", "About to Get from storage, " + answered, []request.Part{request.Decode, request.Transform, request.Serialize}},
		{"GET", configMaps + "/b", "", "", "Get", "About to Get from storage", nil},
		{"GET", configMaps, "", "", "List", "Listed items from cache, Filtered items, " + answered, []request.Part{request.Serialize}},
		{"PUT", configMaps + "/a", `{"metadata":{"name":"a"},"data":{"k":"v"}}`, "", "Update", wrote + answered, []request.Part{request.Serialize}},
		{"PATCH", configMaps + "/a", `{"data":{"k":"w"}}`, "application/merge-patch+json", "Patch",
			"limitedReadBody succeeded, Recorded the audit event, About to apply patch, About to check admission control, Object stored in database, " + answered, []request.Part{request.Serialize}},
		{"DELETE", configMaps + "/a", `{"kind":"DeleteOptions","apiVersion":"v1"}`, "", "Delete",
			"limitedReadBody succeeded, Decoded delete options, Recorded the audit event, About to delete object from database, Object deleted from database, " + answered,
			[]request.Part{request.Decode, request.Serialize}},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		switch {
		case c.header == table:
			r.Header.Set("Accept", table)
		case c.header != "":
			r.Header.Set("Content-Type", c.header)
		}
		info, err := request.Parse(r)
		if err != nil {
			t.Fatal(err)
		}
		keeper := &timekeeper{}
		req := &request.Request{Info: info, Received: time.Now(), Audit: keeper}
		h.Route(httptest.NewRecorder(), r.WithContext(request.With(r.Context(), req)))
		text := req.Timeline().Text(1, true)
		var steps []string
		for _, found := range regexp.MustCompile(`---"([^"]+)"`).FindAllStringSubmatch(text, -1) {
			if !slices.Contains(steps, found[1]) { // a write may be tried again
				steps = append(steps, found[1])
			}
		}
		if got := strings.Join(steps, ", "); got != c.steps || !strings.HasPrefix(text, `Trace[1]: "`+c.name+`" `) {
			t.Errorf("%s %s: %s\ngot  %s\nwant %s", c.method, c.path, text, got, c.steps)
		}
		if !slices.Equal(keeper.parts, c.parts) {
			t.Errorf("%s %s: the parts are %v, want %v", c.method, c.path, keeper.parts, c.parts)
		}
	}
}
