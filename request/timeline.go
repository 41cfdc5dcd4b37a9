package request

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// This file records the steps of a request, for the log lines about slow requests.

// Timeline records how long an operation and its steps take, so that slow ones can be
// logged. Recording is cheap: nothing is formatted before it is logged. A nil Timeline
// records nothing.
type Timeline struct {
	name   string
	fields []Field
	began  time.Time
	// threshold is the duration from which on the operation is logged.
	threshold time.Duration

	mu    sync.Mutex // guards the fields below
	took  time.Duration
	ended bool
	items []item
	first [3]item // backing array of items, enough for a read
}

// Field is a key and value that describes an operation.
type Field struct {
	Key   string
	Value any
}

// item is a step, or a nested timeline.
type item struct {
	name   string
	at     time.Duration // since the beginning of the timeline
	fields *[]Field
	nested *Timeline
}

// atEnd is the time of a step at the end of the timeline.
const atEnd = -1

// NewTimeline begins a timeline.
func NewTimeline(name string, threshold time.Duration, fields ...Field) *Timeline {
	t := &Timeline{name: name, fields: fields, began: time.Now(), threshold: threshold}
	t.items = t.first[:0]
	return t
}

// Step records a step.
func (t *Timeline) Step(name string, fields ...Field) {
	if t == nil {
		return
	}
	i := item{name: name, at: time.Since(t.began)}
	if len(fields) > 0 {
		kept := fields // escapes to the heap only here
		i.fields = &kept
	}
	t.add(i)
}

// First is Step at the beginning, Last at the end: they need not read the clock.
func (t *Timeline) First(name string) {
	if t != nil {
		t.add(item{name: name})
	}
}

// Last is Step at the end.
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

// maxItems is the largest number of items of a timeline.
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

// End ends the timeline. Only the first call has an effect.
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

// Slow returns the timelines that took longer than their thresholds: this one, or else
// the nested ones. now is the end if End did not read the clock.
func (t *Timeline) Slow(now time.Time) []*Timeline {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended && t.took == atEnd {
		t.took = now.Sub(t.began)
	}
	if t.isSlow() {
		return []*Timeline{t}
	}
	var slow []*Timeline
	for _, i := range t.items {
		slow = append(slow, i.nested.Slow(now)...)
	}
	return slow
}

// isSlow reports whether the timeline exceeded its threshold. The caller holds mu.
func (t *Timeline) isSlow() bool { return t.ended && t.took >= t.threshold }

// Text formats a finished timeline as Kubernetes' utiltrace does: a line for the whole,
// one for each step that took more than its share, and one for the end, each prefixed
// with number. fields come before those of the timeline. all includes all steps.
func (t *Timeline) Text(number uint32, all bool, fields ...Field) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	prefix := fmt.Sprintf("Trace[%d]: ", number)
	fmt.Fprintf(&b, "%s%q ", prefix, t.name)
	writeFields(&b, append(fields[:len(fields):len(fields)], t.fields...))
	fmt.Fprintf(&b, "(%s) (total time: %dms):", t.began.Format("02-Jan-2006 15:04:05.000"), t.took.Milliseconds())
	t.writeItems(&b, "\n"+prefix, t.stepThreshold(), all)
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

// maxFieldText is the largest length of a text in bytes: clients choose some of them.
const maxFieldText = 1024

// writeValue quotes a text so that it stays on one line.
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

// write formats a nested timeline, and returns when it ended, relative to the outer
// one.
func (t *Timeline) write(b *strings.Builder, prefix string, share time.Duration, all bool, began time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.began.Sub(began)
	if t.ended {
		end += t.took
	}
	if t.isSlow() || all && t.ended {
		b.WriteString(prefix + "[")
		writeSummary(b, t.name, t.fields, t.took, t.began)
		t.writeItems(b, prefix+" ", t.stepThreshold(), all)
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

// stepThreshold is the duration from which on a step is logged: its part of the threshold, less
// the thresholds of nested timelines.
func (t *Timeline) stepThreshold() time.Duration {
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

// SlowRequest is the duration from which on a request is logged as slow.
const SlowRequest = 500 * time.Millisecond

// Time begins the timeline of a request. It is called for every request, so it reads
// the clock only if it must.
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

// Timed ends the timeline of the request. Work of the audit after it does not count.
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

// Timeline returns the timeline that Time has begun, or nil.
func (r *Request) Timeline() *Timeline { return r.timeline }

// TimelineFrom returns the timeline of the context's request, or nil.
func TimelineFrom(ctx context.Context) *Timeline {
	if r, ok := ctx.Value(contextKey{}).(*Request); ok {
		return r.timeline
	}
	return nil
}
