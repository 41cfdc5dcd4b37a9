package randomtest

import (
	"fmt"
	"slices"
	"testing"
)

// recorder is a test that fails without failing the one that it is part of.
type recorder struct {
	testing.TB
	failed   bool
	logs     []string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Failed() bool     { return r.failed }
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Logf(format string, args ...any) {
	r.logs = append(r.logs, fmt.Sprintf(format, args...))
}

func (r *recorder) end() {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
}

func TestFailureNamesSeed(t *testing.T) {
	t.Setenv(Env, "")
	for _, failed := range []bool{false, true} {
		r := &recorder{TB: t, failed: failed}
		From(r, 7)
		r.end()
		var want []string
		if failed {
			want = []string{"to repeat it: KELSON_SEED=7"}
		}
		if !slices.Equal(r.logs, want) {
			t.Errorf("failed %v: got %q, want %q", failed, r.logs, want)
		}
	}
}

func TestSeedIsRepeated(t *testing.T) {
	t.Setenv(Env, "42")
	if got, want := New(t).Uint64(), From(t, 7).Uint64(); got != want {
		t.Errorf("got %d and %d, want the same number", got, want)
	}
	if got := slices.Collect(Seeds(t, 10)); !slices.Equal(got, []uint64{42}) {
		t.Errorf("got the seeds %v, want 42 alone", got)
	}
}

func TestIterationNamesSeed(t *testing.T) {
	t.Setenv(Env, "")
	r := &recorder{TB: t}
	var got []uint64
	for seed := range Seeds(r, 4) {
		got = append(got, seed)
		r.failed = r.failed || seed >= 2
	}
	if want := []uint64{0, 1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("got the seeds %v, want %v", got, want)
	}
	if want := []string{"to repeat it: KELSON_SEED=2"}; !slices.Equal(r.logs, want) {
		t.Errorf("got %q, want %q", r.logs, want)
	}
}

// TestFatalNamesSeed: an iteration that ends its goroutine, as t.Fatal does, is named too.
func TestFatalNamesSeed(t *testing.T) {
	t.Setenv(Env, "")
	r := &recorder{TB: t}
	func() {
		defer func() { _ = recover() }()
		for range Seeds(r, 4) {
			r.failed = true
			panic("as a test ends")
		}
	}()
	if want := []string{"to repeat it: KELSON_SEED=0"}; !slices.Equal(r.logs, want) {
		t.Errorf("got %q, want %q", r.logs, want)
	}
}
