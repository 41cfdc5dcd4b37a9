package serviceaccount

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-jose/go-jose/v4"
	"k8s.io/client-go/util/keyutil"
)

// signatures are the algorithms that a token may be signed with. Each goes with
// one type of public key only, so that a key cannot be mistaken for a secret.
func signatures() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512, jose.PS256, jose.PS384, jose.PS512,
	}
}

// Keys are the public keys that tokens are verified with.
type Keys struct {
	all   []jose.JSONWebKey
	shown []jose.JSONWebKey // those that others should know
	byID  map[string][]jose.JSONWebKey
}

// NamedKey is a public key whose ID somebody else has chosen.
type NamedKey struct {
	ID  string
	Key any
	// Hidden: others need not know it.
	Hidden bool
}

// NewNamedKeys makes a set of public keys that have IDs.
func NewNamedKeys(keys []NamedKey) (*Keys, error) {
	k := &Keys{byID: map[string][]jose.JSONWebKey{}}
	for _, key := range keys {
		jwk, err := publicKey(key.Key)
		if err != nil {
			return nil, err
		}
		jwk.KeyID = key.ID
		k.all = append(k.all, jwk)
		k.byID[key.ID] = append(k.byID[key.ID], jwk)
		if !key.Hidden {
			k.shown = append(k.shown, jwk)
		}
	}
	return k, nil
}

// NewKeys makes a set of public keys. Of private ones it takes the public part.
func NewKeys(keys ...any) (*Keys, error) {
	k := &Keys{byID: map[string][]jose.JSONWebKey{}}
	for _, key := range keys {
		if private, ok := key.(crypto.Signer); ok {
			key = private.Public()
		}
		jwk, err := publicKey(key)
		if err != nil {
			return nil, err
		}
		if len(k.byID[jwk.KeyID]) == 0 {
			k.all = append(k.all, jwk)
			k.byID[jwk.KeyID] = append(k.byID[jwk.KeyID], jwk)
		}
	}
	k.shown = k.all
	return k, nil
}

// candidates returns the keys that may have signed a token.
func (k *Keys) candidates(id string) []jose.JSONWebKey {
	if id == "" {
		return k.all
	}
	return k.byID[id]
}

// ParsePublicKeys reads the keys of a PEM file: public keys, certificates, or
// private keys, of which the public part counts.
func ParsePublicKeys(data []byte) ([]any, error) { return keyutil.ParsePublicKeysPEM(data) }

// ParsePrivateKey reads the private key of a PEM file.
func ParsePrivateKey(data []byte) (crypto.Signer, error) {
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a private key of type %T cannot sign", key)
	}
	return signer, nil
}

// NewKey makes a signing key.
func NewKey() (crypto.Signer, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// OpenKey reads the signing key in a file, which it makes if there is none. Of
// two processes that make it at once, one wins and both use its key.
func OpenKey(path string) (crypto.Signer, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		data, err = createKey(path)
	}
	if err != nil {
		return nil, err
	}
	key, err := ParsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

func createKey(path string) ([]byte, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	// The file must appear whole: it is written beside and linked to its name,
	// which fails if somebody else was quicker.
	f, err := os.CreateTemp(filepath.Dir(path), ".key-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	err = pem.Encode(f, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return os.ReadFile(path)
}

// publicKey describes a public key as key sets do. The ID is made from the key,
// so that everybody who has the key agrees on it.
func publicKey(key any) (jose.JSONWebKey, error) {
	alg, err := algorithm(key)
	if err != nil {
		return jose.JSONWebKey{}, err
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return jose.JSONWebKey{}, err
	}
	sum := sha256.Sum256(der)
	jwk := jose.JSONWebKey{
		Key: key, KeyID: base64.RawURLEncoding.EncodeToString(sum[:]), Algorithm: string(alg), Use: "sig",
	}
	if !jwk.Valid() {
		return jwk, fmt.Errorf("the public key of type %T is not valid", key)
	}
	return jwk, nil
}

// algorithm returns the one that goes with a key.
func algorithm(key any) (jose.SignatureAlgorithm, error) {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256():
			return jose.ES256, nil
		case elliptic.P384():
			return jose.ES384, nil
		case elliptic.P521():
			return jose.ES512, nil
		}
		return "", errors.New("unknown private key curve, must be 256, 384, or 521")
	}
	return "", fmt.Errorf("unknown public key type %T, must be *rsa.PublicKey or *ecdsa.PublicKey", key)
}
