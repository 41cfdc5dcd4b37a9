package request

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Timeline is how long something takes, and what its steps are, so that it can be
// told when it was slow. Most requests are not, so it costs little to keep one:
// nothing is written down before somebody wants to read it. A nil Timeline keeps
// nothing.
type Timeline struct {
	name   string
	fields []Field
	began  time.Time
	// threshold is how long it takes at least to be worth telling of.
	threshold time.Duration

	mu    sync.Mutex // guards what follows
	took  time.Duration
	ended bool
	items []item
	first [3]item // of items, which a read has no more of
}

// Field is something that is known of what takes time.
type Field struct {
	Key   string
	Value any
}

// item is a step, or something that takes time by itself.
type item struct {
	name   string
	at     time.Duration // since the timeline has begun
	fields *[]Field
	nested *Timeline
}

// atEnd is when a step is taken that ends the timeline.
const atEnd = -1

// NewTimeline begins a timeline. What takes less time than the threshold is not
// worth telling of.
func NewTimeline(name string, threshold time.Duration, fields ...Field) *Timeline {
	t := &Timeline{name: name, fields: fields, began: time.Now(), threshold: threshold}
	t.items = t.first[:0]
	return t
}

// Step notes that a step has been taken.
func (t *Timeline) Step(name string, fields ...Field) {
	if t == nil {
		return
	}
	i := item{name: name, at: time.Since(t.began)}
	if len(fields) > 0 {
		kept := fields // so that there is nothing to keep otherwise
		i.fields = &kept
	}
	t.add(i)
}

// First is Step for who begins with it, and Last for who ends with it: they need no
// clock.
func (t *Timeline) First(name string) {
	if t != nil {
		t.add(item{name: name})
	}
}

// Last is the last step.
func (t *Timeline) Last(name string) {
	if t != nil {
		t.add(item{name: name, at: atEnd})
	}
}

func (t *Timeline) add(i item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended && len(t.items) < maxItems {
		t.items = append(t.items, i)
	}
}

// maxItems bounds what a timeline can have.
const maxItems = 128

// Nest begins a timeline within another.
func (t *Timeline) Nest(name string, threshold time.Duration, fields ...Field) *Timeline {
	if t == nil {
		return nil
	}
	n := NewTimeline(name, threshold, fields...)
	t.add(item{nested: n})
	return n
}

// End ends the timeline. Only the first time counts.
func (t *Timeline) End() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.took, t.ended = time.Since(t.began), true
	}
}

// Slow returns those that have taken longer than their thresholds: the timeline, or
// else those within it. now is when the timeline has ended, if nobody has looked at
// a clock.
func (t *Timeline) Slow(now time.Time) []*Timeline {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended && t.took == atEnd {
		t.took = now.Sub(t.began)
	}
	if t.long() {
		return []*Timeline{t}
	}
	var slow []*Timeline
	for _, i := range t.items {
		slow = append(slow, i.nested.Slow(now)...)
	}
	return slow
}

// long must be called with the lock held.
func (t *Timeline) long() bool { return t.ended && t.took >= t.threshold }

// Text tells of a timeline that has ended, in the form in which Kubernetes' servers
// do: a line for the whole, one for each step that took more than its share of the
// time, and one for the end, each of which begins with the number. fields come
// before those that the timeline has. all tells of all steps.
func (t *Timeline) Text(number uint32, all bool, fields ...Field) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	prefix := fmt.Sprintf("Trace[%d]: ", number)
	fmt.Fprintf(&b, "%s%q ", prefix, t.name)
	writeFields(&b, append(fields[:len(fields):len(fields)], t.fields...))
	fmt.Fprintf(&b, "(%s) (total time: %dms):", t.began.Format("02-Jan-2006 15:04:05.000"), t.took.Milliseconds())
	t.writeItems(&b, "\n"+prefix, t.share(), all)
	fmt.Fprintf(&b, "\n%s[%v] [%v] END\n", prefix, t.took, t.took)
	return b.String()
}

