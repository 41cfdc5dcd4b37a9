//go:build linux

package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestReport: ratios are those of rounds that were measured one after the other.
func TestReport(t *testing.T) {
	ms := func(all ...int) (out []time.Duration) {
		for _, n := range all {
			out = append(out, time.Duration(n)*time.Millisecond)
		}
		return out
	}
	var out strings.Builder
	report(&out, []*server{
		{path: "old", cpu: ms(1, 4, 2), latencies: ms(4, 8, 6)},
		{path: "new", cpu: ms(2, 2, 4), latencies: ms(3, 3, 9)},
	}, ms(1, 2, 3))
	want := `write and sync of 600 bytes: median 2ms
old: 2ms CPU a request, median 6ms a request (3.00 of a sync), 3 requests
new: 2ms CPU a request, median 3ms a request (1.50 of a sync), 3 requests
second/first: CPU 1.26, median 0.50
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// TestCPUTime: the CPU time of a process grows with what it does.
func TestCPUTime(t *testing.T) {
	before, err := cpuTime(os.Getpid())
	if err != nil || before <= 0 {
		t.Fatalf("got %v, %v, want more than nothing", before, err)
	}
	for began := time.Now(); time.Since(began) < time.Minute; {
		if now, err := cpuTime(os.Getpid()); err != nil || now < before {
			t.Fatalf("got %v, %v, want at least %v", now, err, before)
		} else if now >= before+10*time.Millisecond {
			return
		}
	}
	t.Error("no CPU time was counted")
}
