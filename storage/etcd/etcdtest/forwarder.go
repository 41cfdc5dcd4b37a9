package etcdtest

import (
	"io"
	"net"
	"sync"
)

// forwarder forwards TCP connections from a port that stays to a target address that
// may change or be absent.
type forwarder struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	target string // empty: connections are closed as they arrive
	conns  map[net.Conn]struct{}
	frozen chan struct{} // not nil while frozen; closed by thaw
}

func newForwarder() (*forwarder, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &forwarder{listener: l, conns: make(map[net.Conn]struct{})}
	f.wg.Go(f.accept)
	return f, nil
}

func (f *forwarder) addr() string { return f.listener.Addr().String() }

// forward sets the target of new connections.
func (f *forwarder) forward(target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target = target
}

// refuse closes all connections and refuses new ones.
func (f *forwarder) refuse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target = ""
	f.thaw()
	for c := range f.conns {
		_ = c.Close()
	}
}

// freeze keeps connections open but forwards no data.
func (f *forwarder) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.frozen == nil {
		f.frozen = make(chan struct{})
	}
}

// thaw forwards data again. The caller holds mu.
func (f *forwarder) thaw() {
	if f.frozen != nil {
		close(f.frozen)
		f.frozen = nil
	}
}

func (f *forwarder) close() error {
	// A forwarder that could not be created is nil.
	if f == nil {
		return nil
	}
	err := f.listener.Close()
	f.refuse()
	f.wg.Wait()
	return err
}

func (f *forwarder) accept() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.wg.Go(func() { f.serve(conn) })
	}
}

func (f *forwarder) serve(down net.Conn) {
	defer down.Close()
	f.mu.Lock()
	target := f.target
	f.mu.Unlock()
	if target == "" {
		return
	}
	up, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer up.Close()
	if !f.register(target, down, up) {
		return
	}
	defer f.unregister(down, up)
	var wg sync.WaitGroup
	wg.Go(func() { f.pass(up, down) })
	wg.Go(func() { f.pass(down, up) })
	wg.Wait()
}

// register adds both ends to the connections that refuse closes. It returns false if
// the target has changed since it was dialled.
func (f *forwarder) register(target string, conns ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.target != target {
		return false
	}
	for _, c := range conns {
		f.conns[c] = struct{}{}
	}
	return true
}

func (f *forwarder) unregister(conns ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range conns {
		delete(f.conns, c)
	}
}

// unlessFrozen is a writer that blocks while the forwarder is frozen.
type unlessFrozen struct {
	io.Writer
	f *forwarder
}

// Write implements io.Writer.
func (w unlessFrozen) Write(p []byte) (int, error) {
	w.f.mu.Lock()
	frozen := w.f.frozen
	w.f.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
	return w.Writer.Write(p)
}

// pass copies until either side ends, then closes both: gRPC and etcd's peer protocol
// do not use half-open connections.
func (f *forwarder) pass(to, from net.Conn) {
	_, _ = io.Copy(unlessFrozen{to, f}, from)
	_ = to.Close()
	_ = from.Close()
}
