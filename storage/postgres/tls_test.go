package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
)

// secured is a database that requires TLS, with the roles certified, which needs a client
// certificate, and guarded, which needs the password sesame.
type secured struct {
	t      *testing.T
	db     *pgtest.DB
	server *pgtest.Authority // of the certificate of the database, which is for localhost
	client *pgtest.Authority // of the certificates of clients
	dir    string
}

func startSecured(t *testing.T) *secured {
	t.Helper()
	s := &secured{t: t, server: pgtest.NewAuthority(t), client: pgtest.NewAuthority(t), dir: t.TempDir()}
	s.db = pgtest.Start(t, pgtest.TLS(s.files(time.Now().Add(time.Hour))),
		pgtest.Access("hostssl all certified 127.0.0.1/32 cert"), pgtest.Access("hostssl all guarded 127.0.0.1/32 scram-sha-256"))
	sql(t, s.db, "CREATE ROLE certified LOGIN; CREATE ROLE guarded LOGIN PASSWORD 'sesame'; GRANT CREATE ON DATABASE postgres TO certified, guarded")
	s.write("ca.crt", s.server.PEM())
	s.issue("certified")
	return s
}

// files returns a new certificate of the database that expires at a time.
func (s *secured) files(end time.Time) pgtest.ServerTLS {
	cert, key := s.server.IssueUntil(end, "database", "localhost")
	return pgtest.ServerTLS{Cert: cert, Key: key, ClientCA: s.client.PEM()}
}

// issue writes a client certificate for a user and its key to client.crt and client.key.
func (s *secured) issue(user string) {
	s.t.Helper()
	cert, key := s.client.Issue(user)
	s.write("client.crt", cert)
	s.write("client.key", key)
}

func (s *secured) write(name string, content []byte) (path string) {
	s.t.Helper()
	path = filepath.Join(s.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// dsn returns a connection string. FILE: is the folder of the files.
func (s *secured) dsn(user, host, options string) string {
	_, port, _ := net.SplitHostPort(s.db.Addr())
	return fmt.Sprintf("postgres://%s@%s:%s/postgres?%s", user, host, port, strings.ReplaceAll(options, "FILE:", s.dir+"/"))
}

// open opens a store in a schema with the name of the user.
func (s *secured) open(dsn string) (*postgres.Backend, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		s.t.Fatal(err)
	}
	return postgres.Open(s.t.Context(), postgres.Options{DSN: dsn, Schema: u.User.Username(), AllowNoSync: true})
}

const withCertificate = "&sslcert=FILE:client.crt&sslkey=FILE:client.key"

// TestTLSModes: each sslmode checks what it promises of the database, and a connection that
// either side refuses says what to do.
func TestTLSModes(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	s.write("other.crt", pgtest.NewAuthority(t).PEM())
	s.write("empty.crt", []byte("nothing"))
	cert, key := s.client.Issue("somebody")
	s.write("somebody.crt", cert)
	s.write("somebody.key", key)
	cert, key = pgtest.NewAuthority(t).Issue("certified")
	s.write("foreign.crt", cert)
	s.write("foreign.key", key)
	s.write("encrypted.key", []byte(encryptedKey))
	s.write("legacy.key", []byte(legacyEncryptedKey))
	const scram, certified = "guarded:sesame", "certified"
	for _, test := range []struct {
		user, host, options string
		want                string // in the error; "" is none
	}{
		{scram, "localhost", "sslmode=require", ""},
		{scram, "127.0.0.1", "sslmode=require", ""},
		{scram, "127.0.0.1", "", ""}, // prefer, the default, tries TLS first
		{scram, "127.0.0.1", "sslmode=verify-ca&sslrootcert=FILE:ca.crt", ""},
		{scram, "localhost", "sslmode=verify-full&sslrootcert=FILE:ca.crt", ""},
		{certified, "localhost", "sslmode=require" + withCertificate, ""},
		{certified, "localhost", "sslmode=verify-full&sslrootcert=FILE:ca.crt" + withCertificate, ""},

		{scram, "localhost", "sslmode=disable", "set sslmode=verify-full"},
		{scram, "127.0.0.1", "sslmode=verify-full&sslrootcert=FILE:ca.crt", "use a name that it has"},
		{scram, "localhost", "sslmode=verify-full&sslrootcert=FILE:other.crt", "set sslrootcert"},
		{scram, "localhost", "sslmode=verify-ca&sslrootcert=FILE:other.crt", "set sslrootcert"},
		{scram, "localhost", "sslmode=require&sslrootcert=FILE:other.crt", "set sslrootcert"}, // as libpq does
		{scram, "localhost", "sslmode=verify-full", "set sslrootcert"},
		{scram, "localhost", "sslmode=verify-full&sslrootcert=FILE:empty.crt", "no certificate in PEM"},
		{scram, "localhost", "sslmode=verify-full&sslrootcert=FILE:missing.crt", "no such file"},
		{"guarded:wrong", "localhost", "sslmode=require", "password authentication failed"},
		{certified, "localhost", "sslmode=require", "set sslcert and sslkey"},
		{certified, "localhost", "sslmode=require&sslcert=FILE:somebody.crt&sslkey=FILE:somebody.key", "common name"},
		{certified, "localhost", "sslmode=require&sslcert=FILE:foreign.crt&sslkey=FILE:foreign.key", "ssl_ca_file"},
		{certified, "localhost", "sslmode=require&sslcert=FILE:client.crt&sslkey=FILE:encrypted.key", "without a passphrase"},
		{certified, "localhost", "sslmode=require&sslcert=FILE:client.crt&sslkey=FILE:legacy.key", "without a passphrase"},
		{certified, "localhost", "sslmode=require&sslcert=FILE:client.crt&sslkey=FILE:somebody.key", "do not belong together"},
		{certified, "localhost", "sslmode=require&sslcert=FILE:client.crt", "sslkey"},
	} {
		began := time.Now()
		b, err := s.open(s.dsn(test.user, test.host, test.options))
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s at %s, %s: got error %v, want none", test.user, test.host, test.options, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s at %s, %s: got error %v, want one with %q", test.user, test.host, test.options, err, test.want)
		case test.want != "" && time.Since(began) > 5*time.Second:
			t.Errorf("%s at %s, %s: got the error after %v, want it at once", test.user, test.host, test.options, time.Since(began))
		}
		if err == nil {
			b.Close()
		}
		if err != nil && (strings.Contains(err.Error(), "sesame") || strings.Contains(err.Error(), "wrong@")) {
			t.Errorf("got error %v, want it without the password", err)
		}
	}
	s.db.RenewTLS(s.files(time.Now().Add(-time.Minute)))
	if _, err := s.open(s.dsn(scram, "localhost", "sslmode=verify-full&sslrootcert=FILE:ca.crt")); err == nil || !strings.Contains(err.Error(), "renew it") {
		t.Errorf("expired certificate: got error %v, want one with %q", err, "renew it")
	}
}

