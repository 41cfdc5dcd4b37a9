//go:build linux

package attack

import (
	"sync"
	"testing"

	"golang.org/x/net/http2"
)

// TestEmptyData is CVE-2019-9518: frames of a body that have nothing in them.
func TestEmptyData(t *testing.T) {
	for name, payload := range map[string]struct {
		flags   http2.Flags
		payload []byte
	}{
		"empty":  {0, nil},
		"padded": {http2.FlagDataPadded, append([]byte{255}, make([]byte, 255)...)},
	} {
		t.Run(name, func(t *testing.T) {
			asEach(t, price{cpu: 300 * 1e3, held: 1 << 10, log: 16}, func(a *assault, user string) {
				p := a.dial(user, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				// A request whose body is read, and one whose body is not.
				read := p.open(false, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "content-type", "application/json")
				unread := p.open(false, "POST", "/version")
				for sent := 0; sent < flood; sent += 2 * (9 + len(payload.payload)) {
					_ = p.WriteRawFrame(http2.FrameData, payload.flags, read, payload.payload)
					if p.WriteRawFrame(http2.FrameData, payload.flags, unread, payload.payload) != nil {
						break
					}
				}
				p.done()
				a.hold()
			})
		})
	}
}

// TestDeclaredBodies declares large bodies on many streams and sends a byte of each: what
// is reserved for bodies depends on what came.
func TestDeclaredBodies(t *testing.T) {
	for name, window := range map[string]uint32{"zero window": 0, "window": 1 << 16} {
		t.Run(name, func(t *testing.T) {
			for who, user := range map[string]string{"stranger": stranger, "user": jane} {
				t.Run(who, func(t *testing.T) {
					attack(t, price{cpu: 20 * 1e6, held: 2 << 20, log: 16}, func(a *assault) {
						for range 20 {
							p := a.dial(user, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
							for range 100 {
								id := p.open(false, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
									"content-length", "3000000", "content-type", "application/json")
								_ = p.WriteData(id, false, []byte("{"))
							}
							p.done()
						}
						a.hold()
					})
				})
			}
		})
	}
}

// TestFullWindows sends as much of bodies as windows allow on many streams that do not
// take their answers: what is kept of a connection is bounded by its window.
func TestFullWindows(t *testing.T) {
	asEach(t, price{cpu: 300 * 1e3, held: 5 << 10, log: 16}, func(a *assault, user string) {
		data := make([]byte, 16<<10)
		for range 3 {
			p := a.dial(user, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			for range 60 {
				id := p.open(false, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "content-type", "application/json")
				for range 4 {
					_ = p.WriteData(id, false, data)
				}
			}
			p.done()
		}
		a.hold()
	})
}

// TestEndlessBody sends a body that does not end: it is refused once it is larger than
// any object.
func TestEndlessBody(t *testing.T) {
	asEach(t, price{cpu: 300 * 1e3, held: 2 << 10, log: 16}, func(a *assault, user string) {
		p := a.dial(user)
		id := p.open(false, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "content-type", "application/json")
		data := make([]byte, 16<<10)
		for range 1000 {
			p.mu.Lock()
			ended := p.ended > 0 || p.over
			p.mu.Unlock()
			if ended || p.WriteData(id, false, data) != nil || !p.flush() {
				break
			}
		}
		p.done()
		a.hold()
	})
}

// TestSlowBodies has many streams that wait for their bodies: who sends a whole one is
// served meanwhile.
func TestSlowBodies(t *testing.T) {
	attack(t, price{cpu: 20 * 1e6, held: 2 << 20, log: 16}, func(a *assault) {
		var group sync.WaitGroup
		for range 12 {
			group.Go(func() {
				p := a.dial(jane)
				for range 100 {
					id := p.open(false, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "content-type", "application/json")
					_ = p.WriteData(id, false, []byte("{"))
				}
				p.done()
			})
		}
		group.Wait()
		a.hold()
		if took := a.answers(mary, "/apis"); took > promptly {
			a.Errorf("another user waits for %v, want at most %v", took, promptly)
		}
	})
}
