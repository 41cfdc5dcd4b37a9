//go:build linux

package attack

import (
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestZeroWindows opens streams whose answers are not taken, on several connections. They
// hold memory for what was sent, and no turns: others are served meanwhile.
func TestZeroWindows(t *testing.T) {
	for _, c := range []struct{ name, user, path string }{
		{"small", stranger, "/version"},
		{"refusals", stranger, "/api/v1/configmaps"},
		{"small", jane, "/version"},
		{"refusals", jane, "/api/v1/configmaps"},
		{"large", jane, "/openapi/v2"},
		{"lists", reader, "/api/v1/configmaps"},
		{"lists of JSON", reader, "/api/v1/namespaces/default/configmaps?limit=100"},
		{"watches", reader, "/api/v1/configmaps?watch=1"},
	} {
		for _, window := range []uint32{0, 1} {
			if window == 1 && c.user != reader {
				continue // no other work
			}
			t.Run(c.name+"/"+c.user+"/"+string('0'+rune(window)), func(t *testing.T) {
				attack(t, price{cpu: 40 * 1e6, held: 3 << 20, log: 16}, func(a *assault) {
					var group sync.WaitGroup
					for range 6 {
						group.Go(func() {
							p := a.dial(c.user, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
							for i := range 100 {
								p.open(true, "GET", c.path)
								if i%10 == 9 && !p.done() {
									break
								}
							}
						})
					}
					group.Wait()
					a.hold()
					// The same level of priority, and the same kind of request.
					if c.user == reader {
						a.servesOther()
					}
				})
			})
		}
	}
}

// TestSlowRead takes large answers a byte at a time.
func TestSlowRead(t *testing.T) {
	for _, c := range []struct{ name, user, path string }{{"document", jane, "/openapi/v2"}, {"list", reader, "/api/v1/configmaps"}} {
		t.Run(c.name, func(t *testing.T) {
			attack(t, price{cpu: 12 * 1e6, held: 256 << 10, log: 16}, func(a *assault) {
				p := a.dial(c.user, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
				var ids []uint32
				for range 100 {
					ids = append(ids, p.open(true, "GET", c.path))
				}
				p.wait("an answer", func() bool { return p.statuses["200"] > 0 })
				for range 100 {
					for _, id := range ids {
						_ = p.WriteWindowUpdate(id, 1)
					}
					if !p.done() {
						break
					}
				}
				a.hold()
			})
		})
	}
}

// TestUnreadLists asks for large lists with wide windows and does not read from the
// connection.
func TestUnreadLists(t *testing.T) {
	attack(t, price{cpu: 40 * 1e6, held: 3 << 20, log: 16}, func(a *assault) {
		for range 10 {
			p := a.deaf(reader, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
			_ = p.WriteWindowUpdate(0, 1<<30)
			for range 100 {
				p.open(true, "GET", "/api/v1/configmaps")
			}
			p.flush()
		}
		<-time.After(500 * time.Millisecond) // it cannot be known how much the server sends
		a.hold()
		a.servesOther()
	})
}

// servesOther: another user of the same level of priority has turns for the same
// requests as the attacker.
func (a *assault) servesOther() {
	a.Helper()
	for _, path := range []string{"/api/v1/namespaces/default/configmaps/large-1", "/api/v1/configmaps"} {
		if took := a.answers(other, path); took > promptly {
			a.Errorf("another user waits for %s for %v, want at most %v", path, took, promptly)
		}
	}
}
