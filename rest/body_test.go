package rest

import (
	"context"
	"net/http/httptest"
	"os"
	"testing"
	"testing/iotest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/request"
)

// TestTimeoutHasTheFormOfKubeAPIServer has whatever failed for want of time say the same,
// without a kind; clients then tell that the server was unable to answer in time. A write
// that may have been applied says so.
func TestTimeoutHasTheFormOfKubeAPIServer(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	const plain = `{"metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout","details":{},"code":504}` + "\n"
	uncertain := uncertainError{apierrors.NewTimeoutError("perhaps", 0)}
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want string
	}{
		{"the deadline has passed", ctx, apierrors.NewTimeoutError("a webhook", 0), plain},
		{"an uncertain write", ctx, uncertain, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Timeout: perhaps","reason":"Timeout","details":{},"code":504}` + "\n"},
		{"another timeout", t.Context(), apierrors.NewTimeoutError("etcd", 0), `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Timeout: etcd","reason":"Timeout","details":{},"code":504}` + "\n"},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", configMaps, nil)
		WriteError(w, r.WithContext(request.With(c.ctx, &request.Request{})), c.err, nil)
		if w.Code != 504 || w.Body.String() != c.want {
			t.Errorf("%s: got %d %s, want 504 %s", c.name, w.Code, w.Body, c.want)
		}
	}
}

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
