package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
)

// markdown is the comparison as tables. Ratios are the first server's cost divided by
// another's, so what is larger than 1 is in favour of the other.
func (c *comparison) markdown() string {
	var b strings.Builder
	row := func(first string, cells ...string) {
		fmt.Fprintf(&b, "| %s | %s |\n", first, strings.Join(cells, " | "))
	}
	head := func(title string, labels ...string) {
		var names, lines []string
		for _, name := range c.Servers {
			names, lines = append(names, name), append(lines, "---:")
		}
		for _, name := range c.Servers[1:] {
			for i := range labels {
				names, lines = append(names, labels[i]+c.Servers[0]+" / "+name), append(lines, "---:")
			}
		}
		row(title, names...)
		row("---", lines...)
	}
	fmt.Fprintf(&b, "A cell: operations a second · p50 / p99 ms · CPU-ms of the server an operation (of it, those of etcd or PostgreSQL); medians of %d rounds in turn.", c.Rounds)
	if confidence := c.confidence(); confidence > 0 {
		fmt.Fprintf(&b, "\nA ratio: how many times as much %s needs, with the interval at %.0f%% confidence; ~ says that no difference was seen.", c.Servers[0], 100*confidence)
		if confidence < wantedConfidence {
			b.WriteString(" Six rounds or more are needed for 95%.")
		}
	}
	b.WriteString("\n\n")
	if len(c.Operations) > 0 {
		head("operation", "CPU, ", "time, ")
	}
	for _, m := range c.Operations {
		var cells []string
		for _, samples := range m.Samples {
			if len(samples) == 0 && len(m.Errors) == 0 {
				cells = append(cells, "–") // the floor does not have all operations
				continue
			}
			cells = append(cells, cell(samples))
		}
		for i := range c.Servers[1:] {
			cells = append(cells, m.ratio(i+1, sample.cost).String(), m.ratio(i+1, secondsEach).String())
		}
		row(m.Name, cells...)
	}
	b.WriteString("\n")
	head("footprint", "")
	for _, f := range []struct {
		name string
		get  func(footprint) []float64
	}{
		{"ready after, s", func(f footprint) []float64 { return f.Ready }},
		{"CPU to start, s", func(f footprint) []float64 { return f.StartCPU }},
		{"OpenAPI v3 index, first read, ms", func(f footprint) []float64 { return f.OpenAPIIndex }},
		{"OpenAPI v3 apps/v1, first read, ms", func(f footprint) []float64 { return f.OpenAPIGroup }},
		{"idle memory (RSS), MiB", func(f footprint) []float64 { return f.Idle }},
		{"memory after the run (RSS), MiB", func(f footprint) []float64 { return []float64{f.After} }},
		{"peak memory (RSS), MiB", func(f footprint) []float64 { return []float64{f.Peak} }},
	} {
		var cells []string
		for _, of := range c.Footprints {
			cells = append(cells, known(median(f.get(of))))
		}
		for _, of := range c.Footprints[1:] {
			if r := median(f.get(c.Footprints[0])) / median(f.get(of)); r > 0 && !math.IsInf(r, 0) {
				cells = append(cells, "×"+figures(r))
			} else {
				cells = append(cells, "–")
			}
		}
		row(f.name, cells...)
	}
	if load := c.otherLoad(); load > 0 {
		fmt.Fprintf(&b, "\nOther programs used %s cores meanwhile (median of the slices).\n", figures(load))
	}
	return b.String()
}

// known is a figure, or a dash if it is not known.
func known(v float64) string {
	if v == 0 {
		return "–"
	}
	return figures(v)
}

func cell(samples []sample) string {
	if len(samples) == 0 {
		return "failed"
	}
	s := summarize(samples)
	text := fmt.Sprintf("%s/s · %s / %s · ", figures(s.perSecond()), figures(s.P50), figures(s.P99)) + figures(s.cost())
	if s.StoreCPU > 0 {
		text += " (store " + figures(s.StoreCPU*1000/float64(s.Ops)) + ")"
	}
	if mb := float64(s.Bytes) / 1e6; mb/float64(s.Ops) > 0.1 {
		text += fmt.Sprintf(" · %s MB/s", figures(mb/s.Seconds))
	}
	return text
}

// secondsEach returns the time an operation takes.
func secondsEach(s sample) float64 { return 1 / s.perSecond() }

// ratio compares the first server with another, round by round.
func (m measured) ratio(other int, get func(sample) float64) ratio {
	return compareRounds(values(m.Samples[0], get), values(m.Samples[other], get))
}

// confidence returns the confidence of the intervals.
func (c *comparison) confidence() float64 {
	for _, m := range c.Operations {
		if len(m.Samples) > 1 {
			if r := m.ratio(1, secondsEach); r.Rounds > 0 {
				return r.Confidence
			}
		}
	}
	return 0
}

func (c *comparison) otherLoad() float64 {
	var all []float64
	for _, m := range c.Operations {
		for _, samples := range m.Samples {
			all = append(all, values(samples, func(s sample) float64 { return s.OtherLoad })...)
		}
	}
	if len(all) == 0 {
		return 0
	}
	return median(all)
}

// chart draws the CPU ratios of all operations.
func (c *comparison) chart() string {
	chart := barChart{title: "CPU an operation: how many times as much " + c.Servers[0] + " needs", series: c.Servers[1:]}
	for _, m := range c.Operations {
		g := barGroup{label: m.Name}
		for i := range c.Servers[1:] {
			r := m.ratio(i+1, sample.cost)
			g.bars = append(g.bars, bar{value: r.Estimate, low: r.Low, high: r.High})
		}
		chart.groups = append(chart.groups, g)
	}
	return chart.svg()
}

// writeJSON writes a result into a file, so that a person can read it as well.
func writeJSON(file string, result any) error {
	text, err := json.MarshalIndent(result, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
