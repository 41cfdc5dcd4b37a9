package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/test/bench/servers"
)

var updateGolden = flag.Bool("update", false, "write the golden files again")

// TestMain serves the reference server if the test binary was started as that.
func TestMain(m *testing.M) {
	if os.Getenv(referenceVariable) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err := serveReference(ctx, os.Args[2:])
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func near(got, want, by float64) bool { return math.Abs(got-want) <= by }

func TestMedianAndQuantile(t *testing.T) {
	if got := median([]float64{9, 1, 5}); got != 5 {
		t.Errorf("median: got %v, want 5", got)
	}
	if got := median([]float64{4, 1, 2, 3}); got != 2.5 {
		t.Errorf("median of four: got %v, want 2.5", got)
	}
	if got := quantile([]float64{0, 10, 20}, 0.75); got != 15 {
		t.Errorf("quantile: got %v, want 15", got)
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing: got %v, want NaN", got)
	}
}

// The distribution for three values is 1, 1, 1, 2, 1, 1, 1 of eight.
func TestSignedRankDistribution(t *testing.T) {
	want := []float64{1. / 8, 2. / 8, 3. / 8, 5. / 8, 6. / 8, 7. / 8, 1}
	got := signedRankTail(3)
	if len(got) != len(want) {
		t.Fatalf("got %d sums, want %d", len(got), len(want))
	}
	for w := range want {
		if !near(got[w], want[w], 1e-12) {
			t.Errorf("P(W ≤ %d): got %v, want %v", w, got[w], want[w])
		}
	}
}

func TestCompareRounds(t *testing.T) {
	for _, test := range []struct {
		name         string
		above, below []float64
		estimate     float64
		confidence   float64
		p            float64
		differs      bool
	}{
		{"twice in each of six rounds", []float64{2, 4, 6, 8, 10, 12}, []float64{1, 2, 3, 4, 5, 6}, 2, 0.96875, 0.03125, true},
		{"now more, now less", []float64{2, 1, 2, 1, 2, 1}, []float64{1, 2, 1, 2, 1, 2}, 1, 0.96875, 1, false},
		{"one round was disturbed", []float64{2, 2, 2, 2, 2, 2, 2, 60}, []float64{1, 1, 1, 1, 1, 1, 1, 1}, 2, 0.9609375, 0.0078125, true},
		{"three rounds", []float64{3, 3, 3}, []float64{1, 1, 1}, 3, 0.75, 0.25, true},
	} {
		got := compareRounds(test.above, test.below)
		if !near(got.Estimate, test.estimate, 1e-9) || !near(got.Confidence, test.confidence, 1e-9) || !near(got.P, test.p, 1e-9) || got.differs() != test.differs {
			t.Errorf("%s: got %+v that differs %v, want an estimate of %v at %v, p %v, differs %v", test.name, got, got.differs(), test.estimate, test.confidence, test.p, test.differs)
		}
	}
	if got := compareRounds(nil, nil).String(); got != "–" {
		t.Errorf("no rounds: got %q, want a dash", got)
	}
}

func TestFigures(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.01234: "0.0123", 1.5: "1.5", 12: "12", 123.4: "123", 123456: "123456", 0.5: "0.5", 100: "100"} {
		if got := figures(v); got != want {
			t.Errorf("figures(%v): got %q, want %q", v, got, want)
		}
	}
}

