package authn

import (
	"context"
	"sync"

	"github.com/apikeel/kelson/request"
)

const (
	// maxLookups is the number of tokens that another service is asked about at a time, and
	// maxLookupBytes their size in bytes together.
	maxLookups     = 128
	maxLookupBytes = 4 << 20
)

// knownToken is the key of contexts of lookups of tokens that were valid a short time ago.
type knownToken struct{}

// gate bounds how many tokens a service, which may be slow, is asked about. Tokens that were
// valid when they were last looked up have bounds of their own: strangers cannot keep
// their owners out. Beyond a bound the answer is request.ErrBusy at once, since who waited
// would hold what the gate is to save.
type gate struct {
	Tokens
	strangers, known lane
}

// lane counts lookups.
type lane struct {
	mu           sync.Mutex // guards the fields below
	count, bytes int
}

// AuthenticateToken implements Tokens.
func (g *gate) AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, error) {
	l := &g.strangers
	if ctx.Value(knownToken{}) != nil {
		l = &g.known
	}
	if !l.enter(len(token)) {
		return nil, request.ErrBusy
	}
	defer l.leave(len(token))
	return g.Tokens.AuthenticateToken(ctx, token, audiences)
}

// enter reports whether a token of a size may be looked up; leave must follow then.
func (l *lane) enter(size int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count >= maxLookups || l.bytes+size > maxLookupBytes {
		return false
	}
	l.count++
	l.bytes += size
	return true
}

func (l *lane) leave(size int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count--
	l.bytes -= size
}
