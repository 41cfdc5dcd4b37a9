package kelsontest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/google/uuid"
)

// restoreTimeout is how long Restore tries while others write.
const restoreTimeout = 30 * time.Second

// tap wraps the backend of a server, so that a test can break the watches on it.
type tap struct {
	storage.Backend
	private bool // nobody else knows where the data is, whatever kind of store it is in

	mu       sync.Mutex
	unbroken context.Context // ends to break the watches that there are
	end      context.CancelFunc
}

// Shared implements storage.Backend.
func (t *tap) Shared() bool { return !t.private && t.Backend.Shared() }

// CreateLazy implements storage.LazyCreator.
func (t *tap) CreateLazy(ctx context.Context, key string, size int, value func() []byte) (int64, error) {
	return storage.CreateLazy(ctx, t.Backend, key, size, value)
}

// Value implements storage.ValueReader.
func (t *tap) Value(ctx context.Context, key string, revision int64) ([]byte, error) {
	return storage.ReadValue(ctx, t.Backend, key, revision)
}

// HasValues implements storage.ValueReader.
func (t *tap) HasValues() bool { return storage.HasValues(t.Backend) }

// Scan implements storage.Scanner.
func (t *tap) Scan(ctx context.Context, prefix string, opts storage.ListOptions, each func(*storage.KeyValue) error) (storage.Page, error) {
	return storage.Scan(ctx, t.Backend, prefix, opts, each)
}

// Changes implements storage.Historian.
func (t *tap) Changes(ctx context.Context, opts storage.ChangesOptions, each func(*storage.Change) error) (int64, error) {
	return storage.Changes(ctx, t.Backend, opts, each)
}

// KeptHistory implements storage.Historian.
func (t *tap) KeptHistory(ctx context.Context) (storage.Kept, error) {
	return storage.KeptHistory(ctx, t.Backend)
}

// RevisionAt implements storage.Historian.
func (t *tap) RevisionAt(ctx context.Context, at time.Time) (int64, error) {
	return storage.RevisionAt(ctx, t.Backend, at)
}

// KeepsUsers implements storage.UserKeeper.
func (t *tap) KeepsUsers() bool {
	keeper, ok := t.Backend.(storage.UserKeeper)
	return ok && keeper.KeepsUsers()
}

// NoteUsers implements storage.UserKeeper. It is called if KeepsUsers reports true.
func (t *tap) NoteUsers(ctx context.Context, users map[int64]string) error {
	return t.Backend.(storage.UserKeeper).NoteUsers(ctx, users)
}

// UserOf implements storage.UserKeeper, like NoteUsers.
func (t *tap) UserOf(ctx context.Context, revision int64) (string, error) {
	return t.Backend.(storage.UserKeeper).UserOf(ctx, revision)
}

// Watch implements storage.Backend.
func (t *tap) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	w, err := t.Backend.Watch(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unbroken == nil {
		t.unbroken, t.end = context.WithCancel(context.Background())
	}
	return &tappedWatcher{w, t.unbroken}, nil
}

// breakWatches ends all watches as if what they were to read was gone.
func (t *tap) breakWatches() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unbroken != nil {
		t.end()
		t.unbroken = nil
	}
}

type tappedWatcher struct {
	storage.Watcher
	unbroken context.Context
}

var errBroken = fmt.Errorf("%w: the test has compacted the history", storage.ErrCompacted)

// Next implements storage.Watcher.
func (w *tappedWatcher) Next(ctx context.Context) (storage.Batch, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.unbroken, cancel)()
	batch, err := w.Watcher.Next(ctx)
	if w.unbroken.Err() != nil {
		return storage.Batch{}, errBroken
	}
	return batch, err
}

// CompactHistory makes the server forget the past, as an etcd does every few
// minutes: who wants to watch from a resourceVersion of before, or list at one,
// is told 410 (Expired), and so are the watches that there are. Informers list
// anew.
func (s *Server) CompactHistory() error {
	ctx, cancel := context.WithTimeout(context.Background(), restoreTimeout)
	defer cancel()
	// What a compaction leaves is its own revision: here one that is about nothing.
	mark, err := s.state.Create(ctx, storage.Root+"kelsontest/"+uuid.NewString(), nil, 0)
	if err != nil {
		return err
	}
	_, revision, err := s.state.Delete(ctx, mark.Key, mark.ModRevision)
	if err == nil {
		err = s.state.Compact(ctx, revision)
	}
	s.state.breakWatches()
	return err
}

