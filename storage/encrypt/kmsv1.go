package encrypt

//lint:file-ignore SA1019 plugins of this protocol are in use, though it is deprecated

import (
	"context"
	"crypto/aes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v1beta1"
	"k8s.io/utils/lru"

	"github.com/apikeel/kelson/metrics/measure"
)

// This file is the client of KMS v1 plugins, which are deprecated: every value has a key of
// its own, and every write calls the plugin to encrypt it.

// kmsV1Version is the version of the protocol of KMS v1 plugins.
const kmsV1Version = "v1beta1"

// pluginV1 is a KMS v1 plugin on a Unix socket. A stored value is the length of the
// encrypted key in two bytes, the encrypted key, and the value encrypted with AES-GCM.
type pluginV1 struct {
	name    string
	conn    *grpc.ClientConn
	service kmsapi.KeyManagementServiceClient
	timeout time.Duration
	measure *measuring
	now     func() time.Time

	keys     *lru.Cache // of transformers by encrypted key; nil without a cache
	maxCache int

	versionMu sync.Mutex
	supported bool // the plugin has said that it supports kmsV1Version

	mu         sync.Mutex // guards the fields below, held during a health check
	checkedAt  time.Time
	validFor   time.Duration
	lastResult error
}

// dialV1 returns the client of a plugin. The plugin need not be running yet.
func dialV1(c *kmsConfig, measure *measuring) (*pluginV1, error) {
	conn, err := connect(c)
	if err != nil {
		return nil, err
	}
	p := &pluginV1{
		name: c.Name, conn: conn, service: kmsapi.NewKeyManagementServiceClient(conn), timeout: c.Timeout.Duration,
		measure: measure, now: time.Now, maxCache: int(*c.CacheSize),
	}
	if p.maxCache > 0 {
		p.keys = lru.New(p.maxCache)
	}
	return p, nil
}

func (p *pluginV1) close() { _ = p.conn.Close() }

// check returns the health of the plugin, from a recent check or a new one: whether it can
// encrypt and decrypt.
func (p *pluginV1) check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.checkedAt.IsZero() && p.now().Sub(p.checkedAt) < p.validFor {
		return p.lastResult
	}
	section := "encrypt"
	sealed, err := p.encrypt(ctx, []byte("ping"))
	if err == nil {
		section = "decrypt"
		var ping []byte
		if ping, err = p.decrypt(ctx, sealed); err == nil && string(ping) != "ping" {
			err = errors.New("the plugin decrypts to other bytes than it has encrypted")
		}
	}
	p.checkedAt, p.validFor, p.lastResult = p.now(), healthyTTL, err
	if err != nil {
		p.validFor = unhealthyTTL
		return fmt.Errorf("failed to perform %s section of the healthz check for KMS Provider %s, error: %w", section, p.name, err)
	}
	return nil
}

// checkVersion asks the plugin for its version, until it has said the right one.
func (p *pluginV1) checkVersion(ctx context.Context) error {
	p.versionMu.Lock()
	defer p.versionMu.Unlock()
	if p.supported {
		return nil
	}
	answer, err := p.service.Version(ctx, &kmsapi.VersionRequest{Version: kmsV1Version})
	if err != nil {
		return fmt.Errorf("failed get version from remote KMS provider: %w", err)
	}
	if answer.Version != kmsV1Version {
		return fmt.Errorf("KMS provider api version %.1024s is not supported, only %s is supported now", answer.Version, kmsV1Version)
	}
	p.supported = true
	return nil
}

func (p *pluginV1) encrypt(ctx context.Context, plain []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if err := p.checkVersion(ctx); err != nil {
		return nil, err
	}
	answer, err := p.service.Encrypt(ctx, &kmsapi.EncryptRequest{Version: kmsV1Version, Plain: plain})
	if err != nil {
		return nil, err
	}
	return answer.Cipher, nil
}

func (p *pluginV1) decrypt(ctx context.Context, sealed []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if err := p.checkVersion(ctx); err != nil {
		return nil, err
	}
	answer, err := p.service.Decrypt(ctx, &kmsapi.DecryptRequest{Version: kmsV1Version, Cipher: sealed})
	if err != nil {
		return nil, err
	}
	return answer.Plain, nil
}

func (p *pluginV1) seal(ctx context.Context, value []byte, key string) ([]byte, error) {
	began := time.Now()
	secret := make([]byte, seedSize)
	_, _ = rand.Read(secret) // never fails
	p.measure.observe(time.Since(began).Seconds(), measure.DataKeyDuration)
	sealed, err := p.encrypt(ctx, secret)
	if err != nil {
		return nil, err
	}
	if len(sealed) > math.MaxUint16 {
		return nil, fmt.Errorf("KMS provider %s returned an encrypted key of %d bytes, at most %d can be stored", p.name, len(sealed), math.MaxUint16)
	}
	t, err := withKey(secret)
	if err != nil {
		return nil, err
	}
	p.cache(sealed, t)
	head := make([]byte, 0, 2+len(sealed))
	head = append(binary.BigEndian.AppendUint16(head, uint16(len(sealed))), sealed...)
	return t.gcm.sealAfter(head, value, key), nil
}

var errNoKey = errors.New("invalid data encountered by envelope transformer: failed to read uint16 length prefixed data")

func (p *pluginV1) open(ctx context.Context, stored []byte, key string) ([]byte, bool, error) {
	if len(stored) < 2 || len(stored)-2 < int(binary.BigEndian.Uint16(stored)) {
		return nil, false, errNoKey
	}
	size := 2 + int(binary.BigEndian.Uint16(stored))
	sealed, data := stored[2:size], stored[size:]
	if p.keys != nil {
		if t, ok := p.keys.Get(string(sealed)); ok {
			return t.(gcmOrCBC).open(ctx, data, key)
		}
		p.measure.observe(1, measure.DataKeyMisses)
	}
	secret, err := p.decrypt(ctx, sealed)
	if err != nil {
		return nil, false, err
	}
	t, err := withKey(secret)
	if err != nil {
		return nil, false, err
	}
	value, stale, err := t.open(ctx, data, key)
	if err == nil {
		p.cache(sealed, t) // a wrong one is asked for again
	}
	return value, stale, err
}

// withKey returns the transformer of a key.
func withKey(secret []byte) (gcmOrCBC, error) {
	block, err := aes.NewCipher(secret)
	if err != nil {
		return gcmOrCBC{}, err
	}
	sealing, err := newGCM(block)
	if err != nil {
		return gcmOrCBC{}, err
	}
	return gcmOrCBC{sealing, cbc{block}}, nil
}

// cache keeps the transformer of an encrypted key.
func (p *pluginV1) cache(sealed []byte, t gcmOrCBC) {
	if p.keys != nil {
		p.keys.Add(string(sealed), t)
		p.measure.observe(float64(p.keys.Len())/float64(p.maxCache), measure.KMSCacheFill)
	}
}

// gcmOrCBC seals with AES-GCM, and opens what Kubernetes before 1.25 has sealed with
// AES-CBC, too, which is stale.
type gcmOrCBC struct {
	gcm gcm
	cbc cbc
}

func (t gcmOrCBC) open(ctx context.Context, stored []byte, key string) ([]byte, bool, error) {
	value, _, failed := t.gcm.open(ctx, stored, key)
	if failed == nil {
		return value, false, nil
	}
	value, _, err := t.cbc.open(ctx, stored, key)
	if err != nil {
		return nil, false, aggregate([]error{failed, err})
	}
	return value, true, nil
}
