package encrypt

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kmsapi "k8s.io/kms/apis/v2"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/trace"
)

// This file is the client of KMS v2 plugins.

const (
	// How often the status of a plugin is requested while it is healthy, and while it
	// is not.
	statusInterval      = time.Minute
	statusRetryInterval = 10 * time.Second
	// seedLife is how long a seed is used for writing after the last healthy status, so
	// that whoever rotates a key knows when the old one is certainly no longer used.
	seedLife = 3 * time.Minute
	// How long the result of a status request is reused by health checks, if healthy
	// and if not.
	healthyTTL, unhealthyTTL = 20 * time.Second, 3 * time.Second
	// maxDecryptedSeeds bounds the number of cached decrypted seeds.
	maxDecryptedSeeds = 4096
	// maxAnswer and maxAnswerHeader bound an answer of a plugin, and the text of its error, in bytes.
	maxAnswer, maxAnswerHeader = 128 << 10, 16 << 10
)

// plugin is a KMS v2 plugin on a Unix socket. It never sees values: these are encrypted
// here, with keys derived from a seed. The plugin encrypts the seed, and the encrypted
// seed is stored with each value.
type plugin struct {
	name    string
	conn    *grpc.ClientConn
	service kmsapi.KeyManagementServiceClient
	timeout time.Duration
	measure *measuring
	log     *slog.Logger
	now     func() time.Time

	current atomic.Pointer[seedState]

	mu         sync.Mutex // guards the fields below, held during a status request
	version    string
	checkedAt  time.Time
	validFor   time.Duration
	lastResult error

	decryptedMu    sync.Mutex
	decryptedSeeds map[string]transformer // cache of decrypted seeds, by source.id

	stop func()
	done sync.WaitGroup
}

// seedState is the seed that values are written with, and until when.
type seedState struct {
	source
	derivedGCM
	id      string
	expires time.Time
}

// kms is a KMS plugin of either version.
type kms interface {
	check(ctx context.Context) error
	close()
}

// connect returns the connection to a plugin, which is made when it is first used.
func connect(c *kmsConfig, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	endpoint, err := url.Parse(c.Endpoint)
	if err != nil {
		return nil, err
	}
	socket := endpoint.Path
	if strings.HasPrefix(socket, "/@") {
		socket = socket[1:] // a socket in the abstract namespace
	}
	conn, err := grpc.NewClient("passthrough:///"+socket, append(opts,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithMaxHeaderListSize(maxAnswerHeader),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}))...)
	if err != nil {
		return nil, fmt.Errorf("failed to create connection to %s, error: %w", c.Endpoint, err)
	}
	return conn, nil
}

// dial returns the client of a plugin. The plugin need not be running yet.
func dial(c *kmsConfig, measure *measuring, log *slog.Logger) (*plugin, error) {
	conn, err := connect(c, grpc.WithUnaryInterceptor(measure.interceptCalls(c.Name)))
	if err != nil {
		return nil, err
	}
	p := &plugin{
		name: c.Name, conn: conn, service: kmsapi.NewKeyManagementServiceClient(conn), timeout: c.Timeout.Duration,
		measure: measure, log: log, now: time.Now, decryptedSeeds: map[string]transformer{},
	}
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background())
	err = p.check(ctx)
	p.done.Go(func() { p.pollStatus(ctx, err) })
	return p, nil
}

func (p *plugin) close() {
	p.stop()
	p.done.Wait()
	_ = p.conn.Close()
}

// pollStatus requests the status of the plugin at intervals and rotates the seed, until ctx
// ends. err is the result of the first request.
func (p *plugin) pollStatus(ctx context.Context, err error) {
	for {
		wait := statusInterval
		if err != nil {
			p.log.Warn("KMS plugin is not healthy; asking it again soon", "provider", p.name, "error", err)
			wait = statusRetryInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		err = p.check(ctx)
	}
}

// check returns the health of the plugin, from a recent status or a new request. If the
// plugin's key has changed, check rotates the seed.
func (p *plugin) check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.checkedAt.IsZero() && p.now().Sub(p.checkedAt) < p.validFor {
		return p.lastResult
	}
	status, err := p.status(ctx)
	p.lastResult = err
	if err != nil {
		err = fmt.Errorf("failed to perform status section of the healthz check for KMS Provider %s, error: %w", p.name, err)
	} else {
		err = p.evaluateStatus(ctx, status)
		p.lastResult = err
	}
	p.checkedAt, p.validFor = p.now(), healthyTTL
	if err != nil {
		p.validFor = unhealthyTTL
	}
	return err
}

