// Package randomtest gives tests random numbers that can be had again: a test that fails
// prints its seed, and KELSON_SEED=seed repeats it. Start at New. It is for tests only.
package randomtest

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Env is the environment variable with the seed to repeat.
const Env = "KELSON_SEED"

// New returns random numbers from another seed every time.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	return From(t, rand.Uint64())
}

// From returns the random numbers of a seed, for tests that are the same every time.
func From(t testing.TB, seed uint64) *rand.Rand {
	t.Helper()
	return Rand(Seed(t, seed), 0)
}

// Seed returns KELSON_SEED, or seed without it. If the test fails, it prints which it
// was. It is for tests with several sources of random numbers: see Rand.
func Seed(t testing.TB, seed uint64) uint64 {
	t.Helper()
	if given, ok := fromEnv(t); ok {
		seed = given
	}
	t.Cleanup(func() {
		if t.Failed() {
			report(t, seed)
		}
	})
	return seed
}

// Seeds returns the seeds from 0 to n-1, or only KELSON_SEED. An iteration in which the
// test fails prints its seed.
func Seeds(t testing.TB, n int) iter.Seq[uint64] {
	t.Helper()
	given, only := fromEnv(t)
	return func(yield func(uint64) bool) {
		if only {
			try(t, given, yield)
			return
		}
		for seed := range uint64(n) {
			if !try(t, seed, yield) {
				return
			}
		}
	}
}

// Rand returns the n-th source of random numbers of a seed. A goroutine needs one of its
// own.
func Rand(seed, n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }

// try runs an iteration. Its deferred function also runs after FailNow.
func try(t testing.TB, seed uint64, yield func(uint64) bool) bool {
	before := t.Failed()
	defer func() {
		if t.Failed() && !before {
			report(t, seed)
		}
	}()
	return yield(seed)
}

func report(t testing.TB, seed uint64) { t.Logf("to repeat it: %s=%d", Env, seed) }

// FromEnv returns KELSON_SEED; ok is false without it.
func FromEnv() (seed uint64, ok bool, err error) {
	text := os.Getenv(Env)
	if text == "" {
		return 0, false, nil
	}
	seed, err = strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("%s: %w", Env, err)
	}
	return seed, true, nil
}

func fromEnv(t testing.TB) (seed uint64, ok bool) {
	t.Helper()
	seed, ok, err := FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	return seed, ok
}
