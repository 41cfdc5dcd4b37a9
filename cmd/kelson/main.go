// Command kelson is a Kubernetes API server in one process. Start at run and
// newCommand.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/apikeel/kelson/serverflags"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2 // the command line is not valid
)

func main() {
	os.Exit(run(serverflags.SignalContext(), called(os.Args), streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}

// called returns the arguments. If the program is started by the name of a command,
// that name is the first.
func called(args []string) []string {
	switch name := strings.TrimSuffix(filepath.Base(args[0]), ".exe"); name {
	case kubeName, etcdName, kubectlName:
		return append([]string{name}, args[1:]...)
	}
	return args[1:]
}

// streams are standard input, output and error of a command.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run is main with its dependencies as arguments. It is the only place that prints
// errors.
func run(ctx context.Context, args []string, s streams) int {
	cmd := newCommand(s)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	var code exitCode
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errShown):
		return exitError
	case errors.As(err, &code):
		return int(code)
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
