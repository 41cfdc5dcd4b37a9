package gzipped

import (
	"bytes"
	"compress/gzip"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"testing"
)

// Streams of all kinds of pieces are what others read.
func TestStreams(t *testing.T) {
	for range 200 {
		var text []byte
		var sum Sum
		stream := []byte(Header)
		for range rand.IntN(5) {
			part := bytes.Repeat([]byte{byte('a' + rand.IntN(26)), byte(rand.Uint32())}, rand.IntN(40_000))
			text = append(text, part...)
			if rand.IntN(2) == 0 {
				before := len(stream)
				stream, sum = AppendStored(stream, part), sum.Then(SumOf(part))
				if n := len(stream) - before; n > StoredSize(len(part)) {
					t.Errorf("%d bytes, and not %d at most", n, StoredSize(len(part)))
				}
				continue
			}
			p := Compress(new(bytes.Buffer), part)
			stream, sum = append(stream, p.Bytes...), sum.Then(p.Sum)
		}
		before := len(stream)
		if stream = AppendEnd(stream, sum); len(stream)-before != EndSize {
			t.Errorf("the end has %d bytes, not %d", len(stream)-before, EndSize)
		}
		if sum != (Sum{len(text), crc32.ChecksumIEEE(text)}) {
			t.Errorf("%+v", sum)
		}
		z, err := gzip.NewReader(bytes.NewReader(stream))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(z)
		if err != nil || !bytes.Equal(got, text) {
			t.Fatalf("%d bytes, not %d: %v", len(got), len(text), err)
		}
	}
}
