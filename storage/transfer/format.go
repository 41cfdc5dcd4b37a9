package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/apikeel/kelson/storage"
)

// The layout of a snapshot; FORMAT.md describes it for people.
const (
	magic   = "\x89KELSNAP\r\n\x1a\n"
	version = 1

	headerBytes  = len(magic) + 4
	tagRecord    = 'K'
	recordBytes  = 1 + 4 + 4 + 8 + 8 + 8 // without key and value
	tagTrailer   = 'E'
	trailerBytes = 1 + 8 + 8 // without the hash
)

var (
	// ErrNotSnapshot: the file is something else.
	ErrNotSnapshot = errors.New("not a snapshot of Kelson")
	// ErrNewerVersion: the file was written by a newer version of Kelson.
	ErrNewerVersion = errors.New("snapshot has a newer format")
	// ErrCorrupt: the file is not as it was written.
	ErrCorrupt = errors.New("snapshot is damaged")
)

func appendHeader(b []byte) []byte {
	return binary.BigEndian.AppendUint32(append(b, magic...), version)
}

func appendRecord(b []byte, kv storage.KeyValue) []byte {
	var expires int64
	if !kv.Expires.IsZero() {
		expires = kv.Expires.UnixMilli()
	}
	b = append(b, tagRecord)
	b = binary.BigEndian.AppendUint32(b, uint32(len(kv.Key)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(kv.Value)))
	b = binary.BigEndian.AppendUint64(b, uint64(kv.CreateRevision))
	b = binary.BigEndian.AppendUint64(b, uint64(kv.ModRevision))
	b = binary.BigEndian.AppendUint64(b, uint64(expires))
	return append(b, kv.Key...)
}

func appendTrailer(b []byte, revision, count int64) []byte {
	b = binary.BigEndian.AppendUint64(append(b, tagTrailer), uint64(revision))
	return binary.BigEndian.AppendUint64(b, uint64(count))
}

// check returns an error unless kv can follow a record with the key last.
func check(kv storage.KeyValue, last string) error {
	if err := storage.CheckKey(kv.Key); err != nil {
		return err
	}
	if err := storage.CheckValue(kv.Value); err != nil {
		return fmt.Errorf("%q: %w", kv.Key, err)
	}
	switch {
	case kv.Key <= last:
		return fmt.Errorf("%q comes after %q", kv.Key, last)
	case kv.CreateRevision <= 0 || kv.CreateRevision > kv.ModRevision:
		return fmt.Errorf("%q has create revision %d and mod revision %d", kv.Key, kv.CreateRevision, kv.ModRevision)
	case !kv.Expires.IsZero() && kv.Expires.UnixMilli() <= 0:
		return fmt.Errorf("%q expires at %v", kv.Key, kv.Expires)
	}
	return nil
}
