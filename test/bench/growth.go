package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/apikeel/kelson/test/bench/servers"
)

// growth is everything that grow has measured.
type growth struct {
	Servers []string `json:"servers"`
	Axes    []*axis  `json:"axes"`
}

// axis is one thing that grows, with what was measured at each of its sizes.
type axis struct {
	Name    string    `json:"name"`
	Sizes   []int     `json:"sizes"`
	Metrics []*metric `json:"metrics"`
	run     func(ctx context.Context, a *axis, s servers.Spec, server int, dir string) error
}

// metric is one figure. A value of 0 was not measured.
type metric struct {
	Name   string      `json:"name"`
	Values [][]float64 `json:"values"` // of each server, at each size
	// WithAnswer says that the figure has to grow: it is memory, or the answer grows too.
	WithAnswer bool `json:"with_answer,omitempty"`
}

// set keeps a value of a metric, which is new if nobody has set it before.
func (a *axis) set(name string, server, size int, value float64) {
	var found *metric
	for _, m := range a.Metrics {
		if m.Name == name {
			found = m
		}
	}
	if found == nil {
		found = &metric{Name: name, WithAnswer: strings.HasPrefix(name, "memory") || strings.HasPrefix(name, shareFigure)}
		a.Metrics = append(a.Metrics, found)
	}
	for len(found.Values) <= server {
		found.Values = append(found.Values, make([]float64, len(a.Sizes)))
	}
	found.Values[server][size] = value
}

// draw writes a chart an axis to files whose names begin with a prefix.
func (g *growth) draw(prefix string) error {
	if prefix == "" {
		return nil
	}
	for _, a := range g.Axes {
		if err := os.WriteFile(prefix+a.Name+".svg", []byte(a.chart(g.Servers)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// draw puts together what several calls of grow have written with -json, so that large
// servers can be measured one at a time.
func draw(args []string, out, log io.Writer) error {
	fs := flag.NewFlagSet("draw", flag.ContinueOnError)
	fs.SetOutput(log)
	md := fs.String("md", "", "`file` for the tables as Markdown (default standard output)")
	svg := fs.String("svg", "", "`prefix` of files for the charts")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return errors.New("draw needs files that grow -json has written")
	}
	all := &growth{}
	for _, file := range fs.Args() {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var one growth
		if err := json.Unmarshal(text, &one); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		all.add(one)
	}
	return errors.Join(all.draw(*svg), write(*md, out, all.markdown()))
}

// add adds the servers of another measurement, with the sizes that are in both.
func (g *growth) add(other growth) {
	for _, name := range other.Servers {
		if i := slices.Index(g.Servers, name); i < 0 {
			g.Servers = append(g.Servers, name)
		}
	}
	for _, from := range other.Axes {
		var to *axis
		for _, a := range g.Axes {
			if a.Name == from.Name {
				to = a
			}
		}
		if to == nil {
			to = &axis{Name: from.Name, Sizes: from.Sizes}
			g.Axes = append(g.Axes, to)
		}
		for i, name := range other.Servers {
			server := slices.Index(g.Servers, name)
			for _, m := range from.Metrics {
				if i >= len(m.Values) {
					continue
				}
				for j, value := range m.Values[i] {
					if size := slices.Index(to.Sizes, from.Sizes[j]); size >= 0 {
						to.set(m.Name, server, size, value)
					}
				}
			}
		}
	}
}

// chart draws all figures of an axis.
func (a *axis) chart(servers []string) string {
	c := lineChart{title: "Growth with the number of " + a.Name, xLabel: a.Name, series: servers}
	for _, m := range a.Metrics {
		p := panel{title: m.Name}
		for _, values := range m.Values {
			var line []point
			for i, v := range values {
				line = append(line, point{float64(a.Sizes[i]), v})
			}
			p.lines = append(p.lines, line)
		}
		c.panels = append(c.panels, p)
	}
	return c.svg()
}

// markdown is a table an axis: a row a figure and server, a column a size.
func (g *growth) markdown() string {
	var b strings.Builder
	for _, a := range g.Axes {
		fmt.Fprintf(&b, "| %s | server |", a.Name)
		for _, size := range a.Sizes {
			fmt.Fprintf(&b, " %s |", short1000(float64(size)))
		}
		b.WriteString(" growth |\n|---|---|" + strings.Repeat("---:|", len(a.Sizes)+1) + "\n")
		for _, m := range a.Metrics {
			for i, values := range m.Values {
				fmt.Fprintf(&b, "| %s | %s |", m.Name, g.Servers[i])
				for _, v := range values {
					fmt.Fprintf(&b, " %s |", known(v))
				}
				fmt.Fprintf(&b, " %s |\n", growthWord(a.Sizes, values, m.WithAnswer))
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// noise is by how much a figure may differ without having grown.
const noise = 1.5

// growthWord says by how much a figure has grown from the first size to the last, and
// whether that is more than the logarithm of the size has.
func growthWord(sizes []int, values []float64, withAnswer bool) string {
	first, last := -1, -1
	for i, v := range values {
		if v > 0 {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	if first == last {
		return "–"
	}
	grown := values[last] / values[first]
	word := "×" + figures(grown)
	allowed := noise * math.Log(float64(sizes[last])+1) / math.Log(float64(sizes[first])+1)
	switch {
	case withAnswer:
		word += ", as must be"
	case grown > allowed:
		word += ", faster than the logarithm"
	}
	return word
}
