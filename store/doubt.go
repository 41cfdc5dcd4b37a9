package store

import (
	"context"

	"github.com/apikeel/kelson/resource"
)

// doubts are the records of a cache that were decrypted with keys that may be gone since.
// A record that is read as of now is read from the backend once more, and confirmed if that
// succeeds: whether an object can be read must not depend on what is in a cache. Lists,
// watches and reads that take the cache as it is go on with what it has.
type doubts struct {
	until   int64            // records of later revisions are not in doubt
	checked map[string]int64 // revisions of the records that are confirmed, by key
}

func (d *doubts) confirmed(rec *Record) bool {
	return rec.Revision > d.until || d.checked[rec.Key] == rec.Revision
}

// Doubt says that the keys have changed with which the objects of some definitions are
// encrypted.
func (s *Store) Doubt(ctx context.Context, changed func(def *resource.Definition) bool) error {
	revision, err := s.backend.Revision(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.resources {
		if changed(r.def) {
			r.mu.Lock()
			r.doubts = doubts{until: revision, checked: map[string]int64{}}
			r.mu.Unlock()
		}
	}
	return nil
}

// confirm returns the newest state of an object that the cache has, from the backend.
func (r *Resource) confirm(ctx context.Context, rec *Record) (*Record, error) {
	newest, err := r.newest(ctx, rec.Key)
	if err != nil || newest.Revision != rec.Revision {
		return newest, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.doubts.checked != nil {
		r.doubts.checked[rec.Key] = rec.Revision
	}
	return rec, nil
}
