package usage

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// All tables full of the longest names, and a day of minutes, take less than 5 MB.
func TestMemoryIsBounded(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	w := newWorld(Config{Known: func(_, _, _ string) bool { return true }})
	fill := func(i int) *Request {
		name := func(of string) string { return fmt.Sprintf("%s-%d-%s", of, i, strings.Repeat("x", 2*maxName)) }
		return &Request{User: name("user"), Agent: name("agent"), Verb: "watch", IsResource: true, Version: "v1beta1", Resource: "pods",
			Namespace: name("namespace"), Level: "level", Deprecation: name("warning"), Status: 200, Bytes: largeList, Took: time.Second, Begun: true}
	}
	for i := range minutesKept {
		for j := range 6 { // names that stay
			w.Add(get(fmt.Sprint("user-", j), fmt.Sprint("namespace-", j)))
		}
		if i > minutesKept-4 {
			for j := range 2000 {
				r := fill(j)
				w.Begin(r)
				w.Add(r)
			}
		}
		w.now = w.now.Add(time.Minute)
		w.collect(0)
	}
	used := heap() - before
	t.Logf("%d minutes, %d bytes", len(w.slots.minutes), used)
	if used > 5<<20 || used < 1<<20 {
		t.Errorf("got %d bytes, want between 1 and 5 MB", used)
	}
	runtime.KeepAlive(w)
}
