package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// files is the content of a folder.
type files map[string][]byte

// readFiles reads all files of a disk below a folder.
func readFiles(t *testing.T, disk vfs.FS, dir string) files {
	t.Helper()
	all := files{}
	names, err := disk.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		name = path.Join(dir, name)
		info, err := disk.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			maps.Copy(all, readFiles(t, disk, name))
			continue
		}
		if all[name], err = readFile(disk, name, 1<<30); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// disk makes a disk with the files.
func (f files) disk(t *testing.T) vfs.FS {
	t.Helper()
	disk := vfs.NewMem()
	for name, content := range f {
		if err := disk.MkdirAll(path.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		file, err := disk.Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.Write(bytes.Clone(content)) // which it may change
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return disk
}

// with returns a copy in which a file has other content; nil removes it.
func (f files) with(name string, content []byte) files {
	f = maps.Clone(f)
	if f[name] = content; content == nil {
		delete(f, name)
	}
	return f
}

// content is everything that a store says of itself, as a text.
func content(ctx context.Context, e *Engine) (string, error) {
	var text strings.Builder
	revision, err := e.Dump(ctx, func(kv storage.KeyValue) error {
		fmt.Fprintf(&text, "%s %d %d %q\n", kv.Key, kv.CreateRevision, kv.ModRevision, kv.Value)
		return nil
	})
	if err != nil {
		return "", err
	}
	kept, err := e.KeptHistory(ctx)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&text, "revision %d, kept %d\n", revision, kept.Oldest)
	_, err = e.Changes(ctx, storage.ChangesOptions{}, func(c *storage.Change) error {
		fmt.Fprintf(&text, "%v %s %d %q %q\n", c.Op, c.KV.Key, c.KV.ModRevision, c.KV.Value, c.Prev.Value)
		return nil
	})
	return text.String(), err
}

// restart opens the store of a disk, reads everything, and writes to it. It returns what was
// read, and what was logged.
func restart(ctx context.Context, disk vfs.FS) (text, logged string, err error) {
	var log bytes.Buffer
	e, err := Open(Options{Dir: "data", fs: disk, HistoryAge: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil)), memtable: 64 << 10})
	if err != nil {
		return "", log.String(), err
	}
	text, err = content(ctx, e)
	if err == nil {
		now := e.feed.revision()
		if kv, writeErr := e.Create(ctx, "/new", []byte("x"), 0); writeErr != nil || kv.ModRevision != now+1 {
			err = errors.Join(fmt.Errorf("the first write got revision %d after %d", kv.ModRevision, now), writeErr)
		}
	}
	_ = e.Close()
	return text, log.String(), err
}

