package transfer

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/apikeel/kelson/storage"
)

// Reader reads a snapshot. What Next returns is verified only when Next has returned
// io.EOF.
type Reader struct {
	in      *bufio.Reader
	hash    hash.Hash
	offset  int64
	last    string // key of the last record
	newest  int64  // highest mod revision
	buf     bytes.Buffer
	summary Summary
	err     error // what Next returns from now on
}

// NewReader checks the header of r and returns a reader.
func NewReader(r io.Reader) (*Reader, error) {
	d := &Reader{in: bufio.NewReaderSize(r, 64<<10), hash: sha256.New()}
	header, err := d.in.Peek(headerBytes)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("reading a snapshot: %w", err)
	}
	if len(header) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrNotSnapshot)
	}
	if n := min(len(header), len(magic)); string(header[:n]) != magic[:n] {
		return nil, fmt.Errorf("%w: it begins with %.12q", ErrNotSnapshot, header)
	}
	if header, err = d.take(headerBytes); err != nil {
		return nil, err
	}
	switch v := binary.BigEndian.Uint32(header[len(magic):]); {
	case v == 0:
		return nil, fmt.Errorf("%w: it says that its format is 0", ErrCorrupt)
	case v > version:
		return nil, fmt.Errorf("%w: it has format %d, this version of Kelson knows up to %d; use a newer version", ErrNewerVersion, v, version)
	}
	return d, nil
}

// Next returns the next key, in ascending order. After the last one it returns io.EOF
// if length and hash are right, else ErrCorrupt. The value is valid until the next
// call.
func (d *Reader) Next() (storage.KeyValue, error) {
	if d.err != nil {
		return storage.KeyValue{}, d.err
	}
	kv, err := d.next()
	if err != nil {
		d.err = err
		return storage.KeyValue{}, err
	}
	d.last = kv.Key
	d.newest = max(d.newest, kv.ModRevision)
	d.summary.Keys++
	return kv, nil
}

// Summary describes the snapshot; it is complete after Next returned io.EOF.
func (d *Reader) Summary() Summary { return d.summary }

// Verify reads a snapshot to its end and says what is in it, or what is wrong
// with it.
func Verify(r io.Reader) (Summary, error) {
	d, err := NewReader(r)
	if err != nil {
		return Summary{}, err
	}
	for err == nil {
		_, err = d.Next()
	}
	if err != io.EOF {
		return Summary{}, err
	}
	return d.Summary(), nil
}

func (d *Reader) next() (storage.KeyValue, error) {
	tag, err := d.in.Peek(1)
	if err != nil {
		return storage.KeyValue{}, d.broken(err)
	}
	switch tag[0] {
	case tagRecord:
		return d.record()
	case tagTrailer:
		return storage.KeyValue{}, d.trailer()
	}
	return storage.KeyValue{}, d.corrupt("no record begins with %#02x", tag[0])
}

func (d *Reader) record() (kv storage.KeyValue, err error) {
	at := d.offset
	b, err := d.take(recordBytes)
	if err != nil {
		return kv, err
	}
	keyLen, valueLen := binary.BigEndian.Uint32(b[1:]), binary.BigEndian.Uint32(b[5:])
	create, mod, expires := binary.BigEndian.Uint64(b[9:]), binary.BigEndian.Uint64(b[17:]), binary.BigEndian.Uint64(b[25:])
	if keyLen > storage.MaxKeyBytes || valueLen > storage.MaxValueBytes {
		return kv, d.corrupt("record at byte %d has a key of %d and a value of %d bytes", at, keyLen, valueLen)
	}
	kv.CreateRevision, kv.ModRevision = int64(create), int64(mod)
	if expires != 0 {
		// A value of 2^63 or more becomes negative, and check refuses it.
		kv.Expires = time.UnixMilli(int64(expires))
	}
	if b, err = d.take(int(keyLen)); err != nil {
		return kv, err
	}
	kv.Key = string(b)
	if kv.Value, err = d.take(int(valueLen)); err != nil {
		return kv, err
	}
	if err := check(kv, d.last); err != nil {
		return kv, d.corrupt("record at byte %d: %w", at, err)
	}
	return kv, nil
}

// trailer checks counts and hash and returns io.EOF if they are right.
func (d *Reader) trailer() error {
	b, err := d.take(trailerBytes)
	if err != nil {
		return err
	}
	revision, count := int64(binary.BigEndian.Uint64(b[1:])), int64(binary.BigEndian.Uint64(b[9:]))
	var want [sha256.Size]byte
	d.hash.Sum(want[:0])
	if b, err = d.take(sha256.Size); err != nil {
		return err
	}
	switch {
	case !bytes.Equal(b, want[:]):
		return d.corrupt("its content does not have the checksum that it had when it was written")
	case count != d.summary.Keys:
		return d.corrupt("it has %d keys and should have %d", d.summary.Keys, count)
	case revision <= 0 || d.newest > revision:
		return d.corrupt("it is of revision %d but holds revision %d", revision, d.newest)
	}
	if _, err := d.in.Peek(1); err == nil {
		return d.corrupt("it goes on after its end, at byte %d", d.offset)
	} else if err != io.EOF {
		return d.broken(err)
	}
	d.summary.Revision, d.summary.Bytes, d.summary.SHA256 = revision, d.offset, want
	return io.EOF
}

// take reads n bytes, which are valid until the next call. The buffer grows with what
// arrives, so a wrong length cannot allocate memory.
func (d *Reader) take(n int) ([]byte, error) {
	d.buf.Reset()
	got, err := io.CopyN(&d.buf, d.in, int64(n))
	d.offset += got
	d.hash.Write(d.buf.Bytes())
	if err != nil {
		return nil, d.broken(err)
	}
	return d.buf.Bytes(), nil
}

func (d *Reader) corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupt, fmt.Errorf(format, args...))
}

// broken returns the error for a stream that ended or failed too early.
func (d *Reader) broken(err error) error {
	if errors.Is(err, io.EOF) {
		return d.corrupt("it ends after %d bytes, and is not complete", d.offset)
	}
	return fmt.Errorf("reading a snapshot: %w", err)
}
