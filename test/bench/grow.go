package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/apikeel/kelson/test/bench/servers"
)

// sizeList is a flag with numbers.
type sizeList []int

func (l *sizeList) String() string { return strings.Trim(fmt.Sprint([]int(*l)), "[]") }

// Set reads numbers with commas between them, which must rise.
func (l *sizeList) Set(text string) error {
	*l = nil
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		n, err := strconv.Atoi(strings.ReplaceAll(part, "_", ""))
		if err != nil || n < 1 || len(*l) > 0 && n <= (*l)[len(*l)-1] {
			return errors.New("want numbers above zero that rise")
		}
		*l = append(*l, n)
	}
	return nil
}

// grower has what all axes need.
type grower struct {
	repeat     int // slices of each figure, of which the median counts
	namespaced int // objects on the axis of namespaces
	log        io.Writer
}

func grow(ctx context.Context, args []string, out, log io.Writer) error {
	var c common
	fs := flag.NewFlagSet("grow", flag.ContinueOnError)
	fs.SetOutput(log)
	c.bind(fs)
	g := grower{log: log}
	objects, namespaces := sizeList{2_000, 20_000, 200_000}, sizeList{10, 100, 1000}
	watches, crds := sizeList{10, 1000, 10_000}, sizeList{1, 100, 1000}
	fs.Var(&objects, "objects", "`numbers` of ConfigMaps of 1 KB; empty leaves the axis out")
	million := fs.Bool("million", false, "also 1,000,000 objects")
	fs.Var(&namespaces, "namespaces", "`numbers` of namespaces")
	fs.Var(&watches, "watches", "`numbers` of watches of one object each, of which one matches")
	fs.Var(&crds, "crds", "`numbers` of CustomResourceDefinitions")
	fs.IntVar(&g.repeat, "repeat", 3, "slices of each figure, of which the median counts")
	fs.IntVar(&g.namespaced, "namespaced-objects", 20_000, "objects that are spread over the namespaces")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if len(c.specs) == 0 || g.repeat < 1 {
		return errors.New("grow needs a -server, and -repeat above zero")
	}
	if *million {
		objects = append(objects, 1_000_000)
	}
	dir, remove, err := c.open()
	if err != nil {
		return err
	}
	defer remove()
	result := &growth{}
	for _, a := range []*axis{
		{Name: "objects", Sizes: objects, run: g.objects}, {Name: "namespaces", Sizes: namespaces, run: g.namespaces},
		{Name: "watches", Sizes: watches, run: g.watches}, {Name: "definitions", Sizes: crds, run: g.definitions},
	} {
		if len(a.Sizes) > 0 {
			result.Axes = append(result.Axes, a)
		}
	}
	var failed []error
	for i, s := range c.specs {
		result.Servers = append(result.Servers, s.Name)
		if s.Kind == servers.Running {
			return errors.New("grow starts its servers again and again: it needs programs, no kubeconfig")
		}
		if s, err = s.Build(ctx, dir); err != nil {
			return err
		}
		for _, a := range result.Axes {
			folder := filepath.Join(dir, fmt.Sprintf("%d-%s", i, a.Name))
			if err := a.run(ctx, a, s, i, folder); err != nil {
				failed = append(failed, fmt.Errorf("%s: %s: %w", s.Name, a.Name, err))
				fmt.Fprintln(log, "FAIL:", failed[len(failed)-1])
			}
			if !c.keep {
				_ = os.RemoveAll(folder)
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	if c.json != "" {
		if err := writeJSON(c.json, result); err != nil {
			return err
		}
	}
	if err := result.draw(c.svg); err != nil {
		return err
	}
	if err := write(c.md, out, result.markdown()); err != nil {
		return err
	}
	return errors.Join(failed...)
}

// begin starts a server on a folder and returns a target.
func (g grower) begin(ctx context.Context, s servers.Spec, dir string) (*target, error) {
	v, err := s.Launch(ctx, dir)
	if err != nil {
		return nil, err
	}
	t := newTarget(v)
	if err := v.WaitReady(ctx); err != nil {
		v.Stop()
		return nil, err
	}
	if err := createNamespace(ctx, t, namespace); err != nil {
		v.Stop()
		return nil, err
	}
	return t, nil
}

// fillWorkers is how many clients fill a server.
const fillWorkers = 64

// fill creates ConfigMaps number from to size-1, spread over namespaces.
func (g grower) fill(ctx context.Context, t *target, from, size, namespaces int) error {
	begin := time.Now()
	if from == 0 {
		if err := inParallel(ctx, 16, namespaces, func(ctx context.Context, _, i int) error {
			return createNamespace(ctx, t, filledNamespace(i))
		}); err != nil {
			return err
		}
	}
	err := inParallel(ctx, fillWorkers, size-from, func(ctx context.Context, worker, i int) error {
		i += from
		_, err := t.client.send(ctx, worker, request{method: http.MethodPost, path: "/api/v1/namespaces/" + filledNamespace(i%namespaces) + "/configmaps", body: filled(i)})
		return err
	})
	fmt.Fprintf(g.log, "%-20s filled to %d objects in %v\n", t.Name, size, time.Since(begin).Round(100*time.Millisecond))
	return err
}

func filledNamespace(i int) string { return fmt.Sprintf("filled-%04d", i) }

// filled is the ConfigMap of a number: one of a thousand has its label share, and twenty
// in all have the label pick.
func filled(i int) string {
	labels := fmt.Sprintf(`,"labels":{"share":"s%d"`, i%1000)
	if i < 20 {
		labels += `,"pick":"few"`
	}
	return configMap(fmt.Sprintf("cm-%07d", i), "filled", labels+"}")
}

// cost measures an operation in slices and sets the median of its CPU-ms, or where they
// are not known of its milliseconds.
func (g grower) cost(ctx context.Context, a *axis, server, size int, t *target, name string, count int, work func(context.Context, *meter, int) error) error {
	var costs []float64
	for range g.repeat {
		s, err := measure(ctx, t, func(ctx context.Context, m *meter) error { return work(ctx, m, count) })
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		costs = append(costs, s.cost())
	}
	a.set(name+", CPU-ms", server, size, median(costs))
	fmt.Fprintf(g.log, "%-20s %s %d: %s: %s CPU-ms\n", t.Name, a.Name, a.Sizes[size], name, figures(median(costs)))
	return nil
}

// Names of figures that several axes have.
const (
	memoryFigure       = "memory, MiB"
	readyFigure        = "restart until ready, s"
	restartFigure      = "restart until at rest, CPU-s"
	readyCPUFigure     = "restart until ready, CPU-s"
	firstListFigure    = "first list of 20 after a restart, CPU-ms"
	shareFigure        = "list by a label that 0.1% have"
	restPatience       = time.Minute
	memoryAfterRestart = "memory after a restart, MiB"
)

// single measures what concerns one object or few, which must not depend on how many
// others there are.
func (g grower) single(ctx context.Context, a *axis, server, size int, t *target) error {
	if err := needConfigMaps(ctx, t, 1000); err != nil {
		return err
	}
	for _, o := range []struct {
		name  string
		count int
		work  func(context.Context, *meter, int) error
	}{
		{"create, 16 clients", 500, createConfigMaps(16)},
		{"get, 16 clients", 2000, getConfigMaps(16)},
		{"list of 20", 400, list(smallListPath, asJSON, 4)},
		{"page of 20 of all", 100, list("/api/v1/configmaps?limit=20", asJSON, 4)},
		{"list by a label that 20 have", 12, list("/api/v1/configmaps?labelSelector=pick%3Dfew", asJSON, 1)},
		{shareFigure, 12, list("/api/v1/configmaps?labelSelector=share%3Ds7", asJSON, 1)},
	} {
		if err := g.cost(ctx, a, server, size, t, o.name, o.count, o.work); err != nil {
			return err
		}
	}
	return nil
}

// rest waits until the server is at rest and sets its memory.
func (g grower) rest(ctx context.Context, a *axis, server, size int, t *target, figure string) error {
	if err := t.Settle(ctx, restPatience); err != nil {
		return err
	}
	now, _ := t.Memory()
	a.set(figure, server, size, now)
	fmt.Fprintf(g.log, "%-20s %s %d: %s: %s\n", t.Name, a.Name, a.Sizes[size], figure, figures(now))
	return nil
}

// restart stops the server and starts it on the same folder. It returns the new target,
// with the objects of the old one.
func (g grower) restart(ctx context.Context, a *axis, server, size int, old *target, s servers.Spec, dir string) (*target, error) {
	old.client.close()
	old.Stop()
	begin := time.Now()
	v, err := s.Launch(ctx, dir)
	if err != nil {
		return nil, err
	}
	t := newTarget(v)
	t.count, t.configMaps, t.leases, t.customs, t.pods = old.count, old.configMaps, old.leases, old.customs, old.pods
	if err := v.WaitReady(ctx); err != nil {
		return t, err
	}
	ready := time.Since(begin)
	used := v.CPU()
	a.set(readyFigure, server, size, ready.Seconds())
	a.set(readyCPUFigure, server, size, used)
	if _, err := t.client.send(ctx, 0, request{path: configMapsPath + "?limit=20"}); err != nil {
		return t, err
	}
	a.set(firstListFigure, server, size, 1000*(v.CPU()-used))
	if err := g.rest(ctx, a, server, size, t, memoryAfterRestart); err != nil {
		return t, err
	}
	a.set(restartFigure, server, size, v.CPU())
	fmt.Fprintf(g.log, "%-20s %s %d: ready after %v, CPU %.2f s\n", t.Name, a.Name, a.Sizes[size], ready.Round(time.Millisecond), v.CPU())
	return t, nil
}

// objects fills one server step by step.
func (g grower) objects(ctx context.Context, a *axis, s servers.Spec, server int, dir string) error {
	t, err := g.begin(ctx, s, dir)
	if err != nil {
		return err
	}
	defer func() { t.Stop() }()
	if err := needSmallList(ctx, t, 0); err != nil {
		return err
	}
	from := 0
	for i, size := range a.Sizes {
		if err := g.fill(ctx, t, from, size, 10); err != nil {
			return err
		}
		from = size
		if err := g.rest(ctx, a, server, i, t, memoryFigure); err != nil {
			return err
		}
		if err := g.single(ctx, a, server, i, t); err != nil {
			return err
		}
		next, err := g.restart(ctx, a, server, i, t, s, dir)
		if next != nil {
			t = next
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// namespaces spreads the same number of objects over more and more namespaces.
func (g grower) namespaces(ctx context.Context, a *axis, s servers.Spec, server int, dir string) error {
	for i, size := range a.Sizes {
		t, err := g.begin(ctx, s, filepath.Join(dir, strconv.Itoa(size)))
		if err != nil {
			return err
		}
		err = errors.Join(needSmallList(ctx, t, 0), g.fill(ctx, t, 0, g.namespaced, size))
		if err == nil {
			err = g.rest(ctx, a, server, i, t, memoryFigure)
		}
		if err == nil {
			err = g.single(ctx, a, server, i, t)
		}
		t.Stop()
		if err != nil {
			return err
		}
	}
	return nil
}

// streamsEach is how many watches share a connection: servers allow 100 streams or more.
const streamsEach = 90

// watches opens more and more watches of one object each. One of them is of an object
// that is updated.
func (g grower) watches(ctx context.Context, a *axis, s servers.Spec, server int, dir string) error {
	t, err := g.begin(ctx, s, dir)
	if err != nil {
		return err
	}
	defer t.Stop()
	if err := needConfigMaps(ctx, t, 1000); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	most := a.Sizes[len(a.Sizes)-1]
	c := newClient(t.Server, most/streamsEach+1)
	defer c.close()
	arrived := make(chan struct{}, 1)
	open := func(ctx context.Context, i int, version string) error {
		name := fmt.Sprintf("nobody-%05d", i)
		if i == 0 {
			name = t.configMaps[0].name
		}
		resp, err := c.open(ctx, i/streamsEach, request{path: configMapsPath + "?watch=1&fieldSelector=metadata.name%3D" + name + "&resourceVersion=" + version})
		if err != nil {
			return err
		}
		go func() {
			defer resp.Body.Close()
			lines := bufio.NewScanner(resp.Body)
			for lines.Scan() {
				if i != 0 {
					cancel(fmt.Errorf("the watch of %s got an event: %.200s", name, lines.Text()))
					return
				}
				arrived <- struct{}{}
			}
		}()
		return nil
	}
	opened := 0
	for i, size := range a.Sizes {
		from := opened
		// Watches begin now: a version of the step before may be out of the history.
		text, err := t.client.fetch(ctx, 0, request{path: configMapsPath + "?limit=1"})
		if err != nil {
			return err
		}
		version := resourceVersion(text)
		// The watches live as long as this function, so it is not the context of one call.
		if err := inParallel(ctx, 16, size-from, func(_ context.Context, _, n int) error { return open(ctx, from+n, version) }); err != nil {
			return err
		}
		opened = size
		if err := g.rest(ctx, a, server, i, t, memoryFigure); err != nil {
			return err
		}
		err = g.cost(ctx, a, server, i, t, "update with one matching watch", 200, func(ctx context.Context, m *meter, count int) error {
			return m.loop(ctx, 1, count, func(ctx context.Context, _, n int) error {
				if _, err := t.client.send(ctx, 0, request{method: http.MethodPatch, path: configMapsPath + "/" + t.configMaps[0].name,
					contentType: mergePatch, body: fmt.Sprintf(`{"data":{"value":"%d %d"}}`, n, time.Now().UnixNano())}); err != nil {
					return err
				}
				select {
				case <-arrived:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(30 * time.Second):
					return errors.New("no event after 30 s")
				}
			})
		})
		if err != nil {
			return err
		}
		if err := g.cost(ctx, a, server, i, t, "create, 16 clients", 500, createConfigMaps(16)); err != nil {
			return err
		}
		if err := g.cost(ctx, a, server, i, t, "get, 16 clients", 2000, getConfigMaps(16)); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// definitions makes more and more definitions; objects are of the first.
func (g grower) definitions(ctx context.Context, a *axis, s servers.Spec, server int, dir string) error {
	t, err := g.begin(ctx, s, dir)
	if err != nil {
		return err
	}
	defer func() { t.Stop() }()
	made := 0
	for i, size := range a.Sizes {
		from := made
		begin := time.Now()
		if from == 0 {
			if err := needDefinition(ctx, t, 0); err != nil {
				return err
			}
			from = 1
		}
		if err := inParallel(ctx, 8, size-from, func(ctx context.Context, worker, n int) error {
			_, err := t.client.send(ctx, worker, request{method: http.MethodPost, path: definitions, body: definition(fmt.Sprintf("things%04d", from+n), fmt.Sprintf("Thing%04d", from+n))})
			return err
		}); err != nil {
			return err
		}
		if size > 1 {
			if err := untilServed(ctx, t, fmt.Sprintf("things%04d", size-1)); err != nil {
				return err
			}
		}
		made = size
		fmt.Fprintf(g.log, "%-20s %d definitions after %v\n", t.Name, size, time.Since(begin).Round(100*time.Millisecond))
		if err := g.rest(ctx, a, server, i, t, memoryFigure); err != nil {
			return err
		}
		if err := needCustoms(ctx, t, 0); err != nil {
			return err
		}
		for _, o := range []struct {
			name  string
			count int
			work  func(context.Context, *meter, int) error
		}{
			{"create custom resource, 16 clients", 300, createCustoms},
			{"get custom resource, 16 clients", 1000, getCustoms},
			{"create ConfigMap, 16 clients", 500, createConfigMaps(16)},
		} {
			if err := g.cost(ctx, a, server, i, t, o.name, o.count, o.work); err != nil {
				return err
			}
		}
		next, err := g.restart(ctx, a, server, i, t, s, dir)
		if next != nil {
			t = next
		}
		if err != nil {
			return err
		}
		if err := untilServed(ctx, t, customPlural); err != nil {
			return err
		}
	}
	return nil
}
