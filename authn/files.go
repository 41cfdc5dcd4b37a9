package authn

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/apikeel/kelson/request"
)

// tokenFile authenticates with a CSV file of token, name, uid and optionally groups.
// Tokens are kept as hashes, so that a lookup takes the same time whatever the token
// begins with.
type tokenFile struct {
	users atomic.Pointer[map[[sha256.Size]byte]*Identity]
}

// AuthenticateToken implements Tokens.
func (f *tokenFile) AuthenticateToken(_ context.Context, token string, _ []string) (*Identity, error) {
	return (*f.users.Load())[sha256.Sum256([]byte(token))], nil
}

func (f *tokenFile) load(path string, log *slog.Logger) func(data []byte) error {
	return func(data []byte) error {
		users := map[[sha256.Size]byte]*Identity{}
		err := readSecrets(data, func(n int, secret string, u request.User) {
			sum := sha256.Sum256([]byte(secret))
			switch {
			case secret == "":
				log.Warn("empty token in token file", "file", path, "record", n)
				return
			case users[sum] != nil:
				log.Warn("duplicate token in token file", "file", path, "record", n)
			}
			users[sum] = authenticated(&Identity{User: u})
		})
		if err != nil {
			return fmt.Errorf("token file '%s' %w", path, err)
		}
		f.users.Store(&users)
		return nil
	}
}

// basic authenticates with the user names and passwords of a CSV file.
type basic struct {
	users atomic.Pointer[map[string]*basicUser]
}

type basicUser struct {
	password [sha256.Size]byte
	id       *Identity
}

// Authenticate implements Authenticator.
func (b *basic) Authenticate(r *http.Request) (*Identity, error) {
	name, password, ok := r.BasicAuth()
	if !ok {
		return nil, nil
	}
	sum := sha256.Sum256([]byte(password))
	u := (*b.users.Load())[name]
	if u == nil || subtle.ConstantTimeCompare(sum[:], u.password[:]) != 1 {
		return nil, errors.New("invalid username/password combination")
	}
	return u.id, nil
}

func (b *basic) load(path string) func(data []byte) error {
	return func(data []byte) error {
		users := map[string]*basicUser{}
		err := readSecrets(data, func(_ int, secret string, u request.User) {
			users[u.Name] = &basicUser{sha256.Sum256([]byte(secret)), authenticated(&Identity{User: u})}
		})
		if err != nil {
			return fmt.Errorf("password file '%s' %w", path, err)
		}
		b.users.Store(&users)
		return nil
	}
}

// readSecrets parses CSV records of secret, name, uid and optionally groups.
func readSecrets(data []byte, add func(n int, secret string, u request.User)) error {
	r := csv.NewReader(strings.NewReader(string(data)))
	r.FieldsPerRecord = -1
	for n := 1; ; n++ {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			// The error of the CSV reader could contain the line.
			return fmt.Errorf("is not valid CSV in record %d", n)
		}
		if len(record) < 3 {
			return fmt.Errorf("must have at least 3 columns (token, user name, user uid), found %d", len(record))
		}
		u := request.User{Name: record[1], UID: record[2]}
		if len(record) > 3 {
			u.Groups = strings.Split(record[3], ",")
		}
		add(n, record[0], u)
	}
}