// TestCertificatesAreReadAgain: the authorities of both sides are replaced under a running
// server, with all certificates. New connections use the new files, for reads, writes and
// watches; while the files are wrong, calls fail with a reason and nothing else happens.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	b, err := s.open(s.dsn("certified", "localhost", "sslmode=verify-full&sslrootcert=FILE:ca.crt"+withCertificate))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	w := follow(t, b, 1)
	ctx := context.Background()
	works := func(key string) {
		t.Helper()
		if _, err := b.Create(ctx, key, nil, 0); err != nil {
			t.Errorf("write: %v", err)
		}
		if _, err := b.List(ctx, "", storage.ListOptions{}); err != nil {
			t.Errorf("list: %v", err)
		}
		w.reaches(b)
	}
	works("/registry/first")
	for i := range testsize.Pick(1, 1, 10) {
		s.server, s.client = pgtest.NewAuthority(t), pgtest.NewAuthority(t)
		// The database first: connections that are open go on, new ones are refused.
		s.db.RenewTLS(s.files(time.Now().Add(time.Hour)))
		works(fmt.Sprint("/registry/open-", i))
		// pg_reload_conf does not wait: until it has effect, new connections succeed.
		polltest.Until(t, "the database uses the new certificate", func() bool {
			s.db.Cut()
			_, err = b.Create(ctx, fmt.Sprintf("/registry/cut-%d-%d", i, time.Now().UnixNano()), nil, 0)
			return err != nil
		})
		// A statement that was on its way when the connection was cut is uncertain.
		if !errors.Is(err, storage.ErrUnavailable) && !errors.Is(err, storage.ErrUncertain) || !strings.Contains(err.Error(), "set sslrootcert") {
			t.Errorf("write with the old authority: got error %v, want ErrUnavailable or ErrUncertain with what to do", err)
		}
		if _, err := b.List(ctx, "", storage.ListOptions{}); !errors.Is(err, storage.ErrUnavailable) || !strings.Contains(err.Error(), "set sslrootcert") {
			t.Errorf("list with the old authority: got error %v, want ErrUnavailable with what to do", err)
		}
		s.write("ca.crt", s.server.PEM())
		s.issue("certified")
		works(fmt.Sprint("/registry/new-", i))
	}
}

