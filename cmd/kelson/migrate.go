package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/serverflags"
	"github.com/apikeel/kelson/serverflags/stores"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/storage/transfer"
	"github.com/spf13/cobra"
)

func newMigrate(s streams) *cobra.Command {
	var from, to string
	var flags placeFlags
	var opts transfer.CopyOptions
	cmd := &cobra.Command{
		Use:   "migrate --from SRC --to DST",
		Short: "Copy all data between data folders, etcd and PostgreSQL",
		Long: `Copy all data, as it is at one revision, from SRC to DST, then compare the two.
SRC and DST are each a data folder, the URLs of an etcd, separated by commas, or
the URL of a PostgreSQL (postgres://…); a password is best in PGPASSFILE.
SRC is not changed. DST must hold no objects yet.

Stop the servers that use SRC first, or what they write meanwhile is not copied.

A data folder as DST keeps the revisions that objects have in SRC, and appears
whole or not at all. An etcd or PostgreSQL gives revisions of its own: clients which
still know those of SRC must list again, so restart them. A copy to one that was
interrupted goes on with --resume.`,
		Example: `  kelson migrate --from ./kelson-data --to http://10.0.0.1:2379,http://10.0.0.2:2379
  kelson migrate --from https://10.0.0.1:2379 --etcd-cafile ca.crt --etcd-certfile client.crt --etcd-keyfile client.key --to /var/lib/kelson
  kelson migrate --from /var/lib/kelson --to postgres://kelson@10.0.0.1/kelson?sslmode=verify-full`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m := migration{streams: s, opts: opts}
			var err error
			if m.from, err = flags.place(cmd, "--from", from); err != nil {
				return err
			}
			if m.to, err = flags.place(cmd, "--to", to); err != nil {
				return err
			}
			if opts.Resume && !m.to.isServer() {
				return usage(cmd, "--resume is for a copy to etcd or PostgreSQL; a data folder is made whole or not at all")
			}
			return m.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "`SRC`, a data folder, URLs of etcd or the URL of a PostgreSQL")
	cmd.Flags().StringVar(&to, "to", "", "`DST`, a data folder, URLs of etcd or the URL of a PostgreSQL")
	cmd.Flags().BoolVar(&opts.Resume, "resume", false, "go on with a copy to etcd or PostgreSQL that was interrupted")
	flags.etcd.bind(cmd.Flags())
	flags.postgres.BindUse(cmd.Flags())
	return cmd
}

// place is the source or the target of a migration.
type place struct {
	name     string
	dataDir  string
	etcd     etcd.Options
	postgres postgres.Options
}

// isServer reports whether the place is a store that gives revisions of its own.
func (p place) isServer() bool { return len(p.etcd.Endpoints) > 0 || p.postgres.DSN != "" }

// placeFlags are the flags that say how etcd and PostgreSQL are reached.
type placeFlags struct {
	etcd     etcdFlags
	postgres stores.Postgres
}

// place parses --from or --to.
func (f *placeFlags) place(cmd *cobra.Command, flag, value string) (place, error) {
	urls := strings.Split(value, ",")
	switch {
	case value == "":
		return place{}, usage(cmd, "%s is missing: a data folder, URLs of etcd or the URL of a PostgreSQL", flag)
	case strings.HasPrefix(value, "http://") || strings.HasPrefix(value, "https://"):
		options := f.etcd.options(urls)
		options.CompactInterval = -1 // left to the servers
		return place{name: serverflags.WithoutPasswords(value), etcd: options}, nil
	case strings.HasPrefix(value, "postgres://") || strings.HasPrefix(value, "postgresql://"):
		options := f.postgres.At(value)
		options.CompactInterval = -1
		return place{name: postgres.Redact(value), postgres: options}, nil
	case strings.Contains(value, "://") || regexp.MustCompile(`:[0-9]+$`).MatchString(urls[0]):
		return place{}, usage(cmd, "%s %s: the URL of an etcd begins with http:// or https://, that of a PostgreSQL with postgres://", flag, serverflags.WithoutPasswords(value))
	}
	return place{name: value, dataDir: value}, nil
}

// open opens an existing store.
func (p place) open(ctx context.Context) (storage.Backend, error) {
	switch {
	case p.postgres.DSN != "":
		return postgres.Open(ctx, p.postgres)
	case p.isServer():
		return etcd.Open(ctx, p.etcd)
	}
	return controlplane.OpenFolder(p.dataDir)
}

type migration struct {
	streams
	from, to place
	opts     transfer.CopyOptions
}

func (m *migration) run(ctx context.Context) error {
	from, err := m.from.open(ctx)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	summary, err := m.copy(ctx, from)
	if err = errors.Join(err, from.Close()); err != nil {
		return err
	}
	return m.report(summary)
}

func (m *migration) copy(ctx context.Context, from storage.Backend) (transfer.Summary, error) {
	meter := startMeter(m.err, "copied")
	defer meter.stop()
	m.opts.Progress = func(p transfer.Progress) {
		if p.Verifying {
			meter.set("compared", p)
		} else {
			meter.set("copied", p)
		}
	}
	if !m.to.isServer() {
		return transfer.CopyToFolder(ctx, from, controlplane.StoreDir(m.to.dataDir), m.opts)
	}
	to, err := m.to.open(ctx)
	if err != nil {
		return transfer.Summary{}, fmt.Errorf("--to: %w", err)
	}
	summary, err := transfer.Copy(ctx, from, to, m.opts)
	if ctx.Err() != nil || errors.Is(err, storage.ErrUnavailable) || errors.Is(err, storage.ErrUncertain) {
		err = fmt.Errorf("%w; what was copied is there: go on with --resume", err)
	}
	return summary, errors.Join(err, to.Close())
}

func (m *migration) report(s transfer.Summary) error {
	text := fmt.Sprintf("Copied %d keys, %s, of revision %d from %s to %s. Both are the same.\n", s.Keys, size(s.Bytes), s.Revision, m.from.name, m.to.name)
	if s.Skipped > 0 {
		text += fmt.Sprintf("%d of them were there already.\n", s.Skipped)
	}
	if s.Expired > 0 {
		text += fmt.Sprintf("%d of them had expired and were left out.\n", s.Expired)
	}
	if m.to.isServer() {
		text += "Objects have new revisions now: restart the clients of the old server, so that they list again.\n"
	}
	_, err := fmt.Fprint(m.out, text)
	return err
}
