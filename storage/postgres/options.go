package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DefaultSchema is the schema that has the tables unless Options names another.
const DefaultSchema = "kelson"

// Options says where the database is and how to use it. Only DSN is required.
type Options struct {
	// DSN is a connection string as libpq has it: postgres://user@host1,host2/db?sslmode=…
	// or "host=… dbname=…". What it leaves out comes from PGHOST and the like. Password
	// files and certificates are read again for every connection. Of several hosts, the
	// one that accepts writes is used.
	DSN string
	// Schema is the schema of the tables, DefaultSchema if empty. Two stores in one
	// database need two.
	Schema string

	// AllowNoSync accepts a database with synchronous_commit=off or fsync=off, which
	// can lose acknowledged writes when it or its machine crashes.
	AllowNoSync bool

	// MaxConns bounds the connections for reads; the default is 10. Beside them there
	// are three: for writes, for the feed of watches, and one that listens.
	MaxConns int
	// MaxWaiting bounds the reads that wait for a connection; the default is 4096.
	// WaitTimeout is how long one waits; the default is 10 s.
	MaxWaiting  int
	WaitTimeout time.Duration
	// ConnectTimeout is how long Open waits for the database, and at most how long an
	// attempt to connect takes; the default is 10 s.
	ConnectTimeout time.Duration
	// CommitTimeout is how long a transaction may take before its connection is closed
	// and its writes are ErrUncertain; the default is 30 s.
	CommitTimeout time.Duration

	// CompactInterval is how often history is compacted; history is kept for one to two
	// intervals. The default is 5 minutes; a negative value leaves compaction to others.
	CompactInterval time.Duration

	// Dial opens connections; nil dials directly.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Logger gets interruptions and failures; nil discards them.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Schema = cmp.Or(o.Schema, DefaultSchema)
	o.MaxConns = cmp.Or(o.MaxConns, 10)
	o.MaxWaiting = cmp.Or(o.MaxWaiting, 4096)
	o.WaitTimeout = cmp.Or(o.WaitTimeout, 10*time.Second)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 10*time.Second)
	o.CommitTimeout = cmp.Or(o.CommitTimeout, 30*time.Second)
	o.CompactInterval = cmp.Or(o.CompactInterval, 5*time.Minute)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.DSN == "":
		return errors.New("postgres: no connection string given")
	case !isSchemaName(o.Schema):
		return fmt.Errorf("postgres: schema %q: a name has at most 48 letters, digits, underscores and dashes", o.Schema)
	case o.MaxConns < 1 || o.MaxWaiting < 1:
		return errors.New("postgres: at least one connection is needed, and room for one to wait")
	case o.WaitTimeout < 0 || o.ConnectTimeout < 0 || o.CommitTimeout < 0:
		return errors.New("postgres: a timeout is negative")
	}
	_, err := o.connConfig()
	return err
}

// isSchemaName reports whether a schema may have a name: one that needs no care in the
// bodies of functions.
func isSchemaName(name string) bool {
	other := func(r rune) bool {
		return r != '_' && r != '-' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	}
	return name != "" && len(name) <= 48 && strings.IndexFunc(name, other) < 0
}

// connConfig reads the connection string and the files that it names.
func (o Options) connConfig() (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(o.DSN)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", explainParse(err))
	}
	if config.ConnectTimeout == 0 || config.ConnectTimeout > o.ConnectTimeout {
		config.ConnectTimeout = o.ConnectTimeout
	}
	if config.ValidateConnect == nil {
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if _, ok := config.RuntimeParams["application_name"]; !ok {
		config.RuntimeParams["application_name"] = "kelson"
	}
	config.DialFunc = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	if o.Dial != nil {
		config.DialFunc = o.Dial
	}
	return config, nil
}

// Redact returns a connection string without its password.
func Redact(dsn string) string {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return "postgres"
	}
	host := config.Host
	if strings.Contains(host+config.Database, "@") { // a password with a slash in it
		return "postgres"
	}
	if config.Port != 0 {
		host = net.JoinHostPort(host, fmt.Sprint(config.Port))
	}
	return fmt.Sprintf("postgres %s on %s", config.Database, host)
}

// HasPassword reports whether there is a password in a connection string.
func HasPassword(dsn string) bool {
	if regexp.MustCompile(`(?i)\b(ssl)?password\s*=`).MatchString(dsn) {
		return true
	}
	_, rest, isURL := strings.Cut(dsn, "://")
	user, _, has := strings.Cut(rest, "@")
	return isURL && has && strings.Contains(user, ":")
}
