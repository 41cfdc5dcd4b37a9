package authn

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/request"
)

// hanging is a TLS server that answers nothing while a client waits. open counts its requests.
func hanging(t *testing.T) (server *httptest.Server, open *atomic.Int64) {
	t.Helper()
	open = new(atomic.Int64)
	server = httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		open.Add(1)
		defer open.Add(-1)
		_, _ = io.Copy(io.Discard, r.Body) // before that, the server does not notice that a client has gone
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	return server, open
}

// heap returns the bytes in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestAbandonedLookupsLeaveNothing: strangers who send large tokens and go away at once leave
// no lookup and no token in memory, with a provider and a webhook that do not answer.
func TestAbandonedLookupsLeaveNothing(t *testing.T) {
	provider, _ := hanging(t)
	config := func(c Config) Config {
		c.OIDC = OIDC{IssuerURL: provider.URL, ClientID: "kelson", CAFile: writeFile(t, "ca", certificatePEM(provider))}
		return c
	}
	hook, open := hanging(t)
	rev := &reviewer{Server: hook}
	for name, test := range map[string]struct {
		config Config
		size   int
	}{
		"provider":             {config(Config{}), maxToken - 1024},
		"webhook":              {Config{Webhook: Webhook{KubeconfigFile: rev.kubeconfig(t)}}, maxToken - 1024},
		"too large":            {config(Config{}), 1 << 20},
		"too large, a webhook": {Config{Webhook: Webhook{KubeconfigFile: rev.kubeconfig(t)}}, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, test.config)
			before := heap()
			padding := strings.Repeat("x", test.size*3/4-256)
			for i := range min(400, 32<<20/test.size) {
				payload := fmt.Appendf(nil, `{"iss":%q,"jti":"%d","x":"%s"}`, provider.URL, i, padding)
				token := "e30." + base64.RawURLEncoding.EncodeToString(payload) + ".x"
				ctx, leave := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					if _, ok, err := s.User(requestWith("Bearer " + token).WithContext(ctx)); ok || err == nil {
						t.Errorf("got %v, %v, want an error", ok, err)
					}
				}()
				leave()
				<-done
			}
			polltest.Until(t, "all lookups end", func() bool { return s.cache.fetching.Load() == 0 && open.Load() <= 1 })
			if grown := heap() - before; grown > 8<<20 {
				t.Errorf("%d MiB are in use that were not before, want less than 8", grown>>20)
			}
		})
	}
}

// TestLookupEndsWithItsLastWaiter, and who comes after that gets another.
func TestLookupEndsWithItsLastWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int64
		next := &counted{f: func(ctx context.Context, _ string, _ []string) (*Identity, error) {
			<-ctx.Done()
			ended.Add(1)
			return nil, ctx.Err()
		}}
		c := NewCache(next, CacheConfig{Failure: time.Hour, Errors: true})
		var leave [2]context.CancelFunc
		var wg sync.WaitGroup
		for i := range leave {
			var ctx context.Context
			ctx, leave[i] = context.WithCancel(t.Context())
			wg.Go(func() { _, _ = c.AuthenticateToken(ctx, "x", nil) })
		}
		synctest.Wait()
		leave[0]()
		synctest.Wait()
		if n := ended.Load(); n != 0 {
			t.Error("the lookup ended while somebody waits for it")
		}
		leave[1]()
		wg.Wait()
		synctest.Wait()
		if n := ended.Load(); n != 1 {
			t.Errorf("%d lookups ended when nobody waited any more, want 1", n)
		}
		wg.Go(func() { _, _ = c.AuthenticateToken(t.Context(), "x", nil) })
		synctest.Wait()
		if n := next.calls.Load(); n != 2 {
			t.Errorf("%d lookups, want another for who comes later", n)
		}
		wg.Wait() // lookupTimeout of the fake clock
	})
}

// TestStrangersDoNotKeepOthersOut: while as many strangers as may wait for a slow service, one
// more is told to try again, and the owner of a token that was valid is looked up.
func TestStrangersDoNotKeepOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := TokensFunc(func(ctx context.Context, token string, _ []string) (*Identity, error) {
			if token == "jane" {
				return &Identity{User: request.User{Name: "jane"}}, nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		s, err := Config{Tokens: slow}.New()
		if err != nil {
			t.Fatal(err)
		}
		ask := func(ctx context.Context, token string) error {
			_, _, err := s.User(requestWith("Bearer " + token).WithContext(ctx))
			return err
		}
		if err := ask(t.Context(), "jane"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // of the fake clock: the result is not cached any more
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range maxLookups {
			wg.Go(func() { _ = ask(ctx, fmt.Sprint("stranger", i)) })
		}
		synctest.Wait()
		if err := ask(t.Context(), "one more"); !errors.Is(err, request.ErrBusy) {
			t.Errorf("one more stranger: got %v, want %v", err, request.ErrBusy)
		}
		if _, err := s.ReviewToken(t.Context(), "one more", nil); err == nil || !strings.Contains(err.Error(), request.ErrBusy.Error()) {
			t.Errorf("a review of one more: got %v, want %v and not that the token is invalid", err, request.ErrBusy)
		}
		if err := ask(t.Context(), "jane"); err != nil {
			t.Errorf("who was known: got %v, want a user", err)
		}
		leave()
		wg.Wait()
		synctest.Wait()
		large := strings.Repeat("x", maxToken-8)
		ctx, leave = context.WithCancel(t.Context())
		for i := range maxLookupBytes / maxToken {
			wg.Go(func() { _ = ask(ctx, fmt.Sprint(large, i)) })
		}
		synctest.Wait()
		if err := ask(t.Context(), large); !errors.Is(err, request.ErrBusy) {
			t.Errorf("one more large token: got %v, want %v", err, request.ErrBusy)
		}
		leave()
		wg.Wait()
	})
}

// TestInvalidTokensGoFirst: tokens that are not valid, which anybody can send, do not push those
// of users out of the cache.
func TestInvalidTokensGoFirst(t *testing.T) {
	c := NewCache(nil, CacheConfig{Success: time.Hour, Failure: time.Hour})
	shard := &c.shards[0]
	c.store(shard, cacheKey{1}, cacheEntry{id: &Identity{}})
	for i := range 4 * cacheShardSize {
		c.store(shard, cacheKey{2, byte(i), byte(i >> 8)}, cacheEntry{})
	}
	if _, ok := shard.entries[cacheKey{1}]; !ok || len(shard.entries) > cacheShardSize {
		t.Errorf("in the cache: %v, with %d entries, want the user's among at most %d", ok, len(shard.entries), cacheShardSize)
	}
}
