package h2

import "sync"

// maxIdleWorkers is how many goroutines of a server wait for the next stream.
const maxIdleWorkers = 32

// workers are the goroutines that run handlers, of all connections of a server. One that
// has served a stream waits for the next, of any connection, and the one that has worked
// last is taken first: its stack is large enough, and in the caches of a processor. When
// there is no connection, none waits. mu guards all fields.
type workers struct {
	mu    sync.Mutex
	idle  []chan *stream // of those who wait, each with room for one; closed for them to end
	conns int
}

// connect notes a new connection.
func (w *workers) connect() {
	w.mu.Lock()
	w.conns++
	w.mu.Unlock()
}

// disconnect notes that a connection is over.
func (w *workers) disconnect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns--; w.conns == 0 {
		for _, work := range w.idle {
			close(work)
		}
		w.idle = nil
	}
}

// serve has a goroutine serve a stream.
func (w *workers) serve(st *stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.idle); n > 0 {
		w.idle[n-1] <- st
		w.idle = w.idle[:n-1]
		return
	}
	go w.run(st)
}

// run serves one stream after the other.
func (w *workers) run(st *stream) {
	work := make(chan *stream, 1)
	for st != nil {
		st.serve()
		c := st.c
		c.mu.Lock()
		c.releaseHeader(st)
		st = c.next()
		c.mu.Unlock()
		if st == nil && w.wait(work) {
			st = <-work
		}
	}
}

// wait has a stream sent to work, unless there are enough who wait.
func (w *workers) wait(work chan *stream) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == 0 || len(w.idle) == maxIdleWorkers {
		return false
	}
	w.idle = append(w.idle, work)
	return true
}
