package postgres

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"github.com/apikeel/kelson/storage"
	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATE codes that have a meaning here. The first is raised by write_group.
const (
	codeLostWrites    = "KE001"
	codeReadOnly      = "25006"
	codeNotAuthorized = "28000"
	codeSerialization = "40001"
	codeDeadlock      = "40P01"
	codeUndefTable    = "42P01"
	codeUndefFunction = "42883"
	codeNoSchema      = "3F000"
	codeDiskFull      = "53100"
	codeTooComplex    = "54000" // an index row that is too large
	codeLockTimeout   = "55P03"
	codeCanceled      = "57014"
)

// errNoConnection: nothing was sent, for want of a connection.
var errNoConnection = errors.New("no connection")

// asPgError returns the error that the database has answered with, nil if it has not.
func asPgError(err error) *pgconn.PgError {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg
	}
	return nil
}

// isRefusal reports whether the database has answered a statement with an error: then
// its transaction was rolled back. A FATAL error ends a session at any moment, also
// after the commit.
func isRefusal(err error) bool {
	pg := asPgError(err)
	if pg == nil || errors.As(err, new(*pgconn.ConnectError)) {
		return false
	}
	severity := pg.SeverityUnlocalized
	if severity == "" {
		severity = pg.Severity
	}
	return severity == "ERROR"
}

// isNotSent reports whether a statement did not reach the database.
func isNotSent(err error) bool {
	return errors.Is(err, errNoConnection) || errors.As(err, new(*pgconn.ConnectError)) || pgconn.SafeToRetry(err)
}

// isBroken reports whether a read failed for the connection's sake, so that another may
// answer it.
func isBroken(err error) bool {
	if !isRefusal(err) {
		return true
	}
	switch asPgError(err).Code {
	case codeReadOnly, codeSerialization, codeDeadlock:
		return true
	}
	return false
}

// refusal returns an error of the database as the sentinel that says that nothing was
// changed.
func (b *Backend) refusal(err error) error {
	pg := asPgError(err)
	switch pg.Code {
	case codeLostWrites:
		return b.diverge(pg.Message)
	case codeDiskFull:
		return fmt.Errorf("%w: postgres: %w", storage.ErrNoSpace, err)
	case codeTooComplex:
		return fmt.Errorf("%w: a key of more than 2,600 bytes that cannot be compressed: postgres: %w", storage.ErrTooLarge, err)
	case codeUndefTable, codeUndefFunction, codeNoSchema:
		return fmt.Errorf("%w: the tables in schema %q are gone: postgres: %w", storage.ErrUnavailable, b.opts.Schema, err)
	case codeReadOnly, codeSerialization, codeDeadlock, codeLockTimeout, codeCanceled:
		return fmt.Errorf("%w: postgres: %w", storage.ErrUnavailable, err)
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "08", "53", "55", "57", "58":
		return fmt.Errorf("%w: postgres: %w", storage.ErrUnavailable, err)
	}
	return fmt.Errorf("postgres: %w", err)
}

// readError maps the error of a read to a sentinel.
func (b *Backend) readError(ctx context.Context, err error) error {
	switch {
	case b.ctx.Err() != nil:
		return storage.ErrClosed
	case ctx.Err() != nil:
		return fmt.Errorf("postgres: %w", ctx.Err())
	case errors.Is(err, storage.ErrUnavailable):
		return err
	case isRefusal(err):
		return b.refusal(err)
	}
	return fmt.Errorf("%w: postgres: %w", storage.ErrUnavailable, explainConnect(err))
}

// explainConnect adds what to do to the error of a connection that TLS or the access
// rules of the database have refused, and makes it a configError.
func explainConnect(err error) error {
	advice := ""
	var remote *net.OpError
	switch pg := asPgError(err); {
	case err == nil || errors.As(err, new(configError)):
	case errors.As(err, new(x509.UnknownAuthorityError)):
		advice = "the certificate of the database is not signed by an authority in sslrootcert, or without sslrootcert by one that this machine trusts: set sslrootcert to a file with the authority's certificate"
	case errors.As(err, new(x509.HostnameError)):
		advice = "the certificate of the database is for other names: use a name that it has as the host, or have one issued with this name; sslmode=verify-ca would check the authority only"
	case errors.As(err, new(x509.CertificateInvalidError)):
		advice = "the certificate of the database is not valid: renew it, or check the clocks of both machines if it should be"
	case strings.Contains(err.Error(), "server refused TLS connection"):
		advice = "the database has no TLS, which sslmode asks for: set ssl = on and a certificate there"
	case errors.As(err, &remote) && remote.Op == "remote error": // a TLS alert
		advice = "the database does not accept the client certificate in sslcert: it has to be valid and signed by an authority in the ssl_ca_file of the database"
	case pg == nil || pg.Code != codeNotAuthorized:
	case strings.Contains(pg.Message, "no encryption"):
		advice = "if the database requires TLS, set sslmode=verify-full and sslrootcert; else add a line to its pg_hba.conf"
	case strings.Contains(pg.Message, "valid client certificate"):
		advice = "the database requires a client certificate: set sslcert and sslkey"
	case strings.Contains(pg.Message, "certificate authentication failed"):
		advice = "the common name of the client certificate has to be the name of the role, unless pg_ident.conf of the database maps it"
	}
	if advice == "" {
		return err
	}
	return configError{fmt.Errorf("%w: %s", err, advice)}
}

// explainParse returns an error about a connection string or a file that it names, with what to
// do. It never quotes the string: pgx leaves out only passwords that it recognizes.
func explainParse(err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "unable to find sslpassword"), strings.Contains(text, "failed to parse private key"), strings.Contains(text, "unable to decrypt key"):
		return errors.New("the key in sslkey is encrypted or no private key: it has to be one in PEM without a passphrase, as openssl pkey writes it")
	case strings.Contains(text, "private key does not match public key"):
		return errors.New("sslcert and sslkey do not belong together")
	case strings.Contains(text, "unable to add CA to cert pool"):
		return errors.New("sslrootcert has no certificate in PEM")
	}
	if file := new(fs.PathError); errors.As(err, &file) {
		return fmt.Errorf("a file that the connection string names cannot be read: %w", file)
	}
	for _, known := range []string{
		"sslmode is invalid", `both "sslcert" and "sslkey" are required`, "unterminated quoted string", "unable to load cert", "unable to find service",
		"unable to load system certificate pool",
	} {
		if strings.Contains(text, known) {
			return errors.New("the connection string cannot be parsed: " + known)
		}
	}
	return errors.New("the connection string cannot be parsed; special characters in a password are percent-encoded in a URL, and in quotes elsewhere")
}
