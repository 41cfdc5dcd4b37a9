//go:build linux

// Command storm puts an API server under a storm of clients within a memory limit, and
// reports what happens: whether it survives, how its answers end, and how long an
// administrator waits meanwhile.
//
//	go run ./test/storm -check                                 # Kelson: 400 Secrets of 1 MB, 512 MiB, 256 clients
//	go run ./test/storm -list                                  # all scenarios
//	go run ./test/storm -soak 30m                              # everything at once, with a kill in the middle
//	go run ./test/storm -data /tmp/storm -scenario all -clients 16,64,256,1024
//	go run ./test/storm -kube-apiserver PATH -etcd PATH        # kube-apiserver and etcd, within one limit
//	go run ./test/storm -server ./kelson -- -v 2               # flags of the server come last
//
// The server is a process of its own in a memory cgroup of its own, and everything goes
// over TLS on loopback. The clients of a storm are ordinary users with RBAC rights and
// live in a second process with a low priority; the administrator is in this one. Start
// reading at run and measure.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if os.Getenv(clientsEnv) != "" {
		os.Exit(clientsMain(os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "storm:", err)
		}
		os.Exit(1)
	}
}

// options are what the flags say.
type options struct {
	kelson         string // path; built from this module if empty
	kubeAPIServer  string
	etcd           string
	serverArgs     []string
	scenarios      []scenario
	clients        []int
	limits         []int64 // bytes; 0 is none
	duration       time.Duration
	soak           time.Duration
	drain          time.Duration
	settle         time.Duration
	users          int
	streams        int
	impatient      bool
	objects        int
	objectBytes    int
	small          int
	smallBytes     int
	data           string
	json, check    bool
	adminBound     time.Duration
	throughputPart float64
	progress       io.Writer
}

// defaults are the values of the flags that tests share.
func defaults() options {
	return options{
		duration: 10 * time.Second, drain: 60 * time.Second, settle: 5 * time.Second,
		clients: []int{256}, users: 1, streams: 1,
		objects: 400, objectBytes: 1_000_000, small: 20_000, smallBytes: 1000,
		adminBound: 250 * time.Millisecond, throughputPart: 0.7,
		progress: io.Discard,
	}
}

// parse reads the flags. It returns no options if there is nothing to do.
func parse(args []string, out io.Writer) (*options, error) {
	o := defaults()
	flags := flag.NewFlagSet("storm", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&o.kelson, "server", "", "`path` of a kelson program; built from this module if none is given")
	flags.StringVar(&o.kubeAPIServer, "kube-apiserver", "", "`path` of a kube-apiserver, to be measured instead of Kelson, or beside it with -server")
	flags.StringVar(&o.etcd, "etcd", "", "`path` of an etcd for -kube-apiserver; both share the memory limit")
	names := flags.String("scenario", "list-json", "`names` of scenarios, separated by commas; all for every one")
	clients := flags.String("clients", "256", "`counts` of clients, separated by commas")
	limits := flags.String("limit", "512Mi", "memory `limits`, separated by commas; 0 for none")
	flags.DurationVar(&o.duration, "time", o.duration, "how long clients begin new requests")
	flags.DurationVar(&o.soak, "soak", 0, "instead of scenarios, put mixed load on Kelson for so long within the first limit, with a SIGKILL in the middle, and fail if anything is lost, broken, above its bound, or grows")
	flags.DurationVar(&o.drain, "drain", o.drain, "how long answers under way may go on after that")
	flags.DurationVar(&o.settle, "settle", o.settle, "how long after the storm memory is measured")
	flags.IntVar(&o.users, "users", o.users, "how many users the clients are")
	flags.IntVar(&o.streams, "streams", o.streams, "requests at a time on the connection of a client")
	flags.BoolVar(&o.impatient, "impatient", false, "ask again 10 ms after a refusal, instead of when Retry-After says")
	flags.IntVar(&o.objects, "objects", o.objects, "large Secrets")
	flags.IntVar(&o.objectBytes, "object-bytes", o.objectBytes, "random `bytes` in each; a third more as JSON")
	flags.IntVar(&o.small, "small", o.small, "small ConfigMaps")
	flags.IntVar(&o.smallBytes, "small-bytes", o.smallBytes, "`bytes` in each")
	flags.StringVar(&o.data, "data", "", "`folder` in which filled data folders are kept for the next run; a temporary one if none is given")
	flags.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flags.BoolVar(&o.check, "check", false, "run every scenario without a limit too, and fail unless nothing is killed, every answer is complete or clearly refused, the administrator's p99 is below -admin-p99, and throughput is at least -throughput of that without a limit")
	flags.DurationVar(&o.adminBound, "admin-p99", o.adminBound, "the bound of -check")
	flags.Float64Var(&o.throughputPart, "throughput", o.throughputPart, "the part of -check")
	list := flags.Bool("list", false, "list the scenarios and stop")
	flags.Usage = func() {
		fmt.Fprintln(out, "usage: storm [flags] [-- flags of the server]")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if *list {
		for _, s := range scenarios() {
			fmt.Fprintf(out, "%-18s %s\n", s.Name, s.About)
		}
		return nil, nil
	}
	o.serverArgs = flags.Args()
	var err error
	if o.scenarios, err = findScenarios(*names); err != nil {
		return nil, err
	}
	o.clients = nil
	for text := range strings.SplitSeq(*clients, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-clients: %q is not a positive number", text)
		}
		o.clients = append(o.clients, n)
	}
	for text := range strings.SplitSeq(*limits, ",") {
		n, err := parseBytes(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("-limit: %w", err)
		}
		o.limits = append(o.limits, n)
	}
	if o.check && !slices.Contains(o.limits, 0) {
		o.limits = append(o.limits, 0)
	}
	switch {
	case (o.kubeAPIServer == "") != (o.etcd == ""):
		return nil, errors.New("-kube-apiserver and -etcd must be given together")
	case o.users < 1 || o.users > maxUsers:
		return nil, fmt.Errorf("-users must be 1 to %d", maxUsers)
	case o.streams < 1 || o.objects < 1 || o.objectBytes < 1 || o.small < 1 || o.smallBytes < 1:
		return nil, errors.New("-streams, -objects, -object-bytes, -small and -small-bytes must be at least 1")
	}
	return &o, nil
}

