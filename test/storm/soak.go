//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A soak is mixed load on one server within a memory limit for a long time, in rounds with
// a rest between them. In the middle the server is killed and started again under load. It
// fails if the server ends, answers break off, an acknowledged write is missing, the heap is
// ever above its bound, or a round leaves memory, goroutines or files behind.

// mixture is what clients do in a soak, each line as a user of its own, and how many do it.
var mixture = []struct {
	scenario string
	clients  int
}{
	{"list-json", 8}, {"list-protobuf", 4}, {"list-gzip", 4}, {"list-table", 4}, {"watchlist", 4}, {"slow", 8}, {"never", 8},
	{"small-json", 4}, {"small-protobuf", 4}, {"small-watchlist", 4}, {"writers", 8}, {"events", 2}, {"leases", 8}, {"connects", 16}, {"unread", 8}, {"watches", 8},
}

const (
	// soakRound is how long a round of a soak lasts at most; -soak is divided into rounds.
	soakRound = 3 * time.Minute
	// killAfter is how long the load lasts before the server is killed, and again after it
	// was started.
	killAfter = 5 * time.Second
	// completeWithin is how long a round is at least in which every kind of client must get a
	// complete answer.
	completeWithin = time.Minute
	// restPatience is how long a server may take until it has given back what it held, and
	// firstRest how long it gets after the first round, or as long as the soak if that is
	// less: Events expire, and clients that were cut are forgotten.
	restPatience = 2 * time.Minute
	firstRest    = time.Minute
	// soakEventTTL is how long Events live, so that their number does not grow.
	soakEventTTL = "30s"
	pageInterval = 2 * time.Second

	// What a server may have more of at rest than after the first round: caches fill, and
	// the log of an embedded store has its files.
	moreHeap = 24 << 20
	// oneObject is by how much a part may be above its bound: a cache makes room for an
	// object when it has taken it in.
	oneObject      = 2 << 20
	moreGoroutines = 16
	moreFiles      = 32
)

// atRest is what a server uses when nothing is asked.
type atRest struct {
	heap, goroutines, files int
}

func (r atRest) String() string {
	return fmt.Sprintf("heap %s MiB, %d goroutines, %d files", mebibytes(int64(r.heap)), r.goroutines, r.files)
}

// soaking is a soak under way.
type soaking struct {
	*options
	s     *server
	dir   string
	items map[string]int // of a complete list, by path

	mu     sync.Mutex // protects what follows
	faults []string
	most   map[string]int64 // bytes that a part of the memory held at most
}

func (k *soaking) fault(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	k.faults = append(k.faults, text)
	fmt.Fprintln(k.progress, "soak: FAULT:", text)
}

// soak runs a soak, and returns an error that names all that went wrong.
func soak(ctx context.Context, o *options, kind kelsonServer, length time.Duration, limit int64) (err error) {
	dir, err := dataFolder(ctx, o, kind, mixedData)
	if err != nil {
		return err
	}
	kind.args = append([]string{"--event-ttl", soakEventTTL}, kind.args...)
	s, dir, stop, err := startOn(kind, dir, true, limit)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := s.waitReady(ctx); err != nil {
		return err
	}
	if err := createUnread(ctx, s.url); err != nil {
		return err
	}
	k := &soaking{options: o, s: s, dir: dir, items: map[string]int{}, most: map[string]int64{}}
	for _, what := range scenarios() {
		if _, ok := k.items[what.path()]; !ok {
			if k.items[what.path()], err = countItems(ctx, s.url+what.path()); err != nil {
				return err
			}
		}
	}
	return k.run(ctx, length, limit)
}

// run runs all rounds.
func (k *soaking) run(ctx context.Context, length time.Duration, limit int64) error {
	rounds := max(2, int((length+soakRound-1)/soakRound))
	each := length / time.Duration(rounds)
	fmt.Fprintf(k.progress, "soak: %d rounds of %v, limit %s\n", rounds, each.Round(time.Second), sizeText(limit))
	sampling, stopSampling := context.WithCancel(ctx)
	var sampler sync.WaitGroup
	sampler.Go(func() { k.watchMemory(sampling) })
	defer sampler.Wait()
	defer stopSampling()
	var first atRest
	for round := range rounds {
		if round == rounds/2 {
			if err := k.round(ctx, "killed", 2*killAfter, true); err != nil {
				return err
			}
		}
		if err := k.round(ctx, fmt.Sprintf("round %d", round+1), each, false); err != nil {
			return err
		}
		if round == 0 {
			if err := wait(ctx, min(firstRest, length)); err != nil {
				return err
			}
		}
		rest, err := k.rest(ctx, first)
		if err != nil {
			return err
		}
		fmt.Fprintf(k.progress, "soak: at rest: %v\n", rest)
		if round == 0 {
			first = rest
		}
	}
	stopSampling()
	sampler.Wait()
	if n := k.s.group.use().oomKills; n > 0 {
		k.fault("the kernel has killed %d processes for memory", n)
	}
	now, peak := k.s.resident()
	fmt.Fprintf(k.progress, "soak: resident %s MiB, at most %s since the server was started again; data folder %s MiB; held at most: %s\n",
		mebibytes(now), mebibytes(peak), mebibytes(folderSize(k.dir)), k.held())
	if len(k.faults) > 0 {
		return errors.New(strings.Join(k.faults, "\n"))
	}
	return nil
}

