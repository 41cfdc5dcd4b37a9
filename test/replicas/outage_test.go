package replicas

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// probeInterval is the pause between two requests of a probe.
const probeInterval = 10 * time.Millisecond

// probe asks one server the same again and again, and knows for how long it did not get
// an answer.
type probe struct {
	server int
	what   string // read or write
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	last    time.Time     // when the last request that succeeded was answered
	longest time.Duration // the longest time between two of them
	when    time.Time     // when that time began
	failure error         // the last
}

// startProbes starts a probe for reads and one for writes at each server.
func startProbes(f *fleet) (probes []*probe) {
	f.t.Helper()
	for i := range size {
		client := f.client(i)
		name := fmt.Sprintf("probe-%d", i)
		maps := client.CoreV1().ConfigMaps("default")
		ctx, cancel := context.WithTimeout(f.t.Context(), startTimeout)
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		cancel()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			f.t.Fatal(err)
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
	return probes
}

func startProbe(f *fleet, server int, what string, ask func(ctx context.Context, n int) error) *probe {
	ctx, cancel := context.WithCancel(context.Background())
	p := &probe{server: server, what: what, cancel: cancel, done: make(chan struct{}), last: time.Now()}
	go func() {
		defer close(p.done)
		for n := 0; ctx.Err() == nil; n++ {
			bounded, cancel := context.WithTimeout(ctx, requestTimeout)
			err := ask(bounded, n)
			cancel()
			p.note(err)
			select {
			case <-ctx.Done():
			case <-time.After(probeInterval):
			}
		}
	}()
	f.t.Cleanup(func() { cancel(); <-p.done })
	return p
}

func (p *probe) note(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failure = err
		return
	}
	now := time.Now()
	if gap := now.Sub(p.last); gap > p.longest {
		p.longest, p.when = gap, p.last
	}
	p.last = now
}

// restart forgets what was measured before.
func (p *probe) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.longest, p.failure = time.Now(), 0, nil
}

// outage returns the longest time without an answer so far.
func (p *probe) outage() (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.longest, time.Since(p.last)), p.failure
}

// awaitAnswers waits until a probe has been answered after a time.
func (p *probe) awaitAnswers(after time.Time, within time.Duration) bool {
	for deadline := time.Now().Add(within); time.Now().Before(deadline); pause(10 * time.Millisecond) {
		p.mu.Lock()
		last := p.last
		p.mu.Unlock()
		if last.After(after) {
			return true
		}
	}
	return false
}