func (p *plugin) status(ctx context.Context) (*kmsapi.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.service.Status(ctx, &kmsapi.StatusRequest{})
}

// evaluateStatus returns the errors of a status response, and rotates the seed if the key ID is
// valid.
func (p *plugin) evaluateStatus(ctx context.Context, s *kmsapi.StatusResponse) error {
	var errs []error
	if s.Healthz != "ok" {
		errs = append(errs, fmt.Errorf("got unexpected healthz status: %.1024s", s.Healthz))
	}
	if s.Version != "v2" && s.Version != "v2beta1" {
		errs = append(errs, fmt.Errorf("expected KMSv2 API version v2, got %.1024s", s.Version))
	} else {
		if p.version == "" {
			p.version = s.Version
		}
		if p.version != s.Version {
			errs = append(errs, fmt.Errorf("KMSv2 API version should not change after the initial status response version %s, got %.1024s", p.version, s.Version))
		}
	}
	if err := validKeyID(s.KeyId); err != nil {
		p.measure.invalidKey(p.name, s.KeyId)
		errs = append(errs, fmt.Errorf("got invalid KMSv2 KeyID hash %q: %w", hash(s.KeyId), err))
	} else {
		p.measure.noteKeyID(p.name, s.KeyId)
		if err := p.rotate(ctx, s.KeyId); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("kmsv2 Provider %s is not healthy, error: %w", p.name, aggregate(errs))
	}
	return nil
}

// rotate creates a seed for the plugin's current key, or extends the life of the seed
// if the key is unchanged.
func (p *plugin) rotate(ctx context.Context, keyID string) error {
	expires := p.now().Add(seedLife) // counted from before the request
	was := p.current.Load()
	if was != nil && was.keyID == keyID {
		next := *was
		next.expires = expires
		p.current.Store(&next)
		return nil
	}
	uid := uuid.NewString()
	next, err := p.newSeed(ctx, uid)
	if err == nil {
		err = p.verify(ctx, next)
	}
	if err == nil && next.keyID == keyID {
		next.expires = expires
		p.cacheSeed(next.id, next.derivedGCM)
		p.current.Store(next)
		return nil
	}
	var state error
	var wrote, had string
	var until time.Time
	if next != nil {
		wrote = next.keyID
	}
	if was == nil {
		state = errNoSeed
	} else {
		had, until = was.keyID, was.expires
	}
	return fmt.Errorf("failed to rotate DEK uid=%q, useSeed=%v, errState=%v, errGen=%v, statusKeyIDHash=%q, encryptKeyIDHash=%q, stateKeyIDHash=%q, expirationTimestamp=%s",
		uid, true, state, err, hash(keyID), hash(wrote), hash(had), until.Format(time.RFC3339))
}

// errNoSeed: the plugin has not encrypted a seed yet.
var errNoSeed = errors.New("got unexpected nil transformer")

// newSeed creates a random seed and has the plugin encrypt it.
func (p *plugin) newSeed(ctx context.Context, uid string) (*seedState, error) {
	began := time.Now()
	seed := make([]byte, seedSize)
	_, _ = rand.Read(seed) // never fails
	p.measure.observe(time.Since(began).Seconds(), measure.DataKeyDuration)
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	answer, err := p.service.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: seed, Uid: uid})
	if err != nil {
		return nil, fmt.Errorf("failed to encrypt DEK, error: %w", err)
	}
	s := &seedState{
		source:     source{keyID: answer.KeyId, ciphertext: answer.Ciphertext, annotations: answer.Annotations, kind: sourceSeed},
		derivedGCM: derivedGCM{seed},
	}
	s.id = s.source.id()
	return s, s.source.validate()
}

// verify checks that the plugin gives back the seed that it has encrypted, before any value depends on
// it, and that it has not given the same ciphertext for another one.
func (p *plugin) verify(ctx context.Context, s *seedState) error {
	p.decryptedMu.Lock()
	known, ok := p.decryptedSeeds[s.id].(derivedGCM)
	p.decryptedMu.Unlock()
	if ok && !bytes.Equal(known.seed, s.seed) {
		return errors.New("the plugin encrypts different DEKs to the same bytes")
	}
	answer, err := p.decrypt(ctx, &s.source)
	if err != nil {
		return err
	}
	if !bytes.Equal(answer, s.seed) {
		return errors.New("the plugin decrypts a DEK to other bytes than it has encrypted")
	}
	return nil
}

