package engine

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
)

// This file keeps who made a revision, for as long as its event is kept.

// maxUser is how many bytes of a name are kept.
const maxUser = 512

var _ storage.UserKeeper = (*Engine)(nil)

func userKey(revision int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{spaceUser}, uint64(revision))
}

// KeepsUsers implements storage.UserKeeper.
func (e *Engine) KeepsUsers() bool { return e.opts.RetainAge > 0 }

// NoteUsers implements storage.UserKeeper. The names are not synced by themselves: a power
// cut may lose the last ones.
func (e *Engine) NoteUsers(ctx context.Context, users map[int64]string) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.calls.leave()
	if !e.KeepsUsers() || e.fs.Err() != nil {
		return nil
	}
	batch := e.db.NewBatch()
	defer batch.Close()
	for revision, name := range users {
		must(batch.Set(userKey(revision), []byte(name[:min(len(name), maxUser)]), nil))
	}
	return e.db.Apply(batch, pebble.NoSync)
}

// UserOf implements storage.UserKeeper.
func (e *Engine) UserOf(ctx context.Context, revision int64) (name string, err error) {
	if err := e.enter(ctx); err != nil {
		return "", err
	}
	defer e.leave(&err)
	b, c, err := e.db.Get(userKey(revision))
	if errors.Is(err, pebble.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer c.Close()
	return string(b), nil
}
