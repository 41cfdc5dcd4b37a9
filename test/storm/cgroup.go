//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	cgroupRoot     = "/sys/fs/cgroup"
	cgroupV1Memory = cgroupRoot + "/memory"
)

// cgroup is a memory cgroup of a server, of version 1 or 2.
type cgroup struct {
	dir string
	v2  bool
}

// newCgroup makes a group with a limit in bytes. Processes in it get no swap.
func newCgroup(limit int64) (*cgroup, error) {
	g, parent := &cgroup{}, cgroupV1Memory
	if _, err := os.Stat(cgroupV1Memory + "/memory.limit_in_bytes"); err != nil {
		text, err := os.ReadFile(cgroupRoot + "/cgroup.controllers")
		if err != nil || !strings.Contains(string(text), "memory") {
			return nil, fmt.Errorf("there is no memory controller in %s", cgroupRoot)
		}
		g.v2, parent = true, cgroupRoot
	}
	var err error
	if g.dir, err = os.MkdirTemp(parent, "kelson-storm-"); err != nil {
		return nil, fmt.Errorf("no cgroup can be made: %w", err)
	}
	if err := g.setLimit(limit); err != nil {
		return nil, errors.Join(err, g.remove())
	}
	return g, nil
}

func (g *cgroup) setLimit(limit int64) error {
	bytes := strconv.FormatInt(limit, 10)
	if !g.v2 {
		if err := g.write("memory.limit_in_bytes", bytes); err != nil {
			return err
		}
		// It is not there where the kernel does not count swap.
		if err := g.write("memory.memsw.limit_in_bytes", bytes); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	if _, err := os.Stat(filepath.Join(g.dir, "memory.max")); err != nil {
		if err := os.WriteFile(cgroupRoot+"/cgroup.subtree_control", []byte("+memory"), 0); err != nil {
			return fmt.Errorf("the memory controller cannot be given to groups: %w", err)
		}
	}
	if err := g.write("memory.max", bytes); err != nil {
		return err
	}
	if err := g.write("memory.swap.max", "0"); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (g *cgroup) write(file, text string) error {
	// No O_CREATE: a file that the kernel does not offer is an error.
	f, err := os.OpenFile(filepath.Join(g.dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// canLimit reports why no memory limit can be set, or nil.
func canLimit() error {
	g, err := newCgroup(64 << 20)
	if err != nil {
		return err
	}
	return g.remove()
}

// command returns the arguments with which a program is started inside the group.
func (g *cgroup) command(program string, args ...string) []string {
	if g == nil {
		return append([]string{program}, args...)
	}
	script := `echo $$ >"$0" && exec "$@"`
	return append([]string{"/bin/sh", "-c", script, filepath.Join(g.dir, "cgroup.procs"), program}, args...)
}

// memoryUse is what the kernel says about a group.
type memoryUse struct {
	peak      int64 // bytes, with the pages of files that were read or written
	anonymous int64 // bytes now, without pages of files
	failures  int64 // how often the limit was reached
	oomKills  int64
}

// use reads what the group uses. What cannot be read is 0.
func (g *cgroup) use() (u memoryUse) {
	if g == nil {
		return u
	}
	if g.v2 {
		u.peak, u.anonymous = g.number("memory.peak", ""), g.number("memory.stat", "anon")
		u.failures, u.oomKills = g.number("memory.events", "max"), g.number("memory.events", "oom_kill")
		return u
	}
	u.peak, u.anonymous = g.number("memory.max_usage_in_bytes", ""), g.number("memory.stat", "rss")
	u.failures = g.number("memory.failcnt", "") + g.number("memory.memsw.failcnt", "") // the second has the same limit
	u.oomKills = g.number("memory.oom_control", "oom_kill")
	return u
}

// number reads a file of the group: its only number, or that after a key.
func (g *cgroup) number(file, key string) int64 {
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if key == "" && len(fields) == 1 || key != "" && len(fields) == 2 && fields[0] == key {
			n, _ := strconv.ParseInt(fields[len(fields)-1], 10, 64)
			return n
		}
	}
	return 0
}

// remove removes the group, whose processes have ended.
func (g *cgroup) remove() error {
	if g == nil {
		return nil
	}
	var err error
	// The kernel may still be busy with the last process.
	for range 50 {
		if err = os.Remove(g.dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// residentMemory returns VmRSS and VmHWM of a process in bytes, 0 if it has ended.
func residentMemory(pid int) (now, peak int64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		kilobytes, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "VmRSS:":
			now = kilobytes << 10
		case "VmHWM:":
			peak = kilobytes << 10
		}
	}
	return now, peak
}

// ticksPerSecond is the unit of CPU time in /proc, the same on all architectures that Go
// knows.
const ticksPerSecond = 100

// cpuTime returns how many seconds of CPU a process has used, 0 if it has ended.
func cpuTime(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name of the program, in parentheses, may have spaces.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	return ticks(fields[11]) + ticks(fields[12])
}

func ticks(text string) float64 {
	n, _ := strconv.ParseFloat(text, 64)
	return n / ticksPerSecond
}

// machineCPUTime returns how many seconds of CPU all processes of the machine have used,
// and the machine's other guests have taken.
func machineCPUTime() float64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(first)
	if len(fields) < 9 {
		return 0
	}
	busy := 0.0
	for i, field := range fields[1:9] {
		// Neither idle nor waiting for a disk.
		if i != 3 && i != 4 {
			busy += ticks(field)
		}
	}
	return busy
}
