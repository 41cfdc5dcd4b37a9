// Command hour attacks everything that docs/security.md says was attacked, for as long as it is told:
//
//	go run ./test/attack/hour -for 1h
//
// Half of the time goes to the fuzz targets of the module, a quarter to the tests of the table "What was
// attacked", again and again, and a quarter to attacks on a running server, which stays the same one, so that
// what is never given back adds up. It runs in the folder of the module, prints a line for each part, and what a part
// has said that failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	length := flag.Duration("for", time.Hour, "how long it takes, without compiling")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *length); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// part is what is run at a time.
type part struct {
	name string
	args []string // of go test
	env  string
	// again repeats it until its time is over; other parts end by themselves.
	again bool
	takes time.Duration
}

func run(ctx context.Context, length time.Duration) error {
	table, err := os.ReadFile(filepath.Join("docs", "security.md"))
	if err != nil {
		return fmt.Errorf("run it in the folder of the module: %w", err)
	}
	targets, err := fuzzTargets(".")
	if err != nil {
		return err
	}
	tests := attackTests(string(table))
	if len(targets) == 0 || len(tests) == 0 {
		return fmt.Errorf("%d fuzz targets and %d packages with attacks were found, want some of each", len(targets), len(tests))
	}
	var parts []part
	for _, t := range targets {
		takes := max(time.Second, length/2/time.Duration(len(targets)))
		parts = append(parts, part{
			name: t.dir + " " + t.name, takes: takes,
			args: []string{"-run", "^$", "-fuzz", "^" + t.name + "$", "-fuzztime", takes.String(), t.dir},
		})
	}
	for _, dir := range slices.Sorted(maps.Keys(tests)) {
		parts = append(parts, part{
			name: dir + " " + strings.Join(tests[dir], " "), takes: length / 4 / time.Duration(len(tests)), again: true,
			args: []string{"-race", "-count", "1", "-run", "^(" + strings.Join(tests[dir], "|") + ")$", dir},
		})
	}
	parts = append(parts, part{
		name: "a running server", takes: length / 4, env: "KELSON_ATTACK=" + (length / 4).String(),
		args: []string{"-count", "1", "-timeout", (length + time.Hour).String(), "./test/attack"},
	})
	var failed []string
	for i, p := range parts {
		begin := time.Now()
		times, out, err := p.run(ctx)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		outcome := "held"
		if err != nil {
			outcome = "FAILED"
			failed = append(failed, p.name)
		}
		fmt.Printf("%3d of %d  %-6s  %6s  %4d times  %s\n", i+1, len(parts), outcome, time.Since(begin).Round(time.Second), times, p.name)
		if err != nil {
			fmt.Printf("%s\n%v\n", out, err)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d parts failed: %s", len(failed), len(parts), strings.Join(failed, "; "))
	}
	fmt.Println("everything held")
	return nil
}

// run runs the part, and returns how often, and what it said if it failed.
func (p part) run(ctx context.Context) (times int, out []byte, err error) {
	for begin := time.Now(); ; {
		cmd := exec.CommandContext(ctx, "go", append([]string{"test"}, p.args...)...)
		cmd.Env = append(os.Environ(), p.env)
		out, err = cmd.CombinedOutput()
		times++
		if err != nil || !p.again || time.Since(begin) > p.takes {
			return times, out, err
		}
	}
}

// target is a fuzz target.
type target struct{ dir, name string }

var fuzzFunction = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// fuzzTargets returns the fuzz targets of the module in a folder. Modules of their own are left out.
func fuzzTargets(root string) (targets []target, _ error) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && path != root || d.Name() == "node_modules" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, found := range fuzzFunction.FindAllSubmatch(text, -1) {
			targets = append(targets, target{"./" + filepath.ToSlash(filepath.Dir(path)), string(found[1])})
		}
		return err
	})
	return targets, err
}

var (
	attackSection = regexp.MustCompile(`(?ms)^## What was attacked$(.*?)(?:^## |\z)`)
	attackTest    = regexp.MustCompile("\\[`(Test\\w+)`\\]\\(\\.\\./([^)]*)/[^/)]+_test\\.go\\)")
)

// attackTests returns the tests that the table names, by package. Those of test/attack run with the others of
// that package, on one server.
func attackTests(page string) map[string][]string {
	tests := map[string][]string{}
	section := attackSection.FindString(page)
	for _, found := range attackTest.FindAllStringSubmatch(section, -1) {
		if dir := "./" + found[2]; dir != "./test/attack" && !slices.Contains(tests[dir], found[1]) {
			tests[dir] = append(tests[dir], found[1])
		}
	}
	return tests
}
