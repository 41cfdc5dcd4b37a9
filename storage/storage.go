// Package storage is the contract between Kelson and whatever keeps its bytes.
//
// A Backend is an ordered map from keys to values under one revision counter,
// after etcd's model. It knows nothing of objects, encodings or HTTP. The
// implementations live below this package: engine (embedded, on disk), memory,
// etcd and postgres. One suite, storagetest, judges them all.
//
// # Revisions
//
// The store has one counter. Every committed write takes a revision greater
// than all before it; a new store stands at revision 1. Several keys may share
// a revision only where a backend removes them together (an expired etcd
// lease does). Revisions never go back, not across restarts either.
//
// # What a caller may rely on
//
//   - A write that returned no error is durable: it survives kill -9 and power
//     loss (package memory excepted, which has no disk).
//   - Reads and writes are linearizable: a read that starts after a write was
//     acknowledged sees it, and nothing is ever read that a crash could undo.
//   - A write that returned an error wrapping a sentinel of this package other
//     than ErrUncertain was not applied. After ErrUncertain, or after the
//     context ended during the call, it may or may not have been.
//   - History is kept from the compaction revision on: a list at that revision
//     or later and a watch of events from that revision or later succeed;
//     anything older fails with ErrCompacted, never with silence.
//
// # Ownership of bytes
//
// Values passed in are not changed and not kept after the call returns. Values
// handed out are shared between readers: treat them as read-only.
package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Root is the prefix under which Kubernetes objects are kept, the one that
// kube-apiserver uses: /registry/pods/default/web-0.
const Root = "/registry/"

// Bounds that every backend enforces. A backend may be stricter: etcd refuses
// requests above its --max-request-bytes, 1.5 MiB unless configured.
const (
	MaxKeyBytes   = 4 << 10
	MaxValueBytes = 8 << 20
)

// Sentinel errors. Backends wrap them with what happened and, where a person
// can do something about it, what to do; test with errors.Is.
var (
	// ErrNotFound: the key does not exist.
	ErrNotFound = errors.New("key not found")
	// ErrExists: Create found the key present.
	ErrExists = errors.New("key already exists")
	// ErrConflict: the key's mod-revision is not the one the caller expected.
	ErrConflict = errors.New("key was changed since it was read")
	// ErrCompacted: the revision asked for is older than the history kept.
	ErrCompacted = errors.New("revision has been compacted")
	// ErrFutureRevision: the revision asked for has not been reached.
	ErrFutureRevision = errors.New("revision is in the future")
	// ErrReadOnly: the store accepts no writes, since a write to its disk
	// failed. Reads go on. The text says what to do.
	ErrReadOnly = errors.New("storage is read-only")
	// ErrNoSpace: the store is at its size limit or its disk is nearly full.
	// Deletes and reads go on.
	ErrNoSpace = errors.New("storage is out of space")
	// ErrTooLarge: the key or the value is longer than the store accepts.
	ErrTooLarge = errors.New("request is too large")
	// ErrInvalidKey: the key is empty or contains a NUL byte.
	ErrInvalidKey = errors.New("invalid key")
	// ErrUncertain: the outcome of a write is unknown; it may be there after a
	// restart or not. Read the key to find out.
	ErrUncertain = errors.New("outcome of the write is unknown")
	// ErrUnavailable: the store cannot be reached now; trying again may help.
	ErrUnavailable = errors.New("storage is unavailable")
	// ErrClosed: the backend or the watcher was closed.
	ErrClosed = errors.New("storage is closed")
)

// KeyValue is a key with its value and revisions, as of the revision at which it was
// read.
type KeyValue struct {
	Key   string
	Value []byte
	// CreateRevision is the revision at which the key last came into being.
	CreateRevision int64
	// ModRevision is the revision of the last write to the key.
	ModRevision int64
	// Expires is when the store deletes the key by itself (its ttl); zero means never.
	// The engine always sets it. etcd sets it only in lists with ListOptions.Expiry,
	// since every lease costs a request.
	Expires time.Time
	// Stale is set by a backend that transforms values (storage/encrypt) when the
	// stored form is not the one that a write would produce now, for example after the
	// encryption key was changed. An update writes such a value even if it is
	// unchanged.
	Stale bool
	// Made says that the value was made for this read, by a LazyCreator. ReadValue makes it
	// again, so there is no need to keep it.
	Made bool
	// Err is the reason why the value of this item of a list or event could not be read
	// (decrypted). Value is nil then.
	Err error
}

