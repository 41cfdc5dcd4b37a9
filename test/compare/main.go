//go:build linux

// Command compare sends the same random requests to Kelson and to kube-apiserver, with the
// same flags, and reports where their answers differ.
//
//	go run ./test/compare -peers DIR -kelson ./kelson            # every scenario
//	go run ./test/compare -peers DIR -kelson ./kelson -list      # their names
//	go run ./test/compare -peers DIR -kelson ./kelson -scenario beta-off -requests 20000 -seed 7
//
// DIR has the programs etcd and kube-apiserver. A scenario is a set of flags: feature gates,
// versions, admission plugins, encryption. In it several clients work side by side, each in
// namespaces of its own: they create, change, read, watch and delete objects of every kind,
// valid ones and spoiled ones. Objects come from the recordings in test/replay and from the
// OpenAPI documents of the reference, see generator.
//
// Uids, times, revisions, addresses and generated names are not compared. The other
// differences are grouped by a signature and written to -out, one JSON line each, with the
// requests that led to them. The seed is printed; the same seed repeats a run as far as the
// answers do.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// options are the flags of the command.
type options struct {
	peers, kelson, recordings string
	scenario                  string
	requests, clients         int
	length                    int // requests of a sequence
	seed                      uint64
	out                       string
	keep                      string // folder for logs and data of the servers; empty: a temporary one
	limit                     time.Duration
}

func main() {
	var o options
	list := flag.Bool("list", false, "print the scenarios")
	flag.StringVar(&o.peers, "peers", os.Getenv("KELSON_PEERS"), "`folder` with etcd and kube-apiserver")
	flag.StringVar(&o.kelson, "kelson", "", "`program` to compare with kube-apiserver")
	flag.StringVar(&o.recordings, "recordings", "test/replay/testdata", "`folder` with recordings, whose requests are the first objects")
	flag.StringVar(&o.scenario, "scenario", "all", "`name` of a scenario, or all")
	flag.IntVar(&o.requests, "requests", 20000, "requests a scenario, each sent to both servers")
	flag.IntVar(&o.clients, "clients", 8, "clients at the same time")
	flag.IntVar(&o.length, "length", 60, "requests of a client before another takes its place")
	flag.Uint64Var(&o.seed, "seed", 0, "seed to repeat; 0 takes another one every time")
	flag.StringVar(&o.out, "out", "differences.jsonl", "`file` for the differences")
	flag.StringVar(&o.keep, "keep", "", "`folder` for logs and data of the servers, not removed at the end")
	flag.DurationVar(&o.limit, "limit", time.Hour, "how long a scenario may take")
	flag.Parse()
	if *list {
		for _, s := range scenarios() {
			fmt.Printf("%-16s %s\n", s.name, s.about)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	found, err := run(ctx, o, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(2)
	}
	if found > 0 {
		os.Exit(1)
	}
}

// run runs the scenarios that were asked for, and returns how many different differences
// were found.
func run(ctx context.Context, o options, w io.Writer) (int, error) {
	if o.peers == "" || o.kelson == "" {
		return 0, fmt.Errorf("-peers and -kelson are required")
	}
	if o.seed == 0 {
		o.seed = rand.Uint64N(1 << 32)
	}
	file, err := os.Create(o.out)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	seeds, err := readSeeds(o.recordings)
	if err != nil {
		return 0, err
	}
	r := &report{out: bufio.NewWriter(file), groups: map[string]*group{}}
	defer r.out.Flush()
	ran := 0
	for _, s := range scenarios() {
		if o.scenario != "all" && o.scenario != s.name {
			continue
		}
		ran++
		fmt.Fprintf(w, "%s: seed %d\n", s.name, o.seed)
		sent, err := runScenario(ctx, o, s, seeds, r)
		fmt.Fprintf(w, "%s: %d requests to each server, %d signatures so far\n", s.name, sent, len(r.groups))
		if err != nil {
			fmt.Fprintf(w, "%s: %v\n", s.name, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if ran == 0 {
		return 0, fmt.Errorf("there is no scenario %q", o.scenario)
	}
	r.print(w)
	return len(r.groups), nil
}

// runScenario starts both servers and lets clients work until enough requests were sent.
func runScenario(ctx context.Context, o options, s scenario, seeds *seeds, r *report) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	dir := o.keep
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "compare"); err != nil {
			return 0, err
		}
		defer os.RemoveAll(dir)
	} else {
		dir = filepath.Join(dir, s.name)
		_ = os.RemoveAll(dir)
	}
	p, err := startPair(ctx, o, s, dir)
	if err != nil {
		return 0, err
	}
	defer p.stop()
	if err := prepare(ctx, p); err != nil {
		return 0, fmt.Errorf("preparing: %w", err)
	}
	api, err := readAPI(ctx, p.reference)
	if err != nil {
		return 0, fmt.Errorf("discovery: %w", err)
	}
	gen := newGenerator(api, seeds)

	// Every scenario has requests of its own.
	name := fnv.New64()
	_, _ = name.Write([]byte(s.name))
	var mu sync.Mutex
	sent, next := 0, uint64(0)
	take := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next, sent < o.requests && ctx.Err() == nil && !p.hasEnded()
	}
	clients := o.clients
	if s.alone {
		clients = 1
	}
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for {
				n, more := take()
				if !more {
					return
				}
				c := newClient(p, api, gen, s, n, rand.New(rand.NewPCG(o.seed^name.Sum64(), n)), r)
				c.run(ctx, o.length)
				mu.Lock()
				sent += c.sent
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if p.hasEnded() {
		return sent, fmt.Errorf("a server has ended: %s", p.ended())
	}
	return sent, nil
}

// report collects differences by signature.
type report struct {
	mu     sync.Mutex
	out    *bufio.Writer
	groups map[string]*group
}

type group struct {
	count int
	first *difference
}

// difference is a request whose answers differ.
type difference struct {
	Signature string   `json:"signature"`
	Scenario  string   `json:"scenario"`
	Client    uint64   `json:"client"`
	Where     string   `json:"where"`
	Reference string   `json:"reference"`
	Kelson    string   `json:"kelson"`
	Request   string   `json:"request"`
	Before    []string `json:"before"`
}

// examples is how many differences of a signature are written.
const examples = 5

func (r *report) add(d *difference) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[d.Signature]
	if g == nil {
		g = &group{first: d}
		r.groups[d.Signature] = g
	}
	if g.count++; g.count > examples {
		return
	}
	line, err := json.Marshal(d)
	if err != nil {
		panic(err) // strings only
	}
	_, _ = r.out.Write(append(line, '\n'))
	_ = r.out.Flush()
}

func (r *report) print(w io.Writer) {
	var signatures []string
	for s := range r.groups {
		signatures = append(signatures, s)
	}
	slices.SortFunc(signatures, func(a, b string) int {
		return cmp.Or(cmp.Compare(r.groups[b].count, r.groups[a].count), cmp.Compare(a, b))
	})
	for _, s := range signatures {
		fmt.Fprintf(w, "%6d %s\n", r.groups[s].count, s)
	}
}
