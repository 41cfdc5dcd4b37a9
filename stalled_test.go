package kelson

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
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

// unread is a writer whose client does not read.
type unread struct {
	http.ResponseWriter
	cut chan struct{}
}

func (w *unread) Write([]byte) (int, error) {
	<-w.cut
	return 0, os.ErrDeadlineExceeded
}

func (w *unread) SetWriteDeadline(t time.Time) error {
	if !t.IsZero() && !t.After(time.Now()) {
		close(w.cut)
	}
	return nil
}

// TestWritesCanBeCutOff: a write that takes long counts as one that waits for its client, and
// ends when it is cut off; one that has ended is left alone.
func TestWritesCanBeCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &unread{httptest.NewRecorder(), make(chan struct{})}
		x := newExchange(w, httptest.NewRequest("GET", "/api/v1/pods", nil))
		x.CutOff() // nothing is being written
		failed := make(chan error)
		go func() {
			_, err := x.w.Write([]byte("pods"))
			failed <- err
		}()
		time.Sleep(slowWrite - time.Second)
		if got := x.Stalled(); got != 0 {
			t.Errorf("a write has stalled for %v before it has taken %v", got, slowWrite)
		}
		time.Sleep(2 * time.Second)
		if got := x.Stalled(); got != slowWrite+time.Second {
			t.Errorf("a write has stalled for %v, want %v", got, slowWrite+time.Second)
		}
		x.CutOff()
		if err := <-failed; err == nil {
			t.Error("the write has not failed")
		}
		if got := x.Stalled(); got != 0 {
			t.Errorf("a write that has ended has stalled for %v", got)
		}
	})
}
