package admission

import (
	"context"
	"errors"
	"testing"

	"github.com/apikeel/kelson/resource"
)

// careless is a plugin that says nothing, or something else, about what interrupts it.
type careless struct {
	interrupted, says error
	runs              *int
}

func (careless) Name() string        { return "Careless" }
func (careless) Handles(Target) bool { return true }

func (p careless) Admit(_ context.Context, a *Attributes) error {
	*p.runs++
	a.Interrupt(p.interrupted)
	return p.says
}

func (p careless) Validate(ctx context.Context, a *Attributes) error { return p.Admit(ctx, a) }

// TestInterruptedWritesAreRefused: an interrupted write is refused whatever a plugin makes of it, and the
// plugins after it do not run.
func TestInterruptedWritesAreRefused(t *testing.T) {
	busy, no := errors.New("busy"), errors.New("no")
	for _, c := range []struct {
		interrupted, says, want error
		runs                    int
	}{
		{busy, nil, busy, 1},
		{busy, no, busy, 1},
		{nil, no, no, 1},
		{nil, nil, nil, 2},
	} {
		for _, step := range []string{StepAdmit, StepValidate} {
			runs := 0
			chain := NewChain(careless{c.interrupted, c.says, &runs}, careless{runs: &runs})
			a := &Attributes{Operation: Create, Served: &resource.Served{Definition: &resource.Definition{Resource: "configmaps"}}}
			var err error
			if step == StepAdmit {
				err = chain.Admit(t.Context(), a)
			} else {
				err = chain.Validate(t.Context(), a)
			}
			if !errors.Is(err, c.want) || runs != c.runs {
				t.Errorf("%s: interrupted by %v, the plugin says %v: got %v after %d plugins, want %v after %d", step, c.interrupted, c.says, err, runs, c.want, c.runs)
			}
		}
	}
}
