//go:build linux

// Command heartbeats measures what a quiet cluster costs: nodes that renew their Leases
// at a steady pace, each on a connection of its own, and clients that watch all Leases.
// Requests come one at a time, so most of the cost is that of waking goroutines.
//
//	go build -o /tmp/kelson ./cmd/kelson
//	go run ./test/heartbeats /tmp/kelson             # one server
//	go run ./test/heartbeats /tmp/old /tmp/kelson    # two builds in turn, with ratios
//	go run ./test/heartbeats -nodes 1 -rate 0 /tmp/kelson    # one client, as fast as it goes
//
// It reports the CPU time of the server for a request, the median time of a request, and
// the median time in which the same disk writes and syncs as many bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "heartbeats:", err)
		}
		os.Exit(1)
	}
}

// options are what the flags say.
type options struct {
	nodes, watches int
	rate           float64 // requests a second of all nodes; 0 is one after the other
	window         time.Duration
	rounds         int
	dir            string
	servers        []string // paths of kelson
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("heartbeats", flag.ContinueOnError)
	flags.IntVar(&o.nodes, "nodes", 300, "nodes, each with a connection")
	flags.IntVar(&o.watches, "watches", 1, "clients that watch all Leases")
	flags.Float64Var(&o.rate, "rate", 60, "requests a second of all nodes together; 0 is one after the other without a pause")
	flags.DurationVar(&o.window, "window", 5*time.Second, "how long a server is measured at a time")
	flags.IntVar(&o.rounds, "rounds", 4, "how often each server is measured")
	flags.StringVar(&o.dir, "dir", "", "folder for data; its disk is measured too (default: a temporary one)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.servers = flags.Args(); len(o.servers) == 0 {
		return errors.New("name the kelson to measure, or two of them")
	}
	if o.dir, err = os.MkdirTemp(o.dir, "heartbeats-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.dir)
	servers := make([]*server, len(o.servers))
	for i, path := range o.servers {
		s, err := start(ctx, path, filepath.Join(o.dir, strconv.Itoa(i)))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		defer s.stop()
		if err := s.connect(ctx, &o); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		servers[i] = s
	}
	var syncs []time.Duration
	for round := range o.rounds {
		for i := range servers {
			if round%2 == 1 {
				i = len(servers) - 1 - i // in turn, or the first would always come first
			}
			if err := servers[i].measure(ctx, &o); err != nil {
				return fmt.Errorf("%s: %w", servers[i].path, err)
			}
		}
		more, err := rawSyncs(o.dir, 20)
		if err != nil {
			return err
		}
		syncs = append(syncs, more...)
	}
	report(out, servers, syncs)
	return nil
}

// server is a running kelson and its clients.
type server struct {
	path, kubeconfig string
	cmd              *exec.Cmd
	nodes            []*node
	next             int // the node whose turn it is

	// Results.
	cpu       []time.Duration // a request, by round
	latencies []time.Duration
}

// node is a node with its own connection.
type node struct {
	client kubernetes.Interface
	lease  *coordinationv1.Lease
}

// startPatience is how long a server may take to write its kubeconfig.
const startPatience = 30 * time.Second

// start starts a server on an empty data folder.
func start(ctx context.Context, path, dir string) (*server, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	cmd := exec.Command(path, "serve", "--data-dir", filepath.Join(dir, "data"), "--bind-address", "127.0.0.1", "--secure-port", "0", "--write-kubeconfig", kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it ends with this process
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{path: path, kubeconfig: kubeconfig, cmd: cmd}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if info, err := os.Stat(kubeconfig); err == nil && info.Size() > 0 {
			return s, nil
		}
		if time.Since(began) > startPatience || ctx.Err() != nil {
			s.stop()
			return nil, fmt.Errorf("the server has not started; its output is in %s", log.Name())
		}
	}
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

// connect makes the nodes and their Leases, and begins the watches.
func (s *server) connect(ctx context.Context, o *options) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf" // as kubelet has it
	config.QPS = -1
	admin, err := newClient(config)
	if err != nil {
		return err
	}
	_, err = admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}}, metav1.CreateOptions{})
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		return err
	}
	for i := range o.nodes {
		client, err := newClient(config)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("node-%d", i)
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: ptr.To(name), LeaseDurationSeconds: ptr.To[int32](40), RenewTime: ptr.To(metav1.NowMicro()),
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		s.nodes = append(s.nodes, &node{client, lease})
	}
	for range o.watches {
		client, err := newClient(config)
		if err != nil {
			return err
		}
		w, err := client.CoordinationV1().Leases("").Watch(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		go func() {
			for range w.ResultChan() {
			}
		}()
	}
	return nil
}