// TestChartsAreGolden: charts are as they were, well-formed, and have no colour that is
// black or white, which would vanish on one kind of page.
func TestChartsAreGolden(t *testing.T) {
	charts := map[string]string{
		"bars.svg": barChart{title: "CPU <an operation>", series: []string{"a", "b"}, groups: []barGroup{
			{"create & get", []bar{{5, 4, 6}, {0.5, 0.4, 0.7}}}, {"list", []bar{{20, 18, 25}, {math.NaN(), math.NaN(), math.NaN()}}},
		}}.svg(),
		"lines.svg": (&axis{Name: "objects", Sizes: []int{2000, 20_000, 200_000}, Metrics: []*metric{
			{Name: "get, CPU-ms", Values: [][]float64{{0.04, 0.041, 0.05}, {0.4, 0.5, 0}}}, {Name: "restart, s", Values: [][]float64{{0.1, 0.8, 5}, {2, 3, 30}}}, {Name: "nothing", Values: [][]float64{{0, 0, 0}}},
		}}).chart([]string{"kelson", "kube-apiserver"}),
	}
	for name, got := range charts {
		file := filepath.Join("testdata", name)
		if *updateGolden {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got\n%s\nwant what is in %s (-update writes it)", name, got, file)
		}
		for d := xml.NewDecoder(strings.NewReader(got)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: got an error in XML, want none: %v", name, err)
			}
		}
		for _, colour := range []string{"#fff", "#000", "NaN", "Inf"} {
			if strings.Contains(got, colour) {
				t.Errorf("%s: got %s in it, want none", name, colour)
			}
		}
	}
}

func TestGrowthIsJudgedByTheLogarithm(t *testing.T) {
	sizes := []int{2000, 20_000, 200_000}
	for _, test := range []struct {
		values     []float64
		withAnswer bool
		want       string
	}{
		{[]float64{1, 1.1, 1.2}, false, "×1.2"},
		{[]float64{1, 3, 9}, false, "×9, faster than the logarithm"},
		{[]float64{1, 3, 9}, true, "×9, as must be"},
		{[]float64{0, 2, 2}, false, "×1"},
		{[]float64{0, 0, 2}, false, "–"},
	} {
		if got := growthWord(sizes, test.values, test.withAnswer); got != test.want {
			t.Errorf("%v: got %q, want %q", test.values, got, test.want)
		}
	}
}

// TestDrawPutsServersTogether: figures of one server at a time become one table.
func TestDrawPutsServersTogether(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for i, name := range []string{"a", "b"} {
		one := growth{Servers: []string{name}, Axes: []*axis{{Name: "objects", Sizes: []int{10, 100}}}}
		one.Axes[0].set("get, CPU-ms", 0, 0, float64(i+1))
		one.Axes[0].set("get, CPU-ms", 0, 1, float64(i+3))
		text, err := json.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, filepath.Join(dir, name))
		if err := os.WriteFile(files[i], text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), append([]string{"draw"}, files...), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| get, CPU-ms | a | 1 | 3 |", "| get, CPU-ms | b | 2 | 4 |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant a line that begins %q", out.String(), want)
		}
	}
}

// TestOnlyWhatIsAlwaysTooHighFails: a cost that is right once was disturbed before.
func TestOnlyWhatIsAlwaysTooHighFails(t *testing.T) {
	for _, test := range []struct {
		costs []float64
		got   float64
		tries int
	}{
		{[]float64{1.9}, 1.9, 1}, {[]float64{5, 1.5}, 1.5, 2}, {[]float64{5, 2.1, 4}, 2.1, 3},
	} {
		v, err := judge("x", 1, 2, false, func(try int) (float64, error) { return test.costs[try], nil })
		if err != nil || v.got != test.got || v.tries != test.tries {
			t.Errorf("%v: got %v after %d tries, error %v; want %v after %d", test.costs, v.got, v.tries, err, test.got, test.tries)
		}
	}
}

