package gzipped

import (
	"bytes"
	"compress/gzip"
	"hash/crc32"
	"io"
	"testing"

	"github.com/apikeel/kelson/internal/randomtest"
)

// Streams of all kinds of pieces are what others read.
func TestStreams(t *testing.T) {
	random := randomtest.New(t)
	for range 200 {
		var text []byte
		var sum Sum
		stream := []byte(Header)
		for range random.IntN(5) {
			part := bytes.Repeat([]byte{byte('a' + random.IntN(26)), byte(random.Uint32())}, random.IntN(40_000))
			text = append(text, part...)
			if random.IntN(2) == 0 {
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
