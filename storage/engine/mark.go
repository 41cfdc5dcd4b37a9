package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The file MARK says what the database must have at least, so that a start notices what is
// missing: Pebble takes a bad record for the end of its log or manifest. FORMAT.md has its
// layout.
const (
	markFile  = "MARK"
	markMagic = "kelson-mark 1\n\x00\x00"
	// markSize is a sector, which a disk writes whole or not at all.
	markSize      = 512
	markManifests = 2
	markLogs      = 4
	markSpan      = 24
	markClean     = 1
	// maxMarkedFiles bounds the list of files in bytes.
	maxMarkedFiles = 16 << 20
)

// ErrDamaged: files of the folder are not what was written.
var ErrDamaged = errors.New("data folder is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// span is the first bytes of a log or manifest, all synced, and their checksum.
type span struct {
	number uint64 // of the file; 0 for none
	length int64
	sum    uint32
}

// mark is the content of the file MARK.
type mark struct {
	// clean: the store was closed, and files are all that Pebble had then.
	clean bool
	// revision: everything up to it was acknowledged. 0 until the store is open.
	revision int64
	// manifests and logs are newest first.
	manifests [markManifests]span
	logs      [markLogs]span
	files     map[string]int64 // name -> size
}

// append appends the mark to dst.
func (m *mark) append(dst []byte) []byte {
	start := len(dst)
	dst = append(append(dst, markMagic...), 0, 0, 0, 0)
	flags := uint32(0)
	if m.clean {
		flags |= markClean
	}
	dst = binary.BigEndian.AppendUint32(dst, flags)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.revision))
	for _, spans := range [...][]span{m.manifests[:], m.logs[:]} {
		for _, s := range spans {
			dst = binary.BigEndian.AppendUint64(dst, s.number)
			dst = binary.BigEndian.AppendUint64(dst, uint64(s.length))
			dst = binary.BigEndian.AppendUint64(dst, uint64(s.sum))
		}
	}
	var list []byte
	if m.clean {
		for name, size := range m.files {
			list = fmt.Appendf(list, "%s %d\n", name, size)
		}
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(list)))
	dst = binary.BigEndian.AppendUint32(dst, crc32.Checksum(list, castagnoli))
	dst = append(dst, make([]byte, markSize-(len(dst)-start))...)
	binary.BigEndian.PutUint32(dst[start+len(markMagic):], crc32.Checksum(dst[start+len(markMagic)+4:], castagnoli))
	return append(dst, list...)
}

// parseMark parses the content of a MARK file.
func parseMark(b []byte) (*mark, error) {
	const head = len(markMagic)
	if len(b) < markSize || string(b[:head]) != markMagic {
		return nil, fmt.Errorf("%w: it has %d bytes, or begins wrong", errCorrupt, len(b))
	}
	if binary.BigEndian.Uint32(b[head:]) != crc32.Checksum(b[head+4:markSize], castagnoli) {
		return nil, fmt.Errorf("%w: its checksum is wrong", errCorrupt)
	}
	list := b[markSize:]
	b = b[head+4 : markSize]
	u32 := func() (n uint32) { n, b = binary.BigEndian.Uint32(b), b[4:]; return n }
	u64 := func() (n uint64) { n, b = binary.BigEndian.Uint64(b), b[8:]; return n }
	m := &mark{clean: u32()&markClean != 0, revision: int64(u64())}
	for i := range markManifests + markLogs {
		s := span{number: u64(), length: int64(u64()), sum: uint32(u64())}
		if i < markManifests {
			m.manifests[i] = s
		} else {
			m.logs[i-markManifests] = s
		}
	}
	list = list[:min(uint64(u32()), uint64(len(list)))]
	if !m.clean || u32() != crc32.Checksum(list, castagnoli) {
		m.clean = false // the list was being written when the power went
		return m, nil
	}
	m.files = map[string]int64{}
	for line := range strings.Lines(string(list)) {
		name, size, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		n, err := strconv.ParseInt(size, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: its list of files is wrong", errCorrupt)
		}
		m.files[name] = n
	}
	return m, nil
}

// readMark reads the mark of a folder; it is nil if there is none.
func readMark(fs vfs.FS, dir string) (*mark, error) {
	b, err := readFile(fs, filepath.Join(dir, markFile), markSize+maxMarkedFiles)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseMark(b)
}

// write writes the mark of a folder, whole or not at all.
func (m *mark) write(fs vfs.FS, dir string) error {
	return writeWhole(fs, dir, markFile, m.append(nil))
}

