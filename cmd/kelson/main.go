// Command kelson is a Kubernetes API server in one process.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/apikeel/kelson/serverflags"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2 // the command line makes no sense
)

// garbage is how much of the heap may be garbage, in percent of what is in use: less
// than usual, as what is in use is mostly what is served, and costs little to mark.
const garbage = 60

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	os.Exit(run(serverflags.SignalContext(), called(os.Args), streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}

// called returns the arguments of kelson, which can be called by the name of a
// command.
func called(args []string) []string {
	switch name := strings.TrimSuffix(filepath.Base(args[0]), ".exe"); name {
	case kubeName, etcdName, kubectlName:
		return append([]string{name}, args[1:]...)
	}
	return args[1:]
}

// streams are what a command talks to.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run is main with everything that it depends on. It is the only place where
// errors are shown.
func run(ctx context.Context, args []string, s streams) int {
	cmd := newCommand(s)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errShown):
		return exitError
	case errors.As(err, new(kubeError)):
		fmt.Fprintf(s.err, "Error: %v\n", err)
		return exitError
	}
	fmt.Fprintf(s.err, "kelson: %s\n", explain(err))
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	return exitError
}
