package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/transfer"
	"github.com/spf13/cobra"
)

// defaultBump is how far the revision is raised on restore: more than any store writes
// between two backups, and yet a store can be restored nine billion times before
// revisions overflow.
const defaultBump = 1_000_000_000

func newSnapshot(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Save all data to a file, and restore it",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return usage(cmd, "say what to do") },
	}
	cmd.AddCommand(newSave(s), newRestore(s), newVerify(s))
	return cmd
}

func newSave(s streams) *cobra.Command {
	var flags storageFlags
	var force bool
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save all data to a file",
		Long: `Save all data, as it is at one revision, to FILE; with - to the standard output.

A server that uses the data folder may go on serving: the snapshot then comes
from it. The file appears under its name when it is complete, on disk and
verified. It holds everything, secrets too, and only you can read it.`,
		Example: `  kelson snapshot save backup.snap
  kelson snapshot save --data-dir /var/lib/kelson - | gzip > backup.snap.gz
  kelson snapshot save --etcd-servers http://10.0.0.1:2379 backup.snap
  kelson snapshot save --storage-dsn postgres://kelson@10.0.0.1/kelson backup.snap`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := flags.config()
			if err != nil {
				return err
			}
			return save(cmd.Context(), s, config, args[0], force)
		},
	}
	flags.bind(cmd.Flags())
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it exists")
	return cmd
}

func save(ctx context.Context, s streams, config controlplane.Config, name string, force bool) error {
	write := func(w io.Writer) (transfer.Summary, error) {
		m := startMeter(s.err, "saved")
		defer m.stop()
		return config.Snapshot(ctx, w, func(keys, bytes int64) {
			m.set("saved", transfer.Progress{Keys: keys, Bytes: bytes})
		})
	}
	if name == "-" {
		summary, err := write(s.out)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(s.err, "Saved %s.\n", describe(summary))
		return err
	}
	summary, err := writeSnapshot(name, force, write)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "Saved %s to %s.\n", describe(summary), name)
	return err
}

func newRestore(s streams) *cobra.Command {
	var dataDir, from, at string
	var bump int64
	cmd := &cobra.Command{
		Use:   "restore FILE | --from DIR --at MOMENT",
		Short: "Make a data folder from a file, or from the history of another",
		Long: `Make the store in a data folder, in which there must be none yet, from FILE. The
file is verified first. The store is there whole or not at all.

Revisions go on at that of the snapshot plus --bump-revision. Clients may have
seen revisions newer than the snapshot; they must not see the same ones again
with other content. This way they are told that what they know has expired, and
list again. To fill an etcd, restore to a folder and use 'kelson migrate'.

With --from and --at the store is what that of another data folder was at a
moment, as far as its history is kept ('kelson serve --history'). A server may go
on serving there. Both folders must be on one disk.`,
		Example: `  kelson snapshot restore backup.snap
  kelson snapshot restore --data-dir /var/lib/kelson backup.snap
  kelson snapshot restore --from /var/lib/kelson --at 14:05 --data-dir ./restored`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case from == "" && at == "":
				return oneFile(cmd, args)
			case from == "" || at == "":
				return usage(cmd, "--from and --at go together: a data folder, and a moment of its history")
			case len(args) > 0:
				return usage(cmd, "give a FILE, which is of one moment, or --from and --at, and not both")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := controlplane.StoreDir(dataDir)
			if names, err := os.ReadDir(dir); err == nil && len(names) > 0 {
				return fmt.Errorf("there is a store in %s already; move %s away, or choose another --data-dir", dataDir, dir)
			}
			if from != "" {
				return restoreAt(cmd, s, from, at, dataDir, bump)
			}
			summary, err := transfer.Restore(cmd.Context(), args[0], dir, bump)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.out, "Restored %s from %s to %s; it goes on at revision %d.\n", describe(summary), args[0], dataDir, summary.Revision+bump)
			return err
		},
	}
	bindDataDir(cmd.Flags(), &dataDir)
	cmd.Flags().StringVar(&from, "from", "", "data `folder` whose history has the moment of --at")
	cmd.Flags().StringVar(&at, "at", "", "`moment` to restore: a time (14:05), a revision (81234), or how long ago (10m)")
	cmd.Flags().Int64Var(&bump, "bump-revision", defaultBump, "how far to raise the `revision` of the store above that of the snapshot")
	return cmd
}

// restoreAt makes the store of a data folder from that of another at a moment: a branch of
// that folder is taken back, and moved.
func restoreAt(cmd *cobra.Command, s streams, from, at, dataDir string, bump int64) (err error) {
	revision, when, err := parseMoment(at, time.Now())
	if err != nil || revision == 0 && when.IsZero() {
		return usage(cmd, "--at: %w", cmp.Or(err, errors.New("it is a moment of the past")))
	}
	if bump < 0 {
		return usage(cmd, "--bump-revision is not negative")
	}
	branch, err := (controlplane.Config{DataDir: from}).Branch(cmd.Context(), "restore-"+time.Now().UTC().Format("20060102-150405"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, branch.Remove()) }()
	if revision, err = rollBack(cmd.Context(), branch.DataDir, revision, when); err != nil {
		return err
	}
	if err := engine.Rebase(controlplane.StoreDir(branch.DataDir), revision+bump); err != nil {
		return err
	}
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return err
	}
	if err := os.Rename(controlplane.StoreDir(branch.DataDir), controlplane.StoreDir(dataDir)); errors.Is(err, syscall.EXDEV) {
		return fmt.Errorf("%s and %s are on different disks; restore to the disk of the first, and move the folder: %w", from, dataDir, err)
	} else if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "Restored revision %d of %s to %s; it goes on at revision %d.\n", revision, from, dataDir, revision+bump)
	return err
}

func newVerify(s streams) *cobra.Command {
	return &cobra.Command{
		Use:   "verify FILE",
		Short: "Check a file, and say what is in it",
		Long: `Read FILE to its end, check that it is complete and as it was written, and say
what is in it. With - it reads the standard input.`,
		Example: `  kelson snapshot verify backup.snap
  gunzip < backup.snap.gz | kelson snapshot verify -`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			in := s.in
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			summary, err := transfer.Verify(in)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			_, err = fmt.Fprintf(s.out, "revision  %d\nkeys      %d\nbytes     %d\nsha256    %x\n",
				summary.Revision, summary.Keys, summary.Bytes, summary.SHA256)
			return err
		},
	}
}

func describe(s transfer.Summary) string {
	return fmt.Sprintf("revision %d with %d keys in %s", s.Revision, s.Keys, size(s.Bytes))
}
