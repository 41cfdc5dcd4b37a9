// Package storagetest is the conformance suite of storage backends. Start at Run and
// Subject. A check never skips what a backend cannot do: a backend that does not fulfil
// the contract fails.
//
// A backend's own test is a few lines: it describes how to open a store and calls Run.
// Every check is a function that returns an error rather than failing a test, so that
// the suite itself can be tested: broken variants of a simple model of the contract
// must fail.
//
// KELSON_SEED replays the random parts of a run that failed; the failure names the
// seed.
package storagetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
)

// Subject is the backend under test.
type Subject struct {
	// Open returns a fresh, empty store, and closes it when the test is over.
	// The suite may have closed it before.
	Open func(t testing.TB) storage.Backend
	// Reopen closes b and opens the same state again; nil for a store whose
	// state does not outlive Close. Writes may be under way when it is called.
	Reopen func(t testing.TB, b storage.Backend) storage.Backend
	// TTLGranularity is the smallest ttl that the store honours: etcd leases
	// count in seconds, and a server has a smallest one.
	TTLGranularity time.Duration
	// BenchmarkKeys is the number of keys in the store that Benchmark
	// measures; zero stands for 10,000.
	BenchmarkKeys int

	// whole: all repetitions, also with the race detector.
	whole bool
}

// Run judges a store. It takes some seconds.
func Run(t *testing.T, s Subject) { s.judge(t, false) }

// RunLong is Run with larger numbers everywhere, and with another seed every
// time. It takes minutes, on a busy machine more than the ten that go test
// allows by itself.
func RunLong(t *testing.T, s Subject) { s.judge(t, true) }

// A check tests one sentence of the contract.
type check struct {
	name string
	run  func(e *env) error
	// own: the check needs a store that no other has used or will use.
	own bool
	// reopen: the check needs a store whose state outlives Close.
	reopen bool
	// parallel: the check mostly waits for time to pass.
	parallel bool
}

type group struct {
	name   string
	checks []check
}

func groups() []group {
	return []group{
		{"write", writeChecks()},
		{"list", listChecks()},
		{"compact", compactChecks()},
		{"watch", watchChecks()},
		{"end", endChecks()},
		{"ttl", ttlChecks()},
		{"restart", restartChecks()},
		{"random", []check{{name: "operations", run: checkRandom, own: true}}},
		{"linear", []check{{name: "histories", run: checkLinear}}},
	}
}

// judge runs the checks. Those of a group share a store, each below a prefix of its
// own: opening a store may be slow, and real stores are not empty.
func (s Subject) judge(t *testing.T, long bool) {
	// With more threads than processors the kernel preempts goroutines anywhere, not
	// only where they wait, so that more races show.
	procs := runtime.GOMAXPROCS(max(8, runtime.GOMAXPROCS(0)))
	t.Cleanup(func() { runtime.GOMAXPROCS(procs) })
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) {
			var shared storage.Backend
			for _, c := range g.checks {
				if c.reopen && s.Reopen == nil {
					continue
				}
				if !c.own && shared == nil {
					shared = s.Open(t)
				}
				t.Run(c.name, func(t *testing.T) {
					if c.parallel {
						t.Parallel()
					}
					b := shared
					if c.own {
						b = s.Open(t)
					}
					if err := s.try(t, b, c, long); err != nil {
						t.Fatal(err)
					}
				})
			}
		})
	}
}

