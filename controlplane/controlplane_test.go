package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/http2test"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"github.com/apikeel/kelson/storage/postgres"
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
	if c.SecurePort == nil {
		c.SecurePort = new(int)
	}
	c.Serving.HTTP2Server = http2test.Chosen()
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

// namespaceKeys are the keys of what every server makes at its first start.
// Where they are there already, it makes nothing.
func namespaceKeys() []string {
	keys := []string{"default", "kube-node-lease", "kube-public", "kube-system"}
	for i, name := range keys {
		keys[i] = storage.Root + "namespaces/" + name
	}
	return keys
}

// fillFolder makes a store of n keys in a data folder, among them those of the
// namespaces.
func fillFolder(t *testing.T, dataDir string, n int) {
	t.Helper()
	e, err := engine.Open(engine.Options{Dir: StoreDir(dataDir)})
	if err != nil {
		t.Fatal(err)
	}
	keys := namespaceKeys()
	for i := len(keys); i < n; i++ {
		keys = append(keys, fmt.Sprintf("%skey-%04d", storage.Root, i))
	}
	// At once, since they then share a few commits.
	var writers sync.WaitGroup
	for _, key := range keys {
		writers.Go(func() {
			if _, err := e.Create(t.Context(), key, bytes.Repeat([]byte{'v'}, 2000), 0); err != nil {
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
			if !strings.Contains(s.out, "keeps its data in "+StoreDir(dir)+".") || !strings.Contains(s.out, "--kubeconfig "+KubeconfigFile(dir)+" ") {
				t.Errorf("server says %q", s.out)
			}
			newClient(t, KubeconfigFile(dir)).ready()
			var during bytes.Buffer
			var keys, size int64
			got, err := c.Snapshot(t.Context(), &during, func(k, b int64) { keys, size = k, b })
			if err != nil {
				t.Fatal(err)
			}
			if got.Keys < 200 || got.Revision < 201 || got.Bytes != int64(during.Len()) || keys != got.Keys || size != got.Bytes {
				t.Errorf("%+v of %d bytes, progress %d keys and %d bytes", got, during.Len(), keys, size)
			}
			checkModes(t, dir)
			s.end(t)
			if _, err := os.Stat(controlSocket(dir)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket is left behind: %v", err)
			}
			if read, err := transfer.Verify(&during); err != nil || read != got {
				t.Errorf("the snapshot has %+v, %v", read, err)
			}
			// The server may have gone on writing in between.
			after, err := c.Snapshot(t.Context(), io.Discard, nil)
			if err != nil || after.Revision < got.Revision || after.Keys < got.Keys {
				t.Errorf("the snapshot of the folder is %+v, %v; the one before is %+v", after, err, got)
			}
		})
	}
}

// checkModes checks that only we can ask the server, or read what it keeps.
func checkModes(t *testing.T, dir string) {
	t.Helper()
	for path, want := range map[string]os.FileMode{
		controlSocket(dir):               0o600 | os.ModeSocket,
		filepath.Dir(controlSocket(dir)): 0o700 | os.ModeDir,
		dir:                              0o700 | os.ModeDir,
		StoreDir(dir):                    0o700 | os.ModeDir,
		filepath.Join(dir, "pki"):        0o700 | os.ModeDir,
		KubeconfigFile(dir):              0o600,
	} {
		if fi, err := os.Stat(path); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, want %v (%v)", path, fi.Mode(), want, err)
		}
	}
}

func TestStatus(t *testing.T) {
	dir := t.TempDir()
	fillFolder(t, dir, 7)
	start(t, Config{DataDir: dir})
	resp, err := ask(t.Context(), http.MethodGet, dir, "/status")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var s Status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	if s.PID != os.Getpid() || s.Storage != "engine" || s.Revision < 8 || s.Keys < 7 || s.SizeBytes == 0 {
		t.Errorf("%+v", s)
	}
	if _, err := ask(t.Context(), http.MethodGet, dir, "/other"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a path that is not served: %v", err)
	}
}

