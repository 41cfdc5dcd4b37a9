package wire

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// budgetOf returns a budget and so many records whose encodings count in it.
func budgetOf(limit int64, n int) (*EncodingBudget, []*Record) {
	budget, records := &EncodingBudget{Limit: limit}, make([]*Record, n)
	for i := range records {
		records[i] = NewRecord(Record{Key: fmt.Sprintf("p%03d", i)}, nil, nil, nil, budget, nil)
	}
	budget.Records = func(f func(*Record)) {
		for _, rec := range records {
			f(rec)
		}
	}
	return budget, records
}

// TestEncodingBudgetBoundsMemory asks for more encodings than may be kept.
func TestEncodingBudgetBoundsMemory(t *testing.T) {
	const limit, size, objects = 64 << 10, 1 << 10, 300
	budget, records := budgetOf(limit, objects)
	var readers sync.WaitGroup
	for reader := range 4 {
		readers.Go(func() {
			for range 5 {
				for _, rec := range records {
					b, err := rec.Encoding(EncodingID(reader%2), func(*Record) ([]byte, error) { return bytes.Repeat([]byte{byte(reader % 2)}, size), nil })
					if err != nil || len(b) != size || b[0] != byte(reader%2) {
						t.Errorf("%s: got %d bytes, %v, want %d of %d", rec.Key, len(b), err, size, reader%2)
					}
				}
			}
		})
	}
	readers.Wait()
	// Each reader may be above the limit by the encoding that it has added. The last of them
	// may have swept all away; then there is room.
	if n := budget.sweep(func(*encodings) bool { return true }); n > limit+4*2*size {
		t.Errorf("got %d bytes of encodings, want at most those of the readers more than the limit of %d", n, limit)
	}
	made := 0
	for range 10 {
		_, _ = records[0].Encoding(0, func(*Record) ([]byte, error) { made++; return make([]byte, size), nil })
	}
	if made > 2 {
		t.Errorf("an encoding that is asked for ten times was made %d times, want at most 2", made)
	}
}

// TestNothingIsKeptWhileSwept: what is asked for while another goroutine makes room, which
// may take long, is not kept.
func TestNothingIsKeptWhileSwept(t *testing.T) {
	const size, objects = 1 << 10, 40
	budget, records := budgetOf(objects/2*size, objects)
	get := func(rec *Record) {
		if _, err := rec.Encoding(0, func(*Record) ([]byte, error) { return make([]byte, size), nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, rec := range records[:objects/2] {
		if budget.Spent() <= budget.Limit {
			get(rec)
		}
	}
	most, all := int64(0), budget.Records
	budget.Records = func(f func(*Record)) {
		for _, rec := range records[objects/2:] {
			get(rec)
		}
		most = max(most, budget.Spent())
		all(f)
	}
	get(records[objects-1])
	if most == 0 || most > budget.Limit+2*size {
		t.Errorf("%d bytes are kept while room is made, want about the limit of %d", most, budget.Limit)
	}
}

// TestEncodingBudgetKeepsUsed drops first what nobody uses.
func TestEncodingBudgetKeepsUsed(t *testing.T) {
	const size = 1 << 10
	_, records := budgetOf(16*size, 40)
	made := map[string]int{}
	get := func(rec *Record) {
		if _, err := rec.Encoding(0, func(rec *Record) ([]byte, error) { made[rec.Key]++; return make([]byte, size), nil }); err != nil {
			t.Fatal(err)
		}
	}
	for i := range records {
		get(records[0])
		get(records[i])
	}
	if n := made[records[0].Key]; n > 3 {
		t.Errorf("the encoding that is used all the time was made %d times, want at most 3", n)
	}
}

// TestConvertedEncodingsStay: what a conversion has made, for which a webhook may have been asked,
// stays for longer, and goes as well.
func TestConvertedEncodingsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		budget, records := budgetOf(64*size, 40)
		defer budget.Close()
		for _, rec := range records {
			if _, err := rec.Encoding(0, func(*Record) ([]byte, error) { return make([]byte, size), nil }); err != nil {
				t.Fatal(err)
			}
			rec.noteConverted()
			time.Sleep(time.Second / 2) // a slow webhook, until others are dropped
		}
		synctest.Wait()
		if got := budget.Spent(); got < int64(len(records))*size {
			t.Errorf("after 20 s %d bytes are kept, want those of all %d encodings", got, len(records))
		}
		time.Sleep(3 * idleConverted)
		synctest.Wait()
		if got := budget.Spent(); got != 0 {
			t.Errorf("%d bytes are kept that nobody reads, want 0", got)
		}
	})
}

// TestIdleEncodingsAreDropped: what nobody reads goes after a while, what is read stays.
func TestIdleEncodingsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		budget, records := budgetOf(64*size, 40)
		defer budget.Close()
		made := 0
		get := func(rec *Record) {
			if _, err := rec.Encoding(0, func(*Record) ([]byte, error) { made++; return make([]byte, size), nil }); err != nil {
				t.Fatal(err)
			}
		}
		for _, rec := range records {
			get(rec)
		}
		const used = fewEncodings/size + 2 // so many that it goes on
		for range 10 {
			for _, rec := range records[:used] {
				get(rec)
			}
			time.Sleep(idleEncodings / 2)
		}
		synctest.Wait()
		if got := budget.Spent(); got < used*size || got >= (used+1)*size {
			t.Errorf("%d bytes are kept, want those of %d encodings with %d each", got, used, size)
		}
		if made != len(records) {
			t.Errorf("encodings were made %d times, want %d: those that are read stay", made, len(records))
		}
		time.Sleep(3 * idleEncodings)
		synctest.Wait()
		if got := budget.Spent(); got != 0 {
			t.Errorf("%d bytes are kept that nobody reads, want 0", got)
		}
		get(records[len(records)-1])
		if made != len(records)+1 {
			t.Errorf("encodings were made %d times, want %d: what nobody has read is gone", made, len(records)+1)
		}
	})
}
