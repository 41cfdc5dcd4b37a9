package metrics

import (
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Native histograms have buckets that grow by a factor instead of limits that are chosen
// in advance. Prometheus reads them from the protobuf form of /metrics, beside the
// ordinary buckets. The numbers are those of kube-apiserver.
const (
	// finestSchema has eight buckets between a value and its double, a factor of 1.09.
	finestSchema = 3
	// coarsestSchema has one bucket between a value and 65536 times the value.
	coarsestSchema = -4
	// nativeBuckets is how many buckets a histogram may have; above it, they are merged in
	// pairs.
	nativeBuckets = 160
)

// sparse is the native form of a histogram, which guards it. The zero value is ready to use.
type sparse struct {
	merges             int32 // how often buckets were merged: the schema is finestSchema less this
	zero               uint64
	positive, negative []sparseBucket // by index
}

// sparseBucket counts the values of a bucket: those above its lower limit, up to 2 to the
// power of index divided by the buckets between a value and its double.
type sparseBucket struct {
	index int32
	count uint64
}

func (s *sparse) observe(value float64) {
	buckets, size := &s.positive, value
	if value < 0 {
		buckets, size = &s.negative, -value
	}
	if size <= prometheus.DefNativeHistogramZeroThreshold || math.IsNaN(value) {
		s.zero++
		return
	}
	// Infinite values count as the largest.
	index := widen(int32(math.Ceil(math.Log2(min(size, math.MaxFloat64))*(1<<finestSchema))), s.merges)
	at, found := findBucket(*buckets, index)
	if !found {
		*buckets = slices.Insert(*buckets, at, sparseBucket{index: index})
	}
	(*buckets)[at].count++
	if len(s.positive)+len(s.negative) > nativeBuckets && s.merges < finestSchema-coarsestSchema {
		s.merges++
		s.positive, s.negative = merge(s.positive), merge(s.negative)
	}
}

// findBucket returns the place of a bucket among others, and whether it is there.
func findBucket(buckets []sparseBucket, index int32) (at int, found bool) {
	if len(buckets) == 0 {
		return 0, false
	}
	// Most values are near each other, and few of the buckets between them are missing: each
	// of those is a step back.
	if at := int(index) - int(buckets[0].index); at >= 0 {
		at = min(at, len(buckets)-1)
		for range 8 {
			if buckets[at].index == index {
				return at, true
			}
			if at == 0 || buckets[at].index < index {
				break
			}
			at--
		}
	}
	return slices.BinarySearchFunc(buckets, index, func(b sparseBucket, index int32) int { return int(b.index) - int(index) })
}

// widen returns the index of a bucket after merges.
func widen(index, merges int32) int32 { return (index + 1<<merges - 1) >> merges }

// merge merges buckets in pairs.
func merge(buckets []sparseBucket) []sparseBucket {
	merged := buckets[:0]
	for _, b := range buckets {
		b.index = widen(b.index, 1)
		if last := len(merged) - 1; last >= 0 && merged[last].index == b.index {
			merged[last].count += b.count
		} else {
			merged = append(merged, b)
		}
	}
	return merged
}

// metric returns the histogram with both forms.
func (s *sparse) metric(ordinary prometheus.Metric, sum float64, labels []string) prometheus.Metric {
	count := s.zero
	table := func(buckets []sparseBucket) map[int]int64 {
		t := make(map[int]int64, len(buckets))
		for _, b := range buckets {
			t[int(b.index)] = int64(b.count)
			count += b.count
		}
		return t
	}
	positive, negative := table(s.positive), table(s.negative)
	return bothForms{ordinary, prometheus.MustNewConstNativeHistogram(ordinary.Desc(), count, sum, positive, negative, s.zero,
		finestSchema-s.merges, prometheus.DefNativeHistogramZeroThreshold, time.Time{}, labels...)}
}

// bothForms is a histogram with ordinary buckets, and with native ones.
type bothForms struct {
	prometheus.Metric
	native prometheus.Metric
}

// Write implements prometheus.Metric.
func (b bothForms) Write(to *dto.Metric) error {
	if err := b.native.Write(to); err != nil {
		return err
	}
	native := to.Histogram
	if err := b.Metric.Write(to); err != nil {
		return err
	}
	h := to.Histogram
	h.Schema, h.ZeroThreshold, h.ZeroCount = native.Schema, native.ZeroThreshold, native.ZeroCount
	h.PositiveSpan, h.PositiveDelta = native.PositiveSpan, native.PositiveDelta
	h.NegativeSpan, h.NegativeDelta = native.NegativeSpan, native.NegativeDelta
	return nil
}
