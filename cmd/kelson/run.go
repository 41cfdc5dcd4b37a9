package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/spf13/cobra"
)

// runFlags are the flags of 'kelson run'.
type runFlags struct {
	crds, manifests []string
	keep            string
	as              string
	groups          []string
	verbose         bool
}

func newRun(s streams) *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [-- COMMAND [ARGUMENT...]]",
		Short: "Run a command with a server of its own, which keeps nothing",
		Long: `Run a command, such as the tests of a project, with a server of its own. KUBECONFIG
is set for the command; the server stops when it has ended, and its exit code is the
one of the command. Without a command it is a shell.

The command can bring a saved state back, make requests fail and move the clock, with
KELSON_CONTROL and KELSON_CONTROL_TOKEN; docs/languages.md says how.

The server has all controllers and admission plugins that 'kelson serve' has, and
keeps nothing, unless --keep names a folder.`,
		Example: `  kelson run -- pytest
  kelson run --crds config/crd/bases -- npm test
  kelson run --manifests fixtures/ --as jane -- kubectl auth can-i --list
  kelson run                                      # a shell`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return flags.run(cmd.Context(), s, args) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.SetInterspersed(false) // what follows the command is its own
	fs.StringSliceVar(&flags.crds, "crds", nil, "`files` or folders with custom resource definitions that are installed before")
	fs.StringSliceVar(&flags.manifests, "manifests", nil, "`files` or folders with objects that are created before, after the definitions")
	fs.StringVar(&flags.as, "as", "", "`user` whom KUBECONFIG is for, with no rights but those that the manifests give (default the administrator)")
	fs.StringSliceVar(&flags.groups, "as-group", nil, "`groups` of the user of --as")
	fs.StringVar(&flags.keep, "keep", "", "`folder` in which the data stays, so that 'kelson serve --data-dir' can show it")
	fs.BoolVarP(&flags.verbose, "verbose", "v", false, "show the warnings of the server")
	return cmd
}

// exitCode ends the program with the code of a command that has told why itself.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func (f *runFlags) run(ctx context.Context, s streams, command []string) error {
	if f.as == "" && len(f.groups) > 0 {
		return usageError{errors.New("--as-group needs --as, the user who is in the groups; see 'kelson run --help'")}
	}
	logs := io.Discard
	if f.verbose {
		logs = s.err
	}
	options := []kelsontest.Option{
		kelsontest.Logger(slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelWarn}))),
		kelsontest.CRDs(f.crds...), kelsontest.Manifests(f.manifests...),
	}
	if f.keep != "" {
		options = append(options, kelsontest.Folder(controlplane.StoreDir(f.keep)))
	}
	boundProcess(budget.Default())
	server, err := kelsontest.New(options...)
	if err != nil {
		return err
	}
	err = f.execute(ctx, s, server, command)
	if stopErr := server.Close(); err == nil {
		err = stopErr
	}
	return err
}

// execute runs the command until it ends.
func (f *runFlags) execute(ctx context.Context, s streams, server *kelsontest.Server, command []string) error {
	config := server.Config()
	if f.as != "" {
		config = server.User(f.as, f.groups...)
	}
	kubeconfig, err := server.KubeconfigFile(config)
	if err != nil {
		return err
	}
	if len(command) == 0 {
		command = []string{cmp.Or(os.Getenv("SHELL"), "/bin/sh")}
		fmt.Fprintf(s.err, "A Kubernetes API server runs at %s until this shell ends; KUBECONFIG is set.\nTry: kubectl get namespaces\n", server.URL())
	}
	control, err := startControl(server)
	if err != nil {
		return err
	}
	defer control.close()
	path, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("%s cannot be run: %w", command[0], errors.Unwrap(err))
	}
	cmd := exec.CommandContext(ctx, path, command[1:]...)
	cmd.Args[0] = filepath.Base(command[0])
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.in, s.out, s.err
	cmd.Env = append(append(os.Environ(), "KUBECONFIG="+kubeconfig), control.environment()...)
	// The terminal has sent its signal to the command, too; others have sent it to this
	// program alone. The command may take as long as it likes to end; a second signal
	// ends this program.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err = cmd.Run()
	var failed *exec.ExitError
	switch {
	case !errors.As(err, &failed):
		return err
	case failed.ExitCode() >= 0:
		return exitCode(failed.ExitCode())
	}
	return exitCode(128 + signalOf(failed.ProcessState))
}
