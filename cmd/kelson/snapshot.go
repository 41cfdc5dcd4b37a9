package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/apikeel/kelson/controlplane"
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
	var dataDir string
	var bump int64
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a data folder from a file",
		Long: `Make the store in a data folder, in which there must be none yet, from FILE. The
file is verified first. The store is there whole or not at all.

Revisions go on at that of the snapshot plus --bump-revision. Clients may have
seen revisions newer than the snapshot; they must not see the same ones again
with other content. This way they are told that what they know has expired, and
list again. To fill an etcd, restore to a folder and use 'kelson migrate'.`,
		Example: `  kelson snapshot restore backup.snap
  kelson snapshot restore --data-dir /var/lib/kelson backup.snap`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := controlplane.StoreDir(dataDir)
			if names, err := os.ReadDir(dir); err == nil && len(names) > 0 {
				return fmt.Errorf("there is a store in %s already; move %s away, or choose another --data-dir", dataDir, dir)
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
	cmd.Flags().Int64Var(&bump, "bump-revision", defaultBump, "how far to raise the `revision` of the store above that of the snapshot")
	return cmd
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
