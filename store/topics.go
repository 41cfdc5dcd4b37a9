package store

import "slices"

// Topic is what a watcher is about, if that is less than the whole resource: one of the
// three is set. A watcher with a topic is not woken by events that are not about it, and
// does not look at them, so that thousands of watches of few objects each cost an event
// nothing.
type Topic struct {
	Key       string // one object
	Namespace string // the objects of a namespace
	Equals           // the objects whose label or field has a value
}

// topic is the events of a log that are about a Topic which somebody watches. The mutex
// of the resource is held.
type topic struct {
	watchers int
	// hits are the positions of the entries that are about it, in their order: of all
	// from created on, but for those before dropped, which the log has dropped.
	hits             []int64
	created, dropped int64
	touched          bool          // since changed was last closed
	changed          chan struct{} // closed when there is something new
}

// About says that all records which the watcher matches belong to a topic. It is called
// before the first Poll.
func (w *Watcher) About(about Topic) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	l := w.log
	t := l.topics[about]
	if t == nil {
		if l.topics == nil {
			l.topics, l.attributes = map[Topic]*topic{}, map[Attribute]int{}
		}
		t = &topic{created: l.first + int64(len(l.entries)), changed: make(chan struct{})}
		l.topics[about] = t
		if l.err != nil {
			close(t.changed)
		}
		if about.Attribute != (Attribute{}) {
			l.attributes[about.Attribute]++
		}
	}
	t.watchers++
	w.about, w.topic = about, t
}

// leave ends what About has begun.
func (w *Watcher) leave() {
	if w.topic == nil {
		return
	}
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	l, a := w.log, w.about.Attribute
	if w.topic.watchers--; w.topic.watchers == 0 {
		delete(l.topics, w.about)
		if l.attributes[a]--; l.attributes[a] <= 0 {
			delete(l.attributes, a)
		}
	}
	w.topic = nil
}

// touch notes the newest entry with the topics that it is about.
func (r *Resource) touch(e *logEntry) {
	l := r.log
	if len(l.topics) == 0 {
		return
	}
	for _, rec := range []*Record{e.old, e.now} {
		if rec == nil {
			continue
		}
		l.hit(Topic{Key: rec.Key})
		if rec.Namespace != "" {
			l.hit(Topic{Namespace: rec.Namespace})
		}
		for a := range l.attributes {
			if value, ok := r.value(rec, a); ok {
				l.hit(Topic{Equals: Equals{a, value}})
			}
		}
	}
}

// hit notes that the newest entry is about a topic.
func (l *eventLog) hit(about Topic) {
	t := l.topics[about]
	position := l.first + int64(len(l.entries)) - 1
	if t == nil || len(t.hits) > 0 && t.hits[len(t.hits)-1] == position {
		return
	}
	t.trim(l.first)
	t.hits = append(t.hits, position)
	if !t.touched {
		t.touched = true
		l.touched = append(l.touched, t)
	}
}

// trim forgets the entries before a position, which the log has dropped.
func (t *topic) trim(first int64) {
	n := 0
	for n < len(t.hits) && t.hits[n] < first {
		t.dropped = t.hits[n] + 1
		n++
	}
	if n > 0 {
		t.hits = append(t.hits[:0], t.hits[n:]...)
	}
}

// wakeTopics wakes the watchers of the topics that were touched.
func (l *eventLog) wakeTopics() {
	if l.err != nil {
		return // endTopics wakes all
	}
	for _, t := range l.touched {
		t.touched = false
		close(t.changed)
		t.changed = make(chan struct{})
	}
	clear(l.touched)
	l.touched = l.touched[:0]
}

// endTopics wakes the watchers of all topics for good.
func (l *eventLog) endTopics() {
	for _, t := range l.topics {
		close(t.changed)
	}
}

// pollTopic is Poll for a watcher that knows all entries about its topic from its place
// on; it is false for another one. position is that of the store.
func (w *Watcher) pollTopic(position int64) (events []Event, more <-chan struct{}, ok bool) {
	l, t := w.log, w.topic
	if t == nil || w.position < t.created {
		return nil, nil, false
	}
	t.trim(l.first)
	if w.position < t.dropped {
		return nil, nil, false
	}
	w.position = max(w.position, l.first) // what was dropped was not about it
	if l.err != nil {
		return nil, nil, false
	}
	i, _ := slices.BinarySearch(t.hits, w.position)
	seen, n := w.revision, 0
	for ; i < len(t.hits); i++ {
		e := &l.entries[t.hits[i]-l.first]
		if e.revision > position {
			more = closed() // of a batch that is being brought in, or came since
			break
		}
		// Events of one revision are not parted.
		if n >= batchEntries && e.revision > w.revision {
			return events, closed(), true
		}
		if e.revision > seen {
			if ev, ok := w.see(e); ok {
				events = append(events, ev)
			}
		}
		n++
		w.position, w.revision = t.hits[i]+1, max(w.revision, e.revision)
	}
	w.seek(position)
	w.revision = max(w.revision, position)
	if more == nil {
		more = t.changed
	}
	return events, more, true
}
