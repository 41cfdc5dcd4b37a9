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

// transformer turns values into what is stored, and back. The key is what the
// value is stored under: ciphers that authenticate bind the value to it, so that
// nobody can pass one secret off as another by copying bytes.
type transformer interface {
	// seal does not keep or change the value.
	seal(ctx context.Context, value []byte, key string) ([]byte, error)
	// open also tells that the value is stale: a write would store it otherwise.
	open(ctx context.Context, stored []byte, key string) (value []byte, stale bool, err error)
}

var errShort = errors.New("the stored data was shorter than the required size")

// encrypted is how everything begins that is not plain.
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

// cbc is AES in CBC mode: a random vector, then the blocks, padded as PKCS #7
// says. It does not authenticate.
type cbc struct{ block cipher.Block }

func (t cbc) seal(_ context.Context, value []byte, _ string) ([]byte, error) {
	padding := aes.BlockSize - len(value)%aes.BlockSize
	out := make([]byte, aes.BlockSize+len(value)+padding)
	_, _ = rand.Read(out[:aes.BlockSize]) // it never fails
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

// gcm is AES in Galois/Counter mode: a random nonce, then what was sealed.
type gcm struct{ cipher.AEAD }

func newGCM(block cipher.Block) (gcm, error) {
	aead, err := cipher.NewGCM(block)
	return gcm{aead}, err
}

func (t gcm) seal(_ context.Context, value []byte, key string) ([]byte, error) {
	return t.sealAfter(nil, value, key), nil
}

// sealAfter seals behind some bytes that come first.
func (t gcm) sealAfter(first, value []byte, key string) []byte {
	begin, size := len(first), t.NonceSize()
	out := make([]byte, begin+size, begin+size+len(value)+t.Overhead())
	copy(out, first)
	_, _ = rand.Read(out[begin:]) // it never fails
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

// seedSize is the size of a seed, of what makes a key of it, and of that key.
const seedSize = 32

// seeded is AES-GCM with a key for every value, derived from a seed and random
// bytes that come first in what is stored. So no nonce is used twice with a key,
// however many values there are.
type seeded struct{ seed []byte }

func newSeeded(seed []byte) (seeded, error) {
	if len(seed) < seedSize {
		return seeded{}, fmt.Errorf("invalid seed length %d used for key generation", len(seed))
	}
	return seeded{seed}, nil
}

func (t seeded) derive(info []byte) (gcm, error) {
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

func (t seeded) seal(_ context.Context, value []byte, key string) ([]byte, error) {
	info := make([]byte, seedSize)
	_, _ = rand.Read(info) // it never fails
	derived, err := t.derive(info)
	if err != nil {
		return nil, fmt.Errorf("failed to derive write key from KDF: %w", err)
	}
	return derived.sealAfter(info, value, key), nil
}

func (t seeded) open(ctx context.Context, stored []byte, key string) ([]byte, bool, error) {
	if len(stored) < seedSize {
		return nil, false, errShort
	}
	derived, err := t.derive(stored[:seedSize])
	if err != nil {
		return nil, false, fmt.Errorf("failed to derive read key from KDF: %w", err)
	}
	return derived.open(ctx, stored[seedSize:], key)
}

// box is XSalsa20 and Poly1305: a random nonce, then what was sealed. The key
// that a value is stored under is not authenticated.
type box struct{ secret [32]byte }

const boxNonce = 24

func (t *box) seal(_ context.Context, value []byte, _ string) ([]byte, error) {
	var nonce [boxNonce]byte
	_, _ = rand.Read(nonce[:]) // it never fails
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

// choice is transformers that are told apart by how what they store begins. The
// first one writes; what another has written is stale.
type choice struct {
	from    []prefixed
	none    error // when nobody can read a value
	measure *measuring
}

type prefixed struct {
	prefix string
	transformer
}

func (c *choice) seal(ctx context.Context, value []byte, key string) ([]byte, error) {
	first, began := &c.from[0], time.Now()
	sealed, err := first.seal(ctx, value, key)
	c.measure.transformed(key, toStorage, first.prefix, began, err)
	if err != nil || first.prefix == "" {
		return sealed, err
	}
	out := make([]byte, 0, len(first.prefix)+len(sealed))
	return append(append(out, first.prefix...), sealed...), nil
}

func (c *choice) open(ctx context.Context, stored []byte, key string) ([]byte, bool, error) {
	began := time.Now()
	var failed []error
	for i := range c.from {
		t := &c.from[i]
		rest, ok := bytes.CutPrefix(stored, []byte(t.prefix))
		if !ok {
			continue
		}
		value, stale, err := t.open(ctx, rest, key)
		if err != nil && t.prefix == "" {
			continue // that encrypted values are not plain is no news
		}
		c.measure.transformed(key, fromStorage, cmp.Or(t.prefix, "identity"), began, err)
		if err == nil {
			return value, stale || i > 0, nil
		}
		// Another provider may have the same prefix and the right key.
		failed = append(failed, err)
	}
	if len(failed) > 0 {
		return nil, false, aggregate(failed)
	}
	c.measure.transformed(key, fromStorage, "unknown", began, c.none)
	return nil, false, c.none
}
