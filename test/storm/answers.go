//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// A bodyCheck looks at the body of an answer as it arrives, without keeping it. Bodies
// have hundreds of megabytes, so it looks only at what tells whether all items are there.
type bodyCheck interface {
	write(p []byte)
	// isDone reports that nothing else is to be waited for, though the body goes on.
	isDone() bool
	// finish returns what is wrong with the whole body.
	finish() error
}

// uidMarker is once in each object in JSON and in each row of a table. Neither it nor
// the quotation mark that it begins with is in base64 data.
const uidMarker = `"uid":"`

// counter counts a marker in a stream of bytes.
type counter struct {
	marker []byte
	n      int
	carry  []byte // the last len(marker)-1 bytes
}

func newCounter(marker string) *counter { return &counter{marker: []byte(marker)} }

func (c *counter) write(p []byte) {
	keep := len(c.marker) - 1
	joined := append(c.carry, p[:min(len(p), keep)]...)
	c.n += bytes.Count(joined, c.marker) + bytes.Count(p, c.marker)
	if len(p) >= keep {
		c.carry = append(c.carry[:0], p[len(p)-keep:]...)
		return
	}
	c.carry = append([]byte(nil), joined[max(0, len(joined)-keep):]...)
}

// jsonCheck is the check of JSON.
type jsonCheck struct {
	items int
	ends  string // what the body ends with, but for a newline
	found *counter
	first byte
	tail  []byte // the last bytes, a newline among them
}

// newListCheck returns the check of a list or a table, whose items come last.
func newListCheck(items int) *jsonCheck {
	return &jsonCheck{items: items, ends: "]}", found: newCounter(uidMarker)}
}

// newObjectCheck returns the check of one object.
func newObjectCheck() *jsonCheck {
	return &jsonCheck{items: 1, ends: "}", found: newCounter(uidMarker)}
}

func (c *jsonCheck) write(p []byte) {
	if len(p) == 0 {
		return
	}
	if c.first == 0 {
		c.first = p[0]
	}
	c.found.write(p)
	const keep = 3
	c.tail = append(c.tail, p[max(0, len(p)-keep):]...)
	c.tail = append(c.tail[:0], c.tail[max(0, len(c.tail)-keep):]...)
}

func (c *jsonCheck) isDone() bool { return false }

func (c *jsonCheck) finish() error {
	switch {
	case c.first != '{' || !strings.HasSuffix(strings.TrimSuffix(string(c.tail), "\n"), c.ends):
		return fmt.Errorf("JSON begins with %q and ends with %q", c.first, c.tail)
	case c.found.n != c.items:
		return fmt.Errorf("%d items of %d", c.found.n, c.items)
	}
	return nil
}

// initialEventsCheck is the check of a watch that begins with the objects that exist.
type initialEventsCheck struct {
	items      int
	found, end *counter
}

func newInitialEventsCheck(items int) *initialEventsCheck {
	return &initialEventsCheck{items, newCounter(uidMarker), newCounter(`"k8s.io/initial-events-end"`)}
}

func (c *initialEventsCheck) write(p []byte) {
	c.found.write(p)
	c.end.write(p)
}

func (c *initialEventsCheck) isDone() bool { return c.end.n > 0 }

func (c *initialEventsCheck) finish() error {
	switch {
	case c.end.n == 0:
		return errors.New("no end of the initial events")
	case c.found.n < c.items: // there may be more events by now
		return fmt.Errorf("%d items of %d", c.found.n, c.items)
	}
	return nil
}

// protobufCheck is the check of a list in protobuf. It follows the lengths in it: those
// of the envelope (runtime.Unknown), and of the items of the list inside.
type protobufCheck struct {
	items int
	found int
	head  []byte // of a field, until it is complete
	magic bool   // the prefix of the envelope has come
	skip  uint64 // bytes of the current field that are still to come
	list  uint64 // bytes of the list that are still to come, with skip
	wrong error
}

// protobufMagic begins every answer in protobuf.
const protobufMagic = "k8s\x00"

// Fields that are looked into, both with a length.
const (
	envelopeRaw = 2 // of runtime.Unknown
	listItems   = 2 // of a list
	withLength  = 2 // the wire type
)

func newProtobufCheck(items int) *protobufCheck { return &protobufCheck{items: items} }

func (c *protobufCheck) write(p []byte) {
	for len(p) > 0 && c.wrong == nil {
		if c.skip > 0 {
			n := min(c.skip, uint64(len(p)))
			c.skip, p = c.skip-n, p[n:]
			if c.list > 0 {
				c.list -= n
			}
			continue
		}
		c.head, p = append(c.head, p[0]), p[1:]
		if !c.magic {
			if len(c.head) == len(protobufMagic) {
				c.magic = true
				if string(c.head) != protobufMagic {
					c.wrong = fmt.Errorf("protobuf begins with %q", c.head)
				}
				c.head = c.head[:0]
			}
			continue
		}
		c.readHead()
	}
}

// readHead reads the number and the length of a field, if they are complete.
func (c *protobufCheck) readHead() {
	key, n := binary.Uvarint(c.head)
	if n <= 0 {
		c.tooLong()
		return
	}
	length, m := binary.Uvarint(c.head[n:])
	if m <= 0 {
		c.tooLong()
		return
	}
	size := uint64(len(c.head))
	c.head = c.head[:0]
	inList := c.list > 0
	switch {
	case key&7 != withLength:
		c.wrong = fmt.Errorf("protobuf field with wire type %d", key&7)
	case inList && size+length > c.list:
		c.wrong = errors.New("protobuf field longer than its list")
	case inList:
		c.list -= size
		c.skip = length
		if key>>3 == listItems {
			c.found++
		}
	case key>>3 == envelopeRaw:
		c.list = length
	default:
		c.skip = length
	}
}

func (c *protobufCheck) tooLong() {
	if len(c.head) > 2*binary.MaxVarintLen64 {
		c.wrong = errors.New("protobuf field without a length")
	}
}

func (c *protobufCheck) isDone() bool { return false }

func (c *protobufCheck) finish() error {
	switch {
	case c.wrong != nil:
		return c.wrong
	case !c.magic || len(c.head) > 0 || c.skip > 0 || c.list > 0:
		return errors.New("protobuf ends within a field")
	case c.found != c.items:
		return fmt.Errorf("%d items of %d", c.found, c.items)
	}
	return nil
}

// gzipCheck looks only at the beginning of a compressed body: few clients decompress, as
// that takes longer than all the rest.
type gzipCheck struct{ head []byte }

func (c *gzipCheck) write(p []byte) {
	if missing := 2 - len(c.head); missing > 0 {
		c.head = append(c.head, p[:min(missing, len(p))]...)
	}
}

func (c *gzipCheck) isDone() bool { return false }

func (c *gzipCheck) finish() error {
	if string(c.head) != "\x1f\x8b" {
		return fmt.Errorf("gzip begins with %q", c.head)
	}
	return nil
}
