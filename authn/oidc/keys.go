package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/apikeel/kelson/internal/refresh"
)

// keySet are the signing keys of an issuer. They are fetched when a token is signed
// with an unknown key, and when they are old, so that a withdrawn key stops working. If
// they cannot be fetched, the known ones stay in use; who has a token of a known key never
// waits for a fetch.
type keySet struct {
	url   string
	get   func(ctx context.Context, url string) ([]byte, error)
	now   func() time.Time
	fetch *refresh.Shared

	mu   sync.Mutex // guards the fields below
	keys []jose.JSONWebKey
	old  time.Time // when keys are to be fetched again; zero before the first fetch
}

func newKeySet(p *provider, url string, get func(ctx context.Context, url string) ([]byte, error)) *keySet {
	k := &keySet{url: url, get: get, now: p.now}
	k.fetch = p.shared(k.read)
	return k
}

// VerifySignature returns the payload of a token if one of the keys has signed it.
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
	keys, old := k.current()
	if payload, ok := verify(jws, keys); ok {
		if old {
			k.fetch.Begin()
		}
		return payload, nil
	}
	err = k.fetch.Wait(ctx)
	keys, _ = k.current()
	if payload, ok := verify(jws, keys); ok {
		return payload, nil
	}
	if err != nil {
		return nil, fmt.Errorf("fetching keys %w", err)
	}
	return nil, errors.New("failed to verify id token signature")
}

// signatureCheck keeps the error of VerifySignature, which the library only tells as a text.
type signatureCheck struct {
	*keySet
	err error
}

// VerifySignature implements oidc.KeySet.
func (c *signatureCheck) VerifySignature(ctx context.Context, token string) (payload []byte, err error) {
	payload, c.err = c.keySet.VerifySignature(ctx, token)
	return payload, c.err
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
	return k.keys, !k.old.IsZero() && !k.now().Before(k.old)
}

// renew fetches keys that are old.
func (k *keySet) renew(ctx context.Context) error {
	if _, old := k.current(); !old {
		return nil
	}
	return k.fetch.Force(ctx)
}

// read fetches the keys.
func (k *keySet) read(ctx context.Context) error {
	body, err := k.get(ctx, k.url)
	if err != nil {
		return err
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(body, &set); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys, k.old = set.Keys, k.now().Add(keysTTL)
	return nil
}
