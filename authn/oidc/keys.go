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

// keySet are the keys of an issuer. They are fetched when a token is signed by
// one that is not known, and when they are old, so that a key that the issuer has
// withdrawn ends. While they cannot be fetched, those that are known go on.
type keySet struct {
	url string
	get func(ctx context.Context, url string) ([]byte, error)
	now func() time.Time

	fetching sync.Mutex // held by the one who fetches
	mu       sync.Mutex // guards the rest
	keys     []jose.JSONWebKey
	until    time.Time // when keys are old
	// Fetches are counted, so that who waits for one uses it only if it began
	// after the wait did.
	begun, done uint64
	failed      error // of the last one
}

// VerifySignature implements oidc.KeySet.
func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	var algs []jose.SignatureAlgorithm
	for _, alg := range AllAlgorithms() { // those that are allowed are checked before
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

// current returns the keys that are known, and whether they are old.
func (k *keySet) current() (keys []jose.JSONWebKey, old bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys, !k.now().Before(k.until)
}

// fetch returns keys that were asked for after the call. Callers that come at
// once share a fetch.
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

	// It is for all callers: it must not depend on one of them.
	body, err := k.get(context.WithoutCancel(ctx), k.url)
	var set jose.JSONWebKeySet
	if err == nil {
		err = json.Unmarshal(body, &set)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.done, k.failed = k.begun, err
	if err == nil {
		k.keys, k.until = set.Keys, k.now().Add(keysLast)
	} else {
		k.until = k.now().Add(retryAfter)
	}
	return k.result()
}

// result returns what there is after a fetch.
func (k *keySet) result() ([]jose.JSONWebKey, error) {
	if len(k.keys) == 0 {
		return nil, k.failed
	}
	return k.keys, nil
}
