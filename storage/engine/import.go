package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Import makes a store in dir, which must be absent or empty, from the keys
// that next returns in ascending order until io.EOF. The keys keep their
// revisions; the store begins at the given revision, with no history before
// it. The folder appears whole or not at all.
func Import(ctx context.Context, dir string, revision int64, next func() (storage.KeyValue, error)) error {
	partial := filepath.Clean(dir) + ".partial"
	if names, err := os.ReadDir(dir); err == nil && len(names) > 0 {
		return fmt.Errorf("storage: %s is not empty; choose another folder, or move this one away", dir)
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("storage: cannot read %s: %w", dir, err)
	}
	if err := clearPartial(partial); err != nil {
		return err
	}
	err := importInto(ctx, partial, revision, next)
	if err == nil {
		if err = os.Remove(dir); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		err = os.Rename(partial, dir)
	}
	if err == nil {
		err = syncDir(vfs.Default, filepath.Dir(filepath.Clean(dir)))
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(partial))
	}
	return nil
}

// clearPartial removes the folder of an interrupted import. It fails if another import
// is writing there.
func clearPartial(partial string) error {
	if _, err := os.Stat(partial); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := openFolder(vfs.Default, partial)
	if err != nil && !errors.Is(err, ErrNotStore) {
		return err
	}
	if lock != nil {
		defer lock.Close()
	}
	if err := os.RemoveAll(partial); err != nil {
		return fmt.Errorf("storage: cannot remove an earlier attempt: %w", err)
	}
	return nil
}

func importInto(ctx context.Context, dir string, revision int64, next func() (storage.KeyValue, error)) error {
	lock, err := openFolder(vfs.Default, dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	opts := Options{Dir: dir}
	opts.defaults()
	po := pebbleOptions(opts, vfs.Default)
	po.DisableWAL = true // the folder gets its name only when it is complete
	db, err := pebble.Open(filepath.Join(dir, databaseDir), po)
	if err != nil {
		return fmt.Errorf("storage: cannot make %s: %w", dir, err)
	}
	err = importKeys(ctx, db, revision, next)
	if err == nil {
		err = db.Flush()
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	return sealFolder(vfs.Default, dir, revision)
}

func importKeys(ctx context.Context, db *pebble.DB, revision int64, next func() (storage.KeyValue, error)) error {
	batch := db.NewBatch()
	defer func() { batch.Close() }()
	flush := func() error {
		err := db.Apply(batch, pebble.NoSync)
		batch.Close()
		batch = db.NewBatch()
		return err
	}
	last := ""
	for {
		kv, err := next()
		if err == io.EOF {
			break
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if err := checkImport(kv, last, revision); err != nil {
			return err
		}
		last = kv.Key
		v := version{create: kv.CreateRevision}
		if !kv.Expires.IsZero() {
			v.expires = kv.Expires.UnixMilli()
			must(batch.Set(expiryKey(nil, v.expires, kv.Key), metaValue(kv.ModRevision), nil))
		}
		record := make([]byte, versionHeader, versionHeader+len(kv.Value))
		v.putHeader(record)
		must(batch.Set(versionKey(nil, kv.Key, kv.ModRevision), append(record, kv.Value...), nil))
		if batch.Len() > maxGroupBytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	must(batch.Set(metaKey(metaBase), metaValue(revision), nil))
	must(batch.Set(metaKey(metaCompact), metaValue(revision), nil))
	return flush()
}

// checkImport returns an error for keys out of order and for revisions that no store
// could have.
func checkImport(kv storage.KeyValue, last string, revision int64) error {
	if err := errors.Join(storage.CheckKey(kv.Key), storage.CheckValue(kv.Value)); err != nil {
		return err
	}
	if kv.Key <= last {
		return fmt.Errorf("storage: import of %s after %s is out of order", kv.Key, last)
	}
	if kv.CreateRevision <= 0 || kv.CreateRevision > kv.ModRevision || kv.ModRevision > revision {
		return fmt.Errorf("storage: import of %s has revisions %d and %d, of %d", kv.Key, kv.CreateRevision, kv.ModRevision, revision)
	}
	return nil
}
