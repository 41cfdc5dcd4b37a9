package authn

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
)

const (
	cacheShards = 32
	// cacheShardSize is the largest number of entries of a shard. All shards together
	// hold as many tokens as a large cluster has clients.
	cacheShardSize = 1024
	// lookupTimeout is the timeout of a lookup, which several callers may share.
	lookupTimeout = 30 * time.Second
	// maxToken is the size of the largest token in bytes that is looked up.
	maxToken = 64 << 10
)

// CacheConfig configures a Cache. A zero duration caches nothing.
type CacheConfig struct {
	// Success is how long the identity of a token is cached, but never beyond its
	// expiry.
	Success time.Duration
	// Failure is how long it is cached that a token is not valid.
	Failure time.Duration
	// Errors caches errors like failures. It should be off where an error may come from
	// an outage.
	Errors bool
	// Log gets panics of lookups.
	Log *slog.Logger
	// Now returns the time; nil is time.Now.
	Now func() time.Time
	// Metrics counts lookups; nil does not.
	Metrics measure.Sink
}

// Cache caches the results of token authentication. Its keys are keyed hashes of
// tokens: the tokens are not in memory, and nobody who chooses tokens can make two of
// them collide. Concurrent calls with the same token share a lookup, which ends with the
// last of them.
type Cache struct {
	CacheConfig
	next   Tokens
	hashes sync.Pool
	shards [cacheShards]cacheShard
	seen   cacheSeries
	// Number of lookups in flight, and of callers that wait for one.
	fetching, waiting atomic.Int64
}

// cacheSeries are the metrics of a cache, for hits and misses.
type cacheSeries struct {
	hits, misses            measure.Series
	hitSeconds, missSeconds measure.Series
	fetched, failed         measure.Series
	activeFetches, blocked  measure.Series
}

type cacheKey = [sha256.Size]byte

// cacheShard is a part of a Cache. Its maps are made when they are needed.
type cacheShard struct {
	mu      sync.Mutex
	entries map[cacheKey]cacheEntry
	calls   map[cacheKey]*cacheCall
	// purged is incremented by Purge, so that a lookup that began before it is not
	// cached after it.
	purged uint64
}

type cacheEntry struct {
	id    *Identity
	err   error
	until time.Time
}

type cacheCall struct {
	done    chan struct{} // closed when result is set
	result  cacheEntry
	waiting int                // callers; guarded by the mutex of the shard
	cancel  context.CancelFunc // ends the lookup
}

// NewCache returns a cache in front of next.
func NewCache(next Tokens, cfg CacheConfig) *Cache {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Cache{CacheConfig: cfg, next: next}
	series := func(metric, status string) measure.Series { return measure.SeriesOf(cfg.Metrics, metric, status) }
	c.seen = cacheSeries{
		series(measure.TokenCacheRequests, "hit"), series(measure.TokenCacheRequests, "miss"),
		series(measure.TokenCacheDuration, "hit"), series(measure.TokenCacheDuration, "miss"),
		series(measure.TokenCacheFetches, "ok"), series(measure.TokenCacheFetches, "error"),
		series(measure.TokenCacheActive, "in_flight"), series(measure.TokenCacheActive, "blocked"),
	}
	var secret [sha256.BlockSize]byte
	_, _ = rand.Read(secret[:]) // never fails
	seeded := sha256.New()
	seeded.Write(secret[:])
	state, err := seeded.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		panic(fmt.Sprintf("sha256 cannot save its state: %v", err))
	}
	c.hashes.New = func() any { return &keyHash{Hash: sha256.New(), seeded: state} }
	return c
}

// keyHash computes keys. Its initial state includes a secret.
type keyHash struct {
	hash.Hash
	seeded []byte
	buf    []byte
	sum    cacheKey
}

// AuthenticateToken implements Tokens.
func (c *Cache) AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, error) {
	if len(token) > maxToken {
		return nil, errInvalidToken
	}
	key := c.key(token, audiences)
	shard := &c.shards[key[0]%cacheShards]
	shard.mu.Lock()
	known := false
	if e, ok := shard.entries[key]; ok {
		shard.mu.Unlock()
		fresh, valid := c.Now().Before(e.until), e.id == nil || e.id.Valid == nil || e.id.Valid(ctx)
		if fresh && valid {
			c.seen.hits.Observe(1)
			c.seen.hitSeconds.Observe(0) // far less than a millisecond
			return e.id, e.err
		}
		shard.mu.Lock()
		// An entry that is only old says that the token was good, until the next result.
		if known = e.id != nil && valid; !known {
			delete(shard.entries, key)
		}
	}
	call := shard.calls[key]
	shares := call != nil
	if !shares {
		lookup := context.WithoutCancel(ctx)
		if known {
			lookup = context.WithValue(lookup, knownToken{}, true)
		}
		lookup, cancel := context.WithTimeout(lookup, lookupTimeout)
		call = &cacheCall{done: make(chan struct{}), cancel: cancel}
		if shard.calls == nil {
			shard.calls = map[cacheKey]*cacheCall{}
		}
		shard.calls[key] = call
		go c.lookUp(lookup, shard, key, call, token, audiences, shard.purged)
	}
	call.waiting++
	shard.mu.Unlock()
	if shares {
		request.EndArrival(ctx)
	}
	began := time.Now()
	c.seen.blocked.Observe(float64(c.waiting.Add(1)))
	defer func() {
		c.seen.blocked.Observe(float64(c.waiting.Add(-1)))
		c.seen.misses.Observe(1)
		c.seen.missSeconds.Observe(time.Since(began).Seconds())
	}()
	select {
	case <-call.done:
		return call.result.id, call.result.err
	case <-ctx.Done():
		shard.leave(key, call)
		return nil, ctx.Err()
	}
}

