package controlplane

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

// leading notes whose controllers run.
type leading struct {
	slog.Handler
	mu    *sync.Mutex
	name  string
	order *[]string
}

// Enabled implements slog.Handler.
func (l leading) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler.
func (l leading) WithAttrs([]slog.Attr) slog.Handler { return l }

// Handle implements slog.Handler.
func (l leading) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch r.Message {
	case "controllers run here", "controllers have stopped here":
		*l.order = append(*l.order, l.name+": "+r.Message)
	}
	return nil
}

// Servers that share an etcd: all of them are endpoints of the service
// kubernetes as long as they run, and the controllers of one of them work.
func TestSeveralServers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd")
	}
	cluster := etcdtest.Start(t)
	var mu sync.Mutex
	var order []string
	run := func(name, address string) (*server, *client) {
		dir := filepath.Join(t.TempDir(), name)
		s := start(t, Config{
			Etcd: etcd.Options{Endpoints: cluster.Endpoints()}, DataDir: dir, Serving: kelson.Serving{AdvertiseAddress: net.ParseIP(address)},
			Logger: slog.New(leading{slog.DiscardHandler, &mu, name, &order}),
		})
		c := newClient(t, KubeconfigFile(dir))
		c.ready()
		return s, c
	}
	points := func(c *client, want ...string) {
		t.Helper()
		polltest.Until(t, "endpoints "+strings.Join(want, ", "), func() bool {
			var slice discoveryv1.EndpointSlice
			code, text := c.do(http.MethodGet, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes", "")
			var got []string
			if err := json.Unmarshal([]byte(text), &slice); err != nil || code != http.StatusOK {
				return false
			}
			for _, e := range slice.Endpoints {
				got = append(got, e.Addresses...)
			}
			return slices.Equal(got, want)
		})
	}
	ends := func(c *client, name string) {
		t.Helper()
		if code, text := c.do(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"`+name+`"}}`); code != http.StatusCreated {
			t.Fatal(text)
		}
		if code, text := c.do(http.MethodDelete, "/api/v1/namespaces/"+name, ""); code != http.StatusOK {
			t.Fatal(text)
		}
		polltest.Until(t, "the namespace "+name+" ends", func() bool {
			code, _ := c.do(http.MethodGet, "/api/v1/namespaces/"+name, "")
			return code == http.StatusNotFound
		})
	}

	first, atFirst := run("first", "192.0.2.1")
	second, atSecond := run("second", "192.0.2.2")
	points(atFirst, "192.0.2.1", "192.0.2.2")
	points(atSecond, "192.0.2.1", "192.0.2.2")
	ends(atSecond, "while-both-run")

	first.end(t)
	points(atSecond, "192.0.2.2")
	ends(atSecond, "when-one-is-left")
	third, atThird := run("third", "192.0.2.3")
	points(atThird, "192.0.2.2", "192.0.2.3")
	second.end(t)
	points(atThird, "192.0.2.3")
	ends(atThird, "with-the-third")
	third.end(t)

	mu.Lock()
	defer mu.Unlock()
	var want []string
	for _, name := range []string{"first", "second", "third"} {
		want = append(want, name+": controllers run here", name+": controllers have stopped here")
	}
	if !slices.Equal(order, want) {
		t.Errorf("controllers ran like this:\n%s", strings.Join(order, "\n"))
	}
	if left, err := cluster.Client(t).Get(t.Context(), storage.Root+"masterleases/"+"192.0.2.3"); err != nil || left.Count != 0 {
		t.Errorf("a server that has ended left %v, %v", left, err)
	}
}

// Events go by themselves when their time is up.
func TestEventsExpire(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	start(t, Config{Storage: StorageMemory, DataDir: dir, EventTTL: time.Second})
	c := newClient(t, KubeconfigFile(dir))
	c.ready()
	const event = `{"metadata":{"name":"e","namespace":"default"},"involvedObject":{"kind":"Namespace","name":"default","namespace":"default"},"reason":"Test","type":"Normal"}`
	if code, text := c.do(http.MethodPost, "/api/v1/namespaces/default/events", event); code != http.StatusCreated {
		t.Fatal(text)
	}
	polltest.Until(t, "the event is gone", func() bool {
		code, _ := c.do(http.MethodGet, "/api/v1/namespaces/default/events/e", "")
		return code == http.StatusNotFound
	})
}
