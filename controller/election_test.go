package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/request"
)

// leases is an API that has nothing but one lease.
type leases struct {
	mu    sync.Mutex
	lease *coordinationv1.Lease
}

// door is the way of one client to the API.
type door struct {
	*leases
	shut atomic.Bool // nothing gets through, as if its process had died or lost the network
}

// RoundTrip implements http.RoundTripper.
func (d *door) RoundTrip(r *http.Request) (*http.Response, error) {
	if d.shut.Load() {
		return nil, errors.New("no route")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	answer := func(code int, v any) (*http.Response, error) {
		body, err := json.Marshal(v)
		return &http.Response{StatusCode: code, Body: io.NopCloser(bytes.NewReader(body))}, err
	}
	refuse := func(code int, reason metav1.StatusReason) (*http.Response, error) {
		return answer(code, metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason})
	}
	var in coordinationv1.Lease
	if r.Method != http.MethodGet {
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			return nil, err
		}
	}
	version := 1
	if d.lease != nil {
		was, err := strconv.Atoi(d.lease.ResourceVersion)
		if err != nil {
			return nil, err
		}
		version = was + 1
	}
	switch {
	case r.Method == http.MethodPost && d.lease != nil:
		return refuse(http.StatusConflict, metav1.StatusReasonAlreadyExists)
	case r.Method != http.MethodPost && d.lease == nil:
		return refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodPut && in.ResourceVersion != d.lease.ResourceVersion:
		return refuse(http.StatusConflict, metav1.StatusReasonConflict)
	case r.Method != http.MethodGet:
		in.ResourceVersion = strconv.Itoa(version)
		d.lease = &in
	}
	return answer(http.StatusOK, d.lease)
}

// idle is a feed in which nothing happens.
type idle struct{ Feed }

func (idle) Follow(ctx context.Context, see func([]Change)) error {
	see(nil)
	<-ctx.Done()
	return ctx.Err()
}

// rival is a server that wants its controllers to run.
type rival struct {
	door
	stop context.CancelFunc
	done chan struct{}
}

// nobody watches.
type worker struct{}

func (worker) Observe([]Change) {}

// Several servers, of which some stop and some die: at any time the controllers
// of at most one work, and when it is no longer there those of another do.
func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &leases{}
		var working atomic.Int32
		var whose atomic.Pointer[string]
		begin := func(name string) *rival {
			r := &rival{done: make(chan struct{})}
			r.leases = shared
			ctx, cancel := context.WithCancel(t.Context())
			r.stop = cancel
			m := &Manager{
				Feed: idle{}, Logger: slog.New(slog.DiscardHandler),
				Client: func(request.User) *Client { return &Client{Transport: &r.door} },
				Elect:  &Election{Identity: name, Kind: func() *Kind { return &Kind{Resource: "leases"} }},
				Controllers: []Controller{{Name: "work", Start: func(env *Env) Observer {
					if n := working.Add(1); n > 1 {
						t.Errorf("%s works while another does", name)
					}
					whose.Store(&name)
					env.running.Go(func() {
						<-env.ctx.Done()
						working.Add(-1)
					})
					return worker{}
				}}},
			}
			go func() {
				defer close(r.done)
				_ = m.Run(ctx, func() {})
			}()
			return r
		}
		// leads waits until the controllers of a server work.
		leads := func(name string, within time.Duration) {
			t.Helper()
			began := time.Now()
			for synctest.Wait(); working.Load() == 0 || *whose.Load() != name; synctest.Wait() {
				if time.Since(began) > within {
					t.Fatalf("%s does not work after %v: %d do, and last %s did", name, within, working.Load(), *whose.Load())
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
		a := begin("a")
		leads("a", 0)
		b := begin("b")
		time.Sleep(time.Hour)
		leads("a", 0)

		a.stop() // in order: the other does not have to wait for the lease to end
		<-a.done
		leads("b", leaseRetry)

		c := begin("c")
		time.Sleep(time.Minute)
		b.shut.Store(true) // it cannot know whether it still has the lease, and gives up before it has not
		leads("c", leaseFor+2*leaseRetry)

		b.shut.Store(false) // back, it waits
		time.Sleep(time.Minute)
		leads("c", 0)
		c.stop()
		<-c.done
		leads("b", leaseRetry)
		b.stop()
		<-b.done
		if working.Load() != 0 {
			t.Error("somebody still works")
		}
	})
}

// endless is a feed with so many objects that it does not come to their end.
type endless struct {
	Feed
	objects int
}

func (f endless) Follow(ctx context.Context, see func([]Change)) error {
	for range f.objects / 100 {
		see(slices.Repeat([]Change{{Kind: &Kind{Resource: "things"}}}, 100))
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestStartDoesNotAwaitAll: a server with very many objects is ready before its controllers
// have seen them all, one with fewer is not.
func TestStartDoesNotAwaitAll(t *testing.T) {
	for objects, want := range map[int]bool{maxAwaited - 100: false, maxAwaited: true, 2 * maxAwaited: true} {
		synctest.Test(t, func(t *testing.T) {
			var ready atomic.Int32
			m := &Manager{
				Feed: endless{objects: objects}, Logger: slog.New(slog.DiscardHandler),
				Client:      func(request.User) *Client { return &Client{} },
				Controllers: []Controller{{Name: "work", Start: func(*Env) Observer { return worker{} }}},
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = m.Run(ctx, func() { ready.Add(1) })
			}()
			synctest.Wait()
			if got := ready.Load() == 1; got != want {
				t.Errorf("ready after %d objects: %v, want %v", objects, got, want)
			}
			cancel()
			<-done
		})
	}
}

// TestStartGivesWay: what the start does not wait for is read when no client is answered,
// but not later than maxPause if there always is one.
func TestStartGivesWay(t *testing.T) {
	for _, free := range []time.Duration{0, time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var seen atomic.Int32
			m := &Manager{
				Feed: endless{objects: maxAwaited + 300}, Logger: slog.New(slog.DiscardHandler),
				Client:      func(request.User) *Client { return &Client{} },
				Controllers: []Controller{{Name: "count", Start: func(*Env) Observer { return counter{&seen} }}},
				Busy:        func() bool { return time.Since(began) < free },
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = m.Run(ctx, func() {})
			}()
			check := func(after time.Duration, want int32) {
				t.Helper()
				time.Sleep(after - time.Since(began))
				synctest.Wait()
				if got := seen.Load(); got != want {
					t.Errorf("busy for %v: %d objects seen after %v, want %d", free, got, after, want)
				}
			}
			if pause := min(free, maxPause); pause > 0 {
				check(pause-pauseStep, maxAwaited-100)
			}
			check(min(free, maxPause)+pauseStep, maxAwaited+300)
			cancel()
			<-done
		})
	}
}

// counter counts what it observes.
type counter struct{ seen *atomic.Int32 }

func (c counter) Observe(changes []Change) { c.seen.Add(int32(len(changes))) }
