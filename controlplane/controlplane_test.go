package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"github.com/apikeel/kelson/storage/transfer"
)

// server is a Config that runs.
type server struct {
	stop func()
	err  chan error
	out  string // what it said until it was ready
}

// start runs a Config and waits until it is ready.
func start(t *testing.T, c Config) *server {
	t.Helper()
	r, w := io.Pipe()
	c.Out = w
	c.SecurePort = new(int)
	ctx, cancel := context.WithCancel(t.Context())
	s := &server{stop: cancel, err: make(chan error, 1)}
	go func() {
		err := c.Run(ctx)
		w.CloseWithError(io.EOF)
		s.err <- err
	}()
	buf := make([]byte, 1024)
	for !strings.Contains(s.out, "get namespaces\n") {
		n, err := r.Read(buf)
		s.out += string(buf[:n])
		if err != nil {
			t.Fatalf("server ended after %q: %v", s.out, <-s.err)
		}
	}
	t.Cleanup(func() { s.end(t) })
	return s
}

// end stops the server, if it runs.
func (s *server) end(t *testing.T) {
	t.Helper()
	s.stop()
	if err := <-s.err; err != nil {
		t.Errorf("server ended with %v", err)
	}
	s.err <- nil
}

// fillFolder makes a store of n keys in a data folder.
func fillFolder(t *testing.T, dataDir string, n int) {
	t.Helper()
	e, err := engine.Open(engine.Options{Dir: StoreDir(dataDir)})
	if err != nil {
		t.Fatal(err)
	}
	// At once, since they then share a few commits.
	var writers sync.WaitGroup
	for i := range n {
		writers.Go(func() {
			if _, err := e.Create(t.Context(), fmt.Sprintf("%skey-%04d", storage.Root, i), bytes.Repeat([]byte{'v'}, 2000), 0); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// long returns a folder whose path no socket address can hold.
func long(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), strings.Repeat("long/", 30), "data")
}

func TestSnapshotWhileServingAndAfter(t *testing.T) {
	for name, dir := range map[string]string{"short": filepath.Join(t.TempDir(), "data"), "long": long(t)} {
		t.Run(name, func(t *testing.T) {
			fillFolder(t, dir, 200)
			c := Config{DataDir: dir}
			s := start(t, c)
			if !strings.Contains(s.out, StoreDir(dir)) || !strings.Contains(s.out, "revision 201, 200 keys") {
				t.Errorf("server says %q", s.out)
			}
			var during bytes.Buffer
			var keys, size int64
			got, err := c.Snapshot(t.Context(), &during, func(k, b int64) { keys, size = k, b })
			if err != nil {
				t.Fatal(err)
			}
			if got.Keys != 200 || got.Revision != 201 || got.Bytes != int64(during.Len()) || keys != 200 || size != got.Bytes {
				t.Errorf("%+v of %d bytes, progress %d keys and %d bytes", got, during.Len(), keys, size)
			}
			checkSocket(t, dir)
			s.end(t)
			if _, err := os.Stat(controlSocket(dir)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket is left behind: %v", err)
			}
			var after bytes.Buffer
			if _, err := c.Snapshot(t.Context(), &after, nil); err != nil || !bytes.Equal(during.Bytes(), after.Bytes()) {
				t.Errorf("the snapshot of the folder is another one: %v", err)
			}
		})
	}
}

// checkSocket checks that only we can ask the server.
func checkSocket(t *testing.T, dir string) {
	t.Helper()
	for path, want := range map[string]os.FileMode{
		controlSocket(dir):               0o600 | os.ModeSocket,
		filepath.Dir(controlSocket(dir)): 0o700 | os.ModeDir,
		dir:                              0o700 | os.ModeDir,
		StoreDir(dir):                    0o700 | os.ModeDir,
	} {
		if fi, err := os.Stat(path); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, want %v (%v)", path, fi.Mode(), want, err)
		}
	}
}

func TestStatus(t *testing.T) {
	dir := t.TempDir()
	fillFolder(t, dir, 3)
	start(t, Config{DataDir: dir})
	resp, err := ask(t.Context(), dir, "/status")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var s Status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	if s.PID != os.Getpid() || s.Storage != "engine" || s.Revision != 4 || s.Keys != 3 || s.SizeBytes == 0 {
		t.Errorf("%+v", s)
	}
	if _, err := ask(t.Context(), dir, "/other"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a path that is not served: %v", err)
	}
}

// TestStop ends a server in the middle of a snapshot that nobody reads on.
func TestStop(t *testing.T) {
	dir := t.TempDir()
	fillFolder(t, dir, 1000)
	s := start(t, Config{DataDir: dir})
	resp, err := ask(t.Context(), dir, "/snapshot")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	s.end(t)
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("a snapshot that was broken off looks complete")
	}
}

// failing is a store that fails after some keys.
type failing struct {
	storage.Backend
	keys int
}

func (f failing) Dump(_ context.Context, yield func(storage.KeyValue) error) (int64, error) {
	for i := range f.keys {
		kv := storage.KeyValue{Key: fmt.Sprintf("/registry/%08d", i), Value: make([]byte, 1000), CreateRevision: 1, ModRevision: 1}
		if err := yield(kv); err != nil {
			return 0, err
		}
	}
	return 0, errors.New("broken disk")
}