// parseBytes reads a quantity such as 512Mi.
func parseBytes(text string) (int64, error) {
	if text == "none" {
		return 0, nil
	}
	number, unit := text, int64(1)
	for suffix, size := range map[string]int64{"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30} {
		if n, ok := strings.CutSuffix(text, suffix); ok {
			number, unit = n, size
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a number of bytes such as 512Mi", text)
	}
	return n * unit, nil
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	o, err := parse(args, progress)
	if err != nil || o == nil {
		return err
	}
	o.progress = progress
	if o.data == "" {
		if o.data, err = os.MkdirTemp("", "storm"); err != nil {
			return err
		}
		defer os.RemoveAll(o.data)
	}
	kinds, err := o.serverKinds(ctx)
	if err != nil {
		return err
	}
	if err := canLimit(); err != nil && slices.ContainsFunc(o.limits, func(n int64) bool { return n > 0 }) {
		fmt.Fprintf(progress, "storm: there will be no memory limit: %v\n", err)
		o.limits = []int64{0}
	}
	if o.soak > 0 {
		kelson, ok := kinds[0].(kelsonServer)
		if !ok {
			return errors.New("-soak is for Kelson: it asks the server what its parts hold")
		}
		return soak(ctx, o, kelson, o.soak, o.limits[0])
	}
	all, err := measureAll(ctx, o, kinds)
	// What was measured before an error is shown.
	if o.json {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = errors.Join(err, encoder.Encode(all))
	} else if len(all) > 0 {
		err = errors.Join(err, writeTable(out, all))
	}
	if err != nil || !o.check {
		return err
	}
	return verdict(all, o.adminBound, o.throughputPart)
}

// measureAll runs all scenarios with all counts of clients, on all servers with all limits.
func measureAll(ctx context.Context, o *options, kinds []serverKind) (all []*result, err error) {
	for _, s := range o.scenarios {
		for _, clients := range o.clients {
			for _, kind := range kinds {
				for _, limit := range o.limits {
					r, err := measure(ctx, o, kind, s, clients, limit)
					if err != nil {
						return all, err
					}
					all = append(all, r)
					fmt.Fprintf(o.progress, "  %s\n", r.summary())
				}
			}
		}
	}
	return all, nil
}

// serverKinds returns the servers that are to be measured.
func (o *options) serverKinds(ctx context.Context) (kinds []serverKind, err error) {
	if o.kubeAPIServer == "" || o.kelson != "" {
		if o.kelson == "" {
			o.kelson = filepath.Join(o.data, "kelson.program")
			fmt.Fprintln(o.progress, "storm: building cmd/kelson")
			if err := buildKelson(ctx, o.kelson); err != nil {
				return nil, err
			}
		}
		if o.kelson, err = filepath.Abs(o.kelson); err != nil {
			return nil, err
		}
		kinds = append(kinds, kelsonServer{o.kelson, o.serverArgs})
	}
	if o.kubeAPIServer != "" {
		k := kubeServer{o.kubeAPIServer, o.etcd, nil}
		if len(kinds) == 0 {
			k.args = o.serverArgs
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

func buildKelson(ctx context.Context, file string) error {
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", file, "github.com/apikeel/kelson/cmd/kelson").CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	return nil
}