func (p *plugin) seal(ctx context.Context, value []byte, key string) ([]byte, error) {
	ctx, span := trace.Start(ctx, "TransformToStorage with envelopeTransformer", trace.String("transformer.provider.name", p.name))
	defer span.End()
	state := p.current.Load()
	if state == nil {
		return nil, errNoSeed
	}
	if now := p.now(); now.After(state.expires) {
		return nil, fmt.Errorf("encryptedDEKSource with keyID hash %q expired at %s (current time is %s)",
			hash(state.keyID), state.expires.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	span.Event("About to encrypt data using DEK")
	data, err := state.derivedGCM.seal(ctx, value, key)
	if err != nil {
		span.Event("Data encryption failed")
		span.Fail(err)
		return nil, err
	}
	span.Event("Data encryption succeeded")
	p.measure.keyUsed(toStorage, p.name, state.keyID)
	span.Event("About to encode encrypted object")
	sealed := state.envelope(data)
	span.Event("Encoded encrypted object")
	return sealed, nil
}

func (p *plugin) open(ctx context.Context, stored []byte, key string) ([]byte, bool, error) {
	ctx, span := trace.Start(ctx, "TransformFromStorage with envelopeTransformer", trace.String("transformer.provider.name", p.name))
	defer span.End()
	span.Event("About to decode encrypted object")
	from, data, err := openEnvelope(stored)
	if err != nil {
		span.Event("Decoding encrypted object failed")
		span.Fail(err)
		return nil, false, err
	}
	span.Event("Decoded encrypted object")
	state := p.current.Load()
	if state == nil {
		return nil, false, errNoSeed
	}
	t, cached, err := p.decryptSource(ctx, &from)
	if err != nil {
		span.Fail(err)
		return nil, false, err
	}
	p.measure.keyUsed(fromStorage, p.name, from.keyID)
	span.Event("About to decrypt data using DEK")
	value, _, err := t.open(ctx, data, key)
	if err != nil {
		span.Event("Data decryption failed")
		span.Fail(err)
	} else {
		span.Event("Data decryption succeeded")
		if !cached {
			p.cacheSeed(from.id(), t) // a wrong one is asked for again
		}
	}
	return value, from.keyID != state.keyID || from.kind != sourceSeed, err
}

// decryptSource returns the transformer for values of a source: cached, or with a seed that
// the plugin decrypts.
func (p *plugin) decryptSource(ctx context.Context, from *source) (t transformer, cached bool, err error) {
	p.decryptedMu.Lock()
	t = p.decryptedSeeds[from.id()]
	p.decryptedMu.Unlock()
	if t != nil {
		return t, true, nil
	}
	p.measure.observe(1, measure.DataKeyMisses)
	span := trace.From(ctx)
	span.Event("About to decrypt DEK using remote service")
	key, err := p.decrypt(ctx, from)
	if err != nil {
		span.Event("DEK decryption failed")
		return nil, false, err
	}
	span.Event("DEK decryption succeeded")
	if from.kind == sourceSeed {
		t, err = newDerivedGCM(key)
	} else if block, aesErr := aes.NewCipher(key); aesErr != nil {
		err = aesErr
	} else {
		t, err = newGCM(block)
	}
	return t, false, err
}

// decrypt has the plugin decrypt the seed or key of a source.
func (p *plugin) decrypt(ctx context.Context, from *source) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	answer, err := p.service.Decrypt(ctx, &kmsapi.DecryptRequest{
		Ciphertext: from.ciphertext, Uid: uuid.NewString(), KeyId: from.keyID, Annotations: from.annotations,
	})
	if err != nil {
		return nil, fmt.Errorf("failed to decrypt DEK, error: %w", err)
	}
	return answer.Plaintext, nil
}

// cacheSeed adds a decrypted seed to the cache.
func (p *plugin) cacheSeed(id string, t transformer) {
	p.decryptedMu.Lock()
	defer p.decryptedMu.Unlock()
	if len(p.decryptedSeeds) >= maxDecryptedSeeds {
		clear(p.decryptedSeeds)
	}
	p.decryptedSeeds[id] = t
	p.measure.observe(float64(len(p.decryptedSeeds)), measure.KMSSources, p.name)
}

// hash returns the hash of a key ID: messages and metrics never show key IDs
// themselves.
func hash(id string) string {
	if id == "" {
		return ""
	}
	return measure.Hash([]byte(id))
}
