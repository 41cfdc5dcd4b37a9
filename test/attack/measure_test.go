//go:build linux

package attack

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A price is what a KiB that an attacker sends, counted below TLS, may cost the server.
// Prices are at least three times what was measured on two shared cores, and far below
// what work that grows with the square of what was sent, or without a bound, costs.
type price struct {
	cpu  time.Duration // time of the server's threads
	held int           // bytes of heap and stacks in use at the height of the attack
	log  int           // bytes written to the log at the default level
}

// What an attack may cost beside what it sends: the measuring, clients that behave,
// handshakes, and what the server does anyway.
const (
	cpuPerSecond  = 100 * time.Millisecond
	cpuPerAttack  = 150 * time.Millisecond
	cpuPerConn    = 10 * time.Millisecond
	heldPerAttack = 8 << 20
	heldPerConn   = 96 << 10
	logPerAttack  = 4 << 10
	// peakPerAttack and peakPerConn bound how much the resident memory of the process
	// grows, with garbage.
	peakPerAttack = 256 << 20
	peakPerConn   = 16 << 10
	// promptly is how long a client that behaves waits at most for an answer while
	// the attack lasts, on a machine that the attacker uses too.
	promptly = 5 * time.Second
	// leftPerAttack is how much more memory may be in use when an attack is over:
	// caches and pools, not what belongs to connections.
	leftPerAttack = 12 << 20
	// leftGoroutines is how many goroutines an attack may leave: those of the clients
	// that behave, and of the server's own timers.
	leftGoroutines = 12
)

// An assault is an attack under way.
type assault struct {
	*testing.T
	s      *server
	bytes  atomic.Int64 // sent below TLS
	conns  atomic.Int64
	before usage
	held   int           // the most that was in use
	probes time.Duration // CPU time of measuring
	probed sync.Mutex

	mu    sync.Mutex
	peers []interface{ Close() error }
}

// usage is what the server uses.
type usage struct{ held, goroutines int }

// attack runs f against the server and checks what it has cost.
func attack(t *testing.T, p price, f func(a *assault)) {
	t.Helper()
	s := victim
	a := &assault{T: t, s: s}
	if s.rest == (usage{}) {
		s.rest = s.settle(t)
	}
	a.before = s.rest
	a.held = a.before.held
	resetPeak(t, s)
	peak := resident(t, s, "VmRSS")
	logged := s.log.Len()
	cpu, begin := s.cpu(t), time.Now()

	stop := make(chan struct{})
	var witness sync.WaitGroup
	var slowest time.Duration
	var served int
	witness.Go(func() { slowest, served = a.behave(stop) })
	f(a)
	a.quiet()
	close(stop)
	witness.Wait()

	took := time.Since(begin)
	spent := s.cpu(t) - cpu - a.probes
	log := s.log.Len() - logged
	peak = resident(t, s, "VmHWM") - peak
	a.hangUp()
	if !s.alive() {
		t.Fatalf("the server has ended: %s", s.log.from(logged))
	}
	kib := float64(a.bytes.Load()) / 1024
	conns := int(a.conns.Load())
	allowedCPU := cpuPerAttack + time.Duration(took.Seconds()*float64(cpuPerSecond)) + time.Duration(conns)*cpuPerConn + time.Duration(kib*float64(p.cpu))
	allowedHeld := heldPerAttack + conns*heldPerConn + int(kib*float64(p.held))
	allowedPeak := peakPerAttack + conns*peakPerConn
	allowedLog := logPerAttack + int(kib*float64(p.log))
	held := a.held - a.before.held
	t.Logf("%.0f KiB on %d connections in %v: CPU %v (%v a KiB) of %v, held %d KiB (%.0f bytes a KiB) of %d, peak %d KiB, log %d of %d bytes, slowest answer to others %v of %d",
		kib, conns, took.Round(time.Millisecond), spent.Round(time.Millisecond), (time.Duration(float64(spent) / max(kib, 1))).Round(time.Microsecond), allowedCPU.Round(time.Millisecond),
		held>>10, float64(held)/max(kib, 1), allowedHeld>>10, peak>>10, log, allowedLog, slowest.Round(time.Millisecond), served)
	if spent > allowedCPU {
		t.Errorf("the attack has cost %v of CPU time for %.0f KiB on %d connections, want at most %v", spent, kib, conns, allowedCPU)
	}
	if held > allowedHeld {
		t.Errorf("the attack holds %d KiB of memory with %.0f KiB on %d connections, want at most %d KiB", held>>10, kib, conns, allowedHeld>>10)
	}
	if peak > allowedPeak {
		t.Errorf("the process has grown by %d MiB, want at most %d MiB", peak>>20, allowedPeak>>20)
	}
	if log > allowedLog {
		t.Errorf("the attack has written %d bytes to the log with %.0f KiB, want at most %d: %.500s", log, kib, allowedLog, s.log.from(logged))
	}
	if slowest > promptly || served == 0 {
		t.Errorf("of %d answers to clients that behave the slowest took %v, want at least one and at most %v", served, slowest, promptly)
	}
	a.over()
}

// hangUp closes the attacker's connections.
func (a *assault) hangUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.peers {
		_ = p.Close()
	}
	a.peers = nil
}

