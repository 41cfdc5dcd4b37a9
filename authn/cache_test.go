package authn

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apikeel/kelson/internal/requesttest"
	"github.com/apikeel/kelson/request"
)

// counted answers for tokens and counts how often it is asked.
type counted struct {
	calls atomic.Int64
	f     func(ctx context.Context, token string, audiences []string) (*Identity, error)
}

func (c *counted) AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, error) {
	c.calls.Add(1)
	return c.f(ctx, token, audiences)
}

func TestCacheLifetimes(t *testing.T) {
	now := time.Now()
	jane := &Identity{User: request.User{Name: "jane"}}
	short := &Identity{User: request.User{Name: "short"}, Expires: now.Add(3 * time.Second)}
	failed := errors.New("failed")
	next := &counted{f: func(_ context.Context, token string, _ []string) (*Identity, error) {
		switch token {
		case "jane":
			return jane, nil
		case "short":
			return short, nil
		case "error":
			return nil, failed
		}
		return nil, nil
	}}
	tests := []struct {
		token       string
		errors      bool
		after       time.Duration
		askedAgain  bool
		wantID      *Identity
		wantErr     error
		wantFailure time.Duration
	}{
		{token: "jane", after: 9 * time.Second, wantID: jane},
		{token: "jane", after: 10 * time.Second, askedAgain: true, wantID: jane},
		{token: "short", after: 2 * time.Second, wantID: short},
		{token: "short", after: 3 * time.Second, askedAgain: true, wantID: short},
		{token: "unknown", after: 0, askedAgain: true},
		{token: "unknown", after: time.Second, wantFailure: 2 * time.Second},
		{token: "unknown", after: 2 * time.Second, wantFailure: 2 * time.Second, askedAgain: true},
		{token: "error", after: 0, wantErr: failed, wantFailure: time.Second, askedAgain: true},
		{token: "error", errors: true, after: 0, wantErr: failed, wantFailure: time.Second},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%s after %v", test.token, test.after), func(t *testing.T) {
			clock := now
			c := NewCache(next, CacheConfig{Success: 10 * time.Second, Failure: test.wantFailure, Errors: test.errors, Now: func() time.Time { return clock }})
			next.calls.Store(0)
			for i := range 2 {
				id, err := c.AuthenticateToken(t.Context(), test.token, nil)
				if id != test.wantID || err != test.wantErr {
					t.Fatalf("time %d: got %v, %v", i, id, err)
				}
				clock = now.Add(test.after)
			}
			if again := next.calls.Load() == 2; again != test.askedAgain {
				t.Errorf("asked %d times", next.calls.Load())
			}
		})
	}
}

// TestCacheKeys makes sure that what is remembered for one is not for another.
func TestCacheKeys(t *testing.T) {
	next := &counted{f: func(_ context.Context, token string, audiences []string) (*Identity, error) {
		return &Identity{User: request.User{Name: fmt.Sprintf("%s %d %q", token, len(audiences), audiences)}}, nil
	}}
	c := NewCache(next, CacheConfig{Success: time.Hour})
	asks := []struct {
		token     string
		audiences []string
	}{{"a", nil}, {"a", []string{}}, {"ab", nil}, {"a", []string{"b"}}, {"a", []string{"b", "c"}}, {"a", []string{"bc"}}, {"a", []string{""}}, {"a\x01b", nil}}
	for range 2 {
		for _, ask := range asks {
			id, err := c.AuthenticateToken(t.Context(), ask.token, ask.audiences)
			if want := fmt.Sprintf("%s %d %q", ask.token, len(ask.audiences), ask.audiences); err != nil || id.User.Name != want {
				t.Errorf("got %q, want %q, error %v", id.User.Name, want, err)
			}
		}
	}
	if int(next.calls.Load()) != len(asks) {
		t.Errorf("asked %d times for %d", next.calls.Load(), len(asks))
	}
}

func TestCacheSharesLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, finish := make(chan struct{}, 8), make(chan struct{})
		next := &counted{f: func(ctx context.Context, _ string, _ []string) (*Identity, error) {
			begun <- struct{}{}
			<-finish
			return &Identity{User: request.User{Name: "jane"}}, ctx.Err()
		}}
		c := NewCache(next, CacheConfig{Success: time.Hour})
		// The first, who begins the lookup, goes away: the others must not suffer.
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.AuthenticateToken(ctx, "x", nil); !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		})
		<-begun
		var ended requesttest.EndedArrivals
		for range 4 {
			wg.Go(func() {
				if id, err := c.AuthenticateToken(request.With(t.Context(), &request.Request{Arrival: &ended}), "x", nil); err != nil || id.User.Name != "jane" {
					t.Errorf("got %v, error %v", id, err)
				}
			})
		}
		synctest.Wait()
		if ended.Load() != 4 {
			t.Errorf("%d of 4 requests that wait for the lookup of another say so", ended.Load())
		}
		leave()
		synctest.Wait()
		// Who asks after a purge does not get what was looked up before it, and
		// that is not remembered.
		c.Purge()
		wg.Go(func() { _, _ = c.AuthenticateToken(t.Context(), "x", nil) })
		<-begun
		close(finish)
		wg.Wait()
		if next.calls.Load() != 2 {
			t.Errorf("asked %d times", next.calls.Load())
		}
	})
}

func TestCacheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCache(TokensFunc(func(ctx context.Context, _ string, _ []string) (*Identity, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}), CacheConfig{Success: time.Hour})
		if _, err := c.AuthenticateToken(t.Context(), "x", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

func TestCachePanic(t *testing.T) {
	var l logs
	c := NewCache(TokensFunc(func(context.Context, string, []string) (*Identity, error) { panic("oops") }), CacheConfig{Log: l.logger()})
	if _, err := c.AuthenticateToken(t.Context(), "x", nil); err == nil || err.Error() != "authentication failed unexpectedly" {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(l.String(), "oops") {
		t.Errorf("log %s", l.String())
	}
}

func TestCacheBound(t *testing.T) {
	now := time.Now()
	c := NewCache(TokensFunc(func(context.Context, string, []string) (*Identity, error) { return &Identity{}, nil }),
		CacheConfig{Success: time.Hour, Now: func() time.Time { return now }})
	shard := &c.shards[0]
	for i := range 4 * cacheShardSize {
		if i == 3*cacheShardSize {
			now = now.Add(2 * time.Hour) // all have ended
		}
		c.store(shard, cacheKey{0, byte(i), byte(i >> 8)}, cacheEntry{id: &Identity{}})
		if len(shard.entries) > cacheShardSize {
			t.Fatalf("%d entries", len(shard.entries))
		}
	}
	c.Purge()
	if len(shard.entries) != 0 {
		t.Errorf("%d entries after a purge", len(shard.entries))
	}
}

func TestUnion(t *testing.T) {
	jane := &Identity{User: request.User{Name: "jane"}}
	none := TokensFunc(func(context.Context, string, []string) (*Identity, error) { return nil, nil })
	good := TokensFunc(func(context.Context, string, []string) (*Identity, error) { return jane, nil })
	bad := func(text string) Tokens {
		return TokensFunc(func(context.Context, string, []string) (*Identity, error) { return nil, errors.New(text) })
	}
	for _, test := range []struct {
		name string
		u    TokensUnion
		id   *Identity
		err  string
	}{
		{"empty", nil, nil, ""},
		{"nobody", TokensUnion{none, none}, nil, ""},
		{"second", TokensUnion{none, good, bad("x")}, jane, ""},
		{"after an error", TokensUnion{bad("x"), good}, jane, ""},
		{"error", TokensUnion{bad("x"), none}, nil, "x"},
		{"errors", TokensUnion{bad("x"), bad("y")}, nil, "[x, y]"},
		{"same errors", TokensUnion{bad("x"), bad("x")}, nil, "x"},
	} {
		id, err := test.u.AuthenticateToken(t.Context(), "t", nil)
		if id != test.id || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
			t.Errorf("%s: got %v, %v", test.name, id, err)
		}
	}
}

func TestForServer(t *testing.T) {
	jane := &Identity{User: request.User{Name: "jane"}}
	f := serverAudience{TokensFunc(func(context.Context, string, []string) (*Identity, error) { return jane, nil }), []string{"a", "b"}}
	for _, test := range []struct {
		asked, want []string
		known       bool
	}{
		{nil, nil, true}, {[]string{"b"}, []string{"b"}, true}, {[]string{"b", "a"}, []string{"a", "b"}, true}, {[]string{"c"}, nil, false}, {[]string{}, nil, false},
	} {
		id, err := f.AuthenticateToken(t.Context(), "t", test.asked)
		if err != nil || (id != nil) != test.known || id != nil && !reflect.DeepEqual(id.Audiences, test.want) {
			t.Errorf("%v: got %v, error %v", test.asked, id, err)
		}
	}
}

func BenchmarkCacheHit(b *testing.B) {
	c := NewCache(TokensFunc(func(context.Context, string, []string) (*Identity, error) { return &Identity{}, nil }), CacheConfig{Success: time.Hour})
	token := strings.Repeat("x", 900)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.AuthenticateToken(b.Context(), token, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}
