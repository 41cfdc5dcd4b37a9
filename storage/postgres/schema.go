package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// format is the version of the tables that this package uses.
const format = 1

//go:embed schema.sql
var schemaSQL string

// ErrTooNew: the tables were made by a later version of this program.
var ErrTooNew = errors.New("the tables are of a later version of this program")

// names holds what depends on the name of the schema.
type names struct {
	schema  string // quoted
	channel string // of NOTIFY
	lock    int64  // the advisory lock of those who make or upgrade the schema
}

func newNames(schema string) names {
	h := fnv.New64a()
	h.Write([]byte("kelson schema " + schema))
	return names{pgx.Identifier{schema}.Sanitize(), "kelson_" + schema, int64(h.Sum64())}
}

// sql replaces the names in a statement.
func (n names) sql(text string) string {
	return strings.NewReplacer("{schema}", n.schema, "{channel}", "'"+strings.ReplaceAll(n.channel, "'", "''")+"'").Replace(text)
}

// ensureSchema makes the tables if they are not there, and checks their version. Several
// servers may do so at a time.
func (b *Backend) ensureSchema(ctx context.Context, conn *pgx.Conn) error {
	found, err := b.schemaFormat(ctx, conn)
	if err != nil || found == format {
		return err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", b.names.lock); err != nil {
		return err
	}
	if found, err = b.schemaFormat(ctx, conn); err != nil || found == format {
		return err
	}
	// Formats before 1 do not exist; an upgrade would be a further script here.
	if _, err := tx.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+b.names.schema); err != nil {
		return fmt.Errorf("make schema %q: %w", b.opts.Schema, err)
	}
	if _, err := tx.Exec(ctx, b.names.sql(schemaSQL)); err != nil {
		return fmt.Errorf("make the tables in schema %q: %w", b.opts.Schema, err)
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	b.log.Info("made the tables", "schema", b.opts.Schema, "format", format)
	return nil
}

// schemaFormat returns the version of the tables, 0 if there are none.
func (b *Backend) schemaFormat(ctx context.Context, conn *pgx.Conn) (found int, err error) {
	// Not to_regclass: in a transaction it remembers that a table was missing, also if
	// another server has made it since.
	var tables int
	err = conn.QueryRow(ctx, `SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = 'state'`, b.opts.Schema).Scan(&tables)
	if err != nil || tables == 0 {
		return 0, err
	}
	if err := conn.QueryRow(ctx, b.names.sql("SELECT format FROM {schema}.state")).Scan(&found); err != nil {
		return 0, fmt.Errorf("schema %q is not one of Kelson's: %w", b.opts.Schema, err)
	}
	if found > format {
		return 0, configError{fmt.Errorf("%w: schema %q has format %d, this program knows %d: use a newer program", ErrTooNew, b.opts.Schema, found, format)}
	}
	return found, nil
}
