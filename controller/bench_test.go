package controller_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/apikeel/kelson/kelsontest"
)

// BenchmarkStart is what controllers add to the first start of a server.
func BenchmarkStart(b *testing.B) {
	for _, bench := range []struct {
		name  string
		words []string
	}{
		{"none", []string{"-*"}}, {"all", []string{"*"}}, {"without aggregation", []string{"*", "-clusterrole-aggregation"}},
		{"only aggregation", []string{"clusterrole-aggregation"}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var used time.Duration
			for range b.N {
				runtime.GC()
				before := cpu(b)
				s := kelsontest.Start(b, kelsontest.Controllers(bench.words...))
				used += cpu(b) - before
				s.Stop()
			}
			b.ReportMetric(float64(used.Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// BenchmarkIdle is what controllers cost that have nothing to do.
func BenchmarkIdle(b *testing.B) {
	start(b)
	before := cpu(b)
	began := time.Now()
	for range b.N {
		time.Sleep(100 * time.Millisecond)
	}
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/time.Since(began).Seconds()/1000, "cpu-ms/s")
}
