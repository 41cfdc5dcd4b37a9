package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/apikeel/kelson/test/bench/servers"
)

// comparison is everything that compare has measured.
type comparison struct {
	Servers    []string    `json:"servers"`
	Rounds     int         `json:"rounds"`
	Operations []measured  `json:"operations"`
	Footprints []footprint `json:"footprints"` // of each server
}

// measured has the samples of one operation: of each server, those of each round.
type measured struct {
	Name    string     `json:"name"`
	Samples [][]sample `json:"samples"`
	Errors  []string   `json:"errors,omitempty"`
}

// footprint is what a server needs without being asked for anything. Lists have one value
// a start.
type footprint struct {
	Ready        []float64 `json:"ready_s"`
	StartCPU     []float64 `json:"start_cpu_s"`
	OpenAPIIndex []float64 `json:"openapi_v3_index_first_ms"`
	OpenAPIGroup []float64 `json:"openapi_v3_group_first_ms"`
	Idle         []float64 `json:"idle_mib"`
	Peak         float64   `json:"peak_mib"` // in the whole run
	After        float64   `json:"after_mib"`
}

func compare(ctx context.Context, args []string, out, log io.Writer) error {
	var c common
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	fs.SetOutput(log)
	c.bind(fs)
	rounds := fs.Int("rounds", 6, "rounds; six are the least for intervals of 95% confidence")
	starts := fs.Int("starts", 3, "how often each server is started on an empty folder")
	scale := fs.Float64("scale", 1, "how many operations a slice has: 2 is twice as many")
	least := fs.Bool("floor", false, "also measure the least that a server does for an operation, see the command floor")
	only := fs.String("ops", "", "`regular expression` for the names of operations to measure (default all)")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if len(c.specs) == 0 || *rounds < 1 || *starts < 1 || *scale <= 0 {
		return errors.New("compare needs a -server, and -rounds, -starts and -scale above zero")
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	dir, remove, err := c.open()
	if err != nil {
		return err
	}
	defer remove()
	result, err := runComparison(ctx, c.specs, *least, dir, *rounds, *starts, *scale, pattern, log)
	if err != nil {
		return err
	}
	if c.json != "" {
		if err := writeJSON(c.json, result); err != nil {
			return err
		}
	}
	if c.svg != "" {
		if err := os.WriteFile(c.svg, []byte(result.chart()), 0o644); err != nil {
			return err
		}
	}
	if err := write(c.md, out, result.markdown()); err != nil {
		return err
	}
	return result.failed()
}

// runComparison starts all servers and measures each operation in turn on each of them:
// a slice on the first, a slice on the second, and so on, in the other order in the next
// round. So what else goes on on the machine is in the figures of all. With least, the
// reference server is one of them, which does the work that is the least for an operation.
func runComparison(ctx context.Context, specs []servers.Spec, least bool, dir string, rounds, starts int, scale float64, only *regexp.Regexp, log io.Writer) (*comparison, error) {
	result := &comparison{Rounds: rounds, Footprints: make([]footprint, len(specs))}
	targets := make([]*target, len(specs), len(specs)+1)
	defer func() {
		for _, t := range targets {
			if t != nil {
				t.Stop()
			}
		}
	}()
	for i, s := range specs {
		built, err := s.Build(ctx, dir)
		if err != nil {
			return nil, err
		}
		specs[i] = built
		result.Servers = append(result.Servers, s.Name)
	}
	for start := range starts {
		for i, s := range specs {
			v, err := result.Footprints[i].start(ctx, s, filepath.Join(dir, fmt.Sprintf("%d-%d", i, start)))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.Name, err)
			}
			if start < starts-1 {
				v.Stop()
				continue
			}
			targets[i] = newTarget(v)
			if err := createNamespace(ctx, targets[i], namespace); err != nil {
				return nil, fmt.Errorf("%s: %w", s.Name, err)
			}
		}
	}
	if least {
		t, err := startFloor(ctx, dir)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
		result.Servers, result.Footprints = append(result.Servers, t.Name), append(result.Footprints, footprint{})
	}
	for _, o := range operations() {
		if !only.MatchString(o.name) {
			continue
		}
		count := max(1, int(float64(o.count)*scale))
		m, err := measureInTurn(ctx, targets, o, count, rounds)
		if err != nil {
			return nil, err
		}
		result.Operations = append(result.Operations, m)
		for i, t := range targets {
			fmt.Fprintf(log, "%-56s %-20s %s\n", o.name, t.Name, summarize(m.Samples[i]).describe())
		}
		for _, text := range m.Errors {
			fmt.Fprintln(log, "FAIL:", text)
		}
	}
	for i, t := range targets {
		if err := t.Settle(ctx, 10*time.Second); err != nil {
			return nil, err
		}
		result.Footprints[i].After, result.Footprints[i].Peak = t.Memory()
		if i < len(specs) && specs[i].Kind == servers.Running {
			if err := cleanUp(ctx, t); err != nil {
				return nil, fmt.Errorf("%s: %w", t.Name, err)
			}
		}
	}
	return result, nil
}

