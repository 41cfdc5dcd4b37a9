package h2

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apikeel/kelson/internal/randomtest"
)

// TestBodyBufferIsBounded: a body that is read more slowly than it comes takes memory
// for what is unread, not for all of it.
func TestBodyBufferIsBounded(t *testing.T) {
	const window = 256 << 10
	var b bodyBuffer
	random := randomtest.New(t)
	var sent, read uint64 // each byte is its place in the body
	for sent < 64<<20 {
		for uint64(b.len())+16<<10 < window {
			p := make([]byte, 1+random.IntN(16<<10))
			for i := range p {
				p[i] = byte(sent)
				sent++
			}
			b.add(p, -1)
		}
		p := make([]byte, 1+random.IntN(8<<10))
		for _, got := range p[:b.take(p)] {
			if got != byte(read) {
				t.Fatalf("byte %d is %d, want %d", read, got, byte(read))
			}
			read++
		}
		if cap(b.data) > 4*window {
			t.Fatalf("%d bytes of memory for %d unread ones", cap(b.data), b.len())
		}
	}
}

// TestDeclaredBodyTakesNoMemory: a client that declares a large body and sends a byte
// of it has cost little.
func TestDeclaredBodyTakesNoMemory(t *testing.T) {
	var b bodyBuffer
	b.add([]byte{1}, 1<<40)
	if cap(b.data) > firstBody {
		t.Errorf("%d bytes of memory for one, want at most %d", cap(b.data), firstBody)
	}
	b = bodyBuffer{}
	b.add(bytes.Repeat([]byte{1}, 10), 10)
	if cap(b.data) > 64 {
		t.Errorf("%d bytes of memory for 10", cap(b.data))
	}
}

// TestControlBudget: a client may send controlRate control frames a second for ever,
// and controlBurst at once.
func TestControlBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b controlBudget
		for i := range 60 * controlRate {
			if err := b.spend(1); err != nil {
				t.Fatalf("after %d frames at the rate that is allowed: %v", i, err)
			}
			time.Sleep(time.Second / controlRate) // of the bubble's clock
		}
		n := 0
		for b.spend(1) == nil {
			n++
		}
		if n > controlBurst || n < controlBurst/2 {
			t.Errorf("%d frames at once, want about %d", n, controlBurst)
		}
	})
}

// TestStalledConnectionIsNotPolled: a client that takes a large response and reads
// nothing of it is not polled for long.
func TestStalledConnectionIsNotPolled(t *testing.T) {
	c := &conn{large: 1, initialWindow: pollWindow, window: pollWindow, ctx: t.Context()}
	polls := 0
	for c.shouldPoll() {
		if polls++; polls > maxIdlePolls {
			t.Fatalf("polled %d times without progress", polls)
		}
	}
	c.written++
	if !c.shouldPoll() {
		t.Error("not polled after progress")
	}
}

// TestNamesAreBounded has more names of header fields, and longer ones, than a connection
// keeps (CVE-2021-44716).
func TestNamesAreBounded(t *testing.T) {
	c := &conn{names: map[string]string{}}
	for i := range 10 * maxNames {
		if got, want := c.canonicalName(fmt.Sprintf("x-%d", i)), fmt.Sprintf("X-%d", i); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		c.canonicalName("x-" + strings.Repeat("y", maxName) + strconv.Itoa(i))
	}
	if len(c.names) != maxNames {
		t.Errorf("%d names are kept, want %d", len(c.names), maxNames)
	}
	for name := range c.names {
		if len(name) > maxName {
			t.Errorf("a name of %d bytes is kept, want at most %d", len(name), maxName)
		}
	}
}
