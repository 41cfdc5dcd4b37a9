package controlplane

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/storage"
)

const (
	// usersEvery is how long the names of those who have written wait before they are
	// stored together; maxUsers is how many wait at most.
	usersEvery = time.Second
	maxUsers   = 4096
)

// userNotes notes which user has made which revision, for history. A crash loses the notes
// of the last moment: a name that is missing is not known, and no name is wrong.
type userNotes struct {
	keeper storage.UserKeeper
	log    *slog.Logger

	mu      sync.Mutex // guards the rest
	waiting map[int64]string
	storing map[int64]string // on their way to the store
	timer   *time.Timer      // runs while names wait

	store sync.Mutex // one goroutine stores at a time
}

// newUserNotes returns nil if the store keeps no names.
func newUserNotes(b storage.Backend, log *slog.Logger) *userNotes {
	if keeper, ok := b.(storage.UserKeeper); ok && keeper.KeepsUsers() {
		return &userNotes{keeper: keeper, log: log, waiting: map[int64]string{}}
	}
	return nil
}

// note notes the user of a request that has made a revision.
func (n *userNotes) note(ctx context.Context, revision int64, err error) {
	if n == nil || err != nil {
		return
	}
	name := request.From(ctx).User.Name
	if name == "" {
		return
	}
	n.mu.Lock()
	n.waiting[revision] = name
	full := len(n.waiting) >= maxUsers
	if n.timer == nil {
		n.timer = time.AfterFunc(usersEvery, n.flush)
	}
	n.mu.Unlock()
	if full {
		n.flush()
	}
}

// flush stores the names that wait.
func (n *userNotes) flush() {
	n.store.Lock()
	defer n.store.Unlock()
	n.mu.Lock()
	if n.timer != nil {
		n.timer.Stop()
		n.timer = nil
	}
	n.storing, n.waiting = n.waiting, map[int64]string{}
	storing := n.storing
	n.mu.Unlock()
	if len(storing) > 0 {
		if err := n.keeper.NoteUsers(context.Background(), storing); err != nil {
			n.log.Warn("who has made the last changes is not kept for history", "error", err)
		}
	}
	n.mu.Lock()
	n.storing = nil
	n.mu.Unlock()
}

// of returns who has made a revision; empty if that is not known.
func (n *userNotes) of(ctx context.Context, revision int64) string {
	if n == nil {
		return ""
	}
	n.mu.Lock()
	name, ok := n.waiting[revision]
	if !ok {
		name, ok = n.storing[revision]
	}
	n.mu.Unlock()
	if !ok {
		name, _ = n.keeper.UserOf(ctx, revision)
	}
	return name
}
