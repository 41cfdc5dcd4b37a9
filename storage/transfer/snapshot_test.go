package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/apikeel/kelson/storage"
)

func TestEngineToFileToEngine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "old")
	old := openEngine(t, dir)
	fill(t, old, 500)
	want, revision := state(t, old)
	var keys, size int64
	var buf bytes.Buffer
	saved, err := Save(t.Context(), old, &buf, func(k, b int64) { keys, size = k, b })
	if err != nil {
		t.Fatal(err)
	}
	if saved.Revision != revision || saved.Keys != int64(len(want)) || keys != saved.Keys || size > saved.Bytes {
		t.Errorf("saved %+v with progress %d/%d, want revision %d and %d keys", saved, keys, size, revision, len(want))
	}
	verified, err := Verify(iotest.OneByteReader(bytes.NewReader(buf.Bytes())))
	if err != nil || verified != saved {
		t.Errorf("verify: %+v, %v; want %+v", verified, err, saved)
	}

	for _, bump := range []int64{0, 1_000_000_000} {
		dir := filepath.Join(t.TempDir(), "new", "store")
		restored, err := Restore(t.Context(), writeFile(t, buf.Bytes()), dir, bump)
		if err != nil || restored != saved {
			t.Fatalf("restore: %+v, %v; want %+v", restored, err, saved)
		}
		e := openEngine(t, dir)
		got, at := state(t, e)
		if err := diff(got, want); err != nil {
			t.Error(err)
		}
		if at != revision+bump {
			t.Errorf("the store is at revision %d, want %d", at, revision+bump)
		}
		// Whoever knows an older revision is told to list again.
		if bump > 0 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			w, err := e.Watch(ctx, "", revision+5)
			if err == nil {
				_, err = w.Next(ctx)
			}
			if !errors.Is(err, storage.ErrCompacted) {
				t.Errorf("watch from before: %v", err)
			}
		}
		kv, err := e.Create(t.Context(), "/registry/new", nil, 0)
		if err != nil || kv.ModRevision != revision+bump+1 {
			t.Errorf("first write: %d, %v", kv.ModRevision, err)
		}
	}
}

