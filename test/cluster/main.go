// Command cluster puts the load of a whole cluster on servers that speak the Kubernetes
// API: kube-controller-manager and kube-scheduler as they are, and nodes that are
// simulated, each with its own watch of its pods and its own lease. It tells how long
// each phase of the life of deployments takes, and what it costs the server. Start at
// measureCluster.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/apikeel/kelson/test/bench/servers"
)

const usage = `cluster runs kube-controller-manager, kube-scheduler and simulated nodes around servers.

  cluster build -into FOLDER                       builds etcd, kube-apiserver, kube-controller-manager and kube-scheduler
  cluster run -peers FOLDER -server SPEC …         runs the load on each server, one after the other

A SPEC is [NAME=]PATH, and PATH a program that is Kelson, a folder with its sources, or a folder with kube-apiserver and etcd.
-h after a command lists its flags.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// run is main with its dependencies as arguments.
func run(ctx context.Context, args []string, out, log io.Writer) error {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "build":
		return build(ctx, args, log)
	case "run":
		return runCommand(ctx, args, out, log)
	}
	fmt.Fprint(log, usage)
	return flag.ErrHelp
}

// size is how large a cluster is and for how long it stays as it is.
type size struct {
	Nodes       int           `json:"nodes"`
	Deployments int           `json:"deployments"`
	Replicas    int           `json:"replicas"` // of each deployment
	Heartbeat   time.Duration `json:"heartbeat"`
	Quiet       time.Duration `json:"quiet"` // with nothing but heartbeats
	Patience    time.Duration `json:"-"`     // for each phase
}

func (s *size) bind(fs *flag.FlagSet) {
	fs.IntVar(&s.Nodes, "nodes", 1000, "simulated nodes")
	fs.IntVar(&s.Deployments, "deployments", 100, "deployments")
	fs.IntVar(&s.Replicas, "replicas", 100, "pods of each deployment")
	fs.DurationVar(&s.Heartbeat, "heartbeat", 10*time.Second, "how often a node renews its lease")
	fs.DurationVar(&s.Quiet, "quiet", time.Minute, "for how long there are only heartbeats at the end")
	fs.DurationVar(&s.Patience, "patience", 30*time.Minute, "the longest that a phase may take")
}

// outcome is what was measured on one server.
type outcome struct {
	Server string  `json:"server"`
	Phases []phase `json:"phases"`
	Peak   float64 `json:"peak_mib"`
}

func runCommand(ctx context.Context, args []string, out, log io.Writer) error {
	var specs []servers.Spec
	var of size
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	fs.SetOutput(log)
	fs.Func("server", "a `SPEC` of a server; several times for several", func(text string) error {
		s, err := servers.Parse(text)
		specs = append(specs, s)
		return err
	})
	peers := fs.String("peers", "", "`folder` with kube-controller-manager and kube-scheduler")
	dir := fs.String("dir", "", "`folder` for data and logs (default a temporary folder, which is removed)")
	md := fs.String("md", "", "`file` for the table (default standard output)")
	jsonFile := fs.String("json", "", "`file` for everything that was measured")
	of.bind(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if len(specs) == 0 || *peers == "" {
		return errors.New("run needs -peers and a -server")
	}
	if *dir == "" {
		made, err := os.MkdirTemp("", "cluster")
		if err != nil {
			return err
		}
		defer os.RemoveAll(made)
		*dir = made
	}
	work, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	var outcomes []outcome
	var failed []error
	for i, s := range specs {
		s, err := s.Build(ctx, work)
		if err != nil {
			return err
		}
		if s.Kind == servers.KelsonProgram {
			s.Args = append(s.Args, "--controllers=-*") // those of kube-controller-manager do the work
		}
		o, err := measureCluster(ctx, s, *peers, filepath.Join(work, fmt.Sprintf("%d-%s", i, s.Name)), of, log)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", s.Name, err))
			fmt.Fprintln(log, "FAIL:", failed[len(failed)-1])
		}
		outcomes = append(outcomes, o)
	}
	if *jsonFile != "" {
		text, err := json.MarshalIndent(outcomes, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(*jsonFile, text, 0o644); err != nil {
			return err
		}
	}
	table := markdown(of, outcomes)
	if *md != "" {
		failed = append(failed, os.WriteFile(*md, []byte(table), 0o644))
	} else {
		fmt.Fprint(out, table)
	}
	return errors.Join(failed...)
}

// measureCluster starts a server, the components around it and the nodes, and goes
// through all phases.
func measureCluster(ctx context.Context, s servers.Spec, peers, dir string, of size, log io.Writer) (outcome, error) {
	o := outcome{Server: s.Name}
	v, err := s.Launch(ctx, dir)
	if err != nil {
		return o, err
	}
	defer v.Stop()
	if err := v.WaitReady(ctx); err != nil {
		return o, err
	}
	components, err := startComponents(v, peers, dir)
	if err != nil {
		return o, err
	}
	defer components.Stop()
	nodes := newNodes(v, of)
	defer nodes.stop()
	load := newLoad(v, of)
	for _, step := range []struct {
		name string
		work func(context.Context) error
	}{
		{"nodes register", nodes.register},
		{"deployments start", load.start},
		{"deployments roll", load.roll},
		{"deployments go", load.remove},
		{"heartbeats only", load.quiet},
	} {
		p, err := measurePhase(ctx, v, components, load.client, of.Patience, step.work)
		if err = errors.Join(err, nodes.failed()); err != nil {
			return o, fmt.Errorf("%s: %w", step.name, err)
		}
		p.Name = step.name
		o.Phases = append(o.Phases, p)
		_, o.Peak = v.Memory()
		fmt.Fprintf(log, "%-20s %s: %.1f s, CPU %.2f s, memory %.0f MiB, %.0f requests, other components CPU %.2f s, other programs %.2f cores\n",
			s.Name, p.Name, p.Seconds, p.CPU, p.Memory, p.Requests, p.ComponentsCPU, p.OtherLoad)
	}
	return o, nil
}
