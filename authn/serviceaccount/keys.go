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

// signatures are the accepted signature algorithms. All of them are asymmetric, so a
// public key can never be used as an HMAC secret.
func signatures() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512, jose.PS256, jose.PS384, jose.PS512,
	}
}

// Keys are the public keys that verify tokens.
type Keys struct {
	all       []jose.JSONWebKey
	published []jose.JSONWebKey // published in the JWKS document
	byID      map[string][]jose.JSONWebKey
}

// NamedKey is a public key with a given ID.
type NamedKey struct {
	ID  string
	Key any
	// Hidden keys are not published.
	Hidden bool
}

// NewNamedKeys returns a set of public keys with given IDs.
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
			k.published = append(k.published, jwk)
		}
	}
	return k, nil
}

// NewKeys returns a set of public keys; of private keys it uses the public part.
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
	k.published = k.all
	return k, nil
}

// candidates returns the keys that may have signed a token with this key ID.
func (k *Keys) candidates(id string) []jose.JSONWebKey {
	if id == "" {
		return k.all
	}
	return k.byID[id]
}

// ParsePublicKeys parses a PEM file with public keys, certificates, or private keys, of
// which the public part is used: also of an ECDSA key in PKCS #8, as NewKey's are kept,
// which kube-apiserver does not take here.
func ParsePublicKeys(data []byte) ([]any, error) {
	keys, err := keyutil.ParsePublicKeysPEM(data)
	if err == nil {
		return keys, nil
	}
	if private, privateErr := ParsePrivateKey(data); privateErr == nil {
		return []any{private.Public()}, nil
	}
	return nil, err
}

// ParsePrivateKey parses the private key in a PEM file.
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

// NewKey generates a signing key.
func NewKey() (crypto.Signer, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// OpenKey reads the signing key in a file, which it creates if it does not exist. If
// two processes create it at once, both use the key of the first.
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
	// The file must appear whole: it is written under another name and linked, which
	// fails if another process was faster.
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

// publicKey returns the JWK of a public key. The ID is derived from the key, so that
// all servers agree on it.
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

// algorithm returns the signature algorithm for a key.
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
