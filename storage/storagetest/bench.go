package storagetest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage"
)

const (
	benchmarkValue = 1 << 10 // bytes; an ordinary object has one to five of them
	benchmarkPage  = 500     // the limit that Kubernetes clients page with
)

// Benchmark measures a store that holds s.BenchmarkKeys keys.
func Benchmark(b *testing.B, s Subject) {
	n := s.BenchmarkKeys
	if n == 0 {
		n = 10_000
	}
	p := &bench{b: s.Open(b), ctx: context.Background(), value: []byte(fill("", benchmarkValue))}
	Fill(b, p.b, n, benchmarkValue)
	for _, writers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("put/writers=%d", writers), func(b *testing.B) { p.put(b, writers) })
	}
	b.Run("get", func(b *testing.B) {
		p.each(b, func(i int) error {
			_, err := p.b.Get(p.ctx, p.key(i*7919%n))
			return err
		})
	})
	b.Run(fmt.Sprintf("list/keys=%d", n), func(b *testing.B) {
		p.each(b, func(int) error {
			_, err := p.b.List(p.ctx, p.key(-1), storage.ListOptions{})
			return err
		})
		b.ReportMetric(float64(b.N)*float64(n)/b.Elapsed().Seconds(), "keys/s")
	})
	b.Run(fmt.Sprintf("list/page=%d", benchmarkPage), func(b *testing.B) {
		p.each(b, func(i int) error {
			_, err := p.b.List(p.ctx, p.key(-1), storage.ListOptions{Start: p.key(i * 7919 % n), Limit: benchmarkPage})
			return err
		})
	})
	b.Run("count", func(b *testing.B) {
		p.each(b, func(int) error {
			_, _, err := p.b.Count(p.ctx, p.key(-1))
			return err
		})
	})
	for _, watchers := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("watch/watchers=%d", watchers), func(b *testing.B) { p.watch(b, watchers) })
	}
}

// Fill creates n keys with values of a size.
func Fill(tb testing.TB, b storage.Backend, n, size int) {
	tb.Helper()
	p := &bench{b: b, ctx: context.Background(), value: []byte(fill("", size))}
	err := together(64, func(i int) error {
		for k := i; k < n; k += 64 {
			if _, err := p.b.Create(p.ctx, p.key(k), p.value, 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// bench is a loaded store.
type bench struct {
	b     storage.Backend
	ctx   context.Context
	value []byte
	runs  atomic.Int64 // so that no two runs write the same keys
}

// key returns the name of preloaded key i, or for -1 the prefix of all.
func (p *bench) key(i int) string {
	if i < 0 {
		return storage.Root + "bench/"
	}
	return fmt.Sprintf("%sbench/%08d", storage.Root, i)
}

// each measures f, one call after the other.
func (p *bench) each(b *testing.B, f func(i int) error) {
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if err := f(i); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

// writes does b.N writes with so many writers, each on keys of its own below
// prefix, and returns how long each took.
func (p *bench) writes(b *testing.B, prefix string, writers int) []time.Duration {
	var next atomic.Int64
	took := make([]time.Duration, b.N)
	err := together(writers, func(w int) error {
		held := make([]storage.KeyValue, 16)
		for {
			i := int(next.Add(1)) - 1
			if i >= b.N {
				return nil
			}
			slot := i % len(held)
			start := time.Now()
			var kv storage.KeyValue
			var err error
			if guard := held[slot].ModRevision; guard > 0 {
				kv, err = p.b.Update(p.ctx, held[slot].Key, p.value, guard, 0)
			} else {
				kv, err = p.b.Create(p.ctx, fmt.Sprintf("%s%d/%d", prefix, w, slot), p.value, 0)
			}
			if err != nil {
				return err
			}
			took[i] = time.Since(start)
			held[slot] = kv
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	return took
}

// put measures writes: how many a second, and how long the slow ones take.
func (p *bench) put(b *testing.B, writers int) {
	b.ReportAllocs()
	prefix := fmt.Sprintf("%sput/%d/", storage.Root, p.runs.Add(1))
	b.ResetTimer()
	took := p.writes(b, prefix, writers)
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// watch measures writes by 16 until each of so many watchers has seen all.
func (p *bench) watch(b *testing.B, watchers int) {
	b.ReportAllocs()
	prefix := fmt.Sprintf("%swatch/%d/", storage.Root, p.runs.Add(1))
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Minute)
	defer cancel()
	open := make([]storage.Watcher, watchers)
	for i := range open {
		w, err := p.b.Watch(ctx, prefix, 0)
		if err != nil {
			b.Fatal(err)
		}
		defer w.Close()
		open[i] = w
	}
	result := make(chan error, 1)
	b.ResetTimer()
	go func() {
		result <- together(watchers, func(i int) error {
			for seen := 0; seen < b.N; {
				batch, err := open[i].Next(ctx)
				if err != nil {
					return err
				}
				seen += len(batch.Events)
			}
			return nil
		})
	}()
	p.writes(b, prefix, 16)
	if err := <-result; err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64(b.N)*float64(watchers)/b.Elapsed().Seconds(), "events/s")
}
