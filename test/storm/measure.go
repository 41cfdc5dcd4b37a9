//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// baseline is how long the administrator is measured before the storm.
	baseline = time.Second
	// recoveryPatience is how long a server may take to recover.
	recoveryPatience = 30 * time.Second
	sampleInterval   = 100 * time.Millisecond
	// clientsPatience is how long the process of the clients may take to end after they
	// should have.
	clientsPatience = 30 * time.Second
	clientsNice     = "10"
	// busyAdminBound is the bound of the administrator's p99 on a machine of which other
	// programs use more than busyCores meanwhile.
	busyAdminBound = 5 * time.Second
	busyCores      = 0.3
)

// survived is the outcome of a server that runs at the end.
const survived = "survived"

// result is what happened in one scenario.
type result struct {
	Server   string
	Scenario string
	Clients  int
	Limit    int64 // bytes; 0 is none
	Outcome  string
	Log      string  `json:",omitempty"` // the end of it, if the server has ended
	Ready    float64 // seconds until the server was ready

	Answers, Honest *answers
	// Throughput is in megabytes a second, of answers that were complete or not.
	Throughput float64

	Alone  latency // of the administrator, before the storm
	Admin  latency // of the administrator, during the storm
	Health latency // of /livez and /readyz, during the storm

	RSSBefore     int64 // bytes, of all processes
	PeakRSS       int64 // VmHWM
	PeakAnonymous int64 // in the cgroup, sampled, without pages of files
	PeakCgroup    int64 // with pages of files
	LimitReached  int64 // how often the kernel had to make room
	OOMKills      int64
	// Recovery is how many seconds after the storm writes of the administrator were
	// quick again; -1 if they were not.
	Recovery float64
	RSSAfter int64 // bytes, some time after the storm

	// CPU time during the storm, as a number of cores: of the server, of the clients, and
	// of everything else on the machine, which takes part in what was measured.
	ServerCores, ClientCores, OtherCores float64

	readsAll bool // clients of the storm read their answers
	restarts bool // the server was killed and started again on purpose
}

// measure runs a scenario on a new server.
func measure(ctx context.Context, o *options, kind serverKind, what scenario, clients int, limit int64) (r *result, err error) {
	r = &result{
		Server: kind.name(), Scenario: what.Name, Clients: clients, Limit: limit, Outcome: survived, Recovery: -1,
		Answers: &answers{}, Honest: &answers{}, readsAll: what.Read == readAll, restarts: what.Do == doHerd,
	}
	dir, err := dataFolder(ctx, o, kind, what.Data)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(o.progress, "storm: %s, %s, %d clients, limit %s\n", r.Server, r.Scenario, clients, sizeText(limit))
	s, _, stop, err := startOn(kind, dir, what.Changes, limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	sampling, stopSampling := context.WithCancel(ctx)
	var sampler sync.WaitGroup
	sampler.Go(func() { r.sampleMemory(sampling, s) })
	defer func() {
		stopSampling()
		sampler.Wait()
	}()
	if err := s.waitReady(ctx); err != nil {
		if s.dead() == nil {
			return nil, err
		}
		r.noteDeath(s, "at start")
		return r, nil
	}
	r.Ready = time.Since(s.began).Seconds()
	if err := prepareAdministrator(ctx, s.url); err != nil {
		return nil, fmt.Errorf("the administrator cannot write: %w", err)
	}
	if what.Do == doUnread {
		if err := createUnread(ctx, s.url); err != nil {
			return nil, err
		}
	}
	if err := r.underStorm(ctx, o, s, what, clients); err != nil {
		return nil, err
	}
	r.noteLimit(s)
	return r, nil
}

// startOn starts a server on a folder, or on a copy of it, in a cgroup with a memory limit
// if there is one, and with nothing of the folder in the page cache. It returns the folder
// that the server uses, and a function that stops the server and removes what was made.
func startOn(kind serverKind, dir string, onCopy bool, limit int64) (s *server, used string, stop func() error, err error) {
	var undo []func() error
	cleanUp := func() (err error) {
		for _, f := range slices.Backward(undo) {
			err = errors.Join(err, f())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, cleanUp())
		}
	}()
	if onCopy {
		copied := dir + ".copy"
		undo = append(undo, func() error { return os.RemoveAll(copied) })
		if err := errors.Join(os.RemoveAll(copied), copyFolder(dir, copied)); err != nil {
			return nil, "", nil, err
		}
		dir = copied
	}
	if err := dropCache(dir); err != nil {
		return nil, "", nil, err
	}
	var group *cgroup
	if limit > 0 {
		if group, err = newCgroup(limit); err != nil {
			return nil, "", nil, err
		}
		undo = append(undo, group.remove)
	}
	port, err := freePort()
	if err != nil {
		return nil, "", nil, err
	}
	began := time.Now()
	if s, err = kind.start(dir, port, group); err != nil {
		return nil, "", nil, err
	}
	s.began = began
	undo = append(undo, func() error { s.stop(); return nil })
	return s, dir, cleanUp, nil
}

// noteLimit notes what the kernel says about the memory limit.
func (r *result) noteLimit(s *server) {
	use := s.group.use()
	r.PeakCgroup, r.LimitReached, r.OOMKills = use.peak, use.failures, use.oomKills
}

// noteDeath notes how a process of the server has ended, and when.
func (r *result) noteDeath(s *server, when string) {
	r.noteLimit(s)
	r.Outcome = s.death() + ", " + when
	if r.OOMKills == 0 { // else it had no time to say why
		r.Log = s.dead().logTail()
	}
}