// fillSmall writes a small history with creates, updates and deletes.
func fillSmall(t *testing.T, e *Engine, round, keys int) {
	t.Helper()
	for i := range keys {
		kv := create(t, e, fmt.Sprintf("/%d/key%02d", round, i), strings.Repeat(string(rune('a'+i%26)), 20+i%5*90))
		var err error
		switch i % 4 {
		case 0:
			_, err = e.Update(t.Context(), kv.Key, []byte("again"), kv.ModRevision, 0)
		case 1:
			_, _, err = e.Delete(t.Context(), kv.Key, kv.ModRevision)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// folders are small folders, by how they were closed and what they are made of.
func folders(t *testing.T) map[string]files {
	t.Helper()
	all := map[string]files{}
	for _, tables := range []bool{false, true} {
		disk := vfs.NewMem()
		e, err := Open(Options{Dir: "data", fs: disk, HistoryAge: time.Hour, memtable: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		fillSmall(t, e, 0, 8)
		name := "log"
		if tables {
			name = "tables"
			for round := range 2 {
				if err := e.db.Flush(); err != nil {
					t.Fatal(err)
				}
				fillSmall(t, e, 1+round, 6)
			}
			if err := e.Compact(t.Context(), 8); err != nil {
				t.Fatal(err)
			}
			if err := e.db.Compact(t.Context(), []byte{spaceVersion}, []byte{spaceExpiry + 1}, false); err != nil {
				t.Fatal(err)
			}
			fillSmall(t, e, 3, 4)
		}
		all[name+", killed"] = readFiles(t, disk, "data")
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		all[name+", closed"] = readFiles(t, disk, "data")
		all[name+", killed, without "+markFile] = all[name+", killed"].with("data/"+markFile, nil)
	}
	return all
}

// TestFlippedBitsAreNeverSilent flips bits of all files of small folders, one by one: the
// store has the same data then, or an error names the file.
func TestFlippedBitsAreNeverSilent(t *testing.T) {
	random := randomtest.New(t)
	// Every so many bits of a file are flipped, and all of its first and last bytes.
	stride, ends := testsize.Pick(8*997, 8*97, 1), testsize.Pick(2, 8, 0)
	for name, folder := range folders(t) {
		t.Run(name, func(t *testing.T) {
			want, _, err := restart(t.Context(), folder.disk(t))
			if err != nil {
				t.Fatal(err)
			}
			same, refused := 0, 0
			for _, file := range slices.Sorted(maps.Keys(folder)) {
				original := folder[file]
				size := 8 * len(original)
				for bit := 0; bit < size; {
					changed := bytes.Clone(original)
					changed[bit/8] ^= 1 << (bit % 8)
					if judge(t, flipName(file, bit, size), folder.with(file, changed), file, want) {
						same++
					} else {
						refused++
					}
					switch {
					case bit < 8*ends || bit >= size-8*ends:
						bit += min(stride, 3)
					default:
						bit = max(bit+1, min(bit+1+random.IntN(2*stride), size-8*ends))
					}
				}
			}
			t.Logf("%d flips left the data the same, %d are refused", same, refused)
		})
	}
}

func flipName(file string, bit, size int) string {
	if path.Base(file) == markFile && bit < 8*markSize {
		return fmt.Sprintf("bit %d of the mark", bit)
	}
	return fmt.Sprintf("bit %d of %d", bit, size)
}

// markerFile matches the files of Pebble whose name is their content.
var markerFile = regexp.MustCompile(`marker\.[a-z-]+|$`)

// judge restarts a folder of which a file was changed, and reports whether the data is the
// same. It must be, or the error must name the file.
func judge(t *testing.T, what string, folder files, file, want string) bool {
	t.Helper()
	got, logged, err := func() (got, logged string, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
				t.Errorf("%s of %s: %v", what, file, err)
			}
		}()
		return restart(t.Context(), folder.disk(t))
	}()
	switch {
	case err == nil && got == want:
		if path.Base(file) == markFile && strings.HasSuffix(what, "of the mark") && !strings.Contains(logged, markFile) {
			t.Errorf("%s of %s is not logged: %s", what, file, logged)
		}
		return true
	case err == nil:
		t.Errorf("%s of %s: the data has changed in silence:\n%.300s\nwant\n%.300s", what, file, got, want)
	case !strings.Contains(err.Error(), path.Base(file)) && !strings.Contains(err.Error(), markerFile.FindString(file)+".* is missing"):
		t.Errorf("%s of %s: the error does not name the file: %v", what, file, err)
	}
	return false
}

// TestCutFilesAreNeverSilent cuts, empties, removes and overwrites each file of small folders.
func TestCutFilesAreNeverSilent(t *testing.T) {
	random := randomtest.New(t)
	for name, folder := range folders(t) {
		if strings.Contains(name, "without") {
			continue // such a folder may end anywhere
		}
		t.Run(name, func(t *testing.T) {
			want, _, err := restart(t.Context(), folder.disk(t))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range slices.Sorted(maps.Keys(folder)) {
				judge(t, "removal", folder.with(file, nil), file, want)
				for range testsize.Pick(1, 4, 200) {
					if size := len(folder[file]); size > 0 {
						// A part that reads as zeros, or as something else, as a broken disk has it.
						changed := bytes.Clone(folder[file])
						from := random.IntN(size)
						part := changed[from : from+random.IntN(min(size-from, 4096))+1]
						clear(part)
						judge(t, fmt.Sprintf("%d zeros at %d", len(part), from), folder.with(file, changed), file, want)
						for i := range part {
							part[i] = byte(random.Uint32())
						}
						judge(t, fmt.Sprintf("%d random bytes at %d", len(part), from), folder.with(file, changed), file, want)
					}
				}
				stride := testsize.Pick(1999, 499, 1)
				for size := 0; size < len(folder[file]); size += 1 + random.IntN(2*stride) {
					judge(t, fmt.Sprintf("cut to %d bytes of %d", size, len(folder[file])), folder.with(file, folder[file][:size:size]), file, want)
				}
			}
		})
	}
}
