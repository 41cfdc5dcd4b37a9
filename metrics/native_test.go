package metrics

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
)

// observed returns what a scrape sees of the only histogram.
func observed(t *testing.T, of prometheus.Gatherer) *dto.Histogram {
	t.Helper()
	all, err := of.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == "took_seconds" {
			return f.Metric[0].Histogram
		}
	}
	t.Fatal("there is no histogram")
	return nil
}

// TestNativeHistograms compares histograms with those of the Prometheus client, as
// kube-apiserver configures them.
func TestNativeHistograms(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, values := range map[string]func(i int) float64{
		"requests":         func(int) float64 { return math.Exp(random.NormFloat64() - 7) },
		"powers of two":    func(i int) float64 { return math.Exp2(float64(i%60 - 30)) },
		"too many buckets": func(i int) float64 { return math.Exp(float64(i%100) - 50) },
		"all that exist":   func(int) float64 { return math.Float64frombits(random.Uint64N(0x7ff0000000000000)) },
		"signs":            func(i int) float64 { return float64(i%21 - 10) },
		"none":             nil,
	} {
		for _, n := range []int{1, 7, 8, 3000} { // few values are kept as they are
			t.Run(fmt.Sprintf("%d %s", n, name), func(t *testing.T) {
				r := New()
				r.NativeHistograms = true
				ours := r.Histograms("took_seconds", "[ALPHA] Time.", []float64{0.1, 1}).WithLabelValues()
				other := prometheus.NewHistogram(prometheus.HistogramOpts{
					Name: "took_seconds", Help: "[ALPHA] Time.", Buckets: []float64{0.1, 1}, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: nativeBuckets,
				})
				theirs := prometheus.NewRegistry()
				theirs.MustRegister(other)
				for i := 0; values != nil && i < n; i++ {
					v := values(i)
					ours.Observe(v)
					other.Observe(v)
				}
				got, want := observed(t, r), observed(t, theirs)
				want.CreatedTimestamp = nil
				if math.Abs(got.GetSampleSum()-want.GetSampleSum()) <= 1e-9*math.Abs(want.GetSampleSum()) {
					got.SampleSum = want.SampleSum // they add in another order
				}
				if !proto.Equal(got, want) {
					t.Errorf("got  %v\nwant %v", got, want)
				}
			})
		}
	}
}

// A scrape beside observations counts as many values as are in the buckets; Prometheus
// refuses others.
func TestNativeHistogramsWhileObserving(t *testing.T) {
	r := New()
	r.NativeHistograms = true
	h := r.Histograms("took_seconds", "[ALPHA] Time.", []float64{0.1, 1}).WithLabelValues()
	h.Observe(1)
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 2 {
		wg.Go(func() {
			for range 5000 {
				h.Observe(0.5)
			}
		})
	}
	for range 50 {
		got := observed(t, r)
		var count, in int64
		for _, delta := range got.PositiveDelta {
			in += delta
			count += in
		}
		if uint64(count) != got.GetSampleCount() || got.Bucket[1].GetCumulativeCount() > got.GetSampleCount() {
			t.Fatalf("%d values are in native buckets, %d in ordinary ones, of %d", count, got.Bucket[1].GetCumulativeCount(), got.GetSampleCount())
		}
	}
}

// BenchmarkObserve counts values in one histogram from all processors, with and without
// its native form.
func BenchmarkObserve(b *testing.B) {
	for _, native := range []bool{false, true} {
		b.Run(fmt.Sprintf("native=%v", native), func(b *testing.B) {
			r := New()
			r.NativeHistograms = native
			h := r.Histograms("h", "help", prometheus.DefBuckets, "l").WithLabelValues("x")
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					h.Observe(float64(i%50+1) / 1000)
				}
			})
		})
	}
}

// TestFindBucket: a bucket is found wherever it is, and its place if it is missing.
func TestFindBucket(t *testing.T) {
	for _, gap := range []int32{1, 2, 30} {
		var buckets []sparseBucket
		for i := range int32(40) {
			buckets = append(buckets, sparseBucket{index: i*gap - 20})
		}
		for index := int32(-25); index < 40*gap; index++ {
			at, found := findBucket(buckets, index)
			wantAt, want := slices.BinarySearchFunc(buckets, index, func(b sparseBucket, index int32) int { return int(b.index) - int(index) })
			if at != wantAt || found != want {
				t.Fatalf("gap %d, index %d: got %d %v, want %d %v", gap, index, at, found, wantAt, want)
			}
		}
	}
	if at, found := findBucket(nil, 3); at != 0 || found {
		t.Errorf("among none: got %d %v", at, found)
	}
}
