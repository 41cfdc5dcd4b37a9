package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
)

// This file notices at a start that files are not what was written, before Pebble reads
// them and takes what is left for everything.

// damaged returns ErrDamaged for a file.
func damaged(name, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrDamaged, name, fmt.Sprintf(format, args...))
}

// checkFiles compares the files of a folder with its mark, which is nil if it has none.
// It reads logs and manifest whole; Pebble itself checks tables when it reads them.
func checkFiles(fs vfs.FS, dir string, m *mark, o *pebble.Options) error {
	if m == nil {
		m = &mark{}
	}
	files, err := listDatabase(fs, dir)
	if errors.Is(err, os.ErrNotExist) {
		if m.revision > 0 {
			return damaged(filepath.Join(dir, databaseDir), "is missing")
		}
		return nil
	}
	if err != nil {
		return err
	}
	k := checker{fs: fs, dir: filepath.Join(dir, databaseDir), mark: m, files: files}
	if m.clean && k.isNewer() {
		m.clean = false // the store was used since
	}
	if m.clean {
		if err := k.checkList(); err != nil {
			return err
		}
	}
	if err := k.checkOptions(o); err != nil {
		return err
	}
	if err := k.checkManifest(); err != nil {
		return err
	}
	return k.checkLogs()
}

type checker struct {
	fs    vfs.FS
	dir   string // of the database
	mark  *mark
	files map[string]int64
}

// isNewer reports whether there is a file that was made after the clean mark.
func (k *checker) isNewer() bool {
	var before, now uint64
	for name := range k.mark.files {
		before = max(before, fileNumber(name))
	}
	for name := range k.files {
		now = max(now, fileNumber(name))
	}
	return now > before
}

// checkList compares names and sizes. The checksums of logs and manifests say more than
// their sizes.
func (k *checker) checkList() error {
	for name, size := range k.mark.files {
		now, ok := k.files[name]
		if !ok {
			return damaged(filepath.Join(k.dir, name), "is missing")
		}
		if now != size && logNumber(name) == 0 && manifestNumber(name) == 0 {
			return damaged(filepath.Join(k.dir, name), "has %d bytes, and had %d", now, size)
		}
	}
	return nil
}

// checkOptions checks the file that says how the newest tables were made, as Pebble does.
func (k *checker) checkOptions(o *pebble.Options) error {
	newest := ""
	for name := range k.files {
		if optionsNumber(name) > optionsNumber(newest) {
			newest = name
		}
	}
	if newest == "" {
		return nil
	}
	path := filepath.Join(k.dir, newest)
	b, err := readFile(k.fs, path, maxLog)
	if err == nil {
		o.EnsureDefaults()
		err = o.CheckCompatibility(k.dir, string(b))
	}
	if err != nil {
		return damaged(path, "cannot be read: %v", err)
	}
	return nil
}

// checkManifest checks that the database has the files that say what it consists of.
func (k *checker) checkManifest() error {
	used := k.mark.revision > 0
	for name, size := range k.files {
		used = used || isTable(name) || logNumber(name) != 0 && size > 0
	}
	for _, marker := range []string{"manifest", "format-version"} {
		value, err := atomicfs.ReadMarker(k.fs, k.dir, marker)
		if err != nil {
			return damaged(filepath.Join(k.dir, "marker."+marker), "cannot be read: %v", err)
		}
		if value == "" && used {
			return damaged(filepath.Join(k.dir, "marker."+marker+".*"), "is missing")
		}
		if marker != "manifest" || value == "" {
			continue
		}
		if err := k.checkCurrent(value); err != nil {
			return err
		}
	}
	return nil
}

// checkCurrent checks the manifest that is in use.
func (k *checker) checkCurrent(name string) error {
	path := filepath.Join(k.dir, name)
	b, err := readFile(k.fs, path, maxLog)
	if err != nil {
		return damaged(path, "cannot be read: %v", err)
	}
	number, newest := manifestNumber(name), uint64(0)
	for _, s := range k.mark.manifests {
		if newest = max(newest, s.number); s.number == number && number != 0 {
			if err := s.check(b); err != nil {
				return damaged(path, "%v", err)
			}
			// What follows was not noted, so no file has been removed for it.
			return k.checkTables(b)
		}
	}
	if number < newest {
		return damaged(path, "is in use, and MANIFEST-%06d was before", newest)
	}
	r := chunkReader{b: b, unmarked: true}
	if at, end := r.each(func(chunk) {}); !end && r.isFault(at) {
		return damaged(path, "cannot be read from byte %d on", at)
	}
	return k.checkTables(b)
}

// checkTables checks that the tables and blob files of a manifest are there, whole. Of a
// form that this program does not make it knows nothing: Pebble checks then.
func (k *checker) checkTables(manifest []byte) error {
	tables, err := tableFiles(manifest)
	if err != nil {
		return nil
	}
	for name, size := range tables {
		if now, ok := k.files[name]; !ok {
			return damaged(filepath.Join(k.dir, name), "is missing")
		} else if now != size {
			return damaged(filepath.Join(k.dir, name), "has %d bytes, and had %d", now, size)
		}
	}
	return nil
}

