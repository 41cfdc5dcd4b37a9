package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/transfer"
)

// maxSocketPath is the longest path of a socket that all systems take.
const maxSocketPath = 100

// control answers other processes of the same user that want something from
// the process which has the store open. It speaks HTTP on a socket in the data
// folder:
//
//	GET /status    a Status, as JSON
//	GET /snapshot  a snapshot of the store
//	POST /branch   makes the branch that the parameter name names
//	POST /handover ends the process, for another one that waits for the store
//
// Folder and socket belong to the user of the process, and nobody else can open them: who
// can, can read the store itself.
type control struct {
	store  storage.Backend
	dir    string     // data folder
	branch sync.Mutex // one is made at a time
	end    func()     // ends the process in good order
	log    *slog.Logger
	socket string
	server *http.Server
	served chan struct{} // closed when the server has ended
}

// Status is what a running server says about itself.
type Status struct {
	PID             int    `json:"pid"`
	Storage         string `json:"storage"`
	Revision        int64  `json:"revision"`
	CompactRevision int64  `json:"compactRevision"`
	Keys            int64  `json:"keys"`
	SizeBytes       int64  `json:"sizeBytes"`
	SizeLimitBytes  int64  `json:"sizeLimitBytes,omitempty"`
	// ReadOnly is why the store accepts no writes, if so.
	ReadOnly string `json:"readOnly,omitempty"`
}

// controlSocket returns the path of the socket in a data folder.
func controlSocket(dataDir string) string { return filepath.Join(dataDir, "control", "socket") }

// listen opens the socket. The caller holds the lock of the store, so a socket
// that is there already was left behind by a process that was killed.
func listen(dataDir string, store storage.Backend, end func(), log *slog.Logger) (*control, error) {
	c := &control{store: store, dir: dataDir, end: end, log: log, socket: controlSocket(dataDir), served: make(chan struct{})}
	// The folder keeps others away from the socket before it has its mode.
	folder := filepath.Dir(c.socket)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(folder, 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(c.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var l net.Listener
	err := withShortPath(c.socket, func(path string) (err error) {
		l, err = net.Listen("unix", path)
		return err
	})
	if err != nil {
		return nil, err
	}
	// It would remove the path that it was given, which may be gone by then.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Chmod(c.socket, 0o600); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(c.socket))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", c.answer(c.status))
	mux.HandleFunc("GET /snapshot", c.answer(c.snapshot))
	mux.HandleFunc("POST /branch", c.answer(c.makeBranch))
	mux.HandleFunc("POST /handover", func(http.ResponseWriter, *http.Request) {
		c.log.Info("another process takes over: this one ends")
		c.end()
	})
	c.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	go func() {
		defer close(c.served)
		if err := c.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("control socket failed", "error", err)
		}
	}()
	return c, nil
}

// close breaks off what is under way and removes the socket.
func (c *control) close() error {
	if c == nil {
		return nil
	}
	err := c.server.Close()
	<-c.served
	return errors.Join(err, os.Remove(c.socket))
}

// answer makes a handler out of one that returns an error.
func (c *control) answer(h func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		counted := &countedResponse{ResponseWriter: w}
		err := h(counted, r)
		switch {
		case err == nil:
		case counted.bytes > 0:
			// The client must not take what it got for all.
			c.log.Warn("answer on the control socket broken off", "path", r.URL.Path, "error", err)
			panic(http.ErrAbortHandler)
		default:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

type countedResponse struct {
	http.ResponseWriter
	bytes int64
}

func (w *countedResponse) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

func (c *control) status(w http.ResponseWriter, r *http.Request) error {
	s, err := c.store.Status(r.Context())
	if err != nil {
		return err
	}
	keys, _, err := c.store.Count(r.Context(), storage.Root)
	if err != nil {
		return err
	}
	status := Status{
		PID:             os.Getpid(),
		Storage:         s.Engine,
		Revision:        s.Revision,
		CompactRevision: s.CompactRevision,
		Keys:            keys,
		SizeBytes:       s.SizeBytes,
		SizeLimitBytes:  s.SizeLimitBytes,
	}
	if s.ReadOnly != nil {
		status.ReadOnly = s.ReadOnly.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(status)
}

func (c *control) snapshot(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "application/octet-stream")
	s, err := transfer.Save(r.Context(), c.store, w, nil)
	if err == nil {
		c.log.Info("snapshot taken", "revision", s.Revision, "keys", s.Keys, "bytes", s.Bytes)
	}
	return err
}

func (c *control) makeBranch(w http.ResponseWriter, r *http.Request) error {
	store, ok := c.store.(*engine.Engine)
	if !ok {
		return errors.New("only the embedded store has branches")
	}
	query, err := request.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return err
	}
	c.branch.Lock()
	defer c.branch.Unlock()
	made, err := makeBranch(r.Context(), c.dir, store, query.Get("name"))
	if err != nil {
		return err
	}
	c.log.Info("branch made", "name", made.Name, "revision", made.Revision, "took", made.Took)
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(made)
}

// withShortPath calls use with a path for a socket that the system takes. A
// path that is too long is reached through a link in a folder for temporary
// files, which is needed only while the socket is made or dialled.
func withShortPath(path string, use func(string) error) error {
	if len(path) <= maxSocketPath {
		return use(path)
	}
	folder, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "kelson-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	link := filepath.Join(temp, "d")
	if err := os.Symlink(folder, link); err != nil {
		return err
	}
	short := filepath.Join(link, filepath.Base(path))
	if len(short) > maxSocketPath {
		return fmt.Errorf("the folder for temporary files, %s, has too long a path for a socket", temp)
	}
	return use(short)
}

// ask sends a request to the process that has the store open. The answer is
// good, and its body the caller's to close.
func ask(ctx context.Context, method, dataDir, path string) (*http.Response, error) {
	socket := controlSocket(dataDir)
	dial := func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		err = withShortPath(socket, func(path string) (err error) {
			conn, err = new(net.Dialer).DialContext(ctx, "unix", path)
			return err
		})
		return conn, err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, method, "http://kelson"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("it answers %q: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return resp, nil
}
