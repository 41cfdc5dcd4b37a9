// Package budget divides the memory of a server: how much there is (Available, Parse), how
// much caches may hold of it (Memory), and which requests wait because others hold too
// much (Gate). Start at Memory.
//
// A server that stays within its parts is not killed for want of memory, whatever its
// clients ask for: what is stored is kept in memory only as far as it fits, and a request
// that holds much while it is worked on waits for its turn, or is told to come again.
package budget

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Memory is the memory that a server may use, in parts. The parts together are less than
// the limit: the rest is for code, stacks, the database and garbage.
type Memory struct {
	limit int64
	// Answers admits responses by what they hold while they are made and written, Bodies
	// requests by what their bodies hold until they are answered.
	Answers, Bodies Gate
	// Decoded admits requests by what texts become when they are decoded: their bodies, and
	// objects that they read or change. Who holds a part of Bodies may wait for it; who holds
	// a part of it waits for Answers at most.
	Decoded Gate
	// Changed admits writes by what is made of their objects beyond what has come: answers of webhooks
	// that change them, copies of patches, and the objects. Who holds a part of Decoded may wait for it.
	Changed Gate
	// Webhooks admits answers of webhooks that validate or convert, until they are used. Who holds a
	// part of the others may wait for it; who holds a part of it waits for nothing else.
	Webhooks Gate
	// Unsent is for responses that are made and that their clients do not read: who gets a
	// part of it does not hold up a request.
	Unsent Allowance
	// HeaderBlocks is for header blocks of HTTP/2 that have not come in full: half headers,
	// also of clients that are known.
	HeaderBlocks Allowance
	// Clients is for what clients hold without a request that is worked on: connections,
	// watches and other requests that last. What it gives is taken from Values.
	Clients Shared

	mu      sync.Mutex
	holders []Holder
}

// Holder is a part of the memory.
type Holder struct {
	// Name is for people and metrics: values, encodings, objects, answers, bodies, decoded,
	// changed, webhooks, unsent, header blocks, clients, schemas.
	Name string
	// Limit is how many bytes it may hold; Held returns how many it holds.
	Limit int64
	Held  func() int64
}

const (
	// MinLimit is the smallest limit that a server works with.
	MinLimit = 128 << 20
	// outside is memory that the Go runtime does not count: the program, caches and write
	// buffers of the database, and buffers of the kernel.
	outside = 144 << 20
	// fixed is what a server takes of the rest before it holds anything for anybody.
	fixed = 48 << 20
)

// New returns the memory of a server that may use limit bytes.
func New(limit int64) *Memory {
	m := &Memory{limit: max(limit, MinLimit)}
	m.Answers.init(m.share(25))
	m.Bodies.init(m.share(12))
	m.Decoded.init(m.share(20))
	m.Changed.init(m.share(10))
	m.Webhooks.init(m.share(5))
	m.Unsent.limit = m.share(6)
	m.Clients.limit = m.share(30)
	m.HeaderBlocks.limit = m.Strangers()
	m.Report(Holder{"answers", m.Answers.limit, m.Answers.Held})
	m.Report(Holder{"bodies", m.Bodies.limit, m.Bodies.Held})
	m.Report(Holder{"decoded", m.Decoded.limit, m.Decoded.Held})
	m.Report(Holder{"changed", m.Changed.limit, m.Changed.Held})
	m.Report(Holder{"webhooks", m.Webhooks.limit, m.Webhooks.Held})
	m.Report(Holder{"unsent", m.Unsent.limit, m.Unsent.Held})
	m.Report(Holder{"header blocks", m.HeaderBlocks.limit, m.HeaderBlocks.Held})
	m.Report(Holder{"clients", m.Clients.limit, m.Clients.Held})
	return m
}

// Default is the memory of servers in this process that are given none: what is
// available.
var Default = sync.OnceValue(func() *Memory { return New(Available()) })

// share returns a percentage of what there is to divide.
func (m *Memory) share(percent int64) int64 {
	return max(m.runtime()-fixed, m.limit/4) / 100 * percent
}

// runtime is how much of the limit is for the Go runtime.
func (m *Memory) runtime() int64 { return max(m.limit-outside, m.limit/2) }

// Limit returns how many bytes the server may use.
func (m *Memory) Limit() int64 { return m.limit }

// Values returns how many bytes of stored objects may be kept, less those that Clients has
// given: see wire.ValueCache.Lent.
func (m *Memory) Values() int64 { return m.share(30) }

