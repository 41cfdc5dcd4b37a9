package admission

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
)

// Rounds is the reinvocation state that a webhook or policy plugin keeps between rounds:
// which webhooks or policies have reinvocationPolicy IfNeeded and must run again if the
// object changes after them.
type Rounds[K comparable] struct {
	plugin string
	// last is the object as the plugin left it.
	last runtime.Object
	// asked are those that have run and want reinvocation; again those to run again.
	asked, again map[K]bool
}

// RoundsOf returns the state of a plugin for a write. In the second round, those in asked
// run again if others have changed the object since.
func RoundsOf[K comparable](a *Attributes, plugin string) *Rounds[K] {
	r, ok := a.Note(plugin).(*Rounds[K])
	if !ok {
		r = &Rounds[K]{plugin: plugin, asked: map[K]bool{}, again: map[K]bool{}}
	}
	if a.Round > 0 && len(r.asked) > 0 && !equality.Semantic.DeepEqual(r.last, a.Object) {
		r.require()
	}
	return r
}

// Again reports whether a key must run again.
func (r *Rounds[K]) Again(key K) bool { return r.again[key] }

// Asked records that a key has run and wants reinvocation.
func (r *Rounds[K]) Asked(key K) { r.asked[key] = true }

// Changed records that the object was changed: all that ran before must run again.
func (r *Rounds[K]) Changed(a *Attributes) {
	r.require()
	a.AskAgain()
}

func (r *Rounds[K]) require() {
	for key := range r.asked {
		r.again[key] = true
	}
	clear(r.asked)
}

// End ends the plugin's part of a round.
func (r *Rounds[K]) End(a *Attributes) {
	r.last = nil
	if a.Object != nil && len(r.asked) > 0 {
		r.last = a.Object.DeepCopyObject()
	}
	a.SetNote(r.plugin, r)
}