// TestStop ends a server in the middle of a snapshot that nobody reads on.
func TestStop(t *testing.T) {
	dir := t.TempDir()
	fillFolder(t, dir, 1000)
	s := start(t, Config{DataDir: dir})
	resp, err := ask(t.Context(), http.MethodGet, dir, "/snapshot")
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
		c, err := listen(dir, failing{keys: keys}, func() {}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := ask(t.Context(), http.MethodGet, dir, "/snapshot")
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
	fillFolder(t, dir, 7)
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
	c := Config{Storage: StorageMemory, DataDir: filepath.Join(t.TempDir(), "none")}
	for range 2 { // what the first has made is gone with it
		s := start(t, c)
		if !strings.Contains(s.out, "in memory, until it stops") {
			t.Errorf("server says %q", s.out)
		}
		client := newClient(t, KubeconfigFile(c.DataDir))
		client.ready()
		list := client.namespaces()
		if keys := keysOf(list); !slices.Equal(keys, namespaceKeys()) {
			t.Errorf("namespaces %v", keys)
		}
		if code, text := client.do(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"mine"}}`); code != http.StatusCreated {
			t.Errorf("create: %d, %s", code, text)
		}
		if names := namesIn(t, c.DataDir); !slices.Equal(names, []string{"kubeconfig"}) {
			t.Errorf("a server that keeps nothing made %v", names)
		}
		s.end(t)
	}

	cluster := etcdtest.Start(t)
	c = Config{Etcd: etcd.Options{Endpoints: cluster.Endpoints()}, DataDir: filepath.Join(t.TempDir(), "none")}
	for _, key := range append(namespaceKeys(), "/registry/a", "other") {
		if _, err := cluster.Client(t).Put(t.Context(), key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	s := start(t, c)
	if !strings.Contains(s.out, "in etcd at "+cluster.Endpoints()[0]) {
		t.Errorf("server says %q", s.out)
	}
	newClient(t, KubeconfigFile(c.DataDir)).ready()
	var buf bytes.Buffer
	if got, err := c.Snapshot(t.Context(), &buf, nil); err != nil || got.Keys < 5 {
		t.Errorf("snapshot: %+v, %v", got, err)
	}
	if got, err := transfer.Verify(&buf); err != nil || got.Revision < 7 {
		t.Errorf("snapshot: %+v, %v", got, err)
	}
	s.end(t)
	if names := namesIn(t, c.DataDir); !slices.Equal(names, []string{"front-proxy", "kubeconfig", "pki"}) {
		t.Errorf("a server on etcd made %v", names)
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
		"no database":       {Config{Storage: StoragePostgres}, "no connection string"},
		"database and etcd": {Config{Postgres: postgres.Options{DSN: "host=x"}, Etcd: servers}, "a PostgreSQL is given"},
		"database away":     {Config{Postgres: postgres.Options{DSN: "host=127.0.0.1 port=1", ConnectTimeout: time.Second}}, "connection refused"},
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
	port := func(n int) *int { return &n }
	for name, c := range map[string]struct {
		config Config
		want   string
	}{
		"unknown":       {Config{Storage: "mysql"}, `unknown storage "mysql"`},
		"host name":     {Config{BindAddress: "localhost"}, `"localhost" is not an IP address`},
		"negative port": {Config{SecurePort: port(-1)}, "-1 is not a port"},
		"large port":    {Config{SecurePort: port(65536)}, "65536 is not a port"},
	} {
		c.config.DataDir = filepath.Join(empty, "x")
		if err := c.config.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("run with %s: %v", name, err)
		}
	}
	if names, _ := os.ReadDir(empty); len(names) > 0 {
		t.Errorf("a server that did not run made %v", names)
	}
	// A server that is stopped before it has begun has done as it was told.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (Config{Etcd: servers, DataDir: empty}).Run(ctx); err != nil {
		t.Error(err)
	}
	if names := namesIn(t, empty); len(names) > 0 {
		t.Errorf("a server that was stopped at once made %v", names)
	}
}