// leave gives a call up for one caller. The last one ends it, and who comes after that
// begins another.
func (s *cacheShard) leave(key cacheKey, call *cacheCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if call.waiting--; call.waiting > 0 {
		return
	}
	call.cancel()
	if s.calls[key] == call {
		delete(s.calls, key)
	}
}

// Purge removes all entries.
func (c *Cache) Purge() {
	for i := range c.shards {
		shard := &c.shards[i]
		shard.mu.Lock()
		clear(shard.entries)
		// A later call must not join a lookup that has begun already.
		clear(shard.calls)
		shard.purged++
		shard.mu.Unlock()
	}
}

// lookUp authenticates a token for all callers that wait for it. It must end soon after its
// context.
func (c *Cache) lookUp(ctx context.Context, shard *cacheShard, key cacheKey, call *cacheCall, token string, audiences []string, purged uint64) {
	defer call.cancel()
	c.seen.activeFetches.Observe(float64(c.fetching.Add(1)))
	defer func() {
		c.seen.activeFetches.Observe(float64(c.fetching.Add(-1)))
		if cause := recover(); cause != nil {
			c.Log.Error("authentication of a token caused a panic", "panic", cause, "stack", string(debug.Stack()))
			call.result = cacheEntry{err: errors.New("authentication failed unexpectedly")}
		}
		if call.result.err != nil {
			c.seen.failed.Observe(1)
		} else {
			c.seen.fetched.Observe(1)
		}
		shard.mu.Lock()
		if shard.calls[key] == call {
			delete(shard.calls, key)
		}
		if shard.purged == purged {
			c.store(shard, key, call.result)
		}
		shard.mu.Unlock()
		close(call.done)
	}()
	call.result.id, call.result.err = c.next.AuthenticateToken(ctx, token, audiences)
}

// store caches a result for as long as allowed. The shard is locked.
func (c *Cache) store(shard *cacheShard, key cacheKey, e cacheEntry) {
	ttl := c.Failure
	switch {
	case errors.Is(e.err, request.ErrBusy) || errors.Is(e.err, context.Canceled) || errors.Is(e.err, context.DeadlineExceeded):
		return // nothing is known about the token
	case e.err != nil && !c.Errors:
		return
	case e.err == nil && e.id != nil:
		ttl = c.Success
	}
	if ttl <= 0 {
		if e.err == nil {
			delete(shard.entries, key) // an old one says no longer that it was good
		}
		return
	}
	now := c.Now()
	e.until = now.Add(ttl)
	if e.id != nil && !e.id.Expires.IsZero() && e.id.Expires.Before(e.until) {
		e.until = e.id.Expires
	}
	if len(shard.entries) >= cacheShardSize {
		shard.shrink(now)
	}
	if shard.entries == nil {
		shard.entries = map[cacheKey]cacheEntry{}
	}
	shard.entries[key] = e
}

// shrink removes expired entries, or, if too few have expired, some entries: first those of
// tokens that are not valid, which anybody can send.
func (s *cacheShard) shrink(now time.Time) {
	for _, goes := range []func(e cacheEntry) bool{
		func(e cacheEntry) bool { return !now.Before(e.until) },
		func(e cacheEntry) bool { return e.id == nil },
		func(cacheEntry) bool { return true },
	} {
		for key, e := range s.entries {
			if len(s.entries) <= cacheShardSize*3/4 {
				return
			}
			if goes(e) {
				delete(s.entries, key)
			}
		}
	}
}

// key hashes a token and audiences. Lengths are included, so that different lists never
// give the same bytes.
func (c *Cache) key(token string, audiences []string) cacheKey {
	h := c.hashes.Get().(*keyHash)
	defer c.hashes.Put(h)
	if err := h.Hash.(encoding.BinaryUnmarshaler).UnmarshalBinary(h.seeded); err != nil {
		panic(fmt.Sprintf("sha256 cannot restore its state: %v", err))
	}
	h.buf = binary.AppendUvarint(h.buf[:0], uint64(len(token)))
	h.buf = append(h.buf, token...)
	for _, a := range audiences {
		h.buf = binary.AppendUvarint(h.buf, uint64(len(a)))
		h.buf = append(h.buf, a...)
	}
	if audiences != nil {
		// nil audiences (those of the server) differ from an empty list.
		h.buf = append(h.buf, 0)
	}
	h.Write(h.buf)
	h.Sum(h.sum[:0])
	clear(h.buf) // tokens should not stay in memory
	return h.sum
}
