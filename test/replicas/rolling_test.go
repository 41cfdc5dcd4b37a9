package replicas

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/internal/testsize"
)

const (
	// checkInterval is how often the load balancer asks servers whether they are ready.
	checkInterval = 200 * time.Millisecond
	// shutdownDelay is how long a server goes on after it was told to end: the load
	// balancer has to notice.
	shutdownDelay = 2 * time.Second
	// maxWriteGap is the longest time between two writes of a client that writes all
	// the time, on a machine that has nothing else to do.
	maxWriteGap = 300 * time.Millisecond
)

// balancer is a load balancer for TCP connections, as they are put before API servers: a
// new connection goes to a server that is ready, if one is.
type balancer struct {
	*proxy
	f     *fleet
	ready [size]atomic.Bool
	turn  atomic.Int64
}

func newBalancer(f *fleet) *balancer {
	f.t.Helper()
	b := &balancer{f: f, proxy: newProxy(f.t)}
	ctx, cancel := context.WithCancel(context.Background())
	var checks sync.WaitGroup
	for i := range size {
		b.ready[i].Store(true)
		client := f.client(i).RESTClient()
		checks.Go(func() {
			for ctx.Err() == nil {
				bounded, cancel := context.WithTimeout(ctx, requestTimeout)
				b.ready[i].Store(client.Get().AbsPath("/readyz").MaxRetries(0).Do(bounded).Error() == nil)
				cancel()
				pause(checkInterval)
			}
		})
	}
	f.t.Cleanup(func() { cancel(); checks.Wait() })
	// If no server seems to be ready, the check may be at fault: any will do.
	pick := func() (ready []string) {
		var others []string
		turn := int(b.turn.Add(1))
		for n := range size {
			i := (turn + n) % size
			if target := f.fronts[i].current(); b.ready[i].Load() {
				ready = append(ready, target)
			} else {
				others = append(others, target)
			}
		}
		return append(ready, others...)
	}
	b.set(func() { b.pick = pick })
	return b
}

// client returns a client with connections of its own.
func (b *balancer) client() *kubernetes.Clientset {
	b.f.t.Helper()
	config := rest.CopyConfig(b.f.config)
	config.Host, config.Dial = "https://"+b.addr(), dialer()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.f.t.Fatal(err)
	}
	return client
}

// TestRollingRestart restarts all servers, one after the other, behind a load balancer.
// No request fails, watches go on without a new list, and writes hardly pause.
func TestRollingRestart(t *testing.T) {
	if testsize.Race() && !testsize.Long() {
		t.Skip("it takes a minute with the race detector; it runs without it, and with KELSON_LONG=1")
	}
	f := newFleet(t, withShutdown(kelson.Shutdown{Delay: shutdownDelay}))
	roll(f, false, func(replace func(i int)) {
		for i := range testsize.Pick(1, size, size) {
			replace(i)
		}
	})
}

// TestRollingUpgrade replaces servers of an earlier build by this one, one after the other,
// and back. It is what TestRollingRestart is otherwise.
func TestRollingUpgrade(t *testing.T) {
	before := os.Getenv("KELSON_BEFORE")
	if before == "" {
		t.Skip("KELSON_BEFORE names no test binary of an earlier build; to make one, in its checkout: go test -c -o before ./test/replicas")
	}
	f := newFleet(t, withShutdown(kelson.Shutdown{Delay: shutdownDelay}), func(f *fleet) { f.program = before })
	roll(f, false, func(replace func(i int)) {
		for _, f.program = range []string{"", before} {
			for i := range size {
				replace(i)
			}
		}
	})
}

// TestSwapWithKubeAPIServer replaces servers by kube-apiserver, one after the other, and
// back, while clients use all of them.
func TestSwapWithKubeAPIServer(t *testing.T) {
	peertest.Binary(t, "kube-apiserver")
	f := newFleet(t, withShutdown(kelson.Shutdown{Delay: shutdownDelay}))
	roll(f, true, func(replace func(i int)) {
		for _, f.program = range []string{kubeAPIServer, ""} {
			for i := range size {
				replace(i)
			}
		}
	})
}

// roll has servers replaced behind a load balancer, under load. With others, servers of
// another kind are among them: their watches may lose their place, and they take longer.
func roll(f *fleet, others bool, replaceAll func(replace func(i int))) {
	t := f.t
	t.Helper()
	b := newBalancer(f)
	l := newLoadOf(f, "rolling", [size]*kubernetes.Clientset{b.client(), b.client(), b.client()})
	var probes []*probe
	for i := range testsize.Pick(2, 4, 8) {
		maps := b.client().CoreV1().ConfigMaps("default")
		name := fmt.Sprintf("rolling-%d", i)
		if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		probes = append(probes,
			startProbe(f, i, "read", func(ctx context.Context, _ int) error {
				_, err := maps.Get(ctx, name, metav1.GetOptions{})
				return err
			}),
			startProbe(f, i, "write", func(ctx context.Context, n int) error {
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"n": fmt.Sprint(n)}}
				_, err := maps.Update(ctx, cm, metav1.UpdateOptions{})
				return err
			}))
	}
	for _, p := range probes {
		p.restart()
	}
	replaceAll(func(i int) {
		f.servers[i].stop(t)
		f.startServer(i)
		f.awaitReady(i)
		pause(2 * checkInterval)
	})
	l.stop()
	for _, p := range probes {
		gap, err := p.outage()
		limit := maxWriteGap
		switch {
		case others:
			limit = requestTimeout
		case !testsize.Long() || testsize.Race():
			limit *= 10 // the machine may be busy with other tests
		}
		if err != nil {
			t.Errorf("client %d: a %s failed: %v", p.server, p.what, err)
		}
		if gap > limit {
			t.Errorf("client %d: no %s for %v, want at most %v", p.server, p.what, gap, limit)
		}
		t.Logf("client %d: longest time between two %ss: %v", p.server, p.what, gap.Round(time.Millisecond))
	}
	l.check(others)
}
