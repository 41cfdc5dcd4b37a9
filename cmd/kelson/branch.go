package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
)

// branchFlags are the flags of 'kelson branch': its own, and all of a server.
type branchFlags struct {
	serveFlags
	at   string
	keep bool
}

func newBranch(s streams) *cobra.Command {
	var flags branchFlags
	cmd := &cobra.Command{
		Use:   "branch [NAME]",
		Short: "Serve a copy of a server's data, to try something on it",
		Long: `Make a copy of the data in a data folder, as it is now or was at a moment, and serve
it on a free port, with a kubeconfig of its own. The server of the data folder goes on: what is done
to the copy does nothing to it, and the reverse. Files are linked, not copied, so that it takes no
time and hardly any space.

The copy is in the folder branches of the data folder, and is removed at the end, unless
--keep is given. It has the keys and certificates of the first server, so that credentials and
tokens of that one are good here too. Other flags are those of 'kelson serve': give the ones that
the first server has, such as --encryption-provider-config.

With --at the copy is taken back to that moment, as far as history is kept ('kelson serve
--history').`,
		Example: `  kelson branch                                   # Ctrl-C ends and removes it
  kelson branch before --at 14:05 --keep          # again: kelson serve --data-dir kelson-data/branches/before
  kelson branch upgrade --data-dir /var/lib/kelson --feature-gates SomeGate=true`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(cmd, "give one NAME, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "branch-" + time.Now().UTC().Format("20060102-150405")
			if len(args) == 1 {
				name = args[0]
			}
			return flags.run(cmd, s, name)
		},
	}
	addTopic(cmd.Flags(), "Branch", func(fs *pflag.FlagSet) {
		fs.StringVar(&flags.at, "at", "", "`moment` of the copy: a time (14:05), a revision (81234), or how long ago (10m); now without it")
		fs.BoolVar(&flags.keep, "keep", false, "leave the copy in the data folder at the end")
	})
	flags.bind(cmd.Flags())
	return cmd
}

func (f *branchFlags) run(cmd *cobra.Command, s streams, name string) error {
	revision, at, err := parseMoment(f.at, time.Now())
	if err != nil {
		return usage(cmd, "--at: %w", err)
	}
	config, err := f.config(cmd, s.err)
	if err != nil {
		return err
	}
	branch, err := config.Branch(cmd.Context(), name)
	if err != nil {
		return err
	}
	if revision > 0 || !at.IsZero() {
		fmt.Fprintf(s.out, "Taking back what was changed since %s…\n", f.at)
		if branch.Revision, err = rollBack(cmd.Context(), branch.DataDir, revision, at); err != nil {
			return errors.Join(err, branch.Remove())
		}
	}
	end, stays := branch.Remove, "and is removed at the end"
	if f.keep {
		end, stays = func() error { return nil }, "and stays there"
		if err := branch.Keep(); err != nil {
			return errors.Join(err, branch.Remove())
		}
	}
	fmt.Fprintf(s.out, "Branch %s of %s at revision %d, made in %v. It is in %s, %s.\n",
		name, config.DataDir, branch.Revision, branch.Took.Round(time.Millisecond), branch.DataDir, stays)
	config.DataDir, config.Out, config.NotifySocket = branch.DataDir, s.out, ""
	if !cmd.Flags().Changed("secure-port") {
		free := 0
		config.SecurePort = &free
	}
	boundProcess(config.Memory)
	return errors.Join(config.Run(cmd.Context()), end())
}

// parseMoment returns the revision, or the time, that a person means; zeros for now.
func parseMoment(text string, now time.Time) (revision int64, at time.Time, err error) {
	text, err = moment(text, now)
	if err != nil || text == "" || text == "now" {
		return 0, time.Time{}, err
	}
	if revision, err := strconv.ParseInt(text, 10, 64); err == nil {
		if revision < 1 {
			return 0, time.Time{}, fmt.Errorf("revisions begin at 1")
		}
		return revision, time.Time{}, nil
	}
	at, err = time.Parse(time.RFC3339Nano, text)
	return 0, at, err
}

// rollBack takes a copy of a store back to a revision or a time.
func rollBack(ctx context.Context, dataDir string, revision int64, at time.Time) (int64, error) {
	got, err := engine.RollBack(ctx, controlplane.StoreDir(dataDir), revision, at)
	if errors.Is(err, storage.ErrCompacted) {
		return 0, fmt.Errorf("%w; 'kelson serve --history 24h' keeps it longer", err)
	}
	return got, err
}
