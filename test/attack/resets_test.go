//go:build linux

package attack

import (
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// asEach runs an attack as a stranger, and as a user without any role.
func asEach(t *testing.T, p price, f func(a *assault, user string)) {
	for name, user := range map[string]string{"stranger": stranger, "user": jane} {
		t.Run(name, func(t *testing.T) { attack(t, p, func(a *assault) { f(a, user) }) })
	}
}

// resetPrice is that of streams that end as soon as they are opened: about 40 bytes for
// one, of which the server may begin to serve each.
var resetPrice = price{cpu: 10 * 1e6, held: 4 << 10, log: 64}

const resetStreams = 3000

// leaveWithin is how long a stranger may go on after the first answer.
const leaveWithin = 2 * time.Second

// TestRapidReset is CVE-2023-44487: streams that are opened and reset at once.
func TestRapidReset(t *testing.T) {
	asEach(t, resetPrice, func(a *assault, user string) {
		a.again(user, resetStreams, nil, func(p *peer) {
			_ = p.WriteRSTStream(p.open(true, "GET", "/version"), http2.ErrCodeCancel)
		})
		a.hold()
	})
}

// TestRapidResetOfCostlyRequests resets requests whose answers are large.
func TestRapidResetOfCostlyRequests(t *testing.T) {
	attack(t, price{cpu: 30 * 1e6, held: 4 << 10, log: 64}, func(a *assault) {
		a.again(reader, resetStreams/3, nil, func(p *peer) {
			_ = p.WriteRSTStream(p.open(true, "GET", "/api/v1/configmaps"), http2.ErrCodeCancel)
		})
		a.hold()
	})
}

// TestMadeYouReset is CVE-2025-8671: the client has the server reset its streams, whose
// requests go on.
func TestMadeYouReset(t *testing.T) {
	forms := map[string]func(p *peer){
		"window overflow": func(p *peer) { _ = p.WriteWindowUpdate(p.open(true, "GET", "/version"), 1<<31-1) },
		"zero increment": func(p *peer) {
			_ = p.WriteRawFrame(http2.FrameWindowUpdate, 0, p.open(true, "GET", "/version"), make([]byte, 4))
		},
		"data after the end": func(p *peer) {
			_ = p.WriteData(p.open(true, "GET", "/version"), true, []byte("x"))
		},
		"headers after the end": func(p *peer) {
			id := p.open(true, "GET", "/version")
			p.sendBlock(id, true, p.encode("x", "y"))
		},
		"dependence on itself": func(p *peer) {
			id := p.open(true, "GET", "/version")
			_ = p.WritePriority(id, http2.PriorityParam{StreamDep: id})
		},
		"dependence on itself in headers": func(p *peer) {
			id := p.next
			p.next += 2
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.request("GET", "/version"), EndStream: true, EndHeaders: true,
				Priority: http2.PriorityParam{StreamDep: id, Weight: 1}})
		},
		"priority of a wrong length": func(p *peer) {
			_ = p.WriteRawFrame(http2.FramePriority, 0, p.open(true, "GET", "/version"), make([]byte, 4))
		},
		"reset of a wrong length": func(p *peer) {
			_ = p.WriteRawFrame(http2.FrameRSTStream, 0, p.open(true, "GET", "/version"), make([]byte, 3))
		},
		"more than declared": func(p *peer) {
			_ = p.WriteData(p.open(false, "POST", "/version", "content-length", "1"), false, []byte("xy"))
		},
		"less than declared": func(p *peer) {
			_ = p.WriteData(p.open(false, "POST", "/version", "content-length", "3"), true, []byte("xy"))
		},
		"trailers without an end": func(p *peer) {
			p.sendBlock(p.open(false, "POST", "/version"), false, p.encode("x", "y"))
		},
		"pseudo headers in trailers": func(p *peer) {
			p.sendBlock(p.open(false, "POST", "/version"), true, p.encode(":path", "/x"))
		},
		"upper case in trailers": func(p *peer) {
			p.sendBlock(p.open(false, "POST", "/version"), true, p.encode("X-Y", "z"))
		},
		"no path":      func(p *peer) { p.openWith(true, p.encode(":method", "GET", ":scheme", "https")) },
		"wrong length": func(p *peer) { p.open(true, "GET", "/version", "content-length", "x") },
	}
	for name, f := range forms {
		t.Run(name, func(t *testing.T) {
			attack(t, resetPrice, func(a *assault) {
				a.again(jane, resetStreams/3, nil, f)
				a.hold()
			})
		})
	}
	t.Run("data after the end of costly requests", func(t *testing.T) {
		attack(t, price{cpu: 30 * 1e6, held: 4 << 10, log: 64}, func(a *assault) {
			a.again(reader, resetStreams/3, nil, func(p *peer) {
				_ = p.WriteData(p.open(true, "GET", "/api/v1/configmaps"), true, []byte("x"))
			})
			a.hold()
		})
	})
	t.Run("window overflow by a stranger", func(t *testing.T) {
		attack(t, resetPrice, func(a *assault) {
			a.again(stranger, resetStreams/3, nil, forms["window overflow"])
			a.hold()
		})
	})
}

// TestGoAwayComesFirst: a stranger who does not take the answer is told all the same
// that there will be no further one, and soon gets no more streams.
func TestGoAwayComesFirst(t *testing.T) {
	for _, path := range []string{"/version", "/api/v1/configmaps"} { // 200 and 403
		attack(t, resetPrice, func(a *assault) {
			p := a.dial(stranger, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			p.open(true, "GET", path)
			begin := time.Now()
			if !p.wait("GOAWAY", func() bool { return p.goAway != nil }) {
				a.Errorf("%s: a stranger who takes nothing is not told to leave", path)
				return
			}
			if took := time.Since(begin); took > leaveWithin {
				a.Errorf("%s: a stranger is told to leave after %v, want at most %v", path, took, leaveWithin)
			}
			answers := func() int {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.statuses["200"] + p.statuses["403"]
			}
			before := answers()
			for range 50 {
				p.open(true, "GET", path)
			}
			p.pings++
			_ = p.WritePing(false, [8]byte{7: byte(p.pings)})
			p.wait("answer to a ping", func() bool { return p.acked == p.pings })
			if after := answers(); before != 1 || after != before {
				a.Errorf("%s: a stranger got %d answers, and %d more after GOAWAY, want 1 and none", path, before, after-before)
			}
		})
	}
}
