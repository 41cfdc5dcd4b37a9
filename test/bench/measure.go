package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/test/bench/servers"
)

// sample is what one slice of work has cost: the operations of one round on one server.
type sample struct {
	Ops       int     `json:"ops"`
	Seconds   float64 `json:"seconds"`
	CPU       float64 `json:"server_cpu_s"`          // of all processes of the server, until it is at rest; 0 if not known
	StoreCPU  float64 `json:"store_cpu_s,omitempty"` // of it, that of etcd or PostgreSQL
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	Bytes     int64   `json:"bytes,omitempty"`
	OtherLoad float64 `json:"other_load_cores"` // what else has used the machine's processors
}

// perSecond returns operations a second.
func (s sample) perSecond() float64 { return float64(s.Ops) / s.Seconds }

// cost returns CPU milliseconds of the server an operation.
func (s sample) cost() float64 {
	if s.CPU == 0 {
		return math.NaN()
	}
	return s.CPU * 1000 / float64(s.Ops)
}

// target is a server under load with what the operations have left in it.
type target struct {
	*servers.Server
	client *client
	count  int // rises with every object, so that names are new

	configMaps []object
	leases     []object
	customs    []object
	plurals    []string // of definitions beside the one that has the customs
	pods       int
	floor      bool // it does the least for each operation, see operation.floorWork
}

// object is a name and its newest resourceVersion.
type object struct{ name, version string }

// connections is how many a target has, unless an operation needs more.
const connections = 4

func newTarget(v *servers.Server) *target {
	// A server that runs elsewhere may have objects of an earlier run.
	return &target{Server: v, client: newClient(v, connections), count: int(time.Now().UnixMilli() % 1e9)}
}

// settlePatience is for how long work that a server has put off is waited for after a slice.
const settlePatience = time.Second

// meter collects the operations of one slice.
type meter struct {
	target *target
	mu     sync.Mutex
	times  []float64 // ms
	bytes  atomic.Int64
	result *sample // of work that has measured itself, without its preparations
}

// loop calls a function n times from several workers and keeps how long each took. The
// first error ends it.
func (m *meter) loop(ctx context.Context, workers, n int, call func(ctx context.Context, worker, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			times := make([]float64, 0, n/workers+1)
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					break
				}
				start := time.Now()
				if err := call(ctx, worker, i); err != nil {
					cancel(err)
					break
				}
				times = append(times, milliseconds(time.Since(start)))
			}
			m.mu.Lock()
			m.times = append(m.times, times...)
			m.mu.Unlock()
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

// measure runs one slice. The CPU time that the server uses until it is at rest is the
// slice's: what a server puts off is work too.
func measure(ctx context.Context, t *target, work func(context.Context, *meter) error) (sample, error) {
	runtime.GC() // what the client has left over from before is not this slice's
	m := &meter{target: t}
	cpu, store, machine, self, start := t.CPU(), t.StoreCPU(), servers.MachineTime(), servers.SelfTime(), time.Now()
	if err := work(ctx, m); err != nil {
		return sample{}, err
	}
	if m.result != nil {
		return *m.result, nil
	}
	took := time.Since(start)
	s := sample{Ops: len(m.times), Seconds: took.Seconds(), Bytes: m.bytes.Load()}
	if s.Ops == 0 {
		return s, errors.New("no operation was made")
	}
	if t.IsLocal() {
		others := (servers.MachineTime() - machine).Seconds() - (servers.SelfTime() - self).Seconds() - (t.CPU() - cpu)
		s.OtherLoad = max(0, others/took.Seconds())
	}
	slices.Sort(m.times)
	s.P50, s.P99 = quantile(m.times, 0.5), quantile(m.times, 0.99)
	if err := t.Settle(ctx, settlePatience); err != nil {
		return s, err
	}
	s.CPU, s.StoreCPU = t.CPU()-cpu, t.StoreCPU()-store
	return s, nil
}

// inParallel calls a function for 0 to n-1 from several workers; it is for what is not measured.
func inParallel(ctx context.Context, workers, n int, call func(ctx context.Context, worker, i int) error) error {
	return new(meter).loop(ctx, workers, n, call)
}

// describe is a sample in one line.
func (s sample) describe() string {
	text := fmt.Sprintf("%s/s · %s / %s ms", figures(s.perSecond()), figures(s.P50), figures(s.P99))
	if s.CPU > 0 {
		text += " · " + figures(s.cost()) + " CPU-ms"
	}
	return text
}
