//go:build unix

package aggregator_test

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// BenchmarkProxy measures what a request costs that is passed on. The client, the
// proxy and the other server are one process, so the proxy's share is what remains
// when the cost of asking the other server directly is taken away:
//
//	direct   client and backend
//	proxied  client, proxy and backend
//	local    client and this server, which knows the answer itself
func BenchmarkProxy(b *testing.B) {
	for _, clients := range []int{1, 16} {
		for _, way := range []string{"direct", "proxied", "local"} {
			b.Run(fmt.Sprintf("%s/clients=%d", way, clients), func(b *testing.B) {
				f := newProxyBench(b)
				begin, step := processorTime(b), b.N/clients+1
				b.ResetTimer()
				var done sync.WaitGroup
				for range clients {
					done.Go(func() {
						for range step {
							f.get(way)
						}
					})
				}
				done.Wait()
				b.StopTimer()
				b.ReportMetric(float64((processorTime(b)-begin).Nanoseconds())/1e3/float64(step*clients), "cpu-µs/op")
			})
		}
	}
}

type proxyBench struct {
	testing.TB
	client *http.Client
	paths  map[string]string
}

// newProxyBench starts a server with another behind it.
func newProxyBench(tb testing.TB) *proxyBench {
	f := newFixture(tb)
	const things = "/apis/b.example.com/v1/namespaces/default/things/one"
	body := []byte(`{"apiVersion":"b.example.com/v1","kind":"Thing","metadata":{"name":"one","namespace":"default"}}`)
	backend := f.serve(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	})
	f.register("b.example.com", backend)
	f.waitFor("v1.b.example.com", "Passed")

	config := rest.CopyConfig(f.config)
	config.Insecure, config.CAData = true, nil // it asks both servers
	transport, err := rest.TransportFor(config)
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxyBench{tb, &http.Client{Transport: transport}, map[string]string{
		"direct": backend + things, "proxied": f.config.Host + things, "local": f.config.Host + "/api/v1/namespaces/default",
	}}
	for way := range p.paths {
		p.get(way)
	}
	return p
}

func (p *proxyBench) get(way string) {
	resp, err := p.client.Get(p.paths[way])
	if err != nil {
		p.Error(err)
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		p.Error(resp.Status)
	}
}

// processorTime is what this process has used.
func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
