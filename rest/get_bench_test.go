package rest

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
)

// silent is a writer that keeps nothing.
type silent struct{ header http.Header }

func (w silent) Header() http.Header         { return w.header }
func (w silent) Write(b []byte) (int, error) { return len(b), nil }
func (w silent) WriteHeader(int)             {}

// BenchmarkGet is what a get costs, without a network and a pipeline.
func BenchmarkGet(b *testing.B) {
	h, _ := serve(b, nil)
	if a := do(b, h, "POST", configMaps, `{"metadata":{"name":"a"},"data":{"k":"v"}}`); a.code != http.StatusCreated {
		b.Fatal(a)
	}
	r := httptest.NewRequest("GET", configMaps+"/a", nil)
	info, err := request.Parse(r)
	if err != nil {
		b.Fatal(err)
	}
	w := silent{http.Header{}}
	began, line := time.Now(), new(request.Timeline)
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		*line = request.Timeline{}
		req := &request.Request{Info: info, Passed: began, Line: line}
		h.Route(w, r.WithContext(request.With(r.Context(), req)))
	}
}
