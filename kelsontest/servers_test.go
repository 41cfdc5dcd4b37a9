package kelsontest_test

import (
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/kelsontest"
)

// cost is what one more server of a process costs it, once it has one.
type cost struct {
	heapKB     float64
	goroutines float64
	cpu        time.Duration // to start it
}

// costOf starts servers that do nothing, and returns what each costs.
func costOf(tb testing.TB, many int) cost {
	tb.Helper()
	// The first makes what all share.
	first := idle(tb)
	defer stop(tb, first)
	heap, goroutines, began := settledHeap(), runtime.NumGoroutine(), cpu(tb)
	servers := make([]*kelsontest.Server, many)
	for i := range servers {
		servers[i] = idle(tb)
	}
	defer stop(tb, servers...)
	used := cpu(tb) - began
	n := float64(many)
	c := cost{
		heapKB:     (float64(settledHeap()) - float64(heap)) / 1024 / n,
		goroutines: float64(runtime.NumGoroutine()-goroutines) / n,
		cpu:        used / time.Duration(many),
	}
	runtime.KeepAlive(servers)
	return c
}

func idle(tb testing.TB) *kelsontest.Server {
	tb.Helper()
	s, err := kelsontest.New()
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func stop(tb testing.TB, servers ...*kelsontest.Server) {
	var stopping sync.WaitGroup
	for _, s := range servers {
		stopping.Go(func() {
			if err := s.Close(); err != nil {
				tb.Error(err)
			}
		})
	}
	stopping.Wait()
}

// settledHeap returns the bytes of the heap that are in use. The second collection
// takes what the first has only finalized, and what pools kept.
func settledHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// cpu returns the processor time that this process has used.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// TestServersAreCheap: one more server costs little. The bounds are a third more than what
// BenchmarkServers tells, so that they fail only if something that servers shared is
// made for each of them again. Its time is not judged: it depends on the machine.
func TestServersAreCheap(t *testing.T) {
	c := costOf(t, 20)
	if c.heapKB > 530 {
		t.Errorf("got %.0f KB of heap for each server, want 530 at most", c.heapKB)
	}
	if c.goroutines > 10 {
		t.Errorf("got %.1f goroutines for each server, want 10 at most", c.goroutines)
	}
}

// BenchmarkServers tells what each of 200 idle servers costs the process that they
// are in.
func BenchmarkServers(b *testing.B) {
	var sum cost
	for b.Loop() {
		c := costOf(b, 200)
		sum.heapKB += c.heapKB
		sum.goroutines += c.goroutines
		sum.cpu += c.cpu
	}
	n := float64(b.N)
	b.ReportMetric(sum.heapKB/n, "heap-KB/server")
	b.ReportMetric(sum.goroutines/n, "goroutines/server")
	b.ReportMetric(float64(sum.cpu.Microseconds())/1000/n, "cpu-ms/server")
}
