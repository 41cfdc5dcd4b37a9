package kelson

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// deadlines is a writer that notes the deadlines it is given.
type deadlines struct {
	http.ResponseWriter
	set []time.Time
}

func (w *deadlines) SetWriteDeadline(t time.Time) error {
	w.set = append(w.set, t)
	return nil
}

// TestStalledClientsAreCutOff: on a server other than package h2's, each write of a
// watch has a deadline that ends with it, and the answers of other requests have
// one.
func TestStalledClientsAreCutOff(t *testing.T) {
	w := &deadlines{ResponseWriter: httptest.NewRecorder()}
	x := newExchange(w, httptest.NewRequest("GET", "/api/v1/pods?watch=1", nil))
	for range 2 {
		_, _ = io.WriteString(x.w, "event")
		_, _ = x.w.Write([]byte("event"))
		x.w.(http.Flusher).Flush()
	}
	if len(w.set) != 12 {
		t.Fatalf("%d deadlines of six writes, want one before and none after each", len(w.set))
	}
	for i, deadline := range w.set {
		if deadline.IsZero() != (i%2 == 1) {
			t.Errorf("deadline %d is %v", i, deadline)
		}
	}

	w.set = nil
	x = newExchange(w, httptest.NewRequest("GET", "/api/v1/pods/p", nil))
	x.setDeadline(time.Now())
	_, _ = x.w.Write([]byte("pod"))
	if len(w.set) != 1 || time.Until(w.set[0]) < stalledTimeout/2 {
		t.Errorf("deadlines %v, want one that leaves time to say that the request is late", w.set)
	}
}
