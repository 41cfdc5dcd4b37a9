package h2

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/apikeel/kelson/internal/randomtest"
)

// trickle is a connection that has what it has in parts.
type trickle struct {
	net.Conn
	parts [][]byte
}

func (t *trickle) Read(p []byte) (int, error) {
	if len(t.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(p, t.parts[0])
	if t.parts[0] = t.parts[0][n:]; len(t.parts[0]) == 0 {
		t.parts = t.parts[1:]
	}
	return n, nil
}

// TestReadAhead: whether and when something is read ahead, it is what was sent.
func TestReadAhead(t *testing.T) {
	paused, random := 0, randomtest.New(t)
	for range 100 {
		var sent []byte
		var parts [][]byte
		for range random.IntN(20) {
			part := make([]byte, 1+random.IntN(2*smallBuffer))
			for i := range part {
				part[i] = byte(random.Uint32())
			}
			sent, parts = append(sent, part...), append(parts, part)
		}
		b := &batchConn{Conn: &trickle{parts: parts}, shouldPoll: func() bool { return random.IntN(2) == 0 }, pause: func() { paused++ }}
		var got []byte
		for {
			p := make([]byte, 1+random.IntN(1000))
			n, err := b.Read(p)
			got = append(got, p[:n]...)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || n == 0 {
				t.Fatal(n, err)
			}
		}
		if !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes are not the %d that were sent", len(got), len(sent))
		}
	}
	if paused == 0 {
		t.Error("it never paused")
	}
}