// underStorm lets a storm go over a server that is ready.
func (r *result) underStorm(ctx context.Context, o *options, s *server, what scenario, clients int) error {
	probes, stopProbes := context.WithCancel(ctx)
	defer stopProbes()
	items, err := countItems(ctx, s.url+what.path())
	if err != nil {
		return fmt.Errorf("counting what is to be listed: %w", err)
	}
	admin, health := newAdministrator(s.url, fmt.Sprint(time.Now().UnixNano())), newHealthProbe(s.url)
	var all sync.WaitGroup
	all.Go(func() { admin.run(probes) })
	all.Go(func() { health.run(probes) })
	stop := func() {
		stopProbes()
		all.Wait()
	}
	defer stop()

	aloneFrom := time.Now()
	if err := wait(ctx, baseline); err != nil {
		return err
	}
	from := time.Now()
	before, _ := s.resident()
	machineCPU, serverCPU, ownCPU := machineCPUTime(), s.cpuTime(), cpuTime(os.Getpid())
	clientCPU, err := r.runClients(ctx, s, &order{
		URL: s.url, Scenario: what, Clients: clients, Streams: o.streams, Users: o.users, Impatient: o.impatient,
		Duration: o.duration, Drain: o.drain, Items: items, ObjectBytes: o.objectBytes,
	})
	to := time.Now()
	if err != nil {
		return err
	}
	seconds := to.Sub(from).Seconds()
	r.ServerCores = max(0, s.cpuTime()-serverCPU) / seconds
	r.ClientCores = clientCPU / seconds
	r.OtherCores = max(0, (machineCPUTime()-machineCPU-(cpuTime(os.Getpid())-ownCPU))/seconds-r.ServerCores-r.ClientCores)
	if s.dead() != nil {
		r.noteDeath(s, fmt.Sprintf("after %.1f s", seconds))
	} else {
		r.Recovery = recovery(ctx, admin, to)
		if err := wait(ctx, time.Until(to.Add(o.settle))); err != nil {
			return err
		}
		r.RSSAfter, _ = s.resident()
		if s.dead() != nil {
			r.noteDeath(s, "after the storm")
		}
	}
	stop()
	r.RSSBefore = before
	r.Alone = summarize(admin.between(aloneFrom, from))
	r.Admin = summarize(admin.between(from, to))
	r.Health = summarize(health.between(from, to))
	if r.Answers.Seconds > 0 {
		r.Throughput = float64(r.Answers.Bytes+r.Honest.Bytes) / 1e6 / r.Answers.Seconds
	}
	return nil
}

// countItems returns how many objects a complete list has. A controller may have added
// one to those that the namespace was filled with.
func countItems(ctx context.Context, url string) (int, error) {
	c := newClient(adminUser, clientOptions{})
	defer c.close()
	text, err := c.call(ctx, http.MethodGet, url+"?limit=1", "", nil)
	if err != nil {
		return 0, err
	}
	var list struct {
		Metadata struct{ RemainingItemCount int }
		Items    []json.RawMessage
	}
	err = json.Unmarshal(text, &list)
	return list.Metadata.RemainingItemCount + len(list.Items), err
}

// recovery returns how many seconds after the storm writes were quick again, or -1.
func recovery(ctx context.Context, admin *probe, storm time.Time) float64 {
	for time.Since(storm) < recoveryPatience && wait(ctx, adminInterval) == nil {
		quick := 0
		for _, s := range admin.between(storm, time.Now()) {
			if s.err != nil || s.took > calm {
				quick = 0
				continue
			}
			if quick++; quick == calmWrites {
				return s.began.Add(-(calmWrites - 1) * adminInterval).Sub(storm).Seconds()
			}
		}
	}
	return -1
}

// sampleMemory notes peaks of memory until the context ends. The kernel's own peak of a
// process is gone when it is killed.
func (r *result) sampleMemory(ctx context.Context, s *server) {
	for {
		_, peak := s.resident()
		r.PeakRSS = max(r.PeakRSS, peak)
		r.PeakAnonymous = max(r.PeakAnonymous, s.group.use().anonymous)
		if wait(ctx, sampleInterval) != nil {
			return
		}
	}
}

// runClients runs the clients in a process of their own, with a low priority, until they
// end or the server does, and returns their CPU time in seconds.
func (r *result) runClients(ctx context.Context, s *server, what *order) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	line := []string{self}
	if nice, err := exec.LookPath("nice"); err == nil {
		line = []string{nice, "-n", clientsNice, self}
	}
	most := what.Duration + what.Drain + clientsPatience
	if what.Scenario.Do == doHerd {
		most += herdPatience
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), clientsEnv+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	if err := json.NewEncoder(in).Encode(what); err != nil {
		return 0, err
	}
	// They end when their input does.
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	go func() {
		for s.dead() == nil && wait(watching, pollInterval) == nil {
		}
		_ = in.Close()
	}()
	for decoder := json.NewDecoder(out); ; {
		var n news
		if err := decoder.Decode(&n); err != nil {
			_ = cmd.Process.Kill()
			return 0, fmt.Errorf("the clients tell nothing: %w (%v)", err, cmd.Wait())
		}
		if n.Answers != nil {
			r.Answers, r.Honest = n.Answers, n.Honest
			break
		}
		if n.Open {
			if err := s.restart(); err != nil {
				return 0, err
			}
		}
	}
	stopWatching()
	err = cmd.Wait()
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), err
}
