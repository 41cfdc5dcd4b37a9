package request

import (
	"strings"
	"testing"
	"time"
)

func TestTimelineText(t *testing.T) {
	began := time.Date(2026, 3, 4, 5, 6, 7, 8e6, time.UTC)
	at := func(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }
	webhook := &Timeline{
		name: "Call mutating webhook", fields: []Field{{"webhook", "w"}}, began: began.Add(at(20)), threshold: at(500), took: at(600), ended: true,
		items: []item{{name: "Request completed", at: at(590)}},
	}
	quick := &Timeline{name: "Create etcd3", began: began.Add(at(640)), threshold: at(500), took: at(2), ended: true, items: []item{{name: "call succeeded", at: at(1)}}}
	whole := &Timeline{
		name: "Create", began: began, threshold: at(500), took: at(700), ended: true,
		items: []item{
			{name: "limitedReadBody succeeded", fields: &[]Field{{"len", 12}}, at: at(10)},
			{nested: webhook}, {nested: quick},
			{name: "About to write a response", at: at(699)}, {name: "Writing http response done", at: atEnd},
		},
	}
	const head = "Trace[7]: \"Create\" accept:json,verb:POST (04-Mar-2026 05:06:07.008) (total time: 700ms):"
	const call = "\nTrace[7]: [\"Call mutating webhook\" webhook:w 600ms (05:06:07.028)\nTrace[7]:  ---\"Request completed\" 590ms (05:06:07.618)]"
	const end = "\nTrace[7]: ---\"About to write a response\" 57ms (05:06:07.707)\nTrace[7]: [700ms] [700ms] END\n"
	fields := []Field{{"accept", "json"}, {"verb", "POST"}}
	if got, want := whole.Text(7, false, fields...), head+call+end; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	const read = "\nTrace[7]: ---\"limitedReadBody succeeded\" len:12 10ms (05:06:07.018)"
	const store = "\nTrace[7]: [\"Create etcd3\" 2ms (05:06:07.648)\nTrace[7]:  ---\"call succeeded\" 1ms (05:06:07.649)]"
	const done = "\nTrace[7]: ---\"Writing http response done\" 1ms (05:06:07.708)"
	last := strings.Replace(end, "\nTrace[7]: [700ms]", done+"\nTrace[7]: [700ms]", 1)
	if got, want := whole.Text(7, true, fields...), head+read+call+store+last; got != want {
		t.Errorf("all steps: got  %s\nwant %s", got, want)
	}
	if slow := whole.Slow(time.Time{}); len(slow) != 1 || slow[0] != whole {
		t.Errorf("slow is %v", slow)
	}
	// Something slow in what is not, and in what has not ended.
	whole.ended = false
	if slow := whole.Slow(time.Time{}); len(slow) != 1 || slow[0] != webhook {
		t.Errorf("slow within is %v", slow)
	}
}

// TestTimelineStaysInItsLines: what a client chooses neither begins a line nor takes
// more than its share.
func TestTimelineStaysInItsLines(t *testing.T) {
	line := &Timeline{name: "Get", began: time.Now(), took: time.Second, ended: true}
	line.items = []item{{name: "step", fields: &[]Field{{"name", strings.Repeat("\n", 10<<10)}}, at: time.Second}}
	got := line.Text(7, true, Field{"url", "/x\nE0101 forged\r\x1b[2K"}, Field{"accept", strings.Repeat("a", 1<<20)}, Field{"n", 7})
	if len(got) > 8<<10 {
		t.Errorf("%d bytes, want less than 8 KiB", len(got))
	}
	for text := range strings.Lines(got) {
		if !strings.HasPrefix(text, "Trace[7]: ") || strings.ContainsAny(text, "\r\x1b") {
			t.Errorf("got a line %.100q, want all to begin with Trace[7], and no control characters", text)
		}
	}
	if want := `url:"/x\nE0101 forged\r\x1b[2K",accept:a`; !strings.Contains(got, want) {
		t.Errorf("no %s in %.200s", want, got)
	}
}

func TestTimeline(t *testing.T) {
	var none *Timeline
	none.Step("x")
	none.Nest("y", 0).Step("z")
	none.End()
	if none.Slow(time.Now()) != nil {
		t.Error("nothing was slow")
	}
	r := &Request{}
	if r.Timeline() != nil {
		t.Error("a request has a timeline that nobody has begun")
	}
	r.Time("Get")
	for range maxItems + 10 {
		r.Timeline().Step("s")
	}
	r.Timed()
	r.Timeline().Step("late")
	if n := len(r.Timeline().items); n != maxItems {
		t.Errorf("%d steps are kept", n)
	}
	if slow := r.Timeline().Slow(time.Now()); slow != nil {
		t.Errorf("what took %v is slow", r.Timeline().took)
	}
}

func BenchmarkTimeline(b *testing.B) {
	b.ReportAllocs()
	r := &Request{Passed: time.Now()}
	for b.Loop() {
		r.Time("Get")
		t := r.Timeline()
		t.First("About to Get from storage")
		t.Step("About to write a response")
		t.Last("Writing http response done")
		r.Timed()
	}
}