// over waits until the server uses what it used before.
func (a *assault) over() {
	a.Helper()
	var now usage
	for deadline := time.Now().Add(patience); ; {
		now = a.s.usage(a.T)
		a.s.rest = now
		if now.goroutines <= a.before.goroutines+leftGoroutines && now.held <= a.before.held+leftPerAttack {
			return
		}
		if time.Now().After(deadline) {
			break
		}
		<-time.After(50 * time.Millisecond) // to be asked costs the server a garbage collection
	}
	if now.goroutines > a.before.goroutines+leftGoroutines {
		text, _ := a.s.get(a.s.admin, "/debug/pprof/goroutine?debug=1")
		a.Errorf("%d goroutines are left, %d were there before: %.3000s", now.goroutines, a.before.goroutines, text)
	}
	if now.held > a.before.held+leftPerAttack {
		a.Errorf("%d KiB of memory are in use after the attack, before it were %d", now.held>>10, a.before.held>>10)
	}
}

// hold measures the memory that is in use now.
func (a *assault) hold() {
	a.Helper()
	a.probed.Lock()
	defer a.probed.Unlock()
	before := a.s.cpu(a.T)
	a.held = max(a.held, a.s.usage(a.T).held)
	a.probes += a.s.cpu(a.T) - before
}

// quiet waits until the server has nothing more to do for the attacker.
func (a *assault) quiet() {
	a.Helper()
	const step = 50 * time.Millisecond
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		before := a.s.cpu(a.T)
		<-time.After(step)
		if a.s.cpu(a.T)-before < step/5 {
			return
		}
	}
	a.Errorf("the server is still busy after %v", patience)
}

// behave is a client that does nothing wrong, on a connection of its own and on new
// ones, until it is told to stop. It returns how long it has waited at most.
func (a *assault) behave(stop chan struct{}) (slowest time.Duration, served int) {
	kept := a.s.client(mary, true)
	defer kept.CloseIdleConnections()
	for i := 0; ; i++ {
		client := kept
		if i%8 == 7 {
			client = a.s.client(mary, i%16 == 7)
		}
		begin := time.Now()
		_, err := a.s.get(client, "/api")
		slowest = max(slowest, time.Since(begin))
		if client != kept {
			client.CloseIdleConnections()
		}
		if err != nil {
			a.Errorf("a client that behaves is not served: %v", err)
			return slowest, served
		}
		served++
		select {
		case <-stop:
			return slowest, served
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// cpu returns the CPU time of the process.
func (s *server) cpu(t *testing.T) time.Duration {
	t.Helper()
	var spec unix.Timespec
	// This is how clock_getcpuclockid makes the clock of a process.
	if err := unix.ClockGettime(int32(^s.cmd.Process.Pid)<<3|2, &spec); err != nil {
		t.Fatalf("CPU time of the server: %v", err)
	}
	return time.Duration(spec.Nano())
}

var numberOf = map[string]*regexp.Regexp{
	"held":       regexp.MustCompile(`(?m)^# (?:HeapAlloc = |Stack = )(\d+)`),
	"goroutines": regexp.MustCompile(`goroutine profile: total (\d+)`),
}

// usage returns what the process uses once garbage is collected.
func (s *server) usage(t *testing.T) usage {
	t.Helper()
	sum := func(path, what string) (sum int) {
		text, err := s.get(s.admin, path)
		if err != nil {
			t.Fatalf("what the server uses: %v", err)
		}
		for _, match := range numberOf[what].FindAllStringSubmatch(text, -1) {
			n, _ := strconv.Atoi(match[1])
			sum += n
		}
		if sum == 0 {
			t.Fatalf("%s does not tell what is used: %.300s", path, text)
		}
		return sum
	}
	return usage{sum("/debug/pprof/heap?gc=1&debug=1", "held"), sum("/debug/pprof/goroutine?debug=1", "goroutines")}
}

// settle returns what the server uses when it has come to rest.
func (s *server) settle(t *testing.T) usage {
	t.Helper()
	last := s.usage(t)
	for range 100 {
		now := s.usage(t)
		if now.goroutines >= last.goroutines && now.held >= last.held-(64<<10) {
			return now
		}
		last = now
		<-time.After(20 * time.Millisecond)
	}
	return last
}

// resident returns a line of the process's status in bytes.
func resident(t *testing.T, s *server, what string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, rest, _ := strings.Cut(line, ":"); name == what {
			n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			return n << 10
		}
	}
	t.Fatalf("no %s in the status of the server", what)
	return 0
}

// resetPeak makes VmHWM start anew.
func resetPeak(t *testing.T, s *server) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte("5"), 0); err != nil {
		t.Logf("the peak of memory counts from the start of the server: %v", err)
	}
}

// within waits until something is so.
func within(t *testing.T, limit time.Duration, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !so(); {
		if time.Now().After(deadline) {
			t.Errorf("after %v it is not so that %s", limit, what)
			return
		}
		<-time.After(5 * time.Millisecond)
	}
}

// answers asks as a client that behaves and returns how long it took.
func (a *assault) answers(user, path string) time.Duration {
	a.Helper()
	client := a.s.client(user, true)
	defer client.CloseIdleConnections()
	begin := time.Now()
	if _, err := a.s.do(client, http.MethodGet, path, nil); err != nil {
		a.Errorf("%s is not served: %v", user, err)
		return math.MaxInt64
	}
	return time.Since(begin)
}