func TestRestoreRefuses(t *testing.T) {
	store := openEngine(t, "")
	fill(t, store, 20)
	good, s := save(t, store)
	file := writeFile(t, good)
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 1
	absent := filepath.Join(t.TempDir(), "a", "b")
	for name, c := range map[string]struct {
		file, dir string
		bump      int64
		want      string
	}{
		"no file":       {file + "x", absent, 0, "no such file"},
		"a folder":      {full, absent, 0, "is a directory"},
		"damaged":       {writeFile(t, bad), absent, 0, "damaged"},
		"negative bump": {file, absent, -1, "cannot go back"},
		"large bump":    {file, absent, math.MaxInt64 - s.Revision + 1, "cannot be raised"},
		"not empty":     {file, full, 0, "not empty"},
	} {
		if _, err := Restore(t.Context(), c.file, c.dir, c.bump); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names, err := os.ReadDir(filepath.Dir(absent)); len(names) > 0 || (err != nil && !errors.Is(err, os.ErrNotExist)) {
		t.Errorf("something was left behind: %v, %v", names, err)
	}
}

// smallSnapshot has everything that a snapshot can have, in few bytes.
func smallSnapshot(t testing.TB) []byte {
	var buf bytes.Buffer
	e := newEncoder(&buf, nil)
	for _, kv := range []storage.KeyValue{
		{Key: "a", Value: []byte("value"), CreateRevision: 2, ModRevision: 2},
		{Key: "b", CreateRevision: 3, ModRevision: 5, Expires: time.UnixMilli(1_900_000_000_000)},
		{Key: "b/c", Value: []byte{0, 'K', 'E'}, CreateRevision: 1, ModRevision: 4},
	} {
		if err := e.put(kv); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.finish(6); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// isClear tells errors about the content of a file.
func isClear(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNotSnapshot) || errors.Is(err, ErrNewerVersion)
}

func TestEveryDamageIsFound(t *testing.T) {
	good := smallSnapshot(t)
	if s, err := Verify(bytes.NewReader(good)); err != nil || s.Keys != 3 || s.Revision != 6 {
		t.Fatalf("%+v, %v", s, err)
	}
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			if _, err := Verify(bytes.NewReader(bad)); !isClear(err) {
				t.Errorf("byte %d, bit %d changed: %v", i, bit, err)
			}
		}
	}
	for n := range good {
		if _, err := Verify(bytes.NewReader(good[:n])); !isClear(err) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	for _, more := range []string{"\x00", "E", "K", "\n", string(good)} {
		if _, err := Verify(strings.NewReader(string(good) + more)); !isClear(err) {
			t.Errorf("%d bytes more: %v", len(more), err)
		}
	}
}

// TestReaderRefuses has files whose checksum is right and whose content is not:
// what a bug or malice would write.
func TestReaderRefuses(t *testing.T) {
	record := func(kv storage.KeyValue) []byte { return append(appendRecord(nil, kv), kv.Value...) }
	ok := storage.KeyValue{Key: "k", CreateRevision: 1, ModRevision: 2}
	with := func(change func(*storage.KeyValue)) []byte {
		kv := ok
		change(&kv)
		return record(kv)
	}
	announce := func(key, value uint32) []byte {
		b := record(ok)
		binary.BigEndian.PutUint32(b[1:], key)
		binary.BigEndian.PutUint32(b[5:], value)
		return b
	}
	for name, c := range map[string]struct {
		body            []byte
		revision, count int64
		want            string
	}{
		"order":            {append(with(func(kv *storage.KeyValue) { kv.Key = "l" }), record(ok)...), 9, 2, "comes after"},
		"twice":            {append(record(ok), record(ok)...), 9, 2, "comes after"},
		"no key":           {with(func(kv *storage.KeyValue) { kv.Key = "" }), 9, 1, "empty"},
		"NUL":              {with(func(kv *storage.KeyValue) { kv.Key = "a\x00b" }), 9, 1, "NUL"},
		"create revision":  {with(func(kv *storage.KeyValue) { kv.CreateRevision = 0 }), 9, 1, "create revision"},
		"after its change": {with(func(kv *storage.KeyValue) { kv.CreateRevision = 3 }), 9, 1, "create revision"},
		"negative":         {with(func(kv *storage.KeyValue) { kv.ModRevision = -1 }), 9, 1, "create revision"},
		"expiry":           {with(func(kv *storage.KeyValue) { kv.Expires = time.UnixMilli(-5) }), 9, 1, "expires"},
		"future":           {record(ok), 1, 1, "holds revision 2"},
		"revision 0":       {nil, 0, 0, "revision 0"},
		"too few":          {record(ok), 9, 2, "should have 2"},
		"too many":         {record(ok), 9, 0, "should have 0"},
		"long key":         {announce(storage.MaxKeyBytes+1, 0), 9, 1, "key of 4097"},
		"long value":       {announce(1, storage.MaxValueBytes+1), 9, 1, "value of 8388609"},
		"longest value":    {announce(1, storage.MaxValueBytes), 9, 1, "not complete"},
	} {
		var buf bytes.Buffer
		e := newEncoder(&buf, nil)
		_ = e.write(c.body)
		e.keys = c.count
		_ = e.write(appendTrailer(nil, c.revision, c.count))
		_ = e.write(e.hash.Sum(nil))
		if err := e.out.Flush(); err != nil {
			t.Fatal(err)
		}
		_, err := Verify(&buf)
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReaderErrors(t *testing.T) {
	good := smallSnapshot(t)
	newer := bytes.Clone(good)
	newer[headerBytes-1] = 2
	text := bytes.ReplaceAll(good, []byte("\r\n"), []byte("\n"))
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		r    io.Reader
		want error
		text string
	}{
		"empty":   {strings.NewReader(""), ErrNotSnapshot, "empty"},
		"short":   {strings.NewReader("x"), ErrNotSnapshot, "x"},
		"gzip":    {strings.NewReader("\x1f\x8b" + strings.Repeat("x", 100)), ErrNotSnapshot, `\x1f`},
		"as text": {bytes.NewReader(text), ErrNotSnapshot, "KELSNAP"},
		"newer":   {bytes.NewReader(newer), ErrNewerVersion, "format 2"},
		"disk":    {io.MultiReader(bytes.NewReader(good[:50]), iotest.ErrReader(broken)), broken, "reading a snapshot"},
		"at once": {iotest.ErrReader(broken), broken, "reading a snapshot"},
		"at end":  {io.MultiReader(bytes.NewReader(good), iotest.ErrReader(broken)), broken, "reading a snapshot"},
	} {
		_, err := Verify(c.r)
		if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}

	r, err := NewReader(bytes.NewReader(good[:len(good)-1]))
	for err == nil {
		_, err = r.Next()
	}
	if _, again := r.Next(); again != err {
		t.Errorf("first %v, then %v", err, again)
	}
}

// TestReaderMemory has a file that announces much and holds little.
func TestReaderMemory(t *testing.T) {
	b := appendRecord(appendHeader(nil), storage.KeyValue{Key: "k", CreateRevision: 1, ModRevision: 1})
	binary.BigEndian.PutUint32(b[headerBytes+5:], storage.MaxValueBytes)
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	if n := r.buf.Cap(); n > 4<<10 {
		t.Errorf("a file of %d bytes made the reader take %d", len(b), n)
	}
}

func TestSaveErrors(t *testing.T) {
	store := openEngine(t, "")
	fill(t, store, 300)
	broken := errors.New("broken")
	calls := 0
	_, err := Save(t.Context(), store, writerFunc(func(p []byte) (int, error) {
		if calls++; calls > 1 {
			return 0, broken
		}
		return len(p), nil
	}), nil)
	if !errors.Is(err, broken) || calls != 2 {
		t.Errorf("a broken writer: %v after %d writes", err, calls)
	}

	var e encoder
	if err := e.put(storage.KeyValue{Key: "k"}); err == nil {
		t.Error("a key without revisions was saved")
	}
	if _, err := newEncoder(io.Discard, nil).finish(0); err == nil {
		t.Error("a store without a revision was saved")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// FuzzReader reads whatever comes. If signed, the input gets the hash that it
// should have, so that the checks behind the hash are reached too.
func FuzzReader(f *testing.F) {
	good := smallSnapshot(f)
	for _, signed := range []bool{false, true} {
		f.Add(good, signed)
		f.Add(good[:headerBytes], signed)
		f.Add(good[:len(good)-33], signed)
		f.Add([]byte("x"), signed)
	}
	f.Fuzz(func(t *testing.T, b []byte, signed bool) {
		if n := len(b) - sha256.Size; signed && n >= 0 {
			hash := sha256.Sum256(b[:n])
			b = append(bytes.Clone(b[:n]), hash[:]...)
		}
		r, err := NewReader(bytes.NewReader(b))
		var again bytes.Buffer
		e := newEncoder(&again, nil)
		for err == nil {
			var kv storage.KeyValue
			if kv, err = r.Next(); err == nil {
				if err := e.put(kv); err != nil {
					t.Fatalf("read and refused: %v", err)
				}
			}
		}
		if r != nil && r.buf.Cap() > 4*len(b)+4<<10 {
			t.Fatalf("%d bytes made the reader take %d", len(b), r.buf.Cap())
		}
		if err != io.EOF {
			if !isClear(err) {
				t.Fatalf("unclear error: %v", err)
			}
			return
		}
		if _, err := e.finish(r.Summary().Revision); err != nil || !bytes.Equal(again.Bytes(), b) {
			t.Fatalf("written again it is different: %v", err)
		}
	})
}
