package rest

import (
	"net/http/httptest"
	"os"
	"testing"
	"testing/iotest"
	"time"

	"github.com/apikeel/kelson/request"
)

// A client that is still sending when the time of its request is over hears just
// that.
func TestSlowBody(t *testing.T) {
	h, _ := serve(t, nil)
	r := httptest.NewRequest("POST", configMaps, iotest.ErrReader(os.ErrDeadlineExceeded))
	info, err := request.Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.Route(w, r.WithContext(request.With(r.Context(), &request.Request{Info: info, Received: time.Now()})))
	const want = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout","details":{},"code":504}` + "\n"
	if w.Code != 504 || w.Body.String() != want {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