func writeFields(b *strings.Builder, fields []Field) {
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(f.Key)
		b.WriteByte(':')
		writeValue(b, f.Value)
	}
	if len(fields) > 0 {
		b.WriteByte(' ')
	}
}

// maxFieldText is how many bytes of a text are told: clients choose some of them.
const maxFieldText = 1024

// writeValue writes a text so that it stays in its line, whatever is in it.
func writeValue(b *strings.Builder, value any) {
	text, ok := value.(string)
	if !ok {
		fmt.Fprintf(b, "%v", value)
		return
	}
	missing := max(0, len(text)-maxFieldText)
	text = text[:len(text)-missing]
	if strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		text = strconv.Quote(text)
	}
	b.WriteString(text)
	if missing > 0 {
		fmt.Fprintf(b, "…(+%d bytes)", missing)
	}
}

func (t *Timeline) writeItems(b *strings.Builder, prefix string, share time.Duration, all bool) {
	last := time.Duration(0)
	for _, i := range t.items {
		if i.nested != nil {
			last = max(last, i.nested.write(b, prefix, share, all, t.began))
			continue
		}
		at := i.at
		if at == atEnd {
			at = t.took
		}
		if took := at - last; took >= share || all {
			b.WriteString(prefix + "---")
			var fields []Field
			if i.fields != nil {
				fields = *i.fields
			}
			writeSummary(b, i.name, fields, took, t.began.Add(at))
		}
		last = at
	}
}

// write tells of a timeline within another, and returns when it has ended, since the
// other one has begun.
func (t *Timeline) write(b *strings.Builder, prefix string, share time.Duration, all bool, began time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.began.Sub(began)
	if t.ended {
		end += t.took
	}
	if t.long() || all && t.ended {
		b.WriteString(prefix + "[")
		writeSummary(b, t.name, t.fields, t.took, t.began)
		t.writeItems(b, prefix+" ", t.share(), all)
		b.WriteByte(']')
		return end
	}
	for _, i := range t.items {
		if i.nested != nil {
			i.nested.write(b, prefix, share, all, t.began)
		}
	}
	return end
}

func writeSummary(b *strings.Builder, name string, fields []Field, took time.Duration, at time.Time) {
	fmt.Fprintf(b, "%q ", name)
	writeFields(b, fields)
	fmt.Fprintf(b, "%dms (%s)", took.Milliseconds(), at.Format("15:04:05.000"))
}

// share is what a step takes that is worth telling of: its part of the time that is
// left when the thresholds of what is within are taken out.
func (t *Timeline) share() time.Duration {
	left, steps := t.threshold, len(t.items)+1
	for _, i := range t.items {
		if i.nested != nil {
			left -= i.nested.threshold
			steps--
		}
	}
	if least := t.threshold / 4; left < least {
		left, steps = least, len(t.items)+1
	}
	return left / time.Duration(steps)
}

// SlowRequest is what a request takes of which it is told why.
const SlowRequest = 500 * time.Millisecond

// Time begins to keep the time of what the request is for. A clock is looked at no
// more often than it must be: this is for every request.
func (r *Request) Time(name string) {
	began := r.Passed
	if began.IsZero() {
		began = time.Now()
	}
	t := r.Line
	if t == nil {
		t = new(Timeline)
	}
	t.name, t.began, t.threshold = name, began, SlowRequest
	t.items = t.first[:0]
	r.timeline = t
}

// Timed says that what the request is for is done. If the audit has something to do
// yet, that does not count.
func (r *Request) Timed() {
	switch t := r.timeline; {
	case t == nil:
	case r.Audit != nil:
		t.End()
	default:
		t.mu.Lock()
		t.ended, t.took = true, atEnd
		t.mu.Unlock()
	}
}

// Timeline is what Time has begun, nil if it has not.
func (r *Request) Timeline() *Timeline { return r.timeline }

// TimelineFrom returns the timeline of the request that a context carries, nil if
// there is none.
func TimelineFrom(ctx context.Context) *Timeline {
	if r, ok := ctx.Value(contextKey{}).(*Request); ok {
		return r.timeline
	}
	return nil
}
