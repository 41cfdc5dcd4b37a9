package admission

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
)

// Rounds is what a plugin that asks others, webhooks or policies, remembers from
// one round to the next: those that want to be asked again if the object changes
// after them.
type Rounds[K comparable] struct {
	plugin string
	// last is the object as the plugin has left it.
	last runtime.Object
	// asked are those that want to be asked again; again those that have to be.
	asked, again map[K]bool
}

// RoundsOf returns what a plugin remembers of a write. In the second round, who
// wants to be asked again will be if others have changed the object since.
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

// Again reports whether somebody has to be asked again.
func (r *Rounds[K]) Again(key K) bool { return r.again[key] }

// Asked notes that somebody was asked, and wants to be again.
func (r *Rounds[K]) Asked(key K) { r.asked[key] = true }

// Changed notes that the object has been changed by the one who is asked now:
// all before have to be asked again.
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
