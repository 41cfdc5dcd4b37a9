package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
)

// salvageGap is how far the revision of a salvaged store is above all that is known of the
// damaged one, whose clients may know revisions that are lost.
const salvageGap = 100_000

// Salvaged is what Salvage has done.
type Salvaged struct {
	Revision int64 // of the new store
	Keys     int
	// Lost is what could not be read, by key where it is known.
	Lost []string
}

// salvage is one run of Salvage.
type salvage struct {
	from, copy string // folders of the damaged database and of its mended copy
	db         *pebble.DB
	out        *Salvaged
	newest     int64
	keys       []storage.KeyValue // without values
}

func (s *salvage) lost(format string, args ...any) {
	s.out.Lost = append(s.out.Lost, fmt.Sprintf(format, args...))
}

// Salvage writes what can be read of a damaged store into the folder to, which must be
// absent or empty. Nothing in dir is changed; no process may have it open. Single flipped
// bits of logs and manifests are put right.
func Salvage(ctx context.Context, dir, to string) (_ *Salvaged, err error) {
	unlock, err := Lock(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	work := filepath.Clean(to) + ".salvage"
	if err := makeDir(vfs.Default, filepath.Dir(work)); err != nil {
		return nil, err
	}
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, fmt.Errorf("storage: cannot make a folder to work in; if an earlier attempt has left it, remove it: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	known := int64(0)
	s := &salvage{from: filepath.Join(dir, databaseDir), copy: work, out: &Salvaged{}}
	if m, err := readMark(vfs.Default, dir); err != nil {
		s.lost("%s cannot be read: how much is lost is not known", filepath.Join(dir, markFile))
	} else if m != nil {
		known = m.revision
	}
	if err := s.mend(); err != nil {
		return nil, err
	}
	opts := Options{Dir: s.copy}
	opts.defaults()
	po := pebbleOptions(opts, newFreezer(vfs.Default, func(error) {}))
	po.DisableConsistencyCheck = true // what is missing is lost, and the rest is not
	po.DisableAutomaticCompactions = true
	if err = guard(func() (err error) { s.db, err = pebble.Open(s.copy, po); return err }); err != nil {
		return nil, fmt.Errorf("storage: %s cannot be salvaged; restore a snapshot: %w", s.from, err)
	}
	defer func() { err = errors.Join(err, guard(s.db.Close)) }()
	if err := s.read(ctx); err != nil {
		return nil, err
	}
	if known > s.newest {
		s.lost("the changes of revisions %d to %d", s.newest+1, known)
	}
	s.out.Keys, s.out.Revision = len(s.keys), max(s.newest, known)+salvageGap
	next := 0
	return s.out, Import(ctx, to, s.out.Revision, func() (storage.KeyValue, error) {
		if next == len(s.keys) {
			return storage.KeyValue{}, io.EOF
		}
		kv := s.keys[next]
		next++
		err := guard(func() error {
			b, c, err := s.db.Get(versionKey(nil, kv.Key, kv.ModRevision))
			if err != nil {
				return err
			}
			kv.Value = slices.Clone(b[versionHeader:])
			return c.Close()
		})
		return kv, err
	})
}

// mend copies the database, with logs and manifest as Pebble can read them.
func (s *salvage) mend() error {
	entries, err := os.ReadDir(s.from)
	if err != nil {
		return err
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	manifest, err := atomicfs.ReadMarker(vfs.Default, s.from, "manifest")
	if err != nil || manifest == "" {
		for _, name := range names {
			if manifestNumber(name) > manifestNumber(manifest) {
				manifest = name
			}
		}
	}
	for _, name := range names {
		from, to := filepath.Join(s.from, name), filepath.Join(s.copy, name)
		switch {
		case logNumber(name) != 0 || name == manifest:
			err = s.rewrite(from, to, uint32(logNumber(name)))
		case isTable(name):
			err = vfs.LinkOrCopy(vfs.Default, from, to)
		}
		if err != nil {
			return err
		}
	}
	for _, marker := range []string{"manifest.000001." + manifest, fmt.Sprintf("format-version.000001.%03d", pebble.FormatValueSeparation)} {
		if err := os.WriteFile(filepath.Join(s.copy, "marker."+marker), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// rewrite copies the records of a log or manifest that can be read.
func (s *salvage) rewrite(from, to string, log uint32) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	w := record.NewWriter(out)
	r := chunkReader{b: b, log: log, unmarked: true}
	var buf []byte
	whole := false // buf begins with the first chunk of a record
	take := func(c chunk) {
		if c.position == 0 || c.position == 1 {
			buf, whole = buf[:0], true
		}
		buf = append(buf, b[c.begin:c.end]...)
		if (c.position == 0 || c.position == 3) && whole && err == nil {
			_, err = w.WriteRecord(buf)
			whole = false
		}
	}
	for at := 0; at < len(b); {
		end, done := r.eachFrom(at, take)
		if done {
			break
		}
		if _, ok := r.mend(end); ok {
			at = end
			continue
		}
		whole = false
		if log == 0 {
			if r.isFault(end) {
				s.lost("%s from byte %d on: it says which files the store consists of", from, end)
			}
			break
		}
		if at = r.next(end + 1); at < len(b) {
			s.lost("bytes %d to %d of %s", end, at, from)
		}
	}
	return errors.Join(err, w.Close(), out.Close())
}

// next returns the first offset from at on where there is a chunk, or the length of the file.
func (r chunkReader) next(at int) int {
	for ; at+plainHeader <= len(r.b); at++ {
		if r.header(r.b[at+6]) != 0 {
			if _, ok := r.at(at); ok {
				return at
			}
		}
	}
	return len(r.b)
}

// read reads all keys from the copy, and what is left of their history.
func (s *salvage) read(ctx context.Context) error {
	for _, name := range []string{metaBase, metaCompact} {
		if b, c, err := s.db.Get(metaKey(name)); err == nil {
			if n, err := parseMeta(b); err == nil {
				s.newest = max(s.newest, n)
			}
			_ = c.Close()
		}
	}
	deleted, changed := s.events()
	for key := ""; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		last, err := s.readFrom(key)
		if err == nil {
			break
		}
		// Try ever farther behind what cannot be read.
		from, resumed := last, false
		for n := len(last); n > 0 && !resumed; n-- {
			if key = storage.PrefixEnd(last[:n]); key != "" {
				resumed = s.canRead(key)
			}
		}
		if !resumed {
			s.lost("keys after %q: %v", from, err)
			break
		}
		s.lost("keys between %q and %q: %v", from, key, err)
	}
	slices.SortFunc(s.keys, func(a, b storage.KeyValue) int { return strings.Compare(a.Key, b.Key) })
	s.keys = slices.DeleteFunc(s.keys, func(kv storage.KeyValue) bool { return deleted[kv.Key] > kv.ModRevision })
	for key, revision := range changed {
		i, found := slices.BinarySearchFunc(s.keys, key, func(kv storage.KeyValue, key string) int { return strings.Compare(kv.Key, key) })
		switch {
		case !found:
			s.lost("%s, of revision %d", key, revision)
		case s.keys[i].ModRevision < revision:
			s.lost("%s of revision %d: it is kept as it was at %d", key, revision, s.keys[i].ModRevision)
		}
	}
	slices.Sort(s.out.Lost)
	s.out.Lost = slices.Compact(s.out.Lost)
	return nil
}

// events reads which keys the events that are left have deleted and changed last.
func (s *salvage) events() (deleted, changed map[string]int64) {
	deleted, changed = map[string]int64{}, map[string]int64{}
	before := int64(0)
	err := guard(func() error {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceEvent}, UpperBound: []byte{spaceEvent + 1}})
		if err != nil {
			return err
		}
		defer it.Close()
		for ok := it.First(); ok; ok = it.Next() {
			revision, _, ev, err := eventAt(it)
			if err != nil {
				return err
			}
			if before != 0 && revision != before+1 {
				s.lost("the changes of revisions %d to %d", before+1, revision-1)
			}
			before = revision
			s.newest = max(s.newest, revision)
			delete(deleted, ev.key)
			delete(changed, ev.key)
			if ev.op == storage.Deleted {
				deleted[ev.key] = revision
			} else {
				changed[ev.key] = revision
			}
		}
		return it.Error()
	})
	if err != nil {
		s.lost("the changes after revision %d: %v", before, err)
	}
	return deleted, changed
}

// readFrom reads the newest versions from a key on. It returns the last key that was read,
// and an error if what follows cannot be.
func (s *salvage) readFrom(key string) (last string, err error) {
	last = key
	err = guard(func() error {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceVersion}, UpperBound: []byte{spaceVersion + 1}})
		if err != nil {
			return err
		}
		defer it.Close()
		for ok := it.SeekGE(versionBound(nil, key)); ok; ok = it.NextPrefix() {
			k, revision, err := parseVersionKey(it.Key())
			if err != nil {
				return err
			}
			last = string(k)
			s.newest = max(s.newest, revision)
			var v version
			err = guard(func() error {
				b, err := it.ValueAndErr()
				if err == nil {
					v, err = parseVersion(b, revision)
				}
				return err
			})
			if err != nil {
				s.lost("%s, of revision %d", last, revision)
				continue
			}
			if v.deleted {
				continue
			}
			kv := v.keyValue(last)
			kv.Value = nil // it is read again when it is written
			s.keys = append(s.keys, kv)
		}
		return it.Error()
	})
	return last, err
}

// canRead reports whether there is a key at or after key that can be read.
func (s *salvage) canRead(key string) bool {
	return guard(func() error {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceVersion}, UpperBound: []byte{spaceVersion + 1}})
		if err != nil {
			return err
		}
		defer it.Close()
		it.SeekGE(versionBound(nil, key))
		return it.Error()
	}) == nil
}

// guard turns a panic of Pebble over a damaged file into an error.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return f()
}