// Objects returns how many bytes may be kept to find, order and select objects. From half of
// it on, what is more is taken from Values.
func (m *Memory) Objects() int64 { return m.share(40) }

// YAML returns how many bytes may be used at a time to read and write YAML.
func (m *Memory) YAML() int64 { return m.share(10) }

// Schemas returns how many bytes compiled schemas of custom resources may take.
func (m *Memory) Schemas() int64 { return min(m.share(15), 128<<20) }

// Encodings returns how many bytes of encoded objects may be kept.
func (m *Memory) Encodings() int64 { return min(m.share(8), 96<<20) }

// handlerMemory is what a request takes while its handler runs: a stack, its header and what
// it is parsed into.
const handlerMemory = 24 << 10

// Handlers returns how many handlers may run at a time before clients with several of them
// are held back.
func (m *Memory) Handlers() int { return int(m.share(10) / handlerMemory) }

// Strangers returns how many bytes clients may have sent that are not known, or whose request is
// not there yet, beside a little for each of their connections: half a header, half a handshake.
func (m *Memory) Strangers() int64 { return min(m.share(5), 64<<20) }

// Report adds a part to those that Holders returns.
func (m *Memory) Report(h Holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holders = append(m.holders, h)
}

// Holders returns the parts of the memory that somebody has reported.
func (m *Memory) Holders() []Holder {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Holder(nil), m.holders...)
}

// BoundRuntime makes the Go runtime collect garbage more often when it comes near the
// limit, and a busy one with a small heap less often (see collector). It is for programs, not for
// libraries: a process has one such limit. What GOMEMLIMIT and GOGC set stays.
func (m *Memory) BoundRuntime() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(m.runtime())
	}
	if os.Getenv("GOGC") == "" {
		processCollector.start(min(busyRoom, m.runtime()/limitPart))
	}
}

// Parse returns a limit that is written as bytes (512Mi, 1G), or as a share of what is
// available (50%). Empty is all of that.
func Parse(text string) (int64, error) {
	if text == "" {
		return Available(), nil
	}
	if share, ok := strings.CutSuffix(text, "%"); ok {
		percent, err := strconv.ParseFloat(share, 64)
		if err != nil || !(percent > 0 && percent <= 100) {
			return 0, fmt.Errorf("%q is not a share of the memory: a number above 0 and up to 100 is wanted before the %%", text)
		}
		return check(text, int64(float64(Available())*percent/100))
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("%q is neither a number of bytes, such as 512Mi, nor a share of the memory, such as 50%%", text)
	}
	return check(text, quantity.Value())
}

func check(text string, limit int64) (int64, error) {
	if limit < MinLimit {
		return 0, fmt.Errorf("%s of memory is too little: a server needs at least %dMi", text, MinLimit>>20)
	}
	return limit, nil
}

// Available returns how many bytes of memory this process may use: what its control
// group, version 1 or 2, or one above that allows, or what the machine has.
func Available() int64 { return available("/") }

// available reads the files below a root directory.
func available(root string) int64 {
	limit := machine(root)
	groups, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(groups)) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, ok := strings.Cut(rest, ":")
		switch {
		case !ok:
		case id == "0" && controllers == "":
			limit = min(limit, smallest(filepath.Join(root, "sys/fs/cgroup"), path, "memory.max"))
			limit = min(limit, smallest(filepath.Join(root, "sys/fs/cgroup/unified"), path, "memory.max"))
		case hasMemory(controllers):
			limit = min(limit, smallest(filepath.Join(root, "sys/fs/cgroup/memory"), path, "memory.limit_in_bytes"))
		}
	}
	return limit
}

func hasMemory(controllers string) bool {
	for name := range strings.SplitSeq(controllers, ",") {
		if name == "memory" {
			return true
		}
	}
	return false
}

// smallest returns the smallest limit of a control group and those above it. In a
// container the path may be that of the host, which is not there: then only the root is
// looked at, which is the container's own.
func smallest(root, path, file string) int64 {
	limit := int64(math.MaxInt64)
	for dir := filepath.Join("/", path); ; dir = filepath.Dir(dir) {
		if b, err := os.ReadFile(filepath.Join(root, dir, file)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
				limit = min(limit, n)
			}
		}
		if dir == "/" {
			return limit
		}
	}
}

// machine returns the memory of the machine, 4 GiB if it is not known.
func machine(root string) int64 {
	info, _ := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	for line := range strings.Lines(string(info)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "MemTotal:" {
			if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				return n << 10
			}
		}
	}
	return 4 << 30
}