// Op says what an Event did to its key.
type Op uint8

const (
	Created Op = iota + 1
	Updated
	Deleted
)

// String returns the operation in upper case, as logs show it.
func (o Op) String() string {
	switch o {
	case Created:
		return "CREATED"
	case Updated:
		return "UPDATED"
	case Deleted:
		return "DELETED"
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// Event is one change of one key.
type Event struct {
	Op Op
	// KV is the key after the change. For Deleted its Value is nil,
	// CreateRevision that of the key deleted, and ModRevision the revision of
	// the deletion.
	KV KeyValue
	// Prev is the key before the change; for Created it is zero.
	Prev KeyValue
}

// Batch is what one call of Watcher.Next returns: events in the order of their
// revisions, and the revision up to which the watch is complete.
type Batch struct {
	// Events may be empty, if the batch only reports progress. All events of
	// one revision are in one batch.
	Events []Event
	// Revision: every event of the watched prefix with this revision or a
	// lower one has been delivered, in this batch or before.
	Revision int64
}

// ListOptions says which part of a prefix a List returns.
type ListOptions struct {
	// Revision at which to read; zero is the current one.
	Revision int64
	// Start is the first key to return (inclusive); empty is the beginning of
	// the prefix. A start key outside the prefix is an error.
	Start string
	// Limit is the largest number of keys to return; zero is no limit.
	Limit int
	// MaxBytes ends a page after the item with which its values are as many bytes, on
	// etcd some items later; zero is no limit.
	MaxBytes int
	// KeysOnly leaves the values out.
	KeysOnly bool
	// Count also counts the keys after the page, which may cost as much as
	// reading them.
	Count bool
	// Expiry also reports when keys expire.
	Expiry bool
	// History also reads at a Revision that is kept only for history: one from
	// Kept.Oldest on, older than those that other lists and watches can use.
	History bool
}

// Page is the answer to a List.
type Page struct {
	// Items in the order of their keys.
	Items []KeyValue
	// Revision at which the page was read. To read the next page, list at this
	// revision from NextKey of the last item.
	Revision int64
	// More is set when keys of the prefix come after the page.
	More bool
	// Remaining is their number, if ListOptions.Count was set.
	Remaining int64
}

// Status describes a store to a person or a health check.
type Status struct {
	// Engine is the name of the implementation: engine, memory, etcd or postgres.
	Engine string
	// Revision is the current one, CompactRevision the oldest that can be read
	// (where the backend knows it, else 0).
	Revision, CompactRevision int64
	// SizeBytes is what the store takes on disk; SizeLimitBytes the soft limit
	// past which creates are refused, 0 for none or unknown.
	SizeBytes, SizeLimitBytes int64
	// ReadOnly is set to the cause when the store accepts no writes.
	ReadOnly error
	// Connections is set, also beside an error, if reads share a pool of connections.
	Connections *Connections
}

// Connections describes a pool of connections to a database.
type Connections struct {
	// Max is how many there may be; Used and Idle how many there are.
	Max, Used, Idle int
	// Waiting is how many reads wait for one now, Waited how many had to so far, and Refused
	// how many got none: too many waited already, or none was free in time.
	Waiting         int
	Waited, Refused int64
}

// Backend is a revisioned, ordered store of bytes. All methods may be called
// at the same time; every method that can wait takes a context and returns
// its error, wrapped or not, when it ends.
type Backend interface {
	// Create writes a key that must not exist. With a ttl above zero the key
	// is deleted by itself after that time, within a few seconds. It returns
	// the key as written, or with ErrExists the one that is in the way.
	Create(ctx context.Context, key string, value []byte, ttl time.Duration) (KeyValue, error)

	// Update replaces the value of a key whose ModRevision is guard. The ttl
	// replaces the one that the key had; zero makes it permanent. It returns
	// the key as written, or with ErrConflict the one that is there. A missing
	// key is ErrNotFound.
	Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (KeyValue, error)

	// Delete removes a key whose ModRevision is guard. It returns the key as
	// it was before and the revision of the deletion, or with ErrConflict the
	// key that is there. A missing key is ErrNotFound.
	Delete(ctx context.Context, key string, guard int64) (KeyValue, int64, error)

	// Get returns the newest value of a key, or ErrNotFound.
	Get(ctx context.Context, key string) (KeyValue, error)

	// List returns the keys that begin with prefix, all as they stood at one
	// revision. ErrCompacted and ErrFutureRevision say that this revision is
	// not there any more or not there yet.
	List(ctx context.Context, prefix string, opts ListOptions) (Page, error)

	// Count returns the number of keys that begin with prefix now, and the
	// revision at which it counted.
	Count(ctx context.Context, prefix string) (int64, int64, error)

	// Watch follows the keys that begin with prefix. The watcher delivers
	// every event with a revision above after, in order, each once; zero
	// stands for the current revision; a revision in the future is waited for.
	// ErrCompacted, from Watch or from the first Next, says that events above
	// after have been discarded. The context bounds the whole watch.
	Watch(ctx context.Context, prefix string, after int64) (Watcher, error)

	// Revision returns the current revision, linearizably: it is at least that
	// of every write acknowledged before the call.
	Revision(ctx context.Context) (int64, error)

	// Progress asks that every open watcher, once it has delivered its events,
	// report a Batch whose Revision is at least the current one. It is a hint
	// and may get lost on the way: whoever waits asks again.
	Progress(ctx context.Context) error

	// Compact discards history: afterwards revision is the oldest that can be
	// listed or whose events can be watched. Compacting what is compacted
	// already is ErrCompacted, a future revision ErrFutureRevision.
	Compact(ctx context.Context, revision int64) error

	// Status describes the store, and fails if it cannot be reached.
	Status(ctx context.Context) (Status, error)

	// Shared reports whether other processes may write to the same data while
	// the backend is open. Servers on such a store have to agree on who does what.
	Shared() bool

	// Close ends all watchers with ErrClosed, waits for writes under way, and
	// frees what the backend holds.
	Close() error
}

// ValueReader is a Backend that has its values on disk or on another machine, so that a
// cache of them need not keep all of them in memory. A Backend that wraps another one
// implements it with ReadValue.
type ValueReader interface {
	// Value returns the value that the write at a revision gave to a key, for as long as it is the
	// current one, or in the history: it was the current one at the revision compacted to, or came
	// later. Otherwise the error is ErrCompacted.
	Value(ctx context.Context, key string, revision int64) ([]byte, error)
	// HasValues reports whether Value works: a wrapper cannot if what it wraps cannot.
	HasValues() bool
}

// HasValues reports whether ReadValue works.
func HasValues(b Backend) bool {
	reader, ok := b.(ValueReader)
	return ok && reader.HasValues()
}

// ReadValue returns a value as ValueReader has it.
func ReadValue(ctx context.Context, b Backend, key string, revision int64) ([]byte, error) {
	if reader, ok := b.(ValueReader); ok {
		return reader.Value(ctx, key, revision)
	}
	return nil, fmt.Errorf("%w: the store keeps no values of its own", errors.ErrUnsupported)
}

// Scanner is a Backend that can show values without a copy of each. A Backend that wraps
// another one implements it with Scan.
type Scanner interface {
	// Scan is List, but passes the items to each instead of returning them. An item and
	// its value are valid until each returns. An error of each ends the scan, and is
	// returned.
	Scan(ctx context.Context, prefix string, opts ListOptions, each func(*KeyValue) error) (Page, error)
}

// Scan lists as Scanner does, whatever the Backend is.
func Scan(ctx context.Context, b Backend, prefix string, opts ListOptions, each func(*KeyValue) error) (Page, error) {
	if scanner, ok := b.(Scanner); ok {
		return scanner.Scan(ctx, prefix, opts, each)
	}
	page, err := b.List(ctx, prefix, opts)
	for i := range page.Items {
		if err == nil {
			err = each(&page.Items[i])
		}
	}
	page.Items = nil
	return page, err
}

// LazyCreator is a Backend in memory that can keep the function which makes a value in
// place of the value. A Backend that wraps another one implements it with CreateLazy.
type LazyCreator interface {
	// CreateLazy is Create without a ttl, of a value with size bytes. It returns the
	// revision. value is called whenever the value is read,
	// possibly by several goroutines at a time. It must return the same bytes each time,
	// and not use the Backend.
	CreateLazy(ctx context.Context, key string, size int, value func() []byte) (revision int64, err error)
}

// CreateLazy is Create with a value that a LazyCreator makes whenever it is read, and
// others store as usual.
func CreateLazy(ctx context.Context, b Backend, key string, size int, value func() []byte) (revision int64, err error) {
	if lazy, ok := b.(LazyCreator); ok {
		return lazy.CreateLazy(ctx, key, size, value)
	}
	kv, err := b.Create(ctx, key, value(), 0)
	return kv.ModRevision, err
}

// Watcher is a position in the stream of events. A watcher that nobody reads costs no
// memory and is never disconnected for being slow. If events that it has not delivered
// yet are compacted, it ends with ErrCompacted.
type Watcher interface {
	// Next waits for events or for progress and returns them. The batch has
	// at least one event, or a Revision above that of the batch before. After
	// an error the watcher is over and returns the same error again; a context
	// that ends here ends only this call.
	Next(ctx context.Context) (Batch, error)
	// Close ends the watch. It may be called more than once, and while Next
	// waits, which then returns ErrClosed.
	Close()
}

// Pusher is a Watcher of a store in this process, which can bring its batches to a function.
// That spares a goroutine that is woken for each of them.
type Pusher interface {
	// Push calls f with every batch, in order, one at a time, on the goroutine that has
	// committed it: before the writes in it are acknowledged. Therefore f must be quick,
	// and must not write to the Backend. Push returns when the watch has ended, with its
	// error, and f is not called after that.
	Push(f func(Batch)) error
}

// AskingPusher is a Pusher of a store that asks who gets all batches for keys, instead of
// reading them from disk.
type AskingPusher interface {
	Pusher
	// PushAsking is Push. Until it returns, lookup may be asked for keys of the watched
	// prefix.
	PushAsking(f func(Batch), lookup Lookup) error
}

// Lookup returns the newest version of a key by the batches that the caller has seen, and the
// revision of the last of these: at this revision or a later one that was the version. It is
// zero if there was none. ok is false if the caller cannot tell at once. Lookup is
// called on any goroutine; the value is shared.
type Lookup func(key string) (newest KeyValue, seen int64, ok bool)

// CheckKey returns an error unless key may name a value.
func CheckKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: empty", ErrInvalidKey)
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("%w: key of %d bytes, at most %d are allowed", ErrTooLarge, len(key), MaxKeyBytes)
	case strings.IndexByte(key, 0) >= 0:
		return fmt.Errorf("%w: contains a NUL byte", ErrInvalidKey)
	}
	return nil
}

// CheckValue returns an error if value is longer than a store accepts.
func CheckValue(value []byte) error { return CheckSize(len(value)) }

// CheckSize is CheckValue for a value of size bytes.
func CheckSize(size int) error {
	if size > MaxValueBytes {
		return fmt.Errorf("%w: value of %d bytes, at most %d are allowed", ErrTooLarge, size, MaxValueBytes)
	}
	return nil
}

// CheckStart returns an error if a list of prefix cannot start at start.
func CheckStart(prefix, start string) error {
	if start != "" && !strings.HasPrefix(start, prefix) {
		return fmt.Errorf("%w: list of %q cannot start at %q", ErrInvalidKey, prefix, start)
	}
	return nil
}

// NextKey returns the smallest key after key, where the next page of a list starts that
// ended with key. It is only for ListOptions.Start: the result is not a valid key.
func NextKey(key string) string { return key + "\x00" }

// PrefixEnd returns the smallest string greater than all strings that begin
// with prefix, or "" if there is none.
func PrefixEnd(prefix string) string {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return string(end[:i+1])
		}
	}
	return ""
}
