// Package measuretest is a measure.Sink that records everything, for tests. Start at
// Sink.
package measuretest

import (
	"strings"
	"sync"

	"github.com/apikeel/kelson/metrics/measure"
)

// Sink is a measure.Sink that records everything. The zero value is ready to use.
type Sink struct {
	mu  sync.Mutex
	all map[string][]float64
}

var _ measure.Sink = (*Sink)(nil)

// Of returns the observed values of a series.
func (s *Sink) Of(metric string, labels ...string) []float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[name(metric, labels)]
}

// Names returns the number of observations of each series.
func (s *Sink) Names() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := map[string]int{}
	for name, values := range s.all {
		names[name] = len(values)
	}
	return names
}

// Series implements measure.Sink.
func (s *Sink) Series(metric string, labels ...string) measure.Series {
	return series{s, name(metric, labels)}
}

type series struct {
	to   *Sink
	name string
}

// Observe implements measure.Series.
func (o series) Observe(value float64) {
	o.to.mu.Lock()
	defer o.to.mu.Unlock()
	if o.to.all == nil {
		o.to.all = map[string][]float64{}
	}
	o.to.all[o.name] = append(o.to.all[o.name], value)
}

func name(metric string, labels []string) string {
	return strings.Join(append([]string{metric}, labels...), " ")
}
