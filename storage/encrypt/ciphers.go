package encrypt

import (
	"bytes"
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"golang.org/x/crypto/nacl/secretbox"
)

// This file holds the ciphers and their stored formats.

// transformer encrypts values for storage and decrypts them. The key that a value is
// stored under is authenticated data where the cipher has any, so that nobody can pass
// one secret off as another by copying its bytes in the store.
type transformer interface {
	// seal encrypts a value; it does not keep or change it.
	seal(ctx context.Context, value []byte, key string) ([]byte, error)
	// open decrypts a stored value. stale reports that seal would store the value with
	// another provider or key.
	open(ctx context.Context, stored []byte, key string) (value []byte, stale bool, err error)
}

var errShort = errors.New("the stored data was shorter than the required size")

// encrypted is the prefix of every stored value that is not plain.
const encrypted = "k8s:enc:"

// identity stores values as they are.
type identity struct{}

func (identity) seal(_ context.Context, value []byte, _ string) ([]byte, error) { return value, nil }

func (identity) open(_ context.Context, stored []byte, _ string) ([]byte, bool, error) {
	if bytes.HasPrefix(stored, []byte(encrypted)) {
		return nil, false, errors.New("identity transformer tried to read encrypted data")
	}
	return stored, false, nil
}

// cbc is AES in CBC mode: a random initialization vector, then the blocks with PKCS #7
// padding. It does not authenticate.
type cbc struct{ block cipher.Block }

func (t cbc) seal(_ context.Context, value []byte, _ string) ([]byte, error) {
	padding := aes.BlockSize - len(value)%aes.BlockSize
	out := make([]byte, aes.BlockSize+len(value)+padding)
	_, _ = rand.Read(out[:aes.BlockSize]) // never fails
	blocks := out[aes.BlockSize:]
	for i := copy(blocks, value); i < len(blocks); i++ {
		blocks[i] = byte(padding)
	}
	cipher.NewCBCEncrypter(t.block, out[:aes.BlockSize]).CryptBlocks(blocks, blocks)
	return out, nil
}

func (t cbc) open(_ context.Context, stored []byte, _ string) ([]byte, bool, error) {
	if len(stored) < aes.BlockSize {
		return nil, false, errShort
	}
	blocks := stored[aes.BlockSize:]
	if len(blocks)%aes.BlockSize != 0 {
		return nil, false, errors.New("the stored data is not a multiple of the block size")
	}
	if len(blocks) == 0 {
		return nil, false, errPadding
	}
	out := make([]byte, len(blocks))
	cipher.NewCBCDecrypter(t.block, stored[:aes.BlockSize]).CryptBlocks(out, blocks)
	last := out[len(out)-1]
	size := len(out) - int(last)
	if last == 0 || size < 0 {
		return nil, false, errPadding
	}
	for _, b := range out[size:] {
		if b != last {
			return nil, false, errors.New("invalid padding on input")
		}
	}
	return out[:size], false, nil
}

var errPadding = errors.New("invalid PKCS7 data (empty or not padded)")

// gcm is AES in Galois/Counter mode: a random nonce, then the sealed value.
type gcm struct{ cipher.AEAD }

func newGCM(block cipher.Block) (gcm, error) {
	aead, err := cipher.NewGCM(block)
	return gcm{aead}, err
}

func (t gcm) seal(_ context.Context, value []byte, key string) ([]byte, error) {
	return t.sealAfter(nil, value, key), nil
}

// sealAfter returns first followed by the nonce and the sealed value.
func (t gcm) sealAfter(first, value []byte, key string) []byte {
	begin, size := len(first), t.NonceSize()
	out := make([]byte, begin+size, begin+size+len(value)+t.Overhead())
	copy(out, first)
	_, _ = rand.Read(out[begin:]) // never fails
	return t.Seal(out, out[begin:], value, []byte(key))
}

func (t gcm) open(_ context.Context, stored []byte, key string) ([]byte, bool, error) {
	size := t.NonceSize()
	if len(stored) < size {
		return nil, false, errShort
	}
	value, err := t.Open(nil, stored[:size], stored[size:], []byte(key))
	return value, false, err
}

// seedSize is the size in bytes of a seed, of the random info that a key is derived
// with, and of the derived key.
const seedSize = 32

// maxSeed bounds the seed that a plugin decrypts, of which thousands are cached.
const maxSeed = 1 << 10