// checkLogs checks that the logs are there, and end where a crash has ended them.
func (k *checker) checkLogs() error {
	var newest uint64
	for name := range k.files {
		newest = max(newest, logNumber(name))
	}
	for name := range k.files {
		number := logNumber(name)
		if number == 0 {
			continue
		}
		path := filepath.Join(k.dir, name)
		b, err := readFile(k.fs, path, maxLog)
		if err != nil {
			return damaged(path, "cannot be read: %v", err)
		}
		for _, s := range k.mark.logs {
			if s.number == number {
				if err := s.check(b); err != nil {
					return damaged(path, "%v", err)
				}
			}
		}
		r := chunkReader{b: b, log: uint32(number), unmarked: k.mark.revision == 0}
		if at, end := r.each(func(chunk) {}); !end && !k.mark.clean && r.isFault(at) {
			return damaged(path, "cannot be read from byte %d on", at)
		}
	}
	if last := k.mark.logs[0].number; last > newest {
		return damaged(filepath.Join(k.dir, fmt.Sprintf("%06d.log", last)), "is missing")
	}
	return nil
}

// Bounds of what a start reads of the history after an unclean end; Verify reads all.
const (
	checkedEvents   = 200_000
	checkedVersions = 5_000
)

// checkEvents checks that the newest events are without gaps, and that the versions which
// the newest of them made are there.
func (e *Engine) checkEvents(ctx context.Context, events, versions int64) error {
	db := filepath.Join(e.opts.Dir, databaseDir)
	first, last, err := e.eventRange()
	if err != nil {
		return err
	}
	compacted := e.compacted.Load()
	if last == 0 {
		if compacted > e.base {
			return damaged(db, "has no change, and was compacted to revision %d", compacted)
		}
		return nil
	}
	if oldest := max(compacted, e.base+1); first > oldest {
		return damaged(db, "lacks the changes of revisions %d to %d", oldest, first-1)
	}
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceEvent}, UpperBound: []byte{spaceEvent + 1}})
	if err != nil {
		return err
	}
	defer it.Close()
	made, err := e.versions()
	if err != nil {
		return err
	}
	defer made.Close()
	oldest := max(e.floor.Load(), e.base+1)
	want := last
	var key []byte
	for ok := it.Last(); ok && last-want < events; ok = it.Prev() {
		at, err := parseEventKey(it.Key())
		if err != nil {
			return err
		}
		if at != want {
			return damaged(db, "lacks the changes of revisions %d to %d", at+1, want)
		}
		if want--; last-at >= versions || at < oldest {
			continue
		}
		if (last-at)%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		_, _, ev, err := eventAt(it)
		if err != nil {
			return err
		}
		key = versionKey(key[:0], ev.key, at)
		if !made.SeekPrefixGE(key) || string(made.Key()) != string(key) {
			return errors.Join(made.Error(), damaged(db, "lacks %s of revision %d", ev.key, at))
		}
	}
	return it.Error()
}

// Verify reads the whole store: all changes that are kept, the versions that they made, and
// the values.
func (e *Engine) Verify(ctx context.Context) (err error) {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave(&err)
	if err := e.checkEvents(ctx, e.feed.revision(), e.feed.revision()); err != nil {
		return err
	}
	it, err := e.db.NewIter(nil)
	if err != nil {
		return err
	}
	defer it.Close()
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		if n++; n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := it.ValueAndErr(); err != nil {
			return err
		}
	}
	return it.Error()
}

// leave ends a call that uses the database. An error by a damaged file names the file, and
// is logged once a file: who has asked may be the only one who learns of it.
func (e *Engine) leave(err *error) {
	e.calls.leave()
	if *err == nil {
		return
	}
	file, named := e.nameFile(*err)
	if _, logged := e.damaged.LoadOrStore(file, true); file != "" && !logged {
		e.opts.Logger.Error("storage: a file of the data folder is damaged; what is in it cannot be read", "file", file, "error", *err)
	}
	*err = named
}

// fileOfError finds the number of a file in the errors of Pebble.
var fileOfError = regexp.MustCompile(`\b(?:file|table) (\d{6,})\b`)

// nameFile makes an error of Pebble over a damaged file one that names the file.
func (e *Engine) nameFile(err error) (file string, named error) {
	if err == nil || errors.Is(err, ErrDamaged) || !pebble.IsCorruptionError(err) && !errors.Is(err, errCorrupt) {
		return "", err
	}
	file = filepath.Join(e.opts.Dir, databaseDir)
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		file = info.Path
	} else if found := fileOfError.FindStringSubmatch(err.Error()); found != nil {
		for _, suffix := range []string{tableSuffix, blobSuffix} {
			name := filepath.Join(file, found[1]+suffix)
			if _, statErr := e.fs.Stat(name); statErr == nil {
				file = name
				break
			}
		}
	}
	return file, fmt.Errorf("%w: %s: %w", ErrDamaged, file, err)
}

// blobFooter is what ends a blob file: its checksum (4) and what it is over, with a magic
// string at last.
const (
	blobFooter  = 38
	blobSuffix  = ".blob"
	tableSuffix = ".sst"
)

// checkBlob checks the footer of a blob file that Pebble opens for reading: it panics over
// a bad one.
func checkBlob(name string, f vfs.File) error {
	if !strings.HasSuffix(name, blobSuffix) {
		return nil
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	b := make([]byte, blobFooter)
	if info.Size() < blobFooter {
		return damaged(name, "has %d bytes, too few", info.Size())
	}
	if _, err := f.ReadAt(b, info.Size()-blobFooter); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if cook(crc32.Checksum(b[4:], castagnoli)) != binary.LittleEndian.Uint32(b) {
		return damaged(name, "ends wrong: the checksum of its last %d bytes is wrong", blobFooter)
	}
	return nil
}
