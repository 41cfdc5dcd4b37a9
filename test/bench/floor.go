package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"

	"github.com/apikeel/kelson/test/bench/servers"
)

// floor measures the works of the reference server: what TLS, HTTP/2 and a synced file cost
// on this machine, below which no server can come that is written in Go.
func floor(ctx context.Context, args []string, out, log io.Writer) error {
	fs := flag.NewFlagSet("floor", flag.ContinueOnError)
	fs.SetOutput(log)
	rounds := fs.Int("rounds", 3, "rounds, of which the median counts")
	var c common
	c.bind(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if !servers.KnowsProcesses {
		return errors.New("the CPU time of processes is known on Linux only")
	}
	dir, remove, err := c.open()
	if err != nil {
		return err
	}
	defer remove()
	t, err := startFloor(ctx, dir)
	if err != nil {
		return err
	}
	defer t.Stop()
	fmt.Fprintln(out, "| the least that a server does | CPU-ms | p50, ms |\n|---|---:|---:|")
	for _, name := range []string{writeQuiet, writeAlone, writeMany, readAlone, readSmall, readLarge} {
		w := referenceWork(name)
		var costs, times []float64
		for range *rounds {
			s, err := measure(ctx, t, func(ctx context.Context, m *meter) error { return w.work(ctx, m, w.count) })
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			costs, times = append(costs, s.cost()), append(times, s.P50)
		}
		slices.Sort(costs)
		slices.Sort(times)
		fmt.Fprintf(out, "| %s | %s | %s |\n", name, figures(quantile(costs, 0.5)), figures(quantile(times, 0.5)))
	}
	return nil
}

// startFloor starts the reference server as a target, which does the least for each operation.
func startFloor(ctx context.Context, dir string) (*target, error) {
	v, err := startReference(dir)
	if err != nil {
		return nil, err
	}
	if err := v.WaitReady(ctx); err != nil {
		v.Stop()
		return nil, err
	}
	v.Name = "floor"
	t := newTarget(v)
	t.floor = true
	return t, nil
}
