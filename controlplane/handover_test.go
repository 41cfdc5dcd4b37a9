package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/controller/apiserver"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

// sharedPort returns a port that servers can share.
func sharedPort(t *testing.T) *int {
	t.Helper()
	l, err := (&kelson.Serving{PermitPortSharing: true}).Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &l.Addr().(*net.TCPAddr).Port
}

// writer changes a config map all the time, until it is stopped.
type writer struct {
	*client
	stop    chan struct{}
	done    sync.WaitGroup
	mu      sync.Mutex
	written int // the last value that was acknowledged
	errs    []string
	longest time.Duration // between two acknowledged writes
}

const writerPath = "/api/v1/namespaces/default/configmaps/w"

func startWriter(c *client) *writer {
	w := &writer{client: c, stop: make(chan struct{})}
	if code, text := c.do(http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"w"},"data":{"n":"0"}}`); code != http.StatusCreated {
		c.t.Fatalf("got %d %s, want 201", code, text)
	}
	w.done.Go(func() {
		last := time.Now()
		for n := 1; ; n++ {
			select {
			case <-w.stop:
				return
			default:
			}
			body := fmt.Sprintf(`{"metadata":{"name":"w"},"data":{"n":"%d"}}`, n)
			r, _ := http.NewRequest(http.MethodPut, c.url+writerPath, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			resp, err := c.http.Do(r)
			code, text := 0, []byte(nil)
			if err == nil {
				text, err = io.ReadAll(resp.Body)
				resp.Body.Close()
				code = resp.StatusCode
			}
			w.mu.Lock()
			if err != nil || code != http.StatusOK {
				w.errs = append(w.errs, fmt.Sprintf("%d: %d %s %v", n, code, text, err))
			} else {
				w.written, w.longest, last = n, max(w.longest, time.Since(last)), time.Now()
			}
			w.mu.Unlock()
		}
	})
	return w
}

// more waits until more writes were acknowledged.
func (w *writer) more(n int) {
	w.t.Helper()
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.written
	}
	from := count()
	polltest.Until(w.t, fmt.Sprintf("%d more writes are acknowledged", n), func() bool { return count() >= from+n })
}

// check ends the writer. No write has failed, and the last one is stored.
func (w *writer) check() {
	w.t.Helper()
	close(w.stop)
	w.done.Wait()
	if len(w.errs) > 0 {
		w.t.Errorf("got failed writes %v, want none", w.errs)
	}
	var cm corev1.ConfigMap
	code, text := w.do(http.MethodGet, writerPath, "")
	if err := json.Unmarshal([]byte(text), &cm); err != nil || cm.Data["n"] != fmt.Sprint(w.written) {
		w.t.Errorf("got %d %s, want the last acknowledged value %d", code, text, w.written)
	}
	w.t.Logf("%d writes, longest time between two: %v", w.written, w.longest.Round(time.Millisecond))
}

// TestTakeOver starts a second process, as it were, on the data folder of a server that
// works. The first hands its folder over, and no client notices more than a pause.
func TestTakeOver(t *testing.T) {
	config := Config{DataDir: t.TempDir(), SecurePort: sharedPort(t), Serving: kelson.Serving{PermitPortSharing: true}, Shutdown: kelson.Shutdown{Delay: time.Hour}}
	first := start(t, config)
	config.Shutdown.Delay = 0
	c := newClient(t, KubeconfigFile(config.DataDir))
	c.ready()
	w := startWriter(c)
	w.more(20)
	start(t, config)
	select {
	case err := <-first.err:
		if err != nil {
			t.Errorf("the first server ended with %v", err)
		}
		first.err <- nil
	case <-time.After(time.Minute):
		t.Fatal("the first server has not ended")
	}
	w.more(20)
	w.check()
}

// TestTakeOverIsChecked: a process that cannot serve does not make the other one end.
func TestTakeOverIsChecked(t *testing.T) {
	config := Config{DataDir: t.TempDir(), SecurePort: sharedPort(t), Serving: kelson.Serving{PermitPortSharing: true}}
	start(t, config)
	c := newClient(t, KubeconfigFile(config.DataDir))
	c.ready()
	broken := config
	broken.Authentication.TokenFile = "/does/not/exist"
	if err := broken.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("got the error %v, want that the token file does not exist", err)
	}
	without := config
	without.Serving.PermitPortSharing = false
	if err := without.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got the error %v, want that the folder is in use", err)
	}
	c.ready() // the first one serves
}

// serving is a slog.Handler that tells when a server listens.
type serving struct {
	slog.Handler
	once sync.Once
	on   chan struct{}
}

func (*serving) Enabled(context.Context, slog.Level) bool { return true }

func (s *serving) WithAttrs([]slog.Attr) slog.Handler { return s }

func (s *serving) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "Serving securely") {
		s.once.Do(func() { close(s.on) })
	}
	return nil
}

// TestReplace starts a second server on the port of one that works, on the same etcd, and
// ends the first when the second serves. No request fails, and what tells others that
// there is a server at this address stays.
func TestReplace(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd")
	}
	cluster := etcdtest.Start(t)
	run := func(config Config) (*server, *serving) {
		s := &serving{Handler: slog.DiscardHandler, on: make(chan struct{})}
		config.Logger = slog.New(s)
		return start(t, config), s
	}
	config := Config{
		DataDir: t.TempDir(), SecurePort: sharedPort(t), Etcd: etcd.Options{Endpoints: cluster.Endpoints()},
		Serving: kelson.Serving{PermitPortSharing: true, AdvertiseAddress: net.ParseIP("192.0.2.7")}, Peers: Peers{Identity: "apiserver-x"},
	}
	first, firstServes := run(config)
	<-firstServes.on
	c := newClient(t, KubeconfigFile(config.DataDir))
	c.ready()
	w := startWriter(c)
	w.more(20)
	lease := func() (l coordinationv1.Lease) {
		_, text := c.do(http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/apiserver-x", "")
		if err := json.Unmarshal([]byte(text), &l); err != nil || l.Spec.HolderIdentity == nil {
			t.Fatalf("got no lease, but %s", text)
		}
		return l
	}
	before := lease()
	_, secondServes := run(config)
	<-secondServes.on
	polltest.Until(t, "the second server takes the lease", func() bool { return *lease().Spec.HolderIdentity != *before.Spec.HolderIdentity })
	w.more(5)
	first.end(t)
	w.more(20)
	if after := lease(); after.UID != before.UID {
		t.Errorf("got another lease, %s, want the one that there was, %s", after.UID, before.UID)
	}
	var slice discoveryv1.EndpointSlice
	_, text := c.do(http.MethodGet, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes", "")
	if err := json.Unmarshal([]byte(text), &slice); err != nil || len(slice.Endpoints) != 1 || slice.Endpoints[0].Addresses[0] != "192.0.2.7" {
		t.Errorf("got the endpoints %s, want 192.0.2.7", text)
	}
	store, err := etcd.Open(t.Context(), etcd.Options{Endpoints: cluster.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if address, err := apiserver.FindPeer(t.Context(), store, "apiserver-x"); err != nil {
		t.Errorf("the address for other servers: got %q, %v, want one", address, err)
	}
	w.check()
}
