package store

import (
	"cmp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/internal/sorted"
)

// Bounds of the indexes of a resource, and when one is made.
const (
	// maxIndexes is how many a resource has, and maxIndexed how many entries they have
	// together, each of about 16 bytes.
	maxIndexes, maxIndexed = 4, 1 << 20
	// A list pays for an index if it has looked at indexFrom records or more, and at
	// indexGain times as many as it has found. After indexAfter such lists the index is
	// made.
	indexFrom, indexGain, indexAfter = 2000, 8, 2
	// indexUnused is how long an index was not used that makes room for another.
	indexUnused = time.Minute
	// maxHints is how many attributes are remembered that lists have asked for.
	maxHints = 64
)

// Attribute is a label of objects, or a selectable field: one of the two is set.
type Attribute struct{ Label, Field string }

// Equals is a requirement of a selector: an attribute has a value.
type Equals struct {
	Attribute
	Value string
}

// index has the records of a resource that have an attribute, by its value and then by
// key. Like the tree of the resource it is written by the feed, and cloned by snapshots.
type index struct {
	by   Attribute
	tree *sorted.Tree[place, *Record]
	used *atomic.Int64 // when a list last used it, in nanoseconds; shared by clones
}

// place is where a record is in an index.
type place struct{ value, key string }

func (p place) compare(other place) int {
	return cmp.Or(strings.Compare(p.value, other.value), strings.Compare(p.key, other.key))
}

// indexes are the indexes of a resource, guarded by its mutex.
type indexes struct {
	all []*index
	// hints count lists that an index on an attribute would have made faster.
	hints map[Attribute]int
	// making is set while one is made.
	making bool
}

// value returns the value of an attribute of a record, false if it has none.
func (r *Resource) value(rec *Record, by Attribute) (string, bool) {
	if by.Label != "" {
		return rec.Labels().Lookup(by.Label)
	}
	fields := r.Fields(rec)
	return fields.Get(by.Field), fields.Has(by.Field)
}

func (r *Resource) newIndex(by Attribute) *index {
	at := func(rec *Record) place {
		value, _ := r.value(rec, by)
		return place{value, rec.Key}
	}
	x := &index{by: by, tree: sorted.New(at, place.compare), used: new(atomic.Int64)}
	x.used.Store(time.Now().UnixNano())
	return x
}

// change takes a record out of the index and brings another in; each may be nil.
func (x *index) change(r *Resource, old, now *Record) {
	if old != nil {
		if value, ok := r.value(old, x.by); ok {
			x.tree.Delete(place{value, old.Key})
		}
	}
	if now != nil {
		if _, ok := r.value(now, x.by); ok {
			x.tree.Set(now)
		}
	}
}

// reindex brings a change into all indexes. The mutex is held.
func (r *Resource) reindex(old, now *Record) {
	for _, x := range r.indexes.all {
		x.change(r, old, now)
	}
	if len(r.indexes.all) > 0 && r.indexes.entries() > maxIndexed {
		r.indexes.all = nil
	}
}

// entries is how many entries all indexes have.
func (xs *indexes) entries() (n int) {
	for _, x := range xs.all {
		n += x.tree.Len()
	}
	return n
}

// clones returns the indexes for a snapshot. The mutex is held.
func (xs *indexes) clones() []*index {
	if len(xs.all) == 0 {
		return nil
	}
	out := make([]*index, len(xs.all))
	for i, x := range xs.all {
		out[i] = &index{x.by, x.tree.Clone(), x.used}
	}
	return out
}

// Select calls yield for the records whose keys begin with prefix, from start on, in
// order, that fulfil one of the requirements, until yield returns false. Which of them
// depends on the indexes that there are; if there is none, Select returns false and has
// called nothing.
func (r *Resource) Select(s *Snapshot, prefix, start string, wanted []Equals, yield func(*Record) bool) bool {
	for _, w := range wanted {
		for _, x := range s.indexes {
			if x.by != w.Attribute {
				continue
			}
			x.used.Store(time.Now().UnixNano())
			x.tree.From(place{w.Value, max(prefix, start)}, func(rec *Record) bool {
				value, _ := r.value(rec, x.by)
				return value == w.Value && len(rec.Key) >= len(prefix) && rec.Key[:len(prefix)] == prefix && yield(rec)
			})
			return true
		}
	}
	return false
}

// Looked tells that a list has looked at many records of a snapshot for those that fulfil
// all requirements. When it has happened often enough, one of them gets an index.
func (r *Resource) Looked(s *Snapshot, wanted []Equals, at, found int) {
	if at < indexFrom || found > at/indexGain || len(wanted) == 0 || !r.wantsIndex(wanted) {
		return
	}
	defer func() {
		r.mu.Lock()
		r.indexes.making = false
		r.mu.Unlock()
	}()
	x := r.buildIndex(s, wanted)
	if x == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// What came since the snapshot is in the log, unless that is lost.
	if r.tree == nil || r.log.since > s.Revision {
		return
	}
	for _, e := range r.log.entries {
		if e.revision > s.Revision {
			x.change(r, e.old, e.now)
		}
	}
	if r.indexes.entries()+x.tree.Len() > maxIndexed {
		return
	}
	r.indexes.all = append(r.indexes.all, x)
	r.snapshot = nil // has no clone of it
}

// wantsIndex counts a list that an index would have made faster, and reports whether it is
// time to make one. There is room for it then.
func (r *Resource) wantsIndex(wanted []Equals) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	xs := &r.indexes
	if xs.making || r.tree == nil {
		return false
	}
	if xs.hints == nil || len(xs.hints)+len(wanted) > maxHints {
		xs.hints = map[Attribute]int{}
	}
	enough := false
	for _, w := range wanted {
		xs.hints[w.Attribute]++
		enough = enough || xs.hints[w.Attribute] >= indexAfter
	}
	if !enough {
		return false
	}
	for _, w := range wanted {
		delete(xs.hints, w.Attribute)
	}
	if len(xs.all) == maxIndexes && !xs.dropUnused() {
		return false
	}
	xs.making = true
	return true
}

// dropUnused drops the index that was used least recently, if that is long ago.
func (xs *indexes) dropUnused() bool {
	oldest := 0
	for i, x := range xs.all {
		if x.used.Load() < xs.all[oldest].used.Load() {
			oldest = i
		}
	}
	if time.Since(time.Unix(0, xs.all[oldest].used.Load())) < indexUnused {
		return false
	}
	all := append([]*index(nil), xs.all[:oldest]...)
	xs.all = append(all, xs.all[oldest+1:]...)
	return true
}

// buildIndex returns an index of a snapshot on the attribute whose value the fewest records
// have; nil if that are many, or if the index would be too large.
func (r *Resource) buildIndex(s *Snapshot, wanted []Equals) *index {
	counts := make([]int, len(wanted))
	s.Range("", "", func(rec *Record) bool {
		for i, w := range wanted {
			if value, ok := r.value(rec, w.Attribute); ok && value == w.Value {
				counts[i]++
			}
		}
		return true
	})
	best := 0
	for i := range counts {
		if counts[i] < counts[best] {
			best = i
		}
	}
	if counts[best] > s.Len()/indexGain {
		return nil
	}
	x := r.newIndex(wanted[best].Attribute)
	s.Range("", "", func(rec *Record) bool {
		x.change(r, nil, rec)
		return x.tree.Len() <= maxIndexed
	})
	if x.tree.Len() > maxIndexed {
		return nil
	}
	return x
}
