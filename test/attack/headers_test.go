//go:build linux

package attack

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// TestContinuationFlood is CVE-2023-45288 and CVE-2024-27316: a block of header fields
// that does not end.
func TestContinuationFlood(t *testing.T) {
	const most = 4 << 20 // sent at most on a connection
	field := append([]byte{0x00, 0x01, 'x', 0x7f, 0x7f}, bytes.Repeat([]byte{'v'}, 254)...)
	for name, fragment := range map[string][]byte{
		"empty":            nil,
		"one byte":         {0x82},
		"literal fields":   bytes.Repeat(field, 32),
		"indexed fields":   bytes.Repeat([]byte{0xa0}, 16<<10), // cookie, without a value
		"many long fields": bytes.Repeat([]byte{'v'}, 16<<10),
		"a long field":     {'v'}, // a byte a frame
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, price{cpu: 500 * 1e3, held: 1 << 10, log: 16}, func(a *assault) {
				p := a.dial(stranger)
				start := p.request("GET", "/version")
				if strings.Contains(name, "long field") {
					// The name x, and a value of 900,000 bytes.
					start = append(start, 0x00, 0x01, 'x', 0x7f, 0xa1, 0xf6, 0x36)
				}
				_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: start, EndStream: true})
				for sent := 0; sent < most && !p.refused(); sent += 9 + len(fragment) {
					if p.WriteContinuation(1, false, fragment) != nil {
						break
					}
				}
				p.flush()
				a.hold()
			})
		})
	}
	t.Run("with an end", func(t *testing.T) {
		// Blocks that end before the limit, of a byte a frame.
		asEach(t, price{cpu: 5 * 1e6, held: 2 << 10, log: 16}, func(a *assault, user string) {
			a.again(user, 100, nil, func(p *peer) {
				block := p.request("GET", "/version", "x", strings.Repeat("y", 3000)+strconv.Itoa(int(p.next)))
				id := p.next
				p.next += 2
				_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:1], EndStream: true})
				for i := range block[1:] {
					_ = p.WriteContinuation(id, i == len(block)-2, block[i+1:i+2])
				}
			})
			a.hold()
		})
	})
}

// indexed returns a request with one field that is put into the table of the decoder,
// and n references to it, of one byte each.
func indexed(p *peer, n int, name, value string) []byte {
	block := p.request("GET", "/version", name, value)
	index := byte(62) // the field that was added last
	if name == "cookie" && value == "" {
		index = 32 // it has always been there
	}
	return append(block, bytes.Repeat([]byte{0x80 | index}, n)...)
}

// TestHeaderBomb is a request of a few kilobytes that means a megabyte of header fields.
// What is bounded is their number, too: each costs more than its bytes.
func TestHeaderBomb(t *testing.T) {
	for name, bomb := range map[string]struct {
		name, value string
		fields      int
	}{
		"cookie crumbs":         {"cookie", strings.Repeat("c", 38), 14 << 10},
		"empty cookie crumbs":   {"cookie", "", 14 << 10},
		"large fields":          {"x", strings.Repeat("y", 3900), 14 << 10},
		"small fields":          {"x", "", 14 << 10},
		"fields of middle size": {"x", strings.Repeat("y", 38), 14 << 10},
		"content lengths":       {"content-length", "0", 14 << 10},
		"trailers":              {"trailer", strings.Repeat("a,", 1900), 14 << 10},
		"impersonation":         {"impersonate-group", "g", 14 << 10},
		"front proxy":           {"x-remote-group", "g", 14 << 10},
		"accept":                {"accept", strings.Repeat("a/b,", 900), 14 << 10},
		"accept encoding":       {"accept-encoding", strings.Repeat("a,", 1900), 14 << 10},
		"authorization":         {"authorization", "Bearer x", 14 << 10},
		"audit ids":             {"audit-id", strings.Repeat("y", 1000), 14 << 10},
		"websocket protocols":   {"sec-websocket-protocol", strings.Repeat("a,", 1900), 14 << 10},
		"hosts":                 {"host", "h", 14 << 10},
		"transfer encodings":    {"te", "trailers", 14 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, price{cpu: 3 * 1e6, held: 64 << 10, log: 16}, func(a *assault) {
				a.again(jane, 20, nil, func(p *peer) {
					p.openWith(true, indexed(p, bomb.fields, bomb.name, bomb.value))
					p.done()
				})
				a.hold()
			})
		})
	}
}

// TestHeaderBombOfStrangers is the same without credentials.
func TestHeaderBombOfStrangers(t *testing.T) {
	attack(t, price{cpu: 3 * 1e6, held: 64 << 10, log: 16}, func(a *assault) {
		a.again(stranger, 20, nil, func(p *peer) {
			p.openWith(true, indexed(p, 14<<10, "cookie", strings.Repeat("c", 38)))
			p.done()
		})
		a.hold()
	})
}

// TestStalledHeaderBomb is the same with windows that let no answer through, so that
// what was made of the fields is kept.
func TestStalledHeaderBomb(t *testing.T) {
	// The number of references is one that is served, if any of these bombs is.
	for _, n := range []int{900, 14 << 10} {
		for name, value := range map[string]string{"small": "", "middle": strings.Repeat("y", 38)} {
			for _, field := range []string{"cookie", "x"} {
				t.Run(fmt.Sprintf("%d %s %s", n, name, field), func(t *testing.T) {
					attack(t, price{cpu: 5 * 1e6, held: 24 << 10, log: 16}, func(a *assault) {
						for range 6 {
							p := a.dial(jane, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
							for range 90 {
								p.openWith(true, indexed(p, n, field, value))
								if p.refused() {
									break
								}
							}
							p.done()
						}
						a.hold()
					})
				})
			}
		}
	}
}

// TestManyHeaders sends as many different header fields as fit.
func TestManyHeaders(t *testing.T) {
	asEach(t, price{cpu: 3 * 1e6, held: 12 << 10, log: 16}, func(a *assault, user string) {
		a.again(user, 10, []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, func(p *peer) {
			var fields []string
			for i := range 10_000 {
				fields = append(fields, strconv.Itoa(i), "")
			}
			p.open(true, "GET", "/version", fields...)
			p.done()
		})
		a.hold()
	})
}

// TestTableSizes changes the size of the table of header fields again and again.
func TestTableSizes(t *testing.T) {
	p := price{cpu: 3 * 1e6, held: 2 << 10, log: 16}
	t.Run("decoder", func(t *testing.T) {
		asEach(t, p, func(a *assault, user string) {
			// 0 and 4096 by turns.
			updates := bytes.Repeat([]byte{0x20, 0x3f, 0xe1, 0x1f}, 4000)
			a.again(user, 50, nil, func(p *peer) {
				p.openWith(true, append(slices.Clone(updates), 0x82, 0x84, 0x87, 0x41, 0x01, 'x'))
			})
			a.hold()
		})
	})
	t.Run("encoder", func(t *testing.T) {
		asEach(t, p, func(a *assault, user string) {
			a.again(user, 1000, []http2.Setting{{ID: http2.SettingHeaderTableSize, Val: 1<<32 - 1}}, func(p *peer) {
				_ = p.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 1<<32 - 1})
				p.open(true, "GET", "/version", "audit-id", strconv.Itoa(int(p.next)))
			})
			a.hold()
		})
	})
}
