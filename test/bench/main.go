// Command bench measures servers that speak the Kubernetes API: what an operation costs
// on each of several servers, how costs grow with the data, and whether a build is
// grossly slower than the one before it. Start at the functions compare, grow and short.
//
// It has its own module and uses nothing of the server, so that two builds of it can be
// compared, and so that it can be pointed at any other server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/apikeel/kelson/test/bench/servers"
)

const usage = `bench measures servers that speak the Kubernetes API.

  bench compare -server SPEC -server SPEC   what operations cost, in turn on each server
  bench grow -server SPEC                   how costs grow with objects, namespaces, watches and definitions
  bench draw FILE…                          tables and charts of what several calls of grow have written
  bench floor                               what the least costs that a server has to do, on this machine
  bench short -server SPEC                  under a minute; fails if something costs twice what it should

A SPEC is [NAME=]PATH[,OPTION]…, and PATH one of
  a program                             Kelson; it is started on a folder of its own
  a folder with go.mod                  sources of Kelson, which are built
  a folder with kube-apiserver, etcd    both are started
  a folder with kcp                     it is started, and measured in its root workspace
  another file                          a kubeconfig; CPU and memory of that server are not known
Options: etcd=PROGRAM and postgres=FOLDER start Kelson on such a store, whose CPU and memory
count as the server's; arg=TEXT is one more argument of the server.

-h after a command lists its flags.
`

func main() {
	// The client shares the machine with the servers: memory is spent to save CPU.
	debug.SetGCPercent(400)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
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
	case "compare":
		return compare(ctx, args, out, log)
	case "grow":
		return grow(ctx, args, out, log)
	case "draw":
		return draw(args, out, log)
	case "floor":
		return floor(ctx, args, out, log)
	case "short":
		return short(ctx, args, out, log)
	case referenceCommand:
		return serveReference(ctx, args)
	}
	fmt.Fprint(log, usage)
	return flag.ErrHelp
}

// common are the flags that all commands share.
type common struct {
	specs specList
	dir   string
	keep  bool
	json  string
	md    string
	svg   string
}

func (c *common) bind(fs *flag.FlagSet) {
	fs.Var(&c.specs, "server", "a `SPEC` of a server to measure; several times for several servers, the first is what others are compared with")
	fs.StringVar(&c.dir, "dir", "", "`folder` for the data of servers, on the disk that is to be measured (default a temporary folder)")
	fs.BoolVar(&c.keep, "keep", false, "keep data and logs of the servers")
	fs.StringVar(&c.json, "json", "", "`file` for everything that was measured")
	fs.StringVar(&c.md, "md", "", "`file` for the tables as Markdown (default standard output)")
	fs.StringVar(&c.svg, "svg", "", "`file`, or with grow a prefix of files, for the charts")
}

// open returns the folder to work in and a function that removes it.
func (c *common) open() (string, func(), error) {
	if c.dir != "" {
		if err := os.MkdirAll(c.dir, 0o755); err != nil {
			return "", nil, err
		}
	}
	dir, err := os.MkdirTemp(c.dir, "bench")
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return "", nil, err
	}
	return dir, func() {
		if !c.keep {
			_ = os.RemoveAll(dir)
		}
	}, nil
}

// write puts text into a file, or to out if there is no name.
func write(file string, out io.Writer, text string) error {
	if file == "" {
		_, err := io.WriteString(out, text)
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// specList is a flag that can be given several times.
type specList []servers.Spec

func (l *specList) String() string {
	var names []string
	for _, s := range *l {
		names = append(names, s.Name)
	}
	return strings.Join(names, ",")
}

// Set reads one more SPEC.
func (l *specList) Set(text string) error {
	s, err := servers.Parse(text)
	if err != nil {
		return err
	}
	for _, other := range *l {
		if other.Name == s.Name {
			return fmt.Errorf("two servers are named %s; write NAME=%s", s.Name, text)
		}
	}
	*l = append(*l, s)
	return nil
}