// newClient returns a client with a connection of its own.
func newClient(config *rest.Config) (kubernetes.Interface, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	return kubernetes.NewForConfigAndClient(config, &http.Client{Transport: transport})
}

// renew sends the heartbeat of a node.
func (n *node) renew(ctx context.Context) error {
	n.lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	lease, err := n.client.CoordinationV1().Leases(n.lease.Namespace).Update(ctx, n.lease, metav1.UpdateOptions{})
	if err == nil {
		n.lease = lease
	}
	return err
}

// measure sends the heartbeats of one window.
func (s *server) measure(ctx context.Context, o *options) error {
	before, err := cpuTime(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	var failed error
	requests := 0
	send := func(n *node) {
		began := time.Now()
		err := n.renew(ctx)
		mu.Lock()
		defer mu.Unlock()
		s.latencies = append(s.latencies, time.Since(began))
		requests++
		failed = errors.Join(failed, err)
	}
	began := time.Now()
	for i := 0; time.Since(began) < o.window && ctx.Err() == nil; i++ {
		n := s.nodes[s.next]
		s.next = (s.next + 1) % len(s.nodes)
		if o.rate == 0 {
			send(n)
			continue
		}
		time.Sleep(time.Until(began.Add(time.Duration(float64(i) / o.rate * float64(time.Second)))))
		all.Go(func() { send(n) })
	}
	all.Wait()
	after, err := cpuTime(s.cmd.Process.Pid)
	if err = errors.Join(failed, err, ctx.Err()); err != nil {
		return err
	}
	s.cpu = append(s.cpu, (after-before)/time.Duration(requests))
	return nil
}

// cpuTime returns the CPU time of a process: the sum of its threads, which the kernel
// counts in nanoseconds. Go programs keep their threads.
func cpuTime(pid int) (sum time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		first, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n)
	}
	return sum, err
}

// syncBytes is about what a heartbeat adds to the log of the store.
const syncBytes = 600

// rawSyncs appends to a file and syncs it, as a log does.
func rawSyncs(dir string, n int) (took []time.Duration, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "raw"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for range n {
		began := time.Now()
		if _, err := f.Write(make([]byte, syncBytes)); err != nil {
			return nil, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

func report(out io.Writer, servers []*server, syncs []time.Duration) {
	sync := median(syncs)
	fmt.Fprintf(out, "write and sync of %d bytes: median %v\n", syncBytes, sync.Round(time.Microsecond))
	for _, s := range servers {
		latency := median(s.latencies)
		fmt.Fprintf(out, "%s: %v CPU a request, median %v a request (%.2f of a sync), %d requests\n",
			s.path, median(s.cpu).Round(time.Microsecond), latency.Round(time.Microsecond), float64(latency)/float64(sync), len(s.latencies))
	}
	if len(servers) == 2 {
		product := 0.0
		for i := range servers[0].cpu {
			product += math.Log(float64(servers[1].cpu[i]) / float64(servers[0].cpu[i]))
		}
		fmt.Fprintf(out, "second/first: CPU %.2f, median %.2f\n", math.Exp(product/float64(len(servers[0].cpu))),
			float64(median(servers[1].latencies))/float64(median(servers[0].latencies)))
	}
}

func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