// derivedGCM is AES-GCM with a key for every value, derived with HKDF from a seed and from
// random bytes that are stored in front of the value. So a nonce is never used twice
// with a key, however many values there are.
type derivedGCM struct{ seed []byte }

func newDerivedGCM(seed []byte) (derivedGCM, error) {
	if len(seed) < seedSize || len(seed) > maxSeed {
		return derivedGCM{}, fmt.Errorf("invalid seed length %d used for key generation", len(seed))
	}
	return derivedGCM{seed}, nil
}

func (t derivedGCM) derive(info []byte) (gcm, error) {
	key, err := hkdf.Expand(sha256.New, t.seed, string(info), seedSize)
	if err != nil {
		return gcm{}, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return gcm{}, err
	}
	return newGCM(block)
}

func (t derivedGCM) seal(_ context.Context, value []byte, key string) ([]byte, error) {
	info := make([]byte, seedSize)
	_, _ = rand.Read(info) // never fails
	derived, err := t.derive(info)
	if err != nil {
		return nil, fmt.Errorf("failed to derive write key from KDF: %w", err)
	}
	return derived.sealAfter(info, value, key), nil
}

func (t derivedGCM) open(ctx context.Context, stored []byte, key string) ([]byte, bool, error) {
	if len(stored) < seedSize {
		return nil, false, errShort
	}
	derived, err := t.derive(stored[:seedSize])
	if err != nil {
		return nil, false, fmt.Errorf("failed to derive read key from KDF: %w", err)
	}
	return derived.open(ctx, stored[seedSize:], key)
}

// box is XSalsa20 and Poly1305 (secretbox): a random nonce, then the sealed value. The
// storage key is not authenticated.
type box struct{ secret [32]byte }

const boxNonce = 24

func (t *box) seal(_ context.Context, value []byte, _ string) ([]byte, error) {
	var nonce [boxNonce]byte
	_, _ = rand.Read(nonce[:]) // never fails
	out := make([]byte, boxNonce, boxNonce+len(value)+secretbox.Overhead)
	copy(out, nonce[:])
	return secretbox.Seal(out, value, &nonce, &t.secret), nil
}

func (t *box) open(_ context.Context, stored []byte, _ string) ([]byte, bool, error) {
	if len(stored) < boxNonce+secretbox.Overhead {
		return nil, false, errShort
	}
	value, ok := secretbox.Open(nil, stored[boxNonce:], (*[boxNonce]byte)(stored), &t.secret)
	if !ok {
		return nil, false, errors.New("output array was not large enough for encryption")
	}
	return value, false, nil
}

// prefixTransformers selects among transformers by the prefix of the stored value. The first one
// encrypts; a value of another one is stale.
type prefixTransformers struct {
	candidates []prefixed
	noMatch    error // returned if no prefix matches
	measure    *measuring
}

type prefixed struct {
	prefix string
	transformer
}

func (c *prefixTransformers) seal(ctx context.Context, value []byte, key string) ([]byte, error) {
	first, began := &c.candidates[0], time.Now()
	sealed, err := first.seal(ctx, value, key)
	c.measure.transformed(key, toStorage, first.prefix, began, err)
	if err != nil || first.prefix == "" {
		return sealed, err
	}
	out := make([]byte, 0, len(first.prefix)+len(sealed))
	return append(append(out, first.prefix...), sealed...), nil
}

func (c *prefixTransformers) open(ctx context.Context, stored []byte, key string) ([]byte, bool, error) {
	began := time.Now()
	var failed []error
	for i := range c.candidates {
		t := &c.candidates[i]
		rest, ok := bytes.CutPrefix(stored, []byte(t.prefix))
		if !ok {
			continue
		}
		value, stale, err := t.open(ctx, rest, key)
		if err != nil && t.prefix == "" {
			continue // identity refuses every encrypted value: not an error of its own
		}
		c.measure.transformed(key, fromStorage, cmp.Or(t.prefix, "identity"), began, err)
		if err == nil {
			return value, stale || i > 0, nil
		}
		// Another provider with the same prefix may have the right key.
		failed = append(failed, err)
	}
	if len(failed) > 0 {
		return nil, false, aggregate(failed)
	}
	c.measure.transformed(key, fromStorage, "unknown", began, c.noMatch)
	return nil, false, c.noMatch
}
