// Package protect keeps a panic from ending the process. A handler's own goroutine is
// protected by the server; a panic on a goroutine that the handler has started would
// end the process for everybody, whatever one client or one object has caused it.
//
// Start at Group, a sync.WaitGroup for goroutines that work on behalf of somebody who
// waits for them: Wait repeats the panic there. Call is for who wants an error.
package protect

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// Panic is what a function has panicked with.
type Panic struct {
	Value any
	// Stack is that of the goroutine on which it happened.
	Stack []byte
}

// Error implements error.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Unwrap returns the error that the function has panicked with, if it was one.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// newPanic is called by who has recovered, so that the stack is the one that matters.
func newPanic(value any) *Panic {
	if p, ok := value.(*Panic); ok {
		return p // of a goroutine further down
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

// Repeat panics if err is a *Panic: on the goroutine that has waited for what failed.
func Repeat(err error) {
	var p *Panic
	if errors.As(err, &p) {
		panic(p)
	}
}

// Stack returns the stack that belongs to what somebody has recovered: that of the
// goroutine on which it happened first.
func Stack(value any) []byte { return newPanic(value).Stack }

// StackOf returns the stack of an error that is a *Panic, and nothing of another.
func StackOf(err error) string {
	var p *Panic
	if !errors.As(err, &p) {
		return ""
	}
	return string(p.Stack)
}

// Group waits for goroutines. The zero Group is ready.
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

// Wait waits for all, and panics if one of them has.
func (g *Group) Wait() {
	g.all.Wait()
	if g.first != nil {
		panic(g.first)
	}
}
