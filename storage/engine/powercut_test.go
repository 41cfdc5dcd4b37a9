package engine

import (
	"fmt"
	"testing"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestPowerCutIsNoDamage takes the power away again and again, from stores that are open and
// from stores that were closed: each start takes what is left for whole, and has all that was
// acknowledged.
func TestPowerCutIsNoDamage(t *testing.T) {
	random := randomtest.New(t)
	for round := range rounds(10, 300) {
		disk := vfs.NewCrashableMem()
		acked := newAcked()
		for start := range 6 {
			e, err := Open(Options{Dir: "data", fs: disk, memtable: 64 << 10})
			if err != nil {
				t.Fatalf("round %d, start %d: %v", round, start, err)
			}
			acked.checkAtLeast(t, e)
			for i := range random.IntN(40) {
				acked.put(create(t, e, fmt.Sprintf("/%d/%d", start, i), string(randomBytes(1+random.IntN(3000)))))
			}
			if random.IntN(3) == 0 {
				if err := e.db.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			closed := random.IntN(2) == 0
			if closed {
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
			}
			after := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: random.IntN(101), RNG: random})
			if !closed {
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
			}
			disk = after
		}
	}
}