// try runs one check. A check that hangs fails.
func (s Subject) try(t testing.TB, b storage.Backend, c check, long bool) error {
	limit, seed := time.Minute, int64(1)
	if long {
		limit, seed = 15*time.Minute, time.Now().UnixNano()
	}
	if given, ok, err := randomtest.FromEnv(); err != nil {
		return err
	} else if ok {
		seed = int64(given)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	e := &env{
		tb: t, subject: s, ctx: ctx, long: long, seed: seed,
		b:      b,
		prefix: storage.Root + c.name + "/",
	}
	if err := c.run(e); err != nil {
		return fmt.Errorf("with %s=%d: %w", randomtest.Env, e.seed, err)
	}
	return nil
}

// env is the environment of a check.
type env struct {
	tb      testing.TB // for temporary folders and Reopen; a check returns its failures
	subject Subject
	b       storage.Backend
	ctx     context.Context
	prefix  string // no key below it exists when the check begins
	long    bool
	seed    int64
}

// times returns the number of repetitions: ordinary, or long in RunLong.
func (e *env) times(ordinary, long int) int {
	if e.long {
		return long
	}
	if e.subject.whole {
		return ordinary
	}
	return testsize.Part(ordinary, 3)
}

// rand returns random source number n of this check.
func (e *env) rand(n int) *rand.Rand { return rand.New(rand.NewPCG(uint64(e.seed), uint64(n))) }

// key returns the name of a key of this check.
func (e *env) key(name string) string { return e.prefix + name }

// below returns an environment that works under a further prefix.
func (e *env) below(name string) *env {
	sub := *e
	sub.prefix = e.prefix + name + "/"
	return &sub
}

// reopen restarts the store.
func (e *env) reopen() { e.b = e.subject.Reopen(e.tb, e.b) }

// revision returns the current revision.
func (e *env) revision() (int64, error) {
	rev, err := e.b.Revision(e.ctx)
	if err != nil {
		return 0, fmt.Errorf("revision: %w", err)
	}
	return rev, nil
}

// list returns the keys below the check's prefix at a revision.
func (e *env) list(revision int64) (storage.Page, error) {
	page, err := e.b.List(e.ctx, e.prefix, storage.ListOptions{Revision: revision})
	if err != nil {
		return page, fmt.Errorf("list at %d: %w", revision, err)
	}
	return page, nil
}

// together calls f(0) to f(n-1) at the same time and waits for all.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// fails returns an error unless err is want.
func fails(what string, err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	return fmt.Errorf("%s: error is %v, want %v", what, err, want)
}

// sameKV compares keys by what all stores report: not by Expires.
func sameKV(a, b storage.KeyValue) bool {
	return a.Key == b.Key && string(a.Value) == string(b.Value) &&
		a.CreateRevision == b.CreateRevision && a.ModRevision == b.ModRevision
}

func sameEvent(a, b storage.Event) bool {
	return a.Op == b.Op && sameKV(a.KV, b.KV) && sameKV(a.Prev, b.Prev)
}

// show formats a key for messages.
func show(kv storage.KeyValue) string {
	value := fmt.Sprintf("%.20q", kv.Value)
	return fmt.Sprintf("{%.60q=%s/%d create %d mod %d}", kv.Key, value, len(kv.Value), kv.CreateRevision, kv.ModRevision)
}

func showEvent(ev storage.Event) string {
	return fmt.Sprintf("%v %s prev %s", ev.Op, show(ev.KV), show(ev.Prev))
}

// diffKV compares one key.
func diffKV(what string, got, want storage.KeyValue) error {
	if sameKV(got, want) {
		return nil
	}
	return fmt.Errorf("%s: got %s, want %s", what, show(got), show(want))
}

// diffKVs compares keys in order.
func diffKVs(what string, got, want []storage.KeyValue) error {
	return diff(what, got, want, sameKV, show)
}

// diffEvents compares events in order.
func diffEvents(what string, got, want []storage.Event) error {
	return diff(what, got, want, sameEvent, showEvent)
}

// diff returns an error that names the first difference of two sequences.
func diff[T any](what string, got, want []T, same func(a, b T) bool, show func(T) string) error {
	at := func(s []T, i int) string {
		if i < len(s) {
			return show(s[i])
		}
		return "nothing"
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !same(got[i], want[i]) {
			return fmt.Errorf("%s: got %d, want %d; first difference at %d: got %s, want %s",
				what, len(got), len(want), i, at(got, i), at(want, i))
		}
	}
	return nil
}

// fill returns a value of n bytes that begins with text.
func fill(text string, n int) string {
	return text + strings.Repeat(".", max(0, n-len(text)))
}
