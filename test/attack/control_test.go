//go:build linux

package attack

import (
	"bytes"
	"testing"

	"golang.org/x/net/http2"
)

// frame returns a frame.
func frame(kind http2.FrameType, flags http2.Flags, stream uint32, payload []byte) []byte {
	n := len(payload)
	return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), byte(kind), byte(flags),
		byte(stream >> 24), byte(stream >> 16), byte(stream >> 8), byte(stream)}, payload...)
}

// flood is how much is sent of frames that ask for nothing.
const flood = 2 << 20

// TestControlFlood sends frames that say little, as many as it can, and reads what comes.
func TestControlFlood(t *testing.T) {
	settings := func(n int, id http2.SettingID, val byte) []byte {
		return bytes.Repeat([]byte{byte(id >> 8), byte(id), 0, 0, 0, val}, n)
	}
	for name, frames := range map[string][]byte{
		"settings":                      frame(http2.FrameSettings, 0, 0, nil),
		"settings with a hundred":       frame(http2.FrameSettings, 0, 0, settings(100, http2.SettingMaxConcurrentStreams, 1)),
		"settings with a thousand":      frame(http2.FrameSettings, 0, 0, settings(1000, http2.SettingMaxConcurrentStreams, 1)),
		"settings without a meaning":    frame(http2.FrameSettings, 0, 0, settings(100, 0xff, 1)),
		"acknowledged settings":         frame(http2.FrameSettings, http2.FlagSettingsAck, 0, nil),
		"pings":                         frame(http2.FramePing, 0, 0, make([]byte, 8)),
		"answers to no ping":            frame(http2.FramePing, http2.FlagPingAck, 0, make([]byte, 8)),
		"priorities":                    frame(http2.FramePriority, 0, 1<<20+1, []byte{0, 0, 0, 3, 1}),
		"windows of the connection":     append(frame(http2.FrameWindowUpdate, 0, 0, []byte{0, 0, 0, 1}), frame(http2.FramePing, http2.FlagPingAck, 0, make([]byte, 8))...),
		"windows":                       frame(http2.FrameWindowUpdate, 0, 0, []byte{0, 0, 0, 1}),
		"farewells":                     frame(http2.FrameGoAway, 0, 0, make([]byte, 8)),
		"frames without a meaning":      frame(0x0b, 0xff, 1, nil),
		"long frames without a meaning": frame(0xf0, 0, 1, make([]byte, 16<<10)),
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, price{cpu: 500 * 1e3, held: 1 << 10, log: 16}, func(a *assault) {
				p := a.dial(stranger)
				many := bytes.Repeat(frames, max(1, 16<<10/len(frames)))
				for sent := 0; sent < flood; sent += len(many) {
					if _, err := p.out.Write(many); err != nil {
						break
					}
				}
				p.done()
				a.hold()
			})
		})
	}
}

// TestUnreadAnswers causes answers and reads none of them.
func TestUnreadAnswers(t *testing.T) {
	for name, frames := range map[string][]byte{
		"settings": frame(http2.FrameSettings, 0, 0, nil),
		"pings":    frame(http2.FramePing, 0, 0, make([]byte, 8)),
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, price{cpu: 500 * 1e3, held: 512, log: 16}, func(a *assault) {
				for range 4 {
					p := a.deaf(stranger)
					many := bytes.Repeat(frames, 16<<10/len(frames))
					const most = 64 << 20
					sent, err := 0, error(nil)
					for ; sent < most && err == nil; sent += len(many) {
						_, err = p.out.Write(many)
					}
					a.hold()
					if err == nil {
						a.Errorf("a client that reads nothing could send %d bytes", sent)
					}
				}
			})
		})
	}
}

// TestWindowFlips changes the windows of a hundred streams that wait for them.
func TestWindowFlips(t *testing.T) {
	const streams = 100
	begin := func(a *assault, user, path string) *peer {
		p := a.dial(user, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for range streams {
			p.open(true, "GET", path)
		}
		p.wait("answers", func() bool { return p.statuses["200"] == streams })
		return p
	}
	flip := func(p *peer, n int, values ...byte) {
		var payload []byte
		for range n {
			for _, v := range values {
				payload = append(payload, 0, byte(http2.SettingInitialWindowSize), 0, 0, 0, v)
			}
		}
		_ = p.WriteRawFrame(http2.FrameSettings, 0, 0, payload)
	}
	for name, f := range map[string]func(p *peer){
		"many in a frame": func(p *peer) { flip(p, 50, 0, 0) },
		"one in a frame":  func(p *peer) { flip(p, 1, 0) },
		"one byte wider":  func(p *peer) { _ = p.WriteWindowUpdate(0, 1) },
		"below zero": func(p *peer) {
			flip(p, 1, 1)
			flip(p, 1, 0)
		},
	} {
		for _, path := range []string{"/version", "/openapi/v2"} {
			t.Run(name+path, func(t *testing.T) {
				attack(t, price{cpu: 5 * 1e6, held: 512 << 10, log: 16}, func(a *assault) {
					p := begin(a, jane, path)
					for i := range 2000 {
						f(p)
						if i%10 == 9 && !p.flush() {
							break
						}
					}
					p.done()
					a.hold()
				})
			})
		}
	}
}

// TestFramesWithoutMeaning is CVE-2026-27141: types of frames that nobody knows are
// ignored, whatever is in them.
func TestFramesWithoutMeaning(t *testing.T) {
	asEach(t, price{cpu: 2 * 1e6, held: 1 << 10, log: 16}, func(a *assault, user string) {
		p := a.dial(user)
		stream := uint32(1)
		if user != stranger { // to whom the answer is the end of the connection
			stream = p.open(false, "POST", "/version")
		}
		for kind := 0x0a; kind <= 0xff; kind++ {
			if kind == int(http2.FramePriorityUpdate) {
				continue // it has a meaning, and may end the connection
			}
			for _, id := range []uint32{0, stream, 1<<31 - 1} {
				for _, size := range []int{0, 1, 4, 5, 8, 100} {
					_ = p.WriteRawFrame(http2.FrameType(kind), 0xff, id, make([]byte, size))
				}
			}
		}
		p.pings++
		_ = p.WritePing(false, [8]byte{7: byte(p.pings)})
		if !p.wait("answer to a ping", func() bool { return p.acked == p.pings }) {
			a.Errorf("frames without a meaning have ended the connection")
		}
		for _, id := range []uint32{0, 1, 1<<31 - 1} {
			for _, size := range []int{0, 1, 4, 5, 8, 100} {
				p := a.dial(user)
				_ = p.WriteRawFrame(http2.FramePriorityUpdate, 0xff, id, make([]byte, size))
				p.done()
			}
		}
	})
}

// TestPush: clients do not push.
func TestPush(t *testing.T) {
	attack(t, price{cpu: 1e6, held: 1 << 10, log: 16}, func(a *assault) {
		p := a.dial(jane)
		id := p.open(false, "POST", "/version")
		_ = p.WritePushPromise(http2.PushPromiseParam{StreamID: id, PromiseID: 2, BlockFragment: p.request("GET", "/version"), EndHeaders: true})
		if code := p.cut(); code != http2.ErrCodeProtocol {
			a.Errorf("a push has ended the connection with %v, want %v", code, http2.ErrCodeProtocol)
		}
	})
}
