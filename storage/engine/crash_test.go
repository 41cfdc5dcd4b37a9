package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/storage"
)

const (
	crashEnv     = "KELSON_TEST_CRASH_DIR"
	crashWriters = 16
)

// TestKill kills a process that writes with many goroutines, at random
// instants, again and again on one folder. Every write that it acknowledged
// must be there, no revision may go back, and history must have no gap.
func TestKill(t *testing.T) {
	rounds := rounds(5, 100)
	dir := t.TempDir()
	acked := map[string]storage.KeyValue{} // newest acknowledged state a key
	gone := map[string]int64{}             // acknowledged deletions
	newest, checked := int64(1), int64(1)
	random := randomtest.New(t)
	for round := range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashEnv+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := 0
		killAfter := 1 + random.IntN(1500)
		r := bufio.NewReader(out)
		for {
			line, err := r.ReadString('\n')
			if err != nil { // a last line that is cut off was not acknowledged to us
				break
			}
			if lines++; lines == killAfter {
				// The child goes on writing while the signal is on its way.
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			f := strings.Fields(line)
			if len(f) != 3 {
				t.Fatalf("child said %q", line)
			}
			rev, _ := strconv.ParseInt(f[2], 10, 64)
			newest = max(newest, rev)
			switch key := f[1]; f[0] {
			case "put":
				acked[key] = storage.KeyValue{Key: key, ModRevision: rev}
				delete(gone, key)
			case "delete":
				delete(acked, key)
				gone[key] = rev
			}
		}
		io.Copy(io.Discard, r)
		cmd.Wait()
		if cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("round %d: child ended by itself: %v", round, cmd.ProcessState)
		}
		newest = checkCrash(t, dir, acked, gone, newest, checked)
		checked = newest
	}
	t.Logf("%d rounds, revision %d, %d keys", rounds, newest, len(acked))
}

// checkCrash opens the folder and compares it with what was acknowledged, and
// with its history since the revision that was checked last.
func checkCrash(t *testing.T, dir string, acked map[string]storage.KeyValue, gone map[string]int64, newest, checked int64) int64 {
	t.Helper()
	ctx := context.Background()
	e, err := Open(Options{Dir: dir, HistoryAge: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	rev, _ := e.Revision(ctx)
	if rev < newest {
		t.Fatalf("revision went back from %d to %d", newest, rev)
	}
	deleted := map[string]int64{}
	for _, ev := range checkHistory(t, e, checked, rev) {
		if ev.Op == storage.Deleted {
			deleted[ev.KV.Key] = ev.KV.ModRevision
		}
	}
	for key, want := range acked {
		kv, err := e.Get(ctx, key)
		// The child may have changed it again after what we read from it.
		if errors.Is(err, storage.ErrNotFound) {
			if deleted[key] < want.ModRevision {
				t.Errorf("%s of revision %d is lost", key, want.ModRevision)
			}
			// Later rounds look only at the history since this one.
			delete(acked, key)
			gone[key] = deleted[key]
			continue
		}
		if err != nil || kv.ModRevision < want.ModRevision {
			t.Errorf("%s is at %d (%v), %d was acknowledged", key, kv.ModRevision, err, want.ModRevision)
		} else if want := crashValue(key, kv.Value); string(kv.Value) != want {
			t.Errorf("%s has value %.40q", key, kv.Value)
		}
	}
	for key, rev := range gone {
		if kv, err := e.Get(ctx, key); err == nil && kv.CreateRevision < rev {
			t.Errorf("%s, deleted at %d, is back", key, rev)
		}
	}
	return rev
}

// history reads all events after a revision.
func history(t testing.TB, e *Engine, after int64) (events []storage.Event) {
	t.Helper()
	ctx := context.Background()
	now, err := e.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w, err := e.Watch(ctx, "", after)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for after < now {
		b, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, b.Events...)
		after = b.Revision
	}
	return events
}

// checkHistory checks that there is an event for every revision above after,
// and that playing them gives what the store holds. It returns the events.
func checkHistory(t testing.TB, e *Engine, after, now int64) []storage.Event {
	t.Helper()
	state := map[string]storage.KeyValue{}
	next := after + 1
	events := history(t, e, after)
	for _, ev := range events {
		if ev.KV.ModRevision != next {
			t.Fatalf("history goes from %d to %d", next-1, ev.KV.ModRevision)
		}
		next++
		if prev := state[ev.KV.Key]; after == 1 && (prev.ModRevision != ev.Prev.ModRevision || string(prev.Value) != string(ev.Prev.Value)) {
			t.Fatalf("event %d of %s replaces %d, history has %d", ev.KV.ModRevision, ev.KV.Key, ev.Prev.ModRevision, prev.ModRevision)
		}
		if ev.Op == storage.Deleted {
			delete(state, ev.KV.Key)
		} else {
			state[ev.KV.Key] = ev.KV
		}
	}
	if next != now+1 {
		t.Fatalf("history ends at %d, the revision is %d", next-1, now)
	}
	page, err := e.List(context.Background(), "", storage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if after == 1 && len(page.Items) != len(state) {
		t.Fatalf("the store holds %d keys, history makes %d", len(page.Items), len(state))
	}
	for _, kv := range page.Items {
		if want, ok := state[kv.Key]; (ok || after == 1) && (kv.ModRevision != want.ModRevision || string(kv.Value) != string(want.Value)) {
			t.Fatalf("%s is at %d, history makes %d", kv.Key, kv.ModRevision, want.ModRevision)
		}
	}
	return events
}

// crashValue is what a value should look like: the key, a counter, padding.
func crashValue(key string, got []byte) string {
	head, _, _ := strings.Cut(string(got), "|")
	return head + "|" + key + strings.Repeat(".", 1000)
}

// crashChild writes until it is killed, and says what was acknowledged.
func crashChild() {
	e, err := Open(Options{Dir: os.Getenv(crashEnv), HistoryAge: time.Hour})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx := context.Background()
	var mu sync.Mutex
	say := func(what, key string, rev int64) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf("%s %s %d\n", what, key, rev)
	}
	var wg sync.WaitGroup
	for i := range crashWriters {
		wg.Go(func() {
			for n := 0; ; n++ {
				key := fmt.Sprintf("/%d/%d", i, rand.IntN(200))
				value := []byte(strconv.Itoa(n) + "|" + key + strings.Repeat(".", 1000))
				kv, err := e.Create(ctx, key, value, 0)
				if errors.Is(err, storage.ErrExists) {
					if rand.IntN(3) == 0 {
						var rev int64
						if _, rev, err = e.Delete(ctx, key, kv.ModRevision); err == nil {
							say("delete", key, rev)
							continue
						}
					} else {
						kv, err = e.Update(ctx, key, value, kv.ModRevision, 0)
					}
				}
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				say("put", key, kv.ModRevision)
			}
		})
	}
	wg.Wait()
}
