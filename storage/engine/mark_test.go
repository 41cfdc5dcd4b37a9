package engine

import (
	"reflect"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// FuzzMark: whatever a MARK file holds, it is refused or says what it says again.
func FuzzMark(f *testing.F) {
	m := mark{revision: 7}
	f.Add(m.append(nil))
	m.clean, m.files = true, map[string]int64{"000002.log": 12}
	m.manifests[0], m.logs[3] = span{1, 2, 3}, span{4, 5, 6}
	f.Add(m.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMark(b)
		if err != nil {
			return
		}
		again, err := parseMark(m.append(nil))
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("got %+v, %v, want %+v", again, err, m)
		}
	})
}

// FuzzChunks: reading a log or manifest ends, within its bytes, whatever they are.
func FuzzChunks(f *testing.F) {
	disk := vfs.NewMem()
	e, err := Open(Options{Dir: "data", fs: disk})
	if err != nil {
		f.Fatal(err)
	}
	create(f, e, "/a", "1")
	if err := e.Close(); err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{"data/db/000002.log", "data/db/MANIFEST-000001"} {
		b, err := readFile(disk, name, maxLog)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint32(logNumber(name[len("data/db/"):])))
	}
	f.Fuzz(func(t *testing.T, b []byte, log uint32) {
		r := chunkReader{b: b, log: log, unmarked: true}
		last := 0
		at, end := r.each(func(c chunk) {
			if c.begin < last || c.end < c.begin || c.end > len(b) {
				t.Errorf("got a chunk from %d to %d after %d in %d bytes", c.begin, c.end, last, len(b))
			}
			last = c.end
		})
		if at < last || at > len(b) {
			t.Errorf("got the end %d after %d in %d bytes", at, last, len(b))
		}
		if !end {
			r.isFault(at)
		}
		_, _ = tableFiles(b)
		_ = applyEdit(b, map[string]int64{})
	})
}
