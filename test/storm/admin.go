//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	adminInterval  = 50 * time.Millisecond
	adminTimeout   = 30 * time.Second
	healthInterval = 250 * time.Millisecond
	healthTimeout  = 5 * time.Second

	// calm is how long a write of the administrator takes at most when the server has
	// recovered, and calmWrites how many of them must be so one after the other.
	calm       = 20 * time.Millisecond
	calmWrites = 5
)

// sample is one request of a probe.
type sample struct {
	began time.Time
	took  time.Duration
	err   error
}

// probe sends a request again and again, whether or not those before are answered, so
// that one that waits hides no others.
type probe struct {
	interval, timeout time.Duration
	send              func(ctx context.Context, n int) error

	mu      sync.Mutex // protects samples
	samples []sample
}

// run sends requests until the context ends, and returns when all have ended.
func (p *probe) run(ctx context.Context) {
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, p.timeout)
			defer cancel()
			began := time.Now()
			err := p.send(ctx, n)
			if err != nil && context.Cause(ctx) == context.Canceled {
				return // the measurement has ended, not the request failed
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.samples = append(p.samples, sample{began, time.Since(began), err})
		})
	}
}

// between returns the samples that began in a period, in that order.
func (p *probe) between(from, to time.Time) (found []sample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.samples {
		if !s.began.Before(from) && s.began.Before(to) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b sample) int { return a.began.Compare(b.began) })
	return found
}

// latency is how long requests took, in milliseconds, and how many failed.
type latency struct {
	Asked, Failed int
	P50, P99, Max float64
	Errors        map[string]int `json:",omitempty"`
}

// summarize returns the latency of samples. Failed requests are among them, with the
// time until they failed.
func summarize(samples []sample) (l latency) {
	var took []float64
	for _, s := range samples {
		l.Asked++
		took = append(took, milliseconds(s.took))
		if s.err == nil {
			continue
		}
		l.Failed++
		if l.Errors == nil {
			l.Errors = map[string]int{}
		}
		if text := generalize(s.err.Error()); l.Errors[text] > 0 || len(l.Errors) < maxReasons {
			l.Errors[text]++
		}
	}
	l.P50, l.P99, l.Max = percentiles(took)
	return l
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// changedConfigMaps is how many ConfigMaps the administrator changes in turn: so many that
// two changes of one are not under way together, and conflict.
const changedConfigMaps = 300

func changedName(i int) string { return fmt.Sprintf("changed-%d", i%changedConfigMaps) }

// writtenName returns the name of the ConfigMap that a write of the administrator is about.
func writtenName(run string, n int) string {
	if n%2 == 1 {
		return fmt.Sprintf("created-%s-%d", run, n)
	}
	return changedName(n / 2)
}

// newAdministrator returns the probe of an administrator, who changes a ConfigMap and
// creates another in turn on a connection of its own.
func newAdministrator(url, run string) *probe {
	c := newClient(adminUser, clientOptions{})
	path := url + "/api/v1/namespaces/" + adminNamespace + "/configmaps"
	return &probe{interval: adminInterval, timeout: adminTimeout, send: func(ctx context.Context, n int) error {
		name := writtenName(run, n)
		method, to := http.MethodPut, path+"/"+name
		if n%2 == 1 {
			method, to = http.MethodPost, path
		}
		_, err := c.call(ctx, method, to, mediaJSON, fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"n":"%d"}}`, name, n))
		return err
	}}
}

// prepareAdministrator removes what the administrator of an earlier run has created, and
// creates the ConfigMaps that are changed.
func prepareAdministrator(ctx context.Context, url string) error {
	c := newClient(adminUser, clientOptions{})
	defer c.close()
	path := url + "/api/v1/namespaces/" + adminNamespace + "/configmaps"
	if _, err := c.call(ctx, http.MethodDelete, path, "", nil); err != nil {
		return err
	}
	return inParallel(ctx, changedConfigMaps, fillers, func(ctx context.Context, i int) error {
		_, err := c.call(ctx, http.MethodPost, path, mediaJSON, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, changedName(i)))
		return err
	})
}

// newHealthProbe returns the probe of a kubelet: nobody in particular, with a new
// connection for each question.
func newHealthProbe(url string) *probe {
	return &probe{interval: healthInterval, timeout: healthTimeout, send: func(ctx context.Context, n int) error {
		c := newClient("", clientOptions{})
		defer c.close()
		path := "/livez"
		if n%2 == 1 {
			path = "/readyz"
		}
		if _, err := c.call(ctx, http.MethodGet, url+path, "", nil); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}}
}
