package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
)

// The key spaces of the database. FORMAT.md describes them for people.
const (
	spaceVersion = 'd' // d<key>\0<^revision>  a version of a key
	spaceMeta    = 'm' // m<name>              a number about the store
	spaceEvent   = 'r' // r<revision>          what a revision did
	spaceUser    = 'u' // u<revision>          who made a revision, as far as it is known
	spaceExpiry  = 'x' // x<time><key>         a key that expires
)

// Names in the meta space.
const (
	metaBase    = "base"    // the revision at which the store began: 1, or that of an import
	metaCompact = "compact" // the oldest revision that can be read
	metaFloor   = "floor"   // the oldest revision that is kept for history; absent if none is
)

var errCorrupt = errors.New("storage: corrupt record")

// versionKey appends the key of a version. Newer versions sort first.
func versionKey(dst []byte, key string, revision int64) []byte {
	dst = append(dst, spaceVersion)
	dst = append(dst, key...)
	dst = append(dst, 0)
	return binary.BigEndian.AppendUint64(dst, ^uint64(revision))
}

// parseVersionKey splits the key of a version. The returned key aliases b.
func parseVersionKey(b []byte) (key []byte, revision int64, err error) {
	n := len(b) - 9
	if n < 2 || b[0] != spaceVersion || b[n] != 0 || bytes.IndexByte(b[1:n], 0) >= 0 {
		return nil, 0, fmt.Errorf("%w: version key %q", errCorrupt, b)
	}
	revision = int64(^binary.BigEndian.Uint64(b[n+1:]))
	if revision <= 0 {
		return nil, 0, fmt.Errorf("%w: version key %q", errCorrupt, b)
	}
	return b[1:n], revision, nil
}

// versionBound appends a bound in the space of versions: every version of
// every key that is not below key sorts at or after it, and no other. What key has from a NUL on, as
// those of storage.NextKey have, makes it come after the key before the NUL.
func versionBound(dst []byte, key string) []byte {
	dst = append(dst, spaceVersion)
	if k, _, ok := strings.Cut(key, "\x00"); ok {
		dst = append(dst, k...)
		return append(dst, 1)
	}
	return append(dst, key...)
}

// prefixBounds returns the bounds of all versions of keys with a prefix.
func prefixBounds(prefix string) (lower, upper []byte) {
	lower = versionBound(nil, prefix)
	if end := storage.PrefixEnd(prefix); end != "" {
		return lower, versionBound(nil, end)
	}
	return lower, []byte{spaceVersion + 1}
}

// A version is stored as a header of versionHeader bytes and the value. The caller of a
// write copies the value behind room for the header, so that a commit need not copy
// it again.
const versionHeader = 1 + 8 + 8

type version struct {
	revision int64 // not stored here: it is part of the database key
	create   int64
	deleted  bool  // a tombstone: the key does not exist from here on
	expires  int64 // Unix milliseconds, 0 for never
	value    []byte
}

// putHeader fills the header in front of a value.
func (v version) putHeader(record []byte) {
	record[0] = 0
	if v.deleted {
		record[0] = 1
	}
	binary.BigEndian.PutUint64(record[1:], uint64(v.create))
	binary.BigEndian.PutUint64(record[9:], uint64(v.expires))
}

// parseVersion parses the record of a version; its value aliases b.
func parseVersion(b []byte, revision int64) (version, error) {
	if len(b) < versionHeader || b[0] > 1 {
		return version{}, fmt.Errorf("%w: version of revision %d", errCorrupt, revision)
	}
	v := version{
		revision: revision,
		create:   int64(binary.BigEndian.Uint64(b[1:])),
		deleted:  b[0] == 1,
		expires:  int64(binary.BigEndian.Uint64(b[9:])),
		value:    b[versionHeader:],
	}
	if v.create <= 0 || v.create > revision || v.expires < 0 || v.deleted && len(v.value) > 0 {
		return version{}, fmt.Errorf("%w: version of revision %d", errCorrupt, revision)
	}
	return v, nil
}

// keyValue converts the version to what the contract returns.
func (v version) keyValue(key string) storage.KeyValue {
	kv := storage.KeyValue{Key: key, Value: v.value, CreateRevision: v.create, ModRevision: v.revision}
	if v.expires != 0 {
		kv.Expires = time.UnixMilli(v.expires)
	}
	return kv
}