// measureInTurn measures one operation. A server on which it fails has no more slices of
// it; only the end of the context is an error.
func measureInTurn(ctx context.Context, targets []*target, o operation, count, rounds int) (measured, error) {
	m := measured{Name: o.name, Samples: make([][]sample, len(targets))}
	failed := make([]bool, len(targets))
	fail := func(i int, err error) {
		failed[i] = true
		m.Errors = append(m.Errors, fmt.Sprintf("%s: %s: %v", o.name, targets[i].Name, err))
	}
	for i, t := range targets {
		if o.prepare != nil && !t.floor {
			if err := o.prepare(ctx, t, count); err != nil {
				fail(i, err)
			}
		}
	}
	for round := range rounds {
		for n := range targets {
			i := n
			if round%2 == 1 {
				i = len(targets) - 1 - n
			}
			work := o.work
			if targets[i].floor {
				work = o.floorWork()
			}
			if failed[i] || work == nil {
				continue
			}
			s, err := measure(ctx, targets[i], func(ctx context.Context, m *meter) error { return work(ctx, m, count) })
			if ctx.Err() != nil {
				return m, ctx.Err()
			}
			if err != nil {
				fail(i, err)
				continue
			}
			m.Samples[i] = append(m.Samples[i], s)
		}
	}
	return m, nil
}

// start starts a server on an empty folder and measures what comes before its load.
func (f *footprint) start(ctx context.Context, s servers.Spec, dir string) (*servers.Server, error) {
	begin := time.Now()
	v, err := s.Launch(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := v.WaitReady(ctx); err != nil {
		v.Stop()
		return nil, err
	}
	f.Ready = append(f.Ready, time.Since(begin).Seconds())
	err = v.Settle(ctx, 5*time.Second)
	f.StartCPU = append(f.StartCPU, v.CPU())
	idle, _ := v.Memory()
	f.Idle = append(f.Idle, idle)
	c := newClient(v, 1)
	defer c.close()
	_, openErr := c.send(ctx, 0, request{path: "/readyz"}) // the connection is open
	for _, read := range []struct {
		path  string
		times *[]float64
	}{{"/openapi/v3", &f.OpenAPIIndex}, {"/openapi/v3/apis/apps/v1", &f.OpenAPIGroup}} {
		begin := time.Now()
		_, readErr := c.send(ctx, 0, request{path: read.path})
		*read.times = append(*read.times, milliseconds(time.Since(begin)))
		openErr = errors.Join(openErr, readErr)
	}
	if err := errors.Join(err, openErr); err != nil {
		v.Stop()
		return nil, err
	}
	return v, nil
}

// failed returns the errors of all operations.
func (c *comparison) failed() error {
	var all []error
	for _, m := range c.Operations {
		for _, text := range m.Errors {
			all = append(all, errors.New(text))
		}
	}
	return errors.Join(all...)
}

// summarize returns the median of each figure of samples.
func summarize(samples []sample) sample {
	if len(samples) == 0 {
		return sample{}
	}
	middle := func(get func(sample) float64) float64 {
		var values []float64
		for _, s := range samples {
			values = append(values, get(s))
		}
		return median(values)
	}
	ops := samples[0].Ops
	return sample{
		Ops: ops, Seconds: float64(ops) / middle(sample.perSecond),
		CPU:      middle(func(s sample) float64 { return s.CPU / float64(s.Ops) }) * float64(ops),
		StoreCPU: middle(func(s sample) float64 { return s.StoreCPU / float64(s.Ops) }) * float64(ops),
		P50:      middle(func(s sample) float64 { return s.P50 }), P99: middle(func(s sample) float64 { return s.P99 }),
		Bytes:     int64(middle(func(s sample) float64 { return float64(s.Bytes) })),
		OtherLoad: middle(func(s sample) float64 { return s.OtherLoad }),
	}
}

// values returns a figure of each sample.
func values(samples []sample, get func(sample) float64) []float64 {
	all := make([]float64, len(samples))
	for i, s := range samples {
		all[i] = get(s)
	}
	return all
}
