package store

import "time"

// A list that is read in pages is of one state of a resource. States of lists that
// somebody may be reading are kept, so that the next page need not be read from the
// history of the backend, which means to read all of it.

const (
	// maxPins is how many states a resource keeps.
	maxPins = 16
	// maxPinBytes is what they take besides the cache and its log, all but the one that
	// was used last.
	maxPinBytes = 64 << 20
)

// pin is a state that is kept.
type pin struct {
	*Snapshot
	// own is what only this state has: all of it, if it was read from the history, else
	// the records that were replaced since, and are not in the log any longer.
	own  int
	used bool // since the last trim
}

// pins are the pinned snapshots of a resource, the one that was used last at the end.
type pins []pin

// find returns the state at a revision, nil if it is not kept.
func (ps pins) find(revision int64) *Snapshot {
	for i, p := range ps {
		if p.Revision == revision {
			p.used = true
			copy(ps[i:], ps[i+1:])
			ps[len(ps)-1] = p
			return p.Snapshot
		}
	}
	return nil
}

// add keeps a state.
func (ps *pins) add(s *Snapshot) {
	if ps.find(s.Revision) != nil {
		return
	}
	if len(*ps) == maxPins {
		*ps = (*ps)[1:]
	}
	*ps = append((*ps)[:len(*ps):len(*ps)], pin{Snapshot: s, own: s.own, used: true})
	ps.bound()
}

// outlive counts what the log has dropped, records up to a revision: states of before
// have them alone now.
func (ps *pins) outlive(dropped int, revision int64) {
	for i := range *ps {
		if p := &(*ps)[i]; p.Revision < revision {
			p.own += dropped
		}
	}
	ps.bound()
}

// bound drops states until the others are few enough.
func (ps *pins) bound() {
	own := 0
	for i := len(*ps) - 1; i >= 0; i-- {
		if own += (*ps)[i].own; own > maxPinBytes && i < len(*ps)-1 {
			*ps = append(pins(nil), (*ps)[i+1:]...)
			return
		}
	}
}

// trim drops the states that were not used since the last trim, and reports whether
// there are others.
func (ps *pins) trim() (left bool) {
	var kept pins
	for _, p := range *ps {
		if p.used {
			p.used = false
			kept = append(kept, p)
		}
	}
	*ps = kept
	return len(kept) > 0
}

// Pin keeps a state for a while, so that the next page of a list finds it. A part of one is not
// kept: pages of other parts would find it too.
func (r *Resource) Pin(s *Snapshot) {
	if s.part {
		return
	}
	r.mu.Lock()
	r.pins.add(s)
	r.mu.Unlock()
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.trimSoon()
}

func (r *Resource) pinned(revision int64) *Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pins.find(revision)
}

// trim gives back what old events and states take, and reports whether there are
// younger ones.
func (r *Resource) trim() (left bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	dropped, left := r.log.trim()
	r.pins.outlive(dropped, r.log.since)
	return r.pins.trim() || left
}

// trimSoon makes sure that there is a trim after keepEvents. The mutex is held.
func (s *Store) trimSoon() {
	if s.trimmer == nil && s.ctx.Err() == nil {
		s.trimmer = time.AfterFunc(keepEvents, s.trim)
	}
}