// round runs the mixture once. If the server is to be killed, answers may break off, but
// what was acknowledged is there afterwards.
func (k *soaking) round(ctx context.Context, name string, length time.Duration, kill bool) error {
	if err := prepareAdministrator(ctx, k.s.url); err != nil {
		return fmt.Errorf("the administrator cannot write: %w", err)
	}
	run := fmt.Sprint(time.Now().UnixNano())
	admin, health := newAdministrator(k.s.url, run), newHealthProbe(k.s.url)
	written := newLedger(run)
	admin.send = written.noting(admin.send)
	probes, stopProbes := context.WithCancel(ctx)
	var probing sync.WaitGroup
	probing.Go(func() { admin.run(probes) })
	probing.Go(func() { health.run(probes) })
	from, machine := time.Now(), machineCPUTime()

	results := make([]*result, len(mixture))
	var cpu, own float64
	own = k.s.cpuTime() + cpuTime(os.Getpid())
	err := inParallel(ctx, len(mixture)+1, len(mixture)+1, func(ctx context.Context, i int) error {
		if i == len(mixture) {
			if !kill {
				return nil
			}
			return errors.Join(wait(ctx, killAfter), k.s.restart())
		}
		what, err := findScenarios(mixture[i].scenario)
		if err != nil {
			return err
		}
		r := &result{
			Server: k.s.name, Scenario: what[0].Name, Clients: mixture[i].clients, Outcome: survived,
			Answers: &answers{}, Honest: &answers{}, readsAll: what[0].Read == readAll, restarts: true,
		}
		results[i] = r
		used, err := r.runClients(ctx, k.s, &order{
			URL: k.s.url, Scenario: what[0], Clients: mixture[i].clients, Streams: k.streams, Users: 1, FirstUser: i,
			Duration: length, Drain: k.drain, Items: k.items[what[0].path()], ObjectBytes: k.objectBytes,
		})
		k.mu.Lock()
		cpu += used
		k.mu.Unlock()
		return err
	})
	to := time.Now()
	stopProbes()
	probing.Wait()
	if err != nil {
		return err
	}
	if k.s.dead() != nil {
		return fmt.Errorf("%s: %s: %s", name, k.s.death(), k.s.dead().logTail())
	}
	var sum answers
	for _, r := range results {
		sum.Complete += r.Answers.Complete + r.Honest.Complete
		sum.Refused += r.Answers.Refused + r.Honest.Refused
		sum.Broken += r.Answers.Broken + r.Honest.Broken
		if kill {
			continue
		}
		for _, fault := range r.faults(0) {
			if fault != noCompleteAnswer || length >= completeWithin {
				k.fault("%s: %s: %s", name, r.Scenario, fault)
			}
		}
	}
	waited, checked := summarize(admin.between(from, to)), summarize(health.between(from, to))
	used := k.s.cpuTime() + cpuTime(os.Getpid()) - own + cpu
	others := (machineCPUTime() - machine - used) / to.Sub(from).Seconds()
	fmt.Fprintf(k.progress, "soak: %s: %d complete, %d refused, %d broken; administrator p50 %.0f, p99 %.0f, at most %.0f ms, %d of %d failed; health %d of %d failed; other programs used %.1f cores\n",
		name, sum.Complete, sum.Refused, sum.Broken, waited.P50, waited.P99, waited.Max, waited.Failed, waited.Asked, checked.Failed, checked.Asked, max(0, others))
	if !kill {
		bound := k.adminBound
		if others > busyCores {
			bound = busyAdminBound
		}
		if waited.Failed > 0 || checked.Failed > 0 || waited.P99 > milliseconds(bound) {
			k.fault("%s: administrator p99 %.0f ms of %v, failed: %v, health: %v", name, waited.P99, bound, waited.Errors, checked.Errors)
		}
	}
	if err := k.s.waitReady(ctx); err != nil {
		return err
	}
	lost, err := written.lost(ctx, k.s.url)
	if err != nil {
		return fmt.Errorf("%s: looking for what was written: %w", name, err)
	}
	for _, text := range lost[:min(len(lost), maxReasons)] {
		k.fault("%s: %s", name, text)
	}
	return nil
}

