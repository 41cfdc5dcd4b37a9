package h2

import "testing"

// TestWorkersWaitForConnections: goroutines wait for streams while there are connections,
// not too many of them, and end with the last connection.
func TestWorkersWaitForConnections(t *testing.T) {
	var w workers
	if w.wait(make(chan *stream, 1)) {
		t.Error("a goroutine waits without a connection")
	}
	w.connect()
	w.connect()
	var waiting []chan *stream
	for n := range maxIdleWorkers + 1 {
		work := make(chan *stream, 1)
		if waits := w.wait(work); waits != (n < maxIdleWorkers) {
			t.Fatalf("goroutine %d waits: %v, want at most %d", n, waits, maxIdleWorkers)
		}
		waiting = append(waiting, work)
	}
	st := &stream{id: 1}
	w.serve(st)
	select {
	case got := <-waiting[maxIdleWorkers-1]:
		if got != st {
			t.Errorf("got stream %d, want %d", got.id, st.id)
		}
	default:
		t.Error("the goroutine that came last has not got the stream")
	}
	w.disconnect()
	if len(w.idle) != maxIdleWorkers-1 {
		t.Errorf("%d goroutines wait for the connection that is left, want %d", len(w.idle), maxIdleWorkers-1)
	}
	w.disconnect()
	for _, work := range waiting[:maxIdleWorkers-1] {
		if _, open := <-work; open {
			t.Fatal("a goroutine got a stream when the connections ended")
		}
	}
}
