package engine

import (
	"bytes"
	"testing"

	"github.com/apikeel/kelson/storage"
)

func TestVersionOrder(t *testing.T) {
	// In the order in which they must sort: by key, newest version first.
	keys := []struct {
		key string
		rev int64
	}{{"/a", 300}, {"/a", 2}, {"/a", 1}, {"/a\x01", 5}, {"/a/b", 9}, {"/a/b", 8}, {"/ab", 1 << 40}, {"/ab", 1}, {"\xff", 1}, {"\xff\xff", 1}}
	c := comparer()
	for i, a := range keys {
		for j, b := range keys {
			ka, kb := versionKey(nil, a.key, a.rev), versionKey(nil, b.key, b.rev)
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := bytes.Compare(ka, kb); got != want {
				t.Errorf("compare %v with %v: %d, want %d", a, b, got, want)
			}
			if i < j {
				sep := c.Separator(nil, ka, kb)
				if bytes.Compare(sep, ka) < 0 || bytes.Compare(sep, kb) >= 0 {
					t.Errorf("separator of %q and %q is %q", ka, kb, sep)
				}
			}
			next := c.ImmediateSuccessor(nil, ka[:c.Split(ka)])
			if after := bytes.Compare(kb, next) >= 0; after != (b.key > a.key) {
				t.Errorf("successor of %q against %q: %v", ka, kb, after)
			}
		}
		if s := c.Successor(nil, versionKey(nil, a.key, a.rev)); bytes.Compare(s, versionKey(nil, a.key, a.rev)) < 0 {
			t.Errorf("successor of %v is %q", a, s)
		}
	}
}

func FuzzVersionKey(f *testing.F) {
	f.Add(versionKey(nil, "/registry/pods/default/a", 77))
	f.Add([]byte("d/a\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		key, rev, err := parseVersionKey(b)
		if err != nil {
			return
		}
		if err := storage.CheckKey(string(key)); err != nil && len(key) <= storage.MaxKeyBytes {
			t.Fatal(err)
		}
		if got := versionKey(nil, string(key), rev); !bytes.Equal(got, b) {
			t.Fatalf("%q became %q", b, got)
		}
		c := comparer()
		if n := c.Split(b); n != len(key)+2 {
			t.Fatalf("split of %q is %d", b, n)
		}
	})
}

func FuzzVersion(f *testing.F) {
	record := append(make([]byte, versionHeader), "value"...)
	version{create: 3, expires: 99}.putHeader(record)
	f.Add(record, int64(7))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}, int64(1))
	f.Fuzz(func(t *testing.T, b []byte, rev int64) {
		v, err := parseVersion(b, rev)
		if err != nil {
			return
		}
		out := append(make([]byte, versionHeader), v.value...)
		v.putHeader(out)
		if !bytes.Equal(out, b) {
			t.Fatalf("%q became %q", b, out)
		}
		v.keyValue("/a")
	})
}

func FuzzEvent(f *testing.F) {
	f.Add(event{op: storage.Updated, time: 1, create: 2, prev: 3, prevSize: 4, key: "/a"}.append(nil))
	f.Add(event{op: storage.Created, create: 2, key: "/a"}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		ev, err := parseEvent(b)
		if err != nil {
			return
		}
		if got := ev.append(nil); !bytes.Equal(got, b) {
			t.Fatalf("%q became %q", b, got)
		}
	})
}

func FuzzKeys(f *testing.F) {
	f.Add(eventKey(nil, 5))
	f.Add(expiryKey(nil, 5, "/a"))
	f.Add(metaValue(5))
	f.Fuzz(func(t *testing.T, b []byte) {
		if rev, err := parseEventKey(b); err == nil && !bytes.Equal(eventKey(nil, rev), b) {
			t.Fatalf("event key %q", b)
		}
		if at, key, err := parseExpiryKey(b); err == nil && !bytes.Equal(expiryKey(nil, at, key), b) {
			t.Fatalf("expiry key %q", b)
		}
		if n, err := parseMeta(b); err == nil && !bytes.Equal(metaValue(n), b) {
			t.Fatalf("number %q", b)
		}
	})
}

func FuzzFormat(f *testing.F) {
	f.Add([]byte("kelson-engine 1\n"))
	f.Add([]byte("kelson-engine 99999999999999999999\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := parseFormat(b); err == nil && n < 1 {
			t.Fatalf("%q is format %d", b, n)
		}
	})
}