// numbered returns the number of a log or manifest, or 0.
func numbered(name, prefix, suffix string) uint64 {
	s, ok := strings.CutPrefix(name, prefix)
	if ok {
		s, ok = strings.CutSuffix(s, suffix)
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if !ok || err != nil {
		return 0
	}
	return n
}

func logNumber(name string) uint64      { return numbered(name, "", ".log") }
func manifestNumber(name string) uint64 { return numbered(name, "MANIFEST-", "") }
func optionsNumber(name string) uint64  { return numbered(name, "OPTIONS-", "") }

// fileNumber returns the number of any file of Pebble, or 0.
func fileNumber(name string) uint64 {
	return max(logNumber(name), manifestNumber(name), optionsNumber(name), numbered(name, "", tableSuffix), numbered(name, "", blobSuffix))
}

// marker keeps the file MARK of an open store. What it writes has been synced before, so
// that after a power cut the mark is at most behind. A mark that cannot be written is
// therefore no failure of the store: it says less than it could.
type marker struct {
	fs  vfs.FS
	dir string

	mu   sync.Mutex // guards all below
	mark mark
	file vfs.File // nil when closed
	buf  []byte
}

// newMarker makes the mark of a folder one of an open store that says the same. That needs no
// sync: what a clean mark says of Pebble's files is known to be old as soon as there are newer ones.
func newMarker(fs vfs.FS, dir string, was *mark) (m *marker, err error) {
	m = &marker{fs: fs, dir: dir}
	if was == nil {
		err = m.mark.write(fs, dir)
	} else {
		m.mark = *was
		m.mark.clean, m.mark.files = false, nil
	}
	if err == nil {
		m.file, err = fs.OpenReadWrite(filepath.Join(dir, markFile), vfs.WriteCategoryUnspecified)
	}
	if err != nil {
		return nil, err
	}
	return m, m.saveLocked(false)
}

// saveLocked writes the mark in place.
func (m *marker) saveLocked(sync bool) error {
	if m.file == nil {
		return nil
	}
	m.buf = m.mark.append(m.buf[:0])
	_, err := m.file.WriteAt(m.buf, 0)
	if err == nil && sync {
		err = m.file.SyncData()
	}
	return err
}

// commit notes that everything up to a revision is about to be acknowledged. It does not
// sync: a process that is killed leaves what it wrote.
func (m *marker) commit(revision int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mark.revision = revision
	_ = m.saveLocked(false)
}

// lower takes the revision back, before the store is taken back to it.
func (m *marker) lower(revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mark.revision = revision
	return m.saveLocked(true)
}

// note notes what is synced of a log or manifest. A manifest is noted on the disk at once:
// the files that it does not need any more go next.
func (m *marker) note(s span, manifest bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	spans := m.mark.logs[:]
	if manifest {
		spans = m.mark.manifests[:]
	}
	if i := slices.IndexFunc(spans, func(o span) bool { return o.number == s.number }); i >= 0 {
		spans[i] = s
	} else {
		copy(spans[1:], spans)
		spans[0] = s
	}
	if manifest || s.length == 0 {
		_ = m.saveLocked(manifest)
	}
}

// close ends the writing of the mark. If the store was closed cleanly, it gets the names
// and sizes of all files.
func (m *marker) close(clean bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		return nil
	}
	file := m.file
	defer func() { m.file = nil }()
	if !clean {
		return file.Close()
	}
	err := m.mark.list(m.fs, m.dir)
	if err == nil {
		err = m.saveLocked(true)
	}
	return errors.Join(err, file.Close())
}

// list makes the mark that of a store that is closed.
func (m *mark) list(fs vfs.FS, dir string) (err error) {
	m.files, err = listDatabase(fs, dir)
	m.clean = err == nil
	return err
}

// sealFolder makes the mark of a store that was made without an Engine.
func sealFolder(fs vfs.FS, dir string, revision int64) error {
	m := mark{revision: revision}
	names, err := fs.List(filepath.Join(dir, databaseDir))
	if err != nil {
		return err
	}
	slices.SortFunc(names, func(a, b string) int { return int(fileNumber(b)) - int(fileNumber(a)) })
	logs, manifests := m.logs[:], m.manifests[:]
	for _, name := range names {
		spans := &manifests
		number := manifestNumber(name)
		if number == 0 {
			number, spans = logNumber(name), &logs
		}
		if number == 0 || len(*spans) == 0 {
			continue
		}
		b, err := readFile(fs, filepath.Join(dir, databaseDir, name), maxLog)
		if err != nil {
			return err
		}
		(*spans)[0] = span{number, int64(len(b)), crc32.Checksum(b, castagnoli)}
		*spans = (*spans)[1:]
	}
	if err := m.list(fs, dir); err != nil {
		return err
	}
	return m.write(fs, dir)
}

// listDatabase returns the names and sizes of the files of Pebble, its locks aside.
func listDatabase(fs vfs.FS, dir string) (map[string]int64, error) {
	names, err := fs.List(filepath.Join(dir, databaseDir))
	if err != nil {
		return nil, err
	}
	files := make(map[string]int64, len(names))
	for _, name := range names {
		if name == lockFile {
			continue
		}
		info, err := fs.Stat(filepath.Join(dir, databaseDir, name))
		if err != nil {
			return nil, err
		}
		files[name] = info.Size()
	}
	return files, nil
}

// tally follows what is written to a log or manifest, which is only appended to.
type tally struct {
	marker   *marker
	manifest bool
	mu       sync.Mutex
	written  span // guarded by mu
}

// follow returns the tally of a file that begins, or nil if it is neither a log nor a
// manifest.
func (m *marker) follow(name string) *tally {
	if m == nil {
		return nil
	}
	base := filepath.Base(name)
	t := &tally{marker: m, written: span{number: logNumber(base)}}
	if t.written.number == 0 {
		t.manifest, t.written.number = true, manifestNumber(base)
	}
	if t.written.number == 0 {
		return nil
	}
	if !t.manifest {
		m.note(t.written, false)
	}
	return t
}

func (t *tally) write(p []byte) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written.length += int64(len(p))
	t.written.sum = crc32.Update(t.written.sum, castagnoli, p)
}

// sync runs a sync, and notes what was written before it unless the disk is frozen.
func (t *tally) sync(do func() error, disk *freezer) error {
	if t == nil {
		return do()
	}
	t.mu.Lock()
	before := t.written
	t.mu.Unlock()
	err := do()
	if err == nil && disk.Err() == nil {
		t.marker.note(before, t.manifest)
	}
	return err
}

// check compares the beginning of a file with a span of it.
func (s span) check(b []byte) error {
	if int64(len(b)) < s.length {
		return fmt.Errorf("has %d bytes, and had %d or more", len(b), s.length)
	}
	if crc32.Checksum(b[:s.length], castagnoli) != s.sum {
		return fmt.Errorf("is not what was written: the checksum of its first %d bytes is wrong", s.length)
	}
	return nil
}

// isZero reports whether there are only zeros.
func isZero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }
