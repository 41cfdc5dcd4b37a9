// Package protect keeps a panic from ending the process. The server recovers panics on
// a handler's own goroutine; a panic on a goroutine that the handler started would end
// the process for everybody.
//
// Start at Group, a sync.WaitGroup for goroutines that somebody waits for: Wait repeats
// the panic there. Each calls a function many times on a few goroutines. Call returns a
// panic as an error.
package protect

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// Panic is a recovered panic, as an error.
type Panic struct {
	Value any
	// Stack is the stack of the goroutine that panicked.
	Stack []byte
}

// Error implements error.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Unwrap returns the panic value if it was an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// newPanic must be called by the deferred function that recovers, to get the right
// stack.
func newPanic(value any) *Panic {
	if p, ok := value.(*Panic); ok {
		return p // repeated by Group.Wait
	}
	return &Panic{value, debug.Stack()}
}

// Call calls f and returns its error, or a *Panic.
func Call(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = newPanic(value)
		}
	}()
	return f()
}

// Repeat panics with err if it is a *Panic, on the goroutine that waited for the failed
// call.
func Repeat(err error) {
	var p *Panic
	if errors.As(err, &p) {
		panic(p)
	}
}

// Stack returns the stack for a recovered value: that of the goroutine that panicked
// first.
func Stack(value any) []byte { return newPanic(value).Stack }

// StackOf returns the stack of an error that is a *Panic, else "".
func StackOf(err error) string {
	var p *Panic
	if !errors.As(err, &p) {
		return ""
	}
	return string(p.Stack)
}

// Group waits for goroutines. The zero Group is ready to use.
type Group struct {
	all   sync.WaitGroup
	mu    sync.Mutex
	first *Panic
}

// Go runs f on a goroutine of its own.
func (g *Group) Go(f func()) {
	g.all.Go(func() {
		defer func() {
			if value := recover(); value != nil {
				p := newPanic(value)
				g.mu.Lock()
				defer g.mu.Unlock()
				if g.first == nil {
					g.first = p
				}
			}
		}()
		f()
	})
}

// Wait waits for all goroutines, and panics if one of them has.
func (g *Group) Wait() {
	g.all.Wait()
	if g.first != nil {
		panic(g.first)
	}
}

// Each calls f with the numbers below n, on at most as many goroutines as there are
// workers, and returns all errors. A worker makes several calls, so that its stack grows
// once.
func Each(n, workers int, f func(i int) error) error {
	var next atomic.Int64
	var all Group
	errs := make([]error, n)
	for range min(n, workers) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs[i] = f(i)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