// TestReadWriteHostIsUsed: of several hosts, of which one does not listen and one is a
// standby, the one that accepts writes is used, whether the connection string asks for it or
// not.
func TestReadWriteHostIsUsed(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	standby := db.Standby()
	hosts := "127.0.0.1:1," + standby.Addr() + "," + db.Addr()
	for _, options := range []string{"sslmode=disable", "sslmode=disable&target_session_attrs=read-write", "sslmode=disable&target_session_attrs=primary"} {
		b, err := postgres.Open(t.Context(), postgres.Options{DSN: "postgres://kelson@" + hosts + "/postgres?" + options, AllowNoSync: true})
		if err != nil {
			t.Errorf("%s: %v", options, err)
			continue
		}
		w := follow(t, b, 1)
		if _, err := b.Create(t.Context(), "/registry/"+options, nil, 0); err != nil {
			t.Errorf("%s: write: %v", options, err)
		}
		if _, err := b.Get(t.Context(), "/registry/"+options); err != nil {
			t.Errorf("%s: read: %v", options, err)
		}
		w.reaches(b)
		polltest.Until(t, options+": no connection to the standby is left", func() bool { // it was asked whether it can write
			return number(t, standby, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'kelson'") == 0
		})
		b.Close()
	}
	_, err := postgres.Open(t.Context(), postgres.Options{DSN: "postgres://kelson@" + standby.Addr() + "/postgres?sslmode=disable", AllowNoSync: true, ConnectTimeout: time.Second})
	if err == nil || !strings.Contains(err.Error(), "read only") {
		t.Errorf("a standby alone: got error %v, want one that says it is read only", err)
	}
}

// Keys with a passphrase, in PKCS #8 and in the older form of OpenSSL. They are used for
// nothing else.
const (
	encryptedKey = `-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAj/8HvVCOPj2gICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEN9i65EIxA0iQOlgmZ6pSWEEgZAz
2kfHAxobpE2fuaPJSXxkCDv9ZNttL1ojPpMksoaryn8dpD3ikqJhIlEQJhwE/EKu
//lVOR9QC3ymI8ZSmeX83NpILVKthyEpBAEtl+oOKhnNVWwP8KFSDDvF+o8vv3ot
wQeJuyM2qAGqkfdTUwLr0GsJF4otaDYqHaGkbUOX+6dms3GWgQqcnjSVqy8g81o=
-----END ENCRYPTED PRIVATE KEY-----
`
	legacyEncryptedKey = `-----BEGIN RSA PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-256-CBC,5987294A541443279BC24B6A6306C297

cCKWj84GyzagGWAwl9/HC4KBKVsQD7OF2VM9uyONRR8Hps+Ayl6XUulC6MGPnI28
YN0JfKQonsJAup59pSbGfyUVQ51k4MXmVsdu1tvWDTpiH/9ptHb98XzZPEdxyLE1
9WDFwpYxl1aNk+sZyVLahdIsDO5EHfXXhH/wLJsJYO7uYdK/lFYiWV4ozKT5qyDl
ox2rj5sFPb+vj6x+BUVaIPR52HAeBDCWzATIxANstQSkUX+wVo+E649J2/EdYCtq
UIFLLefoSl8+75BNYGpExCNtAwGyyB/68Bq6OZNEmkddsRSXY7iPzkXAOGDCzRW1
631fgRFq1agAjQj1d0Npy7PjErejMya97MAGYwl8wKPLVhWksmOzN1EN7OC2O532
UBfzze+wG2u7ZaLbHTRONINC5T4aELTvDh3m1J/MV24+yTN8gpn10MwklEc7dRba
n96YkQ/bJimSiuhiagTUigL15sJopaedoJLd5/rQHA6ZZnqZoHJH2ZSKijOpKjXk
vPoxAQ5r/o6J5aKES2KoPEMAxLn+Le3nfeHwVBhs4c/6xY79u35ps9b7OCzATkXU
ykaRobZ3F2MbaBuCpkFN/rmYP0WA4rvGFo9MNkfFNs6yjsmgxNvuZbr8rDIIAoFX
BSXcLccWe4KutS5wkYLHZr93IjOKyd5/pi8xPmZeYeRbo508lfQHUE26cGgdGO1p
r/ZZJNsQKtANev44JYbSkrO8QvO2kHK8+Z8Vq/wstQGywoHrfF21Cvzn86NhL+4g
1n5pzB8P4O/SJrUmobE1JoshGI5C7eGJtu9SewA74BfoQDS95e7lANexuSvVfPwC
-----END RSA PRIVATE KEY-----
`
)
