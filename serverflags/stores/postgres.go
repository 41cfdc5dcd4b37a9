package stores

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/apikeel/kelson/serverflags"
	"github.com/apikeel/kelson/storage/postgres"
)

// Postgres holds the flags of the PostgreSQL client.
type Postgres struct {
	dsn, file, schema string
	maxConns          int
	allowNoSync       bool
}

// Bind adds the flags.
func (f *Postgres) Bind(fs *pflag.FlagSet) {
	serverflags.SecretVar(fs, &f.dsn, "storage-dsn", "connection `string` of PostgreSQL to keep objects in: postgres://user@host1,host2/database?sslmode=verify-full", postgres.Redact)
	fs.StringVar(&f.file, "storage-dsn-file", "", "`file` with the connection string, if it has a password")
	f.BindUse(fs)
}

// BindUse adds the flags, except for those that say where the database is.
func (f *Postgres) BindUse(fs *pflag.FlagSet) {
	fs.StringVar(&f.schema, "storage-schema", postgres.DefaultSchema, "`schema` in PostgreSQL that has the tables")
	fs.IntVar(&f.maxConns, "storage-max-connections", 10, "`connections` to PostgreSQL for reads; three more are for writes and watches")
	fs.BoolVar(&f.allowNoSync, "storage-allow-nosync", false, "accept a PostgreSQL that can lose acknowledged writes: synchronous_commit=off or fsync=off")
}

// Given reports whether the flags name a database.
func (f *Postgres) Given() bool { return f.dsn != "" || f.file != "" }

// Options returns the options that the flags set. Those of a command line without a
// database have no DSN.
func (f *Postgres) Options() (postgres.Options, error) {
	options := f.At(f.dsn)
	switch {
	case f.dsn != "" && f.file != "":
		return options, errors.New("--storage-dsn and --storage-dsn-file cannot both be given")
	case f.file != "":
		text, err := os.ReadFile(f.file)
		if err != nil {
			return options, fmt.Errorf("--storage-dsn-file: %w", err)
		}
		if options.DSN = strings.TrimSpace(string(text)); options.DSN == "" {
			return options, fmt.Errorf("--storage-dsn-file: %s is empty", f.file)
		}
	}
	return options, nil
}

// WarnPassword logs a warning if there is a password on the command line.
func (f *Postgres) WarnPassword(logger *slog.Logger) {
	if postgres.HasPassword(f.dsn) {
		logger.Warn("the password in --storage-dsn is in the list of processes, which everybody on this machine can read: write the connection string into a file and name it with --storage-dsn-file")
	}
}

// At returns the options for another connection string.
func (f *Postgres) At(dsn string) postgres.Options {
	return postgres.Options{DSN: dsn, Schema: f.schema, MaxConns: f.maxConns, AllowNoSync: f.allowNoSync}
}
