package protect

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
)

func explode(value any) { panic(value) }

// TestGroupRepeatsPanics: who waits gets the panic, when all others are done, and the
// stack of where it happened.
func TestGroupRepeatsPanics(t *testing.T) {
	var g Group
	var done atomic.Int64
	release := make(chan struct{})
	g.Go(func() {
		defer close(release)
		explode("bang")
	})
	for range 5 {
		g.Go(func() { <-release; done.Add(1) })
	}
	err := Call(func() error {
		g.Wait()
		return nil
	})
	var p *Panic
	if !errors.As(err, &p) || p.Value != "bang" || err.Error() != "panic: bang" {
		t.Fatalf("got %v, want the panic of the goroutine", err)
	}
	if done.Load() != 5 {
		t.Errorf("%d goroutines were done, want all 5", done.Load())
	}
	if !strings.Contains(string(p.Stack), "explode") || string(Stack(p)) != string(p.Stack) {
		t.Errorf("the stack is not where it happened:\n%s", p.Stack)
	}
	if StackOf(err) != string(p.Stack) || StackOf(io.EOF) != "" {
		t.Error("the stack of an error is not that of its panic")
	}
	if again := Call(func() error { Repeat(err); return nil }); !errors.Is(again, err) {
		t.Errorf("repeated: got %v, want %v", again, err)
	}
}

func TestCall(t *testing.T) {
	if err := Call(func() error { return io.EOF }); err != io.EOF {
		t.Errorf("got %v, want the error", err)
	}
	if err := Call(func() error { panic(io.EOF) }); !errors.Is(err, io.EOF) || err == io.EOF {
		t.Errorf("got %v, want a panic with an error", err)
	}
	Repeat(io.EOF) // is no panic
	Repeat(nil)
	var g Group
	g.Go(func() {})
	g.Wait()
}

// TestEach: every number is used once, by as many goroutines as are allowed, and all
// errors are returned.
func TestEach(t *testing.T) {
	const n, workers = 100, 3
	var calls [n]atomic.Int64
	var running, most atomic.Int64
	err := Each(n, workers, func(i int) error {
		now := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
		}
		calls[i].Add(1)
		if i == 7 || i == 70 {
			return fmt.Errorf("number %d", i)
		}
		return nil
	})
	if err == nil || err.Error() != "number 7\nnumber 70" {
		t.Errorf("got error %v, want those of 7 and 70", err)
	}
	for i := range calls {
		if got := calls[i].Load(); got != 1 {
			t.Errorf("%d was used %d times, want once", i, got)
		}
	}
	if got := most.Load(); got > workers {
		t.Errorf("got %d calls at a time, want at most %d", got, workers)
	}
	if err := Each(0, workers, nil); err != nil {
		t.Errorf("nothing to do: got %v, want nil", err)
	}
}