// openFiles returns how many files and connections a process has open, without the tables and
// blobs of its store: of these it keeps up to a bound open, more the more it has written.
func openFiles(pid int) (n int, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	for _, file := range files {
		name, err := os.Readlink(filepath.Join(dir, file.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		if end := filepath.Ext(name); end != ".sst" && end != ".blob" {
			n++
		}
	}
	return n, err
}

var restNumbers = map[string]*regexp.Regexp{
	"/debug/pprof/heap?gc=1&debug=1": regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)`),
	"/debug/pprof/goroutine?debug=1": regexp.MustCompile(`goroutine profile: total (\d+)`),
}

// rest returns what the server uses once it has given back what it held, and notes a fault
// if that is more than at first.
func (k *soaking) rest(ctx context.Context, first atRest) (now atRest, err error) {
	c := newClient(adminUser, clientOptions{})
	defer c.close()
	for deadline := time.Now().Add(restPatience); ; {
		for path, pattern := range restNumbers {
			text, err := c.call(ctx, http.MethodGet, k.s.url+path, "", nil)
			if err != nil {
				return now, err
			}
			found := pattern.FindSubmatch(text)
			if found == nil {
				return now, fmt.Errorf("%s tells no number: %.300s", path, text)
			}
			n, _ := strconv.Atoi(string(found[1]))
			if strings.Contains(path, "heap") {
				now.heap = n
			} else {
				now.goroutines = n
			}
		}
		procs := k.s.processes()
		var err error
		if now.files, err = openFiles(procs[len(procs)-1].cmd.Process.Pid); err != nil {
			return now, err
		}
		grown := first != (atRest{}) && (now.heap > first.heap+moreHeap || now.goroutines > first.goroutines+moreGoroutines || now.files > first.files+moreFiles)
		if !grown {
			return now, nil
		}
		if time.Now().After(deadline) {
			k.fault("at rest the server uses %v, after the first round %v", now, first)
			return now, nil
		}
		if err := wait(ctx, time.Second); err != nil {
			return now, err
		}
	}
}

// watchMemory asks the server again and again what its parts hold, until the context ends.
func (k *soaking) watchMemory(ctx context.Context) {
	c := newClient(adminUser, clientOptions{})
	defer c.close()
	for wait(ctx, pageInterval) == nil {
		text, err := c.call(ctx, http.MethodGet, k.s.url+"/debug/kelson/memory", "", nil)
		if err != nil {
			continue // it is started again, or has ended, which others notice
		}
		for _, part := range readHolders(text) {
			k.mu.Lock()
			before := k.most[part.name]
			k.most[part.name] = max(before, part.held)
			k.mu.Unlock()
			if bound := part.bound + oneObject; part.held > bound && before <= bound {
				k.fault("%s: %d bytes held, more than the bound of %d", part.name, part.held, part.bound)
			}
		}
	}
}

// holder is a line of the page about memory.
type holder struct {
	name        string
	held, bound int64
}

// readHolders reads the lines of the page that have a number of bytes held, and a bound.
func readHolders(page []byte) (all []holder) {
	for scanner := bufio.NewScanner(bytes.NewReader(page)); scanner.Scan(); {
		fields := strings.Fields(scanner.Text())
		if len(fields) < 3 {
			continue
		}
		last := len(fields) - 1
		held, err := strconv.ParseInt(fields[last-1], 10, 64)
		bound, err2 := strconv.ParseInt(fields[last], 10, 64)
		if err == nil && err2 == nil && bound > 0 {
			all = append(all, holder{strings.Join(fields[:last-1], " "), held, bound})
		}
	}
	return all
}

// held tells what the parts of the memory held at most.
func (k *soaking) held() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var parts []string
	for name, bytes := range k.most {
		parts = append(parts, fmt.Sprintf("%s %s MiB", name, mebibytes(bytes)))
	}
	return strings.Join(parts, ", ")
}

// ledger notes what was acknowledged to an administrator of newAdministrator.
type ledger struct {
	run string
	mu  sync.Mutex // protects what follows
	// acknowledged is the number that an object had when its write was last acknowledged, and
	// sent that of the last write that was sent.
	acknowledged, sent map[string]int
}

func newLedger(run string) *ledger {
	return &ledger{run: run, acknowledged: map[string]int{}, sent: map[string]int{}}
}

// noting returns a send function that notes what comes of each write.
func (l *ledger) noting(send func(context.Context, int) error) func(context.Context, int) error {
	return func(ctx context.Context, n int) error {
		name := writtenName(l.run, n)
		l.mu.Lock()
		l.sent[name] = max(l.sent[name], n)
		l.mu.Unlock()
		err := send(ctx, n)
		if err == nil {
			l.mu.Lock()
			l.acknowledged[name] = max(l.acknowledged[name], n)
			l.mu.Unlock()
		}
		return err
	}
}

// lost returns the acknowledged writes that the server does not have.
func (l *ledger) lost(ctx context.Context, url string) (lost []string, err error) {
	c := newClient(adminUser, clientOptions{})
	defer c.close()
	text, err := c.call(ctx, http.MethodGet, url+"/api/v1/namespaces/"+adminNamespace+"/configmaps", "", nil)
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Data     struct{ N string }
		}
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	stored := map[string]string{}
	for _, item := range list.Items {
		stored[item.Metadata.Name] = item.Data.N
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, n := range l.acknowledged {
		text, ok := stored[name]
		got, _ := strconv.Atoi(text)
		// A later write whose answer was lost may have been done.
		if !ok || got < n || got > l.sent[name] {
			lost = append(lost, fmt.Sprintf("ConfigMap %s: write %d was acknowledged, stored is %q", name, n, text))
		}
	}
	return lost, nil
}

// folderSize returns how many bytes the files of a folder have.
func folderSize(dir string) (size int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err != nil {
			return nil // it has been removed meanwhile
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	return size
}
