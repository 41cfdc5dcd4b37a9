package transfer

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
)

// Restore makes a store in dir, which must be absent or empty, from a snapshot
// file. The whole file is verified first; the store appears whole or not at
// all. Keys keep their revisions.
//
// The store begins at the snapshot's revision plus bump, without history. bump
// must be more than the writes that the store had seen since the snapshot:
// clients which saw them must not find the same revisions again with other
// content. Their watches end instead, since what they ask for is compacted,
// and they list anew.
func Restore(ctx context.Context, file, dir string, bump int64) (Summary, error) {
	if bump < 0 {
		return Summary{}, fmt.Errorf("restore: revisions cannot go back: bump is %d", bump)
	}
	f, err := os.Open(file)
	if err != nil {
		return Summary{}, fmt.Errorf("restore: %w", err)
	}
	defer f.Close()
	summary, err := Verify(contextReader{ctx, f})
	if err != nil {
		return Summary{}, fmt.Errorf("restore: %s: %w", file, err)
	}
	if bump > math.MaxInt64-summary.Revision {
		return Summary{}, fmt.Errorf("restore: revision %d cannot be raised by %d", summary.Revision, bump)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Summary{}, fmt.Errorf("restore: %s must be a file: %w", file, err)
	}
	r, err := NewReader(f)
	if err != nil {
		return Summary{}, fmt.Errorf("restore: %s: %w", file, err)
	}
	next := func() (storage.KeyValue, error) {
		kv, err := r.Next()
		if err == io.EOF && r.Summary() != summary {
			err = fmt.Errorf("%s changed while it was being read", file)
		}
		return kv, err
	}
	if err := engine.Import(ctx, dir, summary.Revision+bump, next); err != nil {
		return Summary{}, fmt.Errorf("restore: %w", err)
	}
	return summary, nil
}

// contextReader is a reader that fails when its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
