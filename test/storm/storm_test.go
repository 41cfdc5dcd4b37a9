//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/testsize"
)

func TestMain(m *testing.M) {
	if os.Getenv(clientsEnv) != "" {
		os.Exit(clientsMain(os.Stdin, os.Stdout))
	}
	code := m.Run()
	if dir, err := folder(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// folder is where all tests have the program and the data that they share.
var folder = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "storm") })

// program builds cmd/kelson once for all tests, unless KELSON_STORMED names a program.
var program = sync.OnceValues(func() (string, error) {
	if file := os.Getenv("KELSON_STORMED"); file != "" {
		return file, nil
	}
	dir, err := folder()
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "kelson.program")
	return file, buildKelson(context.Background(), file)
})

const (
	testLimit = 512 << 20
	// adminBound is the bound of the administrator's p99 on a machine that is not busy.
	adminBound = 500 * time.Millisecond
)

// stormOptions returns the options of a short storm, or skips the test.
func stormOptions(t *testing.T) *options {
	t.Helper()
	if testsize.Race() {
		t.Skip("a storm measures time and memory of a server without the race detector; run it without -race")
	}
	if err := canLimit(); err != nil {
		t.Skipf("no memory limit can be set here: %v", err)
	}
	file, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := folder()
	if err != nil {
		t.Fatal(err)
	}
	o := defaults()
	o.kelson, o.data = file, dir
	o.duration, o.settle = 5*time.Second, time.Second
	o.objects, o.small = 150, 5000
	o.progress = testWriter{t}
	if testsize.Long() {
		o.duration, o.objects, o.small = 10*time.Second, 400, 20_000
	}
	return &o
}

// testWriter writes to the log of a test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// testStorm runs scenarios and fails if something happens that must not.
func testStorm(t *testing.T, o *options, clients int, names ...string) {
	t.Helper()
	found, err := findScenarios(strings.Join(names, ","))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range found {
		t.Run(s.Name, func(t *testing.T) {
			r, err := measure(t.Context(), o, kelsonServer{o.kelson, nil}, s, clients, testLimit)
			if err != nil {
				t.Fatal(err)
			}
			bound := adminBound
			if r.OtherCores > busyCores {
				bound = busyAdminBound
			}
			t.Logf("%s; other programs used %.1f cores", r.summary(), r.OtherCores)
			for _, fault := range r.faults(bound) {
				t.Errorf("%s: %s", r.title(), fault)
			}
			if t.Failed() && r.Log != "" {
				t.Logf("the server says:\n%s", r.Log)
			}
		})
	}
}

// TestStormOfLists lists large objects within a memory limit that is smaller than three
// answers: the server survives, answers completely or refuses clearly, and an
// administrator can work meanwhile.
func TestStormOfLists(t *testing.T) {
	testStorm(t, stormOptions(t), 32, "list-json", "list-protobuf")
}

// TestStormOfSlowReaders has clients that hardly read, or never, which costs neither the
// server its life nor other readers their answers.
func TestStormOfSlowReaders(t *testing.T) {
	testStorm(t, stormOptions(t), 32, "slow", "never", "unread", "watches")
}

// TestSoak puts mixed load on a server for half an hour in the long suite, else for a
// moment.
func TestSoak(t *testing.T) {
	o := stormOptions(t)
	o.adminBound = adminBound
	length := 30 * time.Minute
	if !testsize.Long() {
		length, o.drain = 6*time.Second, 20*time.Second
	}
	if err := soak(t.Context(), o, kelsonServer{o.kelson, nil}, length, testLimit); err != nil {
		t.Fatal(err)
	}
}

// TestLedgerNoticesLoss: a write that was acknowledged and is not there is lost; one that was
// not acknowledged may be there or not.
func TestLedgerNoticesLoss(t *testing.T) {
	stored := `{"items":[{"metadata":{"name":"changed-0"},"data":{"n":"600"}},{"metadata":{"name":"changed-1"},"data":{"n":"2"}}]}`
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, stored) }))
	s.TLS.NextProtos = []string{"h2"}
	defer s.Close()
	l := newLedger("run")
	acknowledge := l.noting(func(context.Context, int) error { return nil })
	fail := l.noting(func(context.Context, int) error { return errors.New("no answer") })
	_ = acknowledge(t.Context(), 0)   // changed-0
	_ = fail(t.Context(), 600)        // changed-0, and it was done
	_ = acknowledge(t.Context(), 602) // changed-1, but its old state is stored
	_ = acknowledge(t.Context(), 5)   // created-run-5, which is not there
	_ = fail(t.Context(), 7)          // created-run-7
	lost, err := l.lost(t.Context(), s.URL)
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(lost, "; "); len(lost) != 2 || !strings.Contains(text, "changed-1") || !strings.Contains(text, "created-run-5") {
		t.Errorf("got %q, want changed-1 and created-run-5", text)
	}
}

func TestReadHolders(t *testing.T) {
	got := readHolders([]byte("             PART  BYTES HELD  BOUND\n  heap in use  12  34\n  cache  5  6\nlimit of the server  7\n"))
	if want := []holder{{"heap in use", 12, 34}, {"cache", 5, 6}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestStormOfEverything runs all scenarios with more clients.
func TestStormOfEverything(t *testing.T) {
	if !testsize.Long() {
		t.Skip("it takes a quarter of an hour; KELSON_LONG=1 runs it")
	}
	o := stormOptions(t)
	for _, clients := range []int{16, 64, 256, 1024} {
		t.Run(fmt.Sprint(clients), func(t *testing.T) { testStorm(t, o, clients, "all") })
	}
}

func TestCopyFolderLeavesSocketsOut(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	if err := os.MkdirAll(filepath.Join(from, "store"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "store", "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(from, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := copyFolder(from, to); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(to, "store", "file")); string(text) != "text" {
		t.Errorf("got %q, %v, want what was in the file", text, err)
	}
	if _, err := os.Stat(filepath.Join(to, "socket")); !os.IsNotExist(err) {
		t.Errorf("got %v, want that there is no socket", err)
	}
}
