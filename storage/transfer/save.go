package transfer

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"

	"github.com/apikeel/kelson/storage"
)

// Save writes all keys of a store, as they stand at one revision, to w as a
// snapshot. The store may be in use. What is written before an error is not a
// snapshot and does not pass for one.
//
// If progress is not nil, it is called after every key with the numbers of keys
// and bytes so far.
func Save(ctx context.Context, b storage.Backend, w io.Writer, progress func(keys, bytes int64)) (Summary, error) {
	e := newEncoder(w, progress)
	revision, err := dump(ctx, b, e.put)
	if err != nil {
		return Summary{}, fmt.Errorf("saving a snapshot: %w", err)
	}
	s, err := e.finish(revision)
	if err != nil {
		return Summary{}, fmt.Errorf("saving a snapshot: %w", err)
	}
	return s, nil
}

// dump calls put for every key at one revision, which it returns.
func dump(ctx context.Context, b storage.Backend, put func(storage.KeyValue) error) (int64, error) {
	if d, ok := b.(dumper); ok {
		return d.Dump(ctx, put)
	}
	v, err := openView(ctx, b, 0)
	if err != nil {
		return 0, err
	}
	for kv, err := range v.all(ctx) {
		if err != nil {
			return 0, err
		}
		if err := put(kv); err != nil {
			return 0, err
		}
	}
	return v.revision, nil
}

// encoder writes a snapshot. It refuses what a Reader would refuse, so that a broken
// key is found while the store still exists.
type encoder struct {
	out      *bufio.Writer
	hash     hash.Hash
	progress func(keys, bytes int64)
	last     string // key of the last record
	newest   int64  // highest mod revision
	keys     int64
	bytes    int64
	buf      []byte
}

func newEncoder(w io.Writer, progress func(keys, bytes int64)) *encoder {
	e := &encoder{out: bufio.NewWriterSize(w, 64<<10), hash: sha256.New(), progress: progress}
	_ = e.write(appendHeader(nil)) // fits into the buffer
	return e
}

func (e *encoder) write(b []byte) error {
	e.hash.Write(b)
	e.bytes += int64(len(b))
	_, err := e.out.Write(b)
	return err
}

func (e *encoder) put(kv storage.KeyValue) error {
	if err := check(kv, e.last); err != nil {
		return fmt.Errorf("the store holds what a snapshot cannot: %w", err)
	}
	e.buf = appendRecord(e.buf[:0], kv)
	if err := e.write(e.buf); err != nil {
		return err
	}
	if err := e.write(kv.Value); err != nil {
		return err
	}
	e.keys++
	e.last = kv.Key
	e.newest = max(e.newest, kv.ModRevision)
	if e.progress != nil {
		e.progress(e.keys, e.bytes)
	}
	return nil
}

func (e *encoder) finish(revision int64) (Summary, error) {
	if revision <= 0 || e.newest > revision {
		return Summary{}, fmt.Errorf("the store was read at revision %d but holds revision %d", revision, e.newest)
	}
	if err := e.write(appendTrailer(nil, revision, e.keys)); err != nil {
		return Summary{}, err
	}
	s := Summary{Revision: revision, Keys: e.keys}
	e.hash.Sum(s.SHA256[:0])
	if err := e.write(s.SHA256[:]); err != nil {
		return Summary{}, err
	}
	s.Bytes = e.bytes
	return s, e.out.Flush()
}
