package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
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
}

func newNames(schema string) names {
	return names{pgx.Identifier{schema}.Sanitize(), "kelson_" + schema}
}

// sql replaces the names in a statement.
func (n names) sql(text string) string {
	return strings.NewReplacer("{schema}", n.schema, "{channel}", "'"+strings.ReplaceAll(n.channel, "'", "''")+"'").Replace(text)
}

// makeAttempts is how often the tables are made when other servers make them at the same time.
const makeAttempts = 5

// ensureSchema makes the tables if they are not there, and checks their version. Several
// servers may do so at a time: one of them succeeds, and the others find the tables then.
func (b *Backend) ensureSchema(ctx context.Context, conn *pgx.Conn) error {
	for attempt := 1; ; attempt++ {
		found, err := b.schemaFormat(ctx, conn)
		if err != nil || found == format {
			return err
		}
		err = b.makeSchema(ctx, conn)
		if err == nil {
			b.log.Info("made the tables", "schema", b.opts.Schema, "format", format)
			return nil
		}
		pg := asPgError(err)
		if attempt == makeAttempts || pg == nil || !slices.Contains(codesExists(), pg.Code) {
			return err
		}
	}
}

// codesExists are the errors for what another transaction has made: a row of a catalog, a
// schema, a table, an object, a function.
func codesExists() []string { return []string{"23505", "42P06", "42P07", "42710", "42723"} }

// makeSchema makes the tables. Formats before 1 do not exist; an upgrade would be a further
// script.
func (b *Backend) makeSchema(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+b.names.schema); err != nil {
		return fmt.Errorf("make schema %q: %w", b.opts.Schema, err)
	}
	if _, err := tx.Exec(ctx, b.names.sql(schemaSQL)); err != nil {
		return fmt.Errorf("make the tables in schema %q: %w", b.opts.Schema, err)
	}
	return tx.Commit(ctx)
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
