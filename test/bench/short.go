package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/apikeel/kelson/test/bench/servers"
)

// What the short form measures besides operations.
const (
	startCost  = "start, in calibration loops"
	idleMemory = "idle memory, MiB"
)

// referenceCosts is what things cost when they were last written down: the CPU time of an
// operation divided by that of a work of the reference server.
//
//go:embed reference.json
var referenceCosts []byte

const (
	// attempts is how often a cost that is too high is measured again. Only what is too
	// high each time is a failure: other work on the machine comes and goes.
	attempts = 3
	// shortScale is the size of slices.
	shortScale = 0.3
)

// verdict is the outcome for one cost.
type verdict struct {
	name      string
	got, want float64
	tries     int
}

func short(ctx context.Context, args []string, out, log io.Writer) error {
	var c common
	fs := flag.NewFlagSet("short", flag.ContinueOnError)
	fs.SetOutput(log)
	c.bind(fs)
	factor := fs.Float64("factor", 2, "how many times its reference a cost may be")
	rounds := fs.Int("rounds", 3, "rounds of each attempt")
	update := fs.String("update", "", "`file` (reference.json) to write the costs to that are measured now, instead of checking them")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if len(c.specs) != 1 || c.specs[0].Kind == servers.Running {
		return errors.New("short needs one -server that it can start")
	}
	if raceDetector {
		return errors.New("this program is built with the race detector, with which costs mean nothing; build it without: go run -race=false . short")
	}
	if !servers.KnowsProcesses {
		return errors.New("the CPU time of processes is known on Linux only")
	}
	want := map[string]float64{}
	if err := json.Unmarshal(referenceCosts, &want); err != nil {
		return fmt.Errorf("reference.json: %w", err)
	}
	dir, remove, err := c.open()
	if err != nil {
		return err
	}
	defer remove()
	begin := time.Now()
	verdicts, err := runShort(ctx, c.specs[0], dir, *rounds, *factor, want, *update != "", log)
	if err != nil {
		return err
	}
	if *update != "" {
		got := map[string]float64{}
		for _, v := range verdicts {
			got[v.name] = v.got
		}
		return writeReference(*update, got)
	}
	if err := write(c.md, out, shortTable(verdicts, *factor)); err != nil {
		return err
	}
	fmt.Fprintf(log, "took %v\n", time.Since(begin).Round(time.Second))
	var failed []error
	for _, v := range verdicts {
		if v.want == 0 {
			failed = append(failed, fmt.Errorf("%s has no reference: write one with -update", v.name))
		} else if v.got > *factor*v.want {
			failed = append(failed, fmt.Errorf("%s: got a cost of %s, want at most %s × %s", v.name, figures(v.got), figures(*factor), figures(v.want)))
		}
		delete(want, v.name)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		failed = append(failed, fmt.Errorf("%s is in reference.json and was not measured", name))
	}
	return errors.Join(failed...)
}

// runShort measures all costs, those that are too high up to three times.
func runShort(ctx context.Context, s servers.Spec, dir string, rounds int, factor float64, want map[string]float64, once bool, log io.Writer) ([]verdict, error) {
	s, err := s.Build(ctx, dir)
	if err != nil {
		return nil, err
	}
	referenceServer, err := startReference(dir)
	if err != nil {
		return nil, err
	}
	defer referenceServer.Stop()
	if err := referenceServer.WaitReady(ctx); err != nil {
		return nil, err
	}
	reference := newTarget(referenceServer)

	var verdicts []verdict
	// keep adds the verdict on one cost.
	keep := func(name string, cost func(try int) (float64, error)) error {
		v, err := judge(name, want[name], factor, once, cost)
		verdicts = append(verdicts, v)
		fmt.Fprintf(log, "%-48s %s (reference %s)\n", name, figures(v.got), figures(v.want))
		return err
	}

	var idle float64
	err = keep(startCost, func(try int) (float64, error) {
		var ratios []float64
		for round := range 3 {
			loop, err := calibrate()
			if err != nil {
				return 0, err
			}
			var f footprint
			v, err := f.start(ctx, s, filepath.Join(dir, fmt.Sprintf("start-%d-%d", try, round)))
			if err != nil {
				return 0, err
			}
			v.Stop()
			ratios, idle = append(ratios, f.StartCPU[0]/loop), f.Idle[0]
		}
		return median(ratios), nil
	})
	if err != nil {
		return nil, err
	}
	if err := keep(idleMemory, func(int) (float64, error) { return idle, nil }); err != nil {
		return nil, err
	}

	v, err := s.Launch(ctx, filepath.Join(dir, "load"))
	if err != nil {
		return nil, err
	}
	defer v.Stop()
	if err := v.WaitReady(ctx); err != nil {
		return nil, err
	}
	t := newTarget(v)
	if err := createNamespace(ctx, t, namespace); err != nil {
		return nil, err
	}
	for _, o := range operations() {
		if o.reference == "" {
			continue
		}
		count := max(4, int(float64(o.count)*shortScale))
		if o.prepare != nil {
			if err := o.prepare(ctx, t, count); err != nil {
				return nil, fmt.Errorf("%s: %w", o.name, err)
			}
		}
		err := keep(o.name, func(int) (float64, error) {
			return relativeCost(ctx, t, reference, o, count, rounds)
		})
		if err != nil {
			return nil, err
		}
	}
	return verdicts, nil
}

// judge measures until a cost is right, or was too high often enough, and keeps the lowest.
func judge(name string, want, factor float64, once bool, cost func(try int) (float64, error)) (verdict, error) {
	v := verdict{name: name, want: want}
	for v.tries < attempts {
		got, err := cost(v.tries)
		if err != nil {
			return v, fmt.Errorf("%s: %w", name, err)
		}
		if v.tries++; v.tries == 1 || got < v.got {
			v.got = got
		}
		if once || v.got <= factor*v.want {
			break
		}
	}
	return v, nil
}

// relativeCost returns the CPU time of an operation in terms of its work of the reference
// server: the median of rounds, in each of which one follows the other.
func relativeCost(ctx context.Context, t, reference *target, o operation, count, rounds int) (float64, error) {
	w := referenceWork(o.reference)
	n := max(3, int(float64(w.count)*shortScale))
	var ratios []float64
	for range rounds {
		base, err := measure(ctx, reference, func(ctx context.Context, m *meter) error { return w.work(ctx, m, n) })
		if err != nil {
			return 0, err
		}
		s, err := measure(ctx, t, func(ctx context.Context, m *meter) error { return o.work(ctx, m, count) })
		if err != nil {
			return 0, err
		}
		ratios = append(ratios, s.cost()/base.cost())
	}
	return median(ratios), nil
}

func shortTable(verdicts []verdict, factor float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| cost | got | reference | |\n|---|---:|---:|---|\n")
	for _, v := range verdicts {
		word := "ok"
		if v.got > factor*v.want {
			word = "TOO HIGH"
		}
		if v.tries > 1 {
			word += fmt.Sprintf(" after %d attempts", v.tries)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", v.name, figures(v.got), figures(v.want), word)
	}
	return b.String()
}

// writeReference writes costs with two figures: more would be noise.
func writeReference(file string, costs map[string]float64) error {
	rounded := map[string]float64{}
	for name, cost := range costs {
		if _, err := fmt.Sscanf(fmt.Sprintf("%.2g", cost), "%g", &cost); err != nil {
			return err
		}
		rounded[name] = cost
	}
	return writeJSON(file, rounded)
}