// TestStoreFails has a store that fails before a snapshot has begun, or in the
// middle of it.
func TestStoreFails(t *testing.T) {
	for keys, want := range map[int]string{0: "broken disk", 1000: "unexpected EOF"} {
		dir := t.TempDir()
		c, err := listen(dir, failing{keys: keys}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := ask(t.Context(), dir, "/snapshot")
		if err == nil {
			_, err = receive(resp.Body, io.Discard, nil)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("after %d keys: %v", keys, err)
		}
		if err := c.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestWhatIsLeftBehind starts a server where another was killed, or something
// odd is.
func TestWhatIsLeftBehind(t *testing.T) {
	dir := t.TempDir()
	fillFolder(t, dir, 3)
	if err := os.Mkdir(filepath.Dir(controlSocket(dir)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(controlSocket(dir), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{DataDir: dir})
	if _, err := (Config{DataDir: dir}).Snapshot(t.Context(), io.Discard, nil); err != nil {
		t.Error(err)
	}
	s.end(t)

	// A server without a socket is still a server.
	if err := os.MkdirAll(filepath.Join(controlSocket(dir), "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	s = start(t, Config{DataDir: dir})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Config{DataDir: dir}).Snapshot(ctx, io.Discard, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	s.end(t)
}

// TestNobodyAnswers has a store that is open in a process without a socket.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel() // it waits
	dir := t.TempDir()
	e, err := engine.Open(engine.Options{Dir: StoreDir(dir)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	_, err = Config{DataDir: dir}.Snapshot(t.Context(), io.Discard, nil)
	if !errors.Is(err, engine.ErrLocked) || !strings.Contains(err.Error(), "does not answer") {
		t.Error(err)
	}
	if err := (Config{DataDir: dir}).Run(t.Context()); !errors.Is(err, engine.ErrLocked) {
		t.Error(err)
	}
}

func TestBrokenDestination(t *testing.T) {
	dir := t.TempDir()
	fillFolder(t, dir, 100)
	start(t, Config{DataDir: dir})
	r, w := io.Pipe()
	broken := errors.New("broken")
	r.CloseWithError(broken)
	if _, err := (Config{DataDir: dir}).Snapshot(t.Context(), w, nil); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestOtherStores(t *testing.T) {
	s := start(t, Config{Storage: StorageMemory, DataDir: filepath.Join(t.TempDir(), "none")})
	if !strings.Contains(s.out, "memory") || !strings.Contains(s.out, "revision 1, 0 keys") {
		t.Errorf("server says %q", s.out)
	}

	cluster := etcdtest.Start(t)
	c := Config{Etcd: etcd.Options{Endpoints: cluster.Endpoints()}, DataDir: filepath.Join(t.TempDir(), "none")}
	for key, value := range map[string]string{"/registry/a": "1", "other": "2"} {
		if _, err := cluster.Client(t).Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	s = start(t, c)
	if !strings.Contains(s.out, "etcd at "+cluster.Endpoints()[0]) || !strings.Contains(s.out, "revision 3, 1 keys") {
		t.Errorf("server says %q", s.out)
	}
	var buf bytes.Buffer
	if got, err := c.Snapshot(t.Context(), &buf, nil); err != nil || got.Keys != 1 {
		t.Errorf("snapshot: %+v, %v", got, err)
	}
	if got, err := transfer.Verify(&buf); err != nil || got.Revision != 3 {
		t.Errorf("snapshot: %+v, %v", got, err)
	}
	s.end(t)
	if _, err := os.Stat(c.DataDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a data folder was made: %v", err)
	}
}

func TestConfigErrors(t *testing.T) {
	empty := t.TempDir()
	servers := etcd.Options{Endpoints: []string{"http://127.0.0.1:1"}}
	for name, c := range map[string]struct {
		config Config
		want   string
	}{
		"unknown":           {Config{Storage: "mysql"}, `unknown storage "mysql"`},
		"no servers":        {Config{Storage: StorageEtcd}, "no etcd servers"},
		"servers and disk":  {Config{Storage: StorageEngine, Etcd: servers}, "etcd servers are given"},
		"memory":            {Config{Storage: StorageMemory}, "memory"},
		"no folder":         {Config{DataDir: filepath.Join(empty, "x")}, "no store in"},
		"empty folder":      {Config{DataDir: empty}, "no store in"},
		"file for a folder": {Config{DataDir: "config.go"}, "no store in"},
	} {
		_, err := c.config.Snapshot(t.Context(), io.Discard, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names, _ := os.ReadDir(empty); len(names) > 0 {
		t.Errorf("a snapshot made %v", names)
	}
	if err := (Config{Storage: "mysql"}).Run(t.Context()); err == nil {
		t.Error("an unknown storage was run")
	}
	// A server that is stopped before it has begun has done as it was told.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (Config{Etcd: servers}).Run(ctx); err != nil {
		t.Error(err)
	}
}
