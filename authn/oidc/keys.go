package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// keySet are the signing keys of an issuer. They are fetched when a token is signed
// with an unknown key, and when they are old, so that a withdrawn key stops working. If
// they cannot be fetched, the known ones stay in use.
type keySet struct {
	url string
	get func(ctx context.Context, url string) ([]byte, error)
	now func() time.Time

	fetching sync.Mutex // held during a fetch
	mu       sync.Mutex // guards the fields below
	keys     []jose.JSONWebKey
	until    time.Time // when keys are old
	// Fetches are counted, so that a caller uses the result of a fetch only if it began
	// after the call.
	begun, done uint64
	failed      error // error of the last fetch
}

// VerifySignature implements oidc.KeySet.
func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	var algs []jose.SignatureAlgorithm
	for _, alg := range AllAlgorithms() { // the allowed ones were checked before
		algs = append(algs, jose.SignatureAlgorithm(alg))
	}
	jws, err := jose.ParseSigned(token, algs)
	if err != nil {
		return nil, fmt.Errorf("oidc: malformed jwt: %w", err)
	}
	if len(jws.Signatures) != 1 {
		return nil, errors.New("oidc: a token must have one signature")
	}
	if keys, old := k.current(); !old {
		if payload, ok := verify(jws, keys); ok {
			return payload, nil
		}
	}
	keys, err := k.fetch(ctx)
	if err != nil {
		return nil, fmt.Errorf("fetching keys %w", err)
	}
	if payload, ok := verify(jws, keys); ok {
		return payload, nil
	}
	return nil, errors.New("failed to verify id token signature")
}

func verify(jws *jose.JSONWebSignature, keys []jose.JSONWebKey) ([]byte, bool) {
	id := jws.Signatures[0].Header.KeyID
	for i := range keys {
		if id == "" || keys[i].KeyID == id {
			if payload, err := jws.Verify(&keys[i]); err == nil {
				return payload, true
			}
		}
	}
	return nil, false
}

// current returns the known keys, and whether they are old.
func (k *keySet) current() (keys []jose.JSONWebKey, old bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys, !k.now().Before(k.until)
}

// fetch returns keys that were requested after the call. Concurrent callers share a
// fetch.
func (k *keySet) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	k.mu.Lock()
	arrived := k.begun
	k.mu.Unlock()
	k.fetching.Lock()
	defer k.fetching.Unlock()
	k.mu.Lock()
	if k.done > arrived {
		defer k.mu.Unlock()
		return k.result()
	}
	k.begun++
	k.mu.Unlock()

	// The fetch is shared: it must not end with the context of one caller.
	body, err := k.get(context.WithoutCancel(ctx), k.url)
	var set jose.JSONWebKeySet
	if err == nil {
		err = json.Unmarshal(body, &set)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.done, k.failed = k.begun, err
	if err == nil {
		k.keys, k.until = set.Keys, k.now().Add(keysTTL)
	} else {
		k.until = k.now().Add(RetryAfter)
	}
	return k.result()
}

// result returns the result of the last fetch. The caller holds mu.
func (k *keySet) result() ([]jose.JSONWebKey, error) {
	if len(k.keys) == 0 {
		return nil, k.failed
	}
	return k.keys, nil
}
