package wire

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// disk is where the values of a ValueCache are read from in these tests.
type disk struct {
	cache   ValueCache
	records []*Record // in the order of their keys
	values  map[string][]byte

	reads, scans int
	err          error // of scans
}

func newDisk(limit int64) *disk {
	d := &disk{values: map[string][]byte{}}
	d.cache = ValueCache{Limit: limit, Near: true}
	d.cache.Read = func(key string, revision int64) ([]byte, error) {
		d.reads++
		return slices.Clone(d.values[fmt.Sprint(key, revision)]), nil
	}
	d.cache.Scan = func(first, last string, n int, _ int64, each func(string, int64, []byte)) error {
		d.scans++
		var shown []byte // is used for each value, as a store may
		for _, rec := range d.records {
			if rec.Key >= first && rec.Key <= last && n > 0 {
				shown = append(shown[:0], d.values[fmt.Sprint(rec.Key, rec.Revision)]...)
				each(rec.Key, rec.Revision, shown)
				n--
			}
		}
		clear(shown)
		return d.err
	}
	d.cache.Next = func(after Position, n int, f func(*Record)) Position {
		for _, rec := range d.records {
			if rec.Key > after.Key && n > 0 {
				f(rec)
				after.Key = rec.Key
				n--
			}
		}
		if n > 0 {
			return Position{}
		}
		return after
	}
	return d
}

// add makes a record of stored bytes.
func (d *disk) add(key string, revision int64, stored []byte) *Record {
	rec := NewRecord(Record{Key: key, Name: key[strings.LastIndexByte(key, '/')+1:], Revision: revision}, stored, nil, nil, &EncodingBudget{Limit: 1 << 30}, &d.cache)
	d.records = append(d.records, rec)
	d.values[fmt.Sprint(key, revision)] = slices.Clone(stored)
	return rec
}

// TestListsReadAhead encodes lists whose records are out of memory: they are the same as if
// the records were there, and are read by few scans.
func TestListsReadAhead(t *testing.T) {
	s := pods(t)
	const n = 600
	for _, tt := range []struct {
		name    string
		format  Format
		include Include
		chunks  bool
		damage  func(*disk)
		single  int // reads of single values, at most
	}{
		{name: "JSON"},
		{name: "protobuf", format: Format{Media: Protobuf}},
		{name: "metadata", format: Format{Shape: ShapeMetadata}},
		{name: "metadata in protobuf", format: Format{Media: Protobuf, Shape: ShapeMetadata}},
		{name: "table", format: Format{Shape: ShapeTable}, include: IncludeMetadata},
		{name: "table with objects", format: Format{Shape: ShapeTable}, include: IncludeObject},
		{name: "JSON in chunks", chunks: true},
		{name: "protobuf in chunks", format: Format{Media: Protobuf}, chunks: true},
		{name: "a scan that fails", damage: func(d *disk) { d.err = errors.New("no disk") }},
		{name: "scans that find nothing", format: Format{Media: Protobuf}, damage: func(d *disk) {
			d.cache.Scan = func(string, string, int, int64, func(string, int64, []byte)) error { return errors.New("compacted") }
		}, single: 4 * n},
		{name: "other versions", damage: func(d *disk) {
			scan := d.cache.Scan
			d.cache.Scan = func(first, last string, n int, revision int64, each func(string, int64, []byte)) error {
				return scan(first, last, n, revision, func(key string, written int64, _ []byte) { each(key, written+1, []byte("newer")) })
			}
		}, single: 2 * n},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDisk(1 << 30)
			here, away := &Page{Revision: n + 1}, &Page{Revision: n + 1}
			for i := range n {
				rec := podRecord(t, s.Definition, fmt.Sprintf("p%04d", i), int64(i+1))
				here.Records = append(here.Records, rec)
				stored, _ := rec.Stored()
				out := d.add(rec.Key, rec.Revision, stored)
				if i%10 != 9 {
					d.cache.Keep(out)
					out.value.used.Store(false)
					out.value.drop(false)
				}
				away.Records = append(away.Records, out)
			}
			d.cache.held.Store(fewValues + 1) // as if there were many others
			if tt.damage != nil {
				tt.damage(d)
			}
			encoder := func() *Encoder {
				e := &Encoder{Served: s, Format: tt.format, Include: tt.include, Now: time.Unix(0, 0)}
				if tt.chunks {
					e.Chunks = new(ChunkCache)
				}
				return e
			}
			want, err := encoder().AppendList(nil, here)
			if err != nil {
				t.Fatal(err)
			}
			e := encoder()
			for round := range 4 {
				got, err := e.AppendList(nil, away)
				if err != nil || !bytes.Equal(got, want) {
					t.Fatalf("round %d: got %d bytes, %v, want the %d bytes of records in memory", round, len(got), err, len(want))
				}
			}
			if d.reads > tt.single {
				t.Errorf("got %d reads of single values, want at most %d", d.reads, tt.single)
			}
			if tt.single == 0 && (d.scans == 0 || d.scans > 4*n/50) {
				t.Errorf("got %d scans, want a few", d.scans)
			}
			for _, rec := range away.Records {
				if stored, err := rec.Stored(); err != nil || !bytes.Equal(stored, d.values[fmt.Sprint(rec.Key, rec.Revision)]) {
					t.Fatalf("%s: got other bytes than are stored, %v", rec.Key, err)
				}
			}
		})
	}
}

// TestValueIsKeptWhenReadTwice: of many values, those that are read once are not kept.
func TestValueIsKeptWhenReadTwice(t *testing.T) {
	d := newDisk(1 << 30)
	rec := d.add("/a", 1, []byte("value"))
	d.cache.held.Store(fewValues + 1)
	d.cache.Offer(rec)
	for i, want := range []int{1, 2, 2, 2} {
		if got, err := rec.Stored(); string(got) != "value" || err != nil {
			t.Fatalf("got %q, %v, want the value", got, err)
		}
		if d.reads != want {
			t.Errorf("after read %d: got %d reads of the disk, want %d", i+1, d.reads, want)
		}
	}
}

// TestIdleValuesAreDropped: values that nobody reads go after a while, if they are on a disk
// of this machine and many; those that are read stay.
func TestIdleValuesAreDropped(t *testing.T) {
	for _, near := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			const size, used = 1 << 20, fewValues>>20 + 2
			d := newDisk(64 * size)
			d.cache.Near = near
			defer d.cache.Close()
			for i := range 40 {
				d.add(fmt.Sprintf("/a/%02d", i), 1, bytes.Repeat([]byte{byte(i)}, size))
			}
			for _, rec := range d.records {
				d.cache.Keep(rec)
			}
			want := int64(40 * size)
			if near {
				want = used * size
			}
			for range 10 {
				for _, rec := range d.records[:used] {
					if _, err := rec.Stored(); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(idleValues / 2)
			}
			synctest.Wait()
			if got := d.cache.Held(); got != want || d.reads != 0 {
				t.Errorf("near %v: got %d bytes in memory and %d reads, want %d and none", near, got, d.reads, want)
			}
			if near {
				want = 0
			}
			time.Sleep(3 * idleValues)
			synctest.Wait()
			if got := d.cache.Held(); got != want {
				t.Errorf("near %v, at rest: got %d bytes in memory, want %d", near, got, want)
			}
			for i, rec := range d.records {
				if got, err := rec.Stored(); err != nil || len(got) != size || got[0] != byte(i) {
					t.Errorf("%s: got other bytes, or %v", rec.Key, err)
				}
			}
		})
	}
}
