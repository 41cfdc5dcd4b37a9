package budget

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestAvailable: the smallest limit of the control groups counts, whichever version they
// have, and the memory of the machine without one.
func TestAvailable(t *testing.T) {
	const meminfo = "MemTotal:       16384 kB\nMemFree: 1 kB\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"machine", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n"}, 16 << 20},
		{"nothing known", nil, 4 << 30},
		{"version 2", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1000000\n"}, 1_000_000},
		{"version 2 in a container", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "2000000\n"}, 2_000_000},
		{"version 1", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/a\n0::/\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "3000000\n"}, 3_000_000},
		{"version 1 in a container", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:cpu,memory:/docker/x\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "4000000\n"}, 4_000_000},
		{"version 1 without a limit", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 16 << 20},
	} {
		root := t.TempDir()
		for name, text := range c.files {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := available(root); got != c.want {
			t.Errorf("%s: got %d bytes, want %d", c.name, got, c.want)
		}
	}
	if got := Available(); got <= 0 || got == math.MaxInt64 {
		t.Errorf("got %d bytes on this machine, want what it has", got)
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{
		"512Mi": 512 << 20, "1G": 1e9, "200000000": 2e8, "": Available(), "100%": Available(), "50%": Available() / 2,
		"1Mi": 0, "0": 0, "-1": 0, "0%": 0, "101%": 0, "NaN%": 0, "many": 0, "5x": 0, "0.0001%": 0,
	} {
		if got, err := Parse(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: got %d and %v, want %d", text, got, err, want)
		}
	}
}

// TestPartsFit: the parts together leave room for the rest, whatever the limit.
func TestPartsFit(t *testing.T) {
	for _, limit := range []int64{0, MinLimit, 256 << 20, 512 << 20, 1 << 30, 64 << 30} {
		m := New(limit)
		parts := m.Values() + m.Encodings() + m.Answers.limit + m.Bodies.limit + m.Unsent.limit
		if parts <= 0 || parts > m.Limit()*8/10 {
			t.Errorf("limit %d: got parts of %d together", limit, parts)
		}
	}
}

// TestGate: requests wait in their order until there is room, administrators have a part
// of their own, and who waits too long is refused.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const unit = 1 << 20
		var g Gate
		g.init(10 * unit) // 8 for everybody, 2 more for administrators
		ctx := t.Context()
		acquire := func(n int64, lane bool) func() {
			t.Helper()
			release, err := g.Acquire(ctx, n*unit, lane)
			if err != nil {
				t.Fatal(err)
			}
			return release
		}
		a, b := acquire(4, false), acquire(3, false)
		var order []string
		var mu sync.Mutex
		wait := func(name string, n int64) {
			go func() {
				release := acquire(n, false)
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				release()
			}()
			synctest.Wait()
		}
		wait("large", 5)
		wait("small", 1) // would fit, but comes later
		acquire(2, true)()
		if len(order) != 0 {
			t.Fatalf("got %v admitted, want none", order)
		}
		a()
		synctest.Wait()
		if len(order) != 2 || order[0] != "large" {
			t.Fatalf("got %v admitted, want large and then small", order)
		}
		b()
		whole := acquire(100, false) // larger than the gate
		if _, err := g.Acquire(ctx, unit, false); !errors.Is(err, ErrBusy) {
			t.Errorf("got %v after the wait, want ErrBusy", err)
		}
		canceled, cancel := context.WithCancelCause(ctx)
		cancel(errors.New("gone"))
		if _, err := g.Acquire(canceled, unit, false); err == nil || err.Error() != "gone" {
			t.Errorf("got %v, want the cause of the context", err)
		}
		if release, err := g.Acquire(ctx, Small, false); err != nil {
			t.Errorf("got %v for a small request, want none", err)
		} else {
			release()
		}
		whole()
		if held := g.Held(); held != 0 {
			t.Errorf("got %d bytes held at the end, want 0", held)
		}
	})
}

// TestGateUnderLoad: the limit is never passed, and everybody gets in or out.
func TestGateUnderLoad(t *testing.T) {
	var g Gate
	const limit = 64 << 20
	g.init(limit)
	var held, most atomic.Int64
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for n := range 50 {
				bytes := int64(1+(i*7+n*13)%40) << 20
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n%5)*time.Millisecond)
				release, err := g.Acquire(ctx, bytes, i%8 == 0)
				cancel()
				if err != nil {
					continue
				}
				now := held.Add(min(bytes, limit))
				for was := most.Load(); was < now && !most.CompareAndSwap(was, now); was = most.Load() {
				}
				held.Add(-min(bytes, limit))
				release()
			}
		})
	}
	wg.Wait()
	if most.Load() > limit || g.Held() != 0 {
		t.Errorf("got %d bytes held at once and %d at the end, want at most %d and 0", most.Load(), g.Held(), int64(limit))
	}
}

// TestHeld: who holds nothing waits, who holds some does not wait for more, and what is given back is
// there for others.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const unit = 1 << 20
		var g Gate
		g.init(10 * unit) // 8 for everybody
		ctx := t.Context()
		a, b := g.Hold(false), g.Hold(false)
		raise := func(h *Held, n int64) {
			t.Helper()
			if err := h.Raise(ctx, n*unit); err != nil {
				t.Fatal(err)
			}
		}
		raise(&a, 3)
		raise(&a, 2) // it has them
		raise(&b, 4)
		if err := a.Raise(ctx, 5*unit); !errors.Is(err, ErrBusy) || a.Bytes() != 3*unit {
			t.Errorf("more than there is, for one that holds some: got %v, and %d bytes", err, a.Bytes())
		}
		c := g.Hold(false)
		var came bool
		go func() {
			raise(&c, 100) // more than the gate has: it waits until it is alone
			came = true
		}()
		a.Lower(unit)
		raise(&a, 4)
		b.Lower(0)
		synctest.Wait()
		if came || g.Held() != 4*unit {
			t.Errorf("%d bytes are held, and the largest has come: %t", g.Held(), came)
		}
		a.Lower(Small) // as good as nothing
		synctest.Wait()
		if !came || g.Held() != 8*unit {
			t.Errorf("%d bytes are held, and the largest has come: %t", g.Held(), came)
		}
		c.Lower(0)
		c.Lower(0)
		if g.Held() != 0 {
			t.Errorf("%d bytes are held at the end", g.Held())
		}
		var unlimited Gate
		free := unlimited.Hold(true)
		raise(&free, 1<<20)
		free.Lower(0)
	})
}