// An event is stored under its revision and names the key and the operation; the values
// are in the versions.
const eventHeader = 1 + 8 + 8 + 8 + 4

type event struct {
	op       storage.Op
	time     int64 // of the commit, Unix milliseconds
	create   int64
	prev     int64 // revision of the version that this one replaced, 0 for none
	prevSize uint32
	key      string
}

func eventKey(dst []byte, revision int64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, spaceEvent), uint64(revision))
}

func parseEventKey(b []byte) (int64, error) {
	if len(b) != 9 || b[0] != spaceEvent || b[1] > 0x7f {
		return 0, fmt.Errorf("%w: event key %q", errCorrupt, b)
	}
	return int64(binary.BigEndian.Uint64(b[1:])), nil
}

func (e event) append(dst []byte) []byte {
	dst = append(dst, byte(e.op))
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.time))
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.create))
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.prev))
	dst = binary.BigEndian.AppendUint32(dst, e.prevSize)
	return append(dst, e.key...)
}

func parseEvent(b []byte) (event, error) {
	if len(b) <= eventHeader {
		return event{}, fmt.Errorf("%w: event of %d bytes", errCorrupt, len(b))
	}
	e := event{
		op:       storage.Op(b[0]),
		time:     int64(binary.BigEndian.Uint64(b[1:])),
		create:   int64(binary.BigEndian.Uint64(b[9:])),
		prev:     int64(binary.BigEndian.Uint64(b[17:])),
		prevSize: binary.BigEndian.Uint32(b[25:]),
		key:      string(b[eventHeader:]),
	}
	if e.op < storage.Created || e.op > storage.Deleted || e.create <= 0 || e.prev < 0 ||
		e.op != storage.Created && e.prev == 0 || strings.IndexByte(e.key, 0) >= 0 {
		return event{}, fmt.Errorf("%w: event of %q", errCorrupt, e.key)
	}
	return e, nil
}

func expiryKey(dst []byte, expires int64, key string) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, spaceExpiry), uint64(expires))
	return append(dst, key...)
}

func parseExpiryKey(b []byte) (expires int64, key string, err error) {
	if len(b) < 10 || b[0] != spaceExpiry || b[1] > 0x7f {
		return 0, "", fmt.Errorf("%w: expiry key %q", errCorrupt, b)
	}
	return int64(binary.BigEndian.Uint64(b[1:])), string(b[9:]), nil
}

func metaKey(name string) []byte { return append([]byte{spaceMeta}, name...) }

func metaValue(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func parseMeta(b []byte) (int64, error) {
	if len(b) != 8 || b[0] > 0x7f {
		return 0, fmt.Errorf("%w: number %q", errCorrupt, b)
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// comparer orders keys by their bytes, and tells Pebble that the versions of a
// key share a prefix, so that its Bloom filters answer "is there any version
// of this key".
func comparer() *pebble.Comparer {
	split := func(k []byte) int {
		if n := len(k) - 9; n >= 2 && k[0] == spaceVersion && k[n] == 0 {
			return n + 1
		}
		return len(k)
	}
	c := *pebble.DefaultComparer
	c.Name = "kelson.versions.1"
	c.Split = split
	// A separator is a bare prefix or a whole key, never a key with a part of
	// a revision: split could not read that.
	c.Separator = func(dst, a, b []byte) []byte {
		pa, pb := a[:split(a)], b[:split(b)]
		if !bytes.Equal(pa, pb) {
			if s := pebble.DefaultComparer.Separator(nil, pa, pb); !bytes.Equal(s, pa) {
				return append(dst, s...)
			}
		}
		return append(dst, a...)
	}
	// All versions of a key lie between its prefix and the next one.
	c.ImmediateSuccessor = func(dst, a []byte) []byte {
		if n := len(a) - 1; n > 0 && a[0] == spaceVersion && a[n] == 0 {
			return append(append(dst, a[:n]...), 1)
		}
		return append(append(dst, a...), 0)
	}
	c.Successor = func(dst, a []byte) []byte {
		pa := a[:split(a)]
		if s := pebble.DefaultComparer.Successor(nil, pa); !bytes.Equal(s, pa) {
			return append(dst, s...)
		}
		return append(dst, a...)
	}
	return &c
}
