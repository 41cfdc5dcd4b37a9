// Package polltest waits, in a test, for what other goroutines or processes bring about and
// nothing announces. Start at Until. Where there is an event to wait for (a channel, a
// watch), a test waits for that instead.
package polltest

import (
	"testing"
	"time"
)

const (
	interval = 2 * time.Millisecond
	// patience is far more than anything takes, since machines that run tests are busy.
	patience = time.Minute
)

// Until asks again and again whether a condition holds, and returns when it does. The test
// fails if it does not within a minute; what says, for that case, what was waited for.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for late := time.Now().Add(patience); !holds(); {
		if time.Now().After(late) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		<-tick.C
	}
}