// Snapshot is everything that a server has stored, at one moment.
type Snapshot struct {
	mu   sync.Mutex
	keys map[string]storage.KeyValue
}

// Snapshot takes one. It costs little: nothing is copied.
func (s *Server) Snapshot() (*Snapshot, error) {
	ctx, cancel := context.WithTimeout(context.Background(), restoreTimeout)
	defer cancel()
	keys, err := s.all(ctx)
	return &Snapshot{keys: keys}, err
}

// all returns everything that is stored.
func (s *Server) all(ctx context.Context) (map[string]storage.KeyValue, error) {
	page, err := s.state.List(ctx, storage.Root, storage.ListOptions{Expiry: true})
	if err != nil {
		return nil, err
	}
	keys := make(map[string]storage.KeyValue, len(page.Items))
	for _, kv := range page.Items {
		keys[kv.Key] = kv
	}
	return keys, nil
}

// Restore brings a state back: what was created since is gone, what was deleted
// is there again, with its uid, and what was changed is as it was. Clients see it
// as changes by others, so that informers stay right: objects have new resource
// versions, and no finalizer is waited for. A Snapshot can be restored any number
// of times. Whatever reconciles goes on doing so; it is best stopped before.
func (s *Server) Restore(snapshot *Snapshot) error {
	ctx, cancel := context.WithTimeout(context.Background(), restoreTimeout)
	defer cancel()
	snapshot.mu.Lock()
	defer snapshot.mu.Unlock()
	// Controllers may answer to what is being brought back, so it takes as many
	// rounds as it takes until nothing is left to do.
	for {
		now, err := s.all(ctx)
		if err != nil {
			return err
		}
		changes := snapshot.since(now)
		if len(changes) == 0 {
			return nil
		}
		for _, change := range changes {
			err := change(ctx, s.state.Backend)
			switch {
			case err == nil, errors.Is(err, storage.ErrConflict), errors.Is(err, storage.ErrExists), errors.Is(err, storage.ErrNotFound):
			default:
				return err
			}
		}
	}
}

type change func(ctx context.Context, b storage.Backend) error

// since returns what has to be done to what there is now. Things come back in the
// order in which they were created, so that an owner is there before what it
// owns; of the things that go, namespaces go first, so that nobody fills them
// again.
func (s *Snapshot) since(now map[string]storage.KeyValue) []change {
	var back, gone []storage.KeyValue
	for key, kv := range s.keys {
		is, ok := now[key]
		switch {
		case ok && is.ModRevision == kv.ModRevision:
		case ok && bytes.Equal(is.Value, kv.Value):
			kv.ModRevision = is.ModRevision
			s.keys[key] = kv
		default:
			back = append(back, kv)
		}
	}
	for key, kv := range now {
		if _, ok := s.keys[key]; !ok {
			gone = append(gone, kv)
		}
	}
	byAge := func(a, b storage.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	slices.SortFunc(back, byAge)
	slices.SortFunc(gone, func(a, b storage.KeyValue) int {
		return cmp.Or(-cmp.Compare(namespaceFirst(a.Key), namespaceFirst(b.Key)), byAge(a, b))
	})
	var changes []change
	for _, kv := range back {
		changes = append(changes, func(ctx context.Context, b storage.Backend) error {
			return s.bring(ctx, b, kv, now[kv.Key].ModRevision)
		})
	}
	for _, kv := range gone {
		changes = append(changes, func(ctx context.Context, b storage.Backend) error {
			_, _, err := b.Delete(ctx, kv.Key, kv.ModRevision)
			return err
		})
	}
	return changes
}

func namespaceFirst(key string) int {
	if strings.HasPrefix(key, storage.Root+"namespaces/") {
		return 1
	}
	return 0
}

// bring writes a key as it was, over what has a revision now; 0 if nothing is
// there.
func (s *Snapshot) bring(ctx context.Context, b storage.Backend, kv storage.KeyValue, over int64) error {
	var ttl time.Duration
	if !kv.Expires.IsZero() {
		ttl = max(time.Second, time.Until(kv.Expires))
	}
	var written storage.KeyValue
	var err error
	if over == 0 {
		written, err = b.Create(ctx, kv.Key, kv.Value, ttl)
	} else {
		written, err = b.Update(ctx, kv.Key, kv.Value, over, ttl)
	}
	if err == nil {
		// The age stays the one that decides about the order.
		kv.ModRevision = written.ModRevision
		s.keys[kv.Key] = kv
	}
	return err
}
