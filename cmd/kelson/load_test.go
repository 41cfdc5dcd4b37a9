//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/testsize"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// signalOrder is what happens to a server that is told to stop and tells new
// requests to come back. The delay and the hooks, which come second, are not
// ordered.
var signalOrder = []string{"ShutdownInitiated", "NotAcceptingNewRequest", "InFlightRequestsDrained", "HTTPServerStoppedListening"}

// TestStopUnderLoad stops a server that 32 clients write to and 32 watch. Who
// comes back later when told so sees no broken connection, and what was
// acknowledged is there afterwards: no less, and no more.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	pairs := testsize.Pick(16, 32, 32)
	dir := filepath.Join(t.TempDir(), "data")
	file, folder := controlplane.KubeconfigFile(dir), "/api/v1/namespaces/default/configmaps"
	s := serve(t, "serve", "--data-dir", dir, "--shutdown-send-retry-after", "--shutdown-watch-termination-grace-period", "100ms", "-v", "1")
	admin := newClient(t, file)
	admin.ready()

	var clients, watching sync.WaitGroup
	var acknowledged sync.Map
	var count, refused atomic.Int64
	for i := range pairs {
		// Each has a connection of its own, half of them HTTP/1.1 ones.
		config := rest.CopyConfig(admin.config)
		if i%2 == 1 {
			config.NextProtos = []string{"http/1.1"}
		}
		watcher, writer := ownConnection(t, config), ownConnection(t, config)
		watching.Add(1)
		clients.Go(func() {
			resp, err := watcher.Get(admin.config.Host + folder + "?watch=1&resourceVersion=0")
			watching.Done()
			if err != nil {
				t.Errorf("watch %d: %v", i, err)
				return
			}
			defer resp.Body.Close()
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Errorf("watch %d has broken off: %v", i, err)
			}
		})
		clients.Go(func() {
			for n := 0; ; n++ {
				name := fmt.Sprintf("c-%d-%d", i, n)
				resp, err := writer.Post(admin.config.Host+folder, "application/json",
					strings.NewReader(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"}}`))
				if err != nil {
					t.Errorf("client %d has no answer: %v", i, err)
					return
				}
				text, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				switch {
				case err != nil:
					t.Errorf("client %d has half an answer: %v", i, err)
					return
				case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "":
					refused.Add(1)
					return
				case resp.StatusCode != http.StatusCreated:
					t.Errorf("client %d: %d %s", i, resp.StatusCode, text)
					return
				}
				acknowledged.Store(name, true)
				count.Add(1)
			}
		})
	}
	watching.Wait()
	for tick := time.NewTicker(5 * time.Millisecond); count.Load() < int64(10*pairs) && !t.Failed(); {
		<-tick.C
	}
	code := s.end(syscall.SIGTERM)
	clients.Wait()
	if code != exitOK || refused.Load() != int64(pairs) {
		t.Errorf("it ended with %d, and told %d of %d clients to come back: %s", code, refused.Load(), pairs, s.log.String())
	}
	rest := strings.ReplaceAll(s.log.String(), `"`, "")
	for _, name := range signalOrder {
		before, after, ok := strings.Cut(rest, "name="+name)
		if !ok {
			t.Errorf("no %s in %q, after what came before it", name, before)
		}
		rest = after
	}

	s = serve(t, "serve", "--data-dir", dir)
	admin = newClient(t, file)
	admin.ready()
	list := admin.get(folder)
	acknowledged.Range(func(name, _ any) bool {
		if !strings.Contains(list, `"name":"`+name.(string)+`"`) {
			t.Errorf("%s was acknowledged and is not there", name)
		}
		return true
	})
	if got := strings.Count(list, `"name":"c-`); int64(got) != count.Load() {
		t.Errorf("%d were acknowledged, %d are there", count.Load(), got)
	}
	s.stop(t)
}

// TestKillUnderLoad kills a server that 32 clients write to and 32 watch, on the
// same folder several times. What was acknowledged, and what somebody who watched
// has seen, is there afterwards.
func TestKillUnderLoad(t *testing.T) {
	t.Parallel()
	pairs, rounds := testsize.Pick(16, 32, 32), testsize.Pick(2, 3, 3)
	dir := filepath.Join(t.TempDir(), "data")
	file, folder := controlplane.KubeconfigFile(dir), "/api/v1/namespaces/default/configmaps"
	var acknowledged, seen sync.Map
	for round := range rounds {
		s := serve(t, "serve", "--data-dir", dir)
		admin := newClient(t, file)
		admin.ready()
		var clients sync.WaitGroup
		var count atomic.Int64
		for i := range pairs {
			watcher, writer := ownConnection(t, admin.config), ownConnection(t, admin.config)
			clients.Go(func() {
				resp, err := watcher.Get(admin.config.Host + folder + "?watch=1&resourceVersion=0")
				if err != nil {
					return // it may be dead by now
				}
				defer resp.Body.Close()
				for events := json.NewDecoder(resp.Body); ; {
					var event struct{ Object metav1.PartialObjectMetadata }
					if events.Decode(&event) != nil {
						return
					}
					seen.Store(event.Object.Name, true)
				}
			})
			clients.Go(func() {
				for n := 0; ; n++ {
					name := fmt.Sprintf("c-%d-%d-%d", round, i, n)
					resp, err := writer.Post(admin.config.Host+folder, "application/json", strings.NewReader(`{"metadata":{"name":"`+name+`"}}`))
					if err != nil {
						return
					}
					resp.Body.Close()
					if resp.StatusCode != http.StatusCreated {
						t.Errorf("client %d: %s", i, resp.Status)
						return
					}
					acknowledged.Store(name, true)
					count.Add(1)
				}
			})
		}
		for tick := time.NewTicker(time.Millisecond); count.Load() < int64(10*pairs) && !t.Failed(); {
			<-tick.C
		}
		s.end(syscall.SIGKILL)
		clients.Wait()
	}
	s := serve(t, "serve", "--data-dir", dir)
	admin := newClient(t, file)
	admin.ready()
	there := map[any]bool{}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal([]byte(admin.get(folder)), &list); err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		there[item.Name] = true
	}
	for what, names := range map[string]*sync.Map{"acknowledged": &acknowledged, "seen": &seen} {
		names.Range(func(name, _ any) bool {
			if strings.HasPrefix(name.(string), "c-") && !there[name] {
				t.Errorf("%s was %s and is not there", name, what)
			}
			return true
		})
	}
	s.stop(t)
}

// ownConnection is a client that shares no connection with others.
func ownConnection(t *testing.T, config *rest.Config) *http.Client {
	t.Helper()
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: tls, ForceAttemptHTTP2: len(config.NextProtos) == 0}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
