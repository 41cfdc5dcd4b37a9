package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/yamltext"
	"github.com/spf13/cobra"
)

// newCommand returns the root command with all subcommands.
func newCommand(s streams) *cobra.Command {
	var flags serveFlags
	root := &cobra.Command{
		Use:   "kelson",
		Short: "A Kubernetes API server in one process",
		Long: `Kelson is a Kubernetes API server in one process. It keeps its data in a folder
of its own, or in etcd.

Without a command it serves, as 'kelson serve' does.`,
		Example: `  kelson                                          # data in ./kelson-data
  kelson serve --data-dir /var/lib/kelson
  kelson serve --etcd-servers https://10.0.0.1:2379 --etcd-cafile ca.crt --etcd-certfile client.crt --etcd-keyfile client.key
  kelson snapshot save backup.snap                # also while it serves`,
		Args:          noArgs,
		RunE:          serveWith(&flags, s),
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetHelpFunc(showHelp)
	root.SetUsageFunc(func(cmd *cobra.Command) error { return showUsage(cmd.OutOrStderr(), cmd) })
	root.SetFlagErrorFunc(flagError)
	flags.bind(root.Flags())
	root.AddCommand(newServe(s), newRun(s), newKubeAPIServer(s), newSnapshot(s), newMigrate(s), newKubeconfig(s), newVersion(s), newEnvtestAssets(s), newIdleEtcd(), newNoKubectl())
	root.AddCommand(newWhy(s), newWhoCan(s), newExplainAdmission(s))
	root.AddCommand(newHistory(s), newGet(s), newBlame(s), newDiff(s), newUndo(s), newBranch(s))
	root.AddCommand(newTop(s), newStorm(s), newFindings(s), newConsole(s))
	root.AddCommand(newDoctor(s), newManPages())
	completeArguments(root)
	return root
}

// noArgs refuses arguments; at the root these are commands that do not exist.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !cmd.HasSubCommands():
		return usage(cmd, "%q is one argument too many", args[0])
	}
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		return usage(cmd, "there is no command %q; did you mean %q?", args[0], similar[0])
	}
	return usage(cmd, "there is no command %q", args[0])
}

// oneFile requires one argument, a file.
func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage(cmd, "give one FILE, not %d", len(args))
	}
	return nil
}

func newServe(s streams) *cobra.Command {
	var flags serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve until it is told to stop",
		Long: `Serve until a SIGINT (Ctrl-C) or a SIGTERM comes.

The data folder belongs to one process at a time. It is made if it is not there.`,
		Example: `  kelson serve                                    # data in ./kelson-data
  kelson serve --data-dir /var/lib/kelson
  kelson serve --storage memory                   # for a try; nothing is kept
  kelson serve --etcd-servers http://10.0.0.1:2379,http://10.0.0.2:2379`,
		Args: noArgs,
		RunE: serveWith(&flags, s),
	}
	flags.bind(cmd.Flags())
	return cmd
}

func serveWith(flags *serveFlags, s streams) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		switch flags.version {
		case "raw":
			return flags.version.show(s.out)
		case "true":
			_, err := fmt.Fprintln(s.out, version())
			return err
		}
		config, err := flags.config(cmd, s.err)
		if err != nil {
			return err
		}
		config.Out = s.out
		boundProcess(config.Memory)
		return config.Run(cmd.Context())
	}
}

// boundProcess sets what a process has but one of: the limits of the Go runtime and of YAML.
func boundProcess(memory *budget.Memory) {
	memory.BoundRuntime()
	yamltext.SetLimit(memory.YAML())
}

func newKubeconfig(s streams) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:     "kubeconfig",
		Short:   "Show the administrator's kubeconfig",
		Long:    "Show the kubeconfig that the server of a data folder has written when it last listened.",
		Example: `  kelson kubeconfig > ~/.kube/kelson && kubectl --kubeconfig ~/.kube/kelson get nodes`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			file, elsewhere := controlplane.FindKubeconfig(dir)
			b, err := os.ReadFile(file)
			switch {
			case errors.Is(err, os.ErrNotExist) && elsewhere:
				return fmt.Errorf("the kubeconfig of %s was written to %s, and is no longer there; start the server again with 'kelson serve --data-dir %s'", dir, file, dir)
			case errors.Is(err, os.ErrNotExist):
				return fmt.Errorf("%s has no kubeconfig yet: it is written when the server listens; start it with 'kelson serve --data-dir %s'", dir, dir)
			case err != nil:
				return err
			case elsewhere:
				fmt.Fprintf(s.err, "This is %s, which the server has written.\n", file)
			}
			_, err = s.out.Write(b)
			return err
		},
	}
	bindDataDir(cmd.Flags(), &dir)
	return cmd
}