// TestReferenceServer: a work of the reference server costs what it costs, measured twice
// in turn, and writes are in its file.
func TestReferenceServer(t *testing.T) {
	if !servers.KnowsProcesses {
		t.Skip("the CPU time of processes is known on Linux only")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	v, err := startReference(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Stop()
	if err := v.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	target := newTarget(v)
	for _, name := range []string{writeAlone, writeMany, readSmall, readLarge} {
		o := referenceWork(name)
		o.reference = name
		got, err := relativeCost(ctx, target, target, o, max(4, int(float64(o.count)*shortScale)), 3)
		if err != nil {
			t.Fatal(err)
		}
		if got < 1./4 || got > 4 {
			t.Errorf("%s: got %v times what it costs, want about 1", name, got)
		}
	}
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	each := len(configMap("reference", "new", ""))
	want := 0
	for _, name := range []string{writeAlone, writeMany} {
		n := int(float64(referenceWork(name).count) * shortScale)
		want += 2 * 3 * n * each
	}
	if len(log) != want {
		t.Errorf("got %d bytes in the log, want %d", len(log), want)
	}
}

// TestReferenceCostsAreOfOperations: reference.json has what the short form measures, and nothing else.
func TestReferenceCostsAreOfOperations(t *testing.T) {
	costs := map[string]float64{}
	if err := json.Unmarshal(referenceCosts, &costs); err != nil {
		t.Fatal(err)
	}
	want := []string{startCost, idleMemory}
	for _, o := range operations() {
		if o.reference != "" {
			want = append(want, o.name)
		}
	}
	for _, name := range want {
		if costs[name] <= 0 {
			t.Errorf("%s: got %v, want a cost", name, costs[name])
		}
		delete(costs, name)
	}
	if len(costs) > 0 {
		t.Errorf("got costs of %v, want none: nothing measures them", costs)
	}
}

// TestComparesTwoServers builds Kelson, and compares it with itself in a few operations.
func TestComparesTwoServers(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("go is not in the path, and the server is built with it")
	}
	dir := t.TempDir()
	s, err := servers.Parse("a=../..")
	if err != nil {
		t.Fatal(err)
	}
	if s, err = s.Build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // without the build, which may begin with an empty cache
	defer cancel()
	results := filepath.Join(dir, "results.json")
	var out, log bytes.Buffer
	err = run(ctx, []string{"compare", "-server", "a=" + s.Path, "-server", "b=" + s.Path, "-rounds", "2", "-starts", "1", "-scale", "0.02", "-dir", dir,
		"-ops", "create ConfigMap, 1 client|update|lease|watch events|custom", "-json", results}, &out, &log)
	if err != nil {
		t.Fatalf("got the error %v, want none\n%s", err, log.String())
	}
	for _, want := range []string{"| update ConfigMap, 16 clients |", "| a / b |", "| watch events"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got a table without %q:\n%s", want, out.String())
		}
	}
	var c comparison
	text, err := os.ReadFile(results)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range c.Operations {
		for i, samples := range m.Samples {
			if len(samples) != 2 {
				t.Fatalf("%s on %s: got %d samples, want 2", m.Name, c.Servers[i], len(samples))
			}
			if s := samples[1]; s.Ops == 0 || s.P50 <= 0 || servers.KnowsProcesses && s.CPU <= 0 {
				t.Errorf("%s on %s: got %+v, want operations, times and CPU", m.Name, c.Servers[i], s)
			}
		}
	}

	out.Reset()
	err = run(ctx, []string{"grow", "-server", "a=" + s.Path, "-dir", dir, "-repeat", "1", "-objects", "20,40", "-namespaces", "", "-watches", "2,20", "-crds", "1,3", "-svg", filepath.Join(dir, "grow-")}, &out, &log)
	if err != nil {
		t.Fatalf("grow: got the error %v, want none\n%s", err, log.String())
	}
	for _, want := range []string{"update with one matching watch", "restart until ready", "create custom resource"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("grow: got a table without %q:\n%s", want, out.String())
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "grow-watches.svg")); err != nil {
		t.Error("grow: got no chart of watches, want one")
	}
}

func TestUsage(t *testing.T) {
	var out, log bytes.Buffer
	if err := run(t.Context(), nil, &out, &log); !errors.Is(err, flag.ErrHelp) || !strings.Contains(log.String(), "SPEC") {
		t.Errorf("got the error %v and %q, want that of help and the usage", err, log.String())
	}
	for _, args := range [][]string{{"compare"}, {"grow"}, {"short"}, {"grow", "-objects", "5,3"}} {
		if err := run(t.Context(), args, &out, io.Discard); err == nil {
			t.Errorf("%v: got no error, want one", args)
		}
	}
}
