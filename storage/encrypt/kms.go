package encrypt

import (
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

const (
	// How often a service is asked whether its key has changed, and how often
	// when it did not answer well.
	askEvery      = time.Minute
	askEveryAgain = 10 * time.Second
	// seedLife is how long values are written with a seed after the service was
	// last well: who changes a key knows when it is certainly in use.
	seedLife = 3 * time.Minute
	// How long an answer to a health check is good for.
	goodFor, badFor = 20 * time.Second, 3 * time.Second
	// maxOpened bounds how many decrypted keys are kept.
	maxOpened = 4096
)

// plugin is a key management service on a Unix socket. It does not see values:
// those are encrypted here, with keys derived from a seed that the service has
// encrypted and that is stored with each value.
type plugin struct {
	name    string
	conn    *grpc.ClientConn
	service kmsapi.KeyManagementServiceClient
	timeout time.Duration
	measure *measuring
	log     *slog.Logger
	now     func() time.Time

	current atomic.Pointer[seedState]

	mu      sync.Mutex // held while the service is asked how it is
	version string
	asked   time.Time
	good    time.Duration
	answer  error

	openedMu sync.Mutex
	opened   map[string]transformer // by source

	stop func()
	done sync.WaitGroup
}

// seedState is what values are written with.
type seedState struct {
	source
	seeded
	id      string
	expires time.Time
}

// dial begins to speak to a service, which need not be there yet.
func dial(c *kmsConfig, measure *measuring, log *slog.Logger) (*plugin, error) {
	endpoint, err := url.Parse(c.Endpoint)
	if err != nil {
		return nil, err
	}
	socket := endpoint.Path
	if strings.HasPrefix(socket, "/@") {
		socket = socket[1:] // in no file system
	}
	conn, err := grpc.NewClient("passthrough:///"+socket,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithUnaryInterceptor(measure.calls(c.Name)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		return nil, fmt.Errorf("failed to create connection to %s, error: %w", c.Endpoint, err)
	}
	p := &plugin{
		name: c.Name, conn: conn, service: kmsapi.NewKeyManagementServiceClient(conn), timeout: c.Timeout.Duration,
		measure: measure, log: log, now: time.Now, opened: map[string]transformer{},
	}
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background())
	err = p.check(ctx)
	p.done.Go(func() { p.follow(ctx, err) })
	return p, nil
}

func (p *plugin) close() {
	p.stop()
	p.done.Wait()
	_ = p.conn.Close()
}

// follow keeps the seed current.
func (p *plugin) follow(ctx context.Context, err error) {
	for {
		wait := askEvery
		if err != nil {
			p.log.Warn("the key management service is not well", "provider", p.name, "error", err)
			wait = askEveryAgain
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		err = p.check(ctx)
	}
}

// check asks the service how it is, unless it was asked a moment ago, and takes
// another seed if the key of the service has changed.
func (p *plugin) check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked.IsZero() && p.now().Sub(p.asked) < p.good {
		return p.answer
	}
	status, err := p.status(ctx)
	p.answer = err
	if err != nil {
		err = fmt.Errorf("failed to perform status section of the healthz check for KMS Provider %s, error: %w", p.name, err)
	} else {
		err = p.judge(ctx, status)
		p.answer = err
	}
	p.asked, p.good = p.now(), goodFor
	if err != nil {
		p.good = badFor
	}
	return err
}

func (p *plugin) status(ctx context.Context) (*kmsapi.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.service.Status(ctx, &kmsapi.StatusRequest{})
}

func (p *plugin) judge(ctx context.Context, s *kmsapi.StatusResponse) error {
	var errs []error
	if s.Healthz != "ok" {
		errs = append(errs, fmt.Errorf("got unexpected healthz status: %s", s.Healthz))
	}
	if s.Version != "v2" && s.Version != "v2beta1" {
		errs = append(errs, fmt.Errorf("expected KMSv2 API version v2, got %s", s.Version))
	} else {
		if p.version == "" {
			p.version = s.Version
		}
		if p.version != s.Version {
			errs = append(errs, fmt.Errorf("KMSv2 API version should not change after the initial status response version %s, got %s", p.version, s.Version))
		}
	}
	if err := validKeyID(s.KeyId); err != nil {
		p.measure.invalidKey(p.name, s.KeyId)
		errs = append(errs, fmt.Errorf("got invalid KMSv2 KeyID hash %q: %w", hash(s.KeyId), err))
	} else {
		p.measure.keyToldOf(p.name, s.KeyId)
		if err := p.rotate(ctx, s.KeyId); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("kmsv2 Provider %s is not healthy, error: %w", p.name, aggregate(errs))
	}
	return nil
}

// rotate makes a seed for the key that the service has now, or prolongs the
// life of the one that there is.
func (p *plugin) rotate(ctx context.Context, keyID string) error {
	expires := p.now().Add(seedLife) // counted from before the call
	was := p.current.Load()
	if was != nil && was.keyID == keyID {
		next := *was
		next.expires = expires
		p.current.Store(&next)
		return nil
	}
	uid := uuid.NewString()
	next, err := p.newSeed(ctx, uid)
	if err == nil && next.keyID == keyID {
		next.expires = expires
		p.keep(next.id, next.seeded)
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
		state = errUnprimed
	} else {
		had, until = was.keyID, was.expires
	}
	return fmt.Errorf("failed to rotate DEK uid=%q, useSeed=%v, errState=%v, errGen=%v, statusKeyIDHash=%q, encryptKeyIDHash=%q, stateKeyIDHash=%q, expirationTimestamp=%s",
		uid, true, state, err, hash(keyID), hash(wrote), hash(had), until.Format(time.RFC3339))
}

// errUnprimed: the service has not encrypted a seed yet.
var errUnprimed = errors.New("got unexpected nil transformer")

// newSeed makes a seed and has it encrypted.
func (p *plugin) newSeed(ctx context.Context, uid string) (*seedState, error) {
	began := time.Now()
	seed := make([]byte, seedSize)
	_, _ = rand.Read(seed) // it never fails
	p.measure.observe(time.Since(began).Seconds(), measure.DataKeyDuration)
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	answer, err := p.service.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: seed, Uid: uid})
	if err != nil {
		return nil, fmt.Errorf("failed to encrypt DEK, error: %w", err)
	}
	s := &seedState{
		source: source{keyID: answer.KeyId, ciphertext: answer.Ciphertext, annotations: answer.Annotations, kind: sourceSeed},
		seeded: seeded{seed},
	}
	s.id = s.source.id()
	return s, s.source.validate()
}

func (p *plugin) seal(ctx context.Context, value []byte, key string) ([]byte, error) {
	state := p.current.Load()
	if state == nil {
		return nil, errUnprimed
	}
	if now := p.now(); now.After(state.expires) {
		return nil, fmt.Errorf("encryptedDEKSource with keyID hash %q expired at %s (current time is %s)",
			hash(state.keyID), state.expires.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	ctx, span := trace.Start(ctx, "TransformToStorage with envelopeTransformer", trace.String("transformer.provider.name", p.name))
	defer span.End()
	span.Event("About to encrypt data using DEK")
	data, err := state.seeded.seal(ctx, value, key)
	if err != nil {
		span.Event("Data encryption failed")
		span.Fail(err)
		return nil, err
	}
	span.Event("Data encryption succeeded")
	p.measure.keyUsed(toStorage, p.name, state.keyID)
	return state.envelope(data), nil
}

func (p *plugin) open(ctx context.Context, stored []byte, key string) ([]byte, bool, error) {
	from, data, err := openEnvelope(stored)
	if err != nil {
		return nil, false, err
	}
	state := p.current.Load()
	if state == nil {
		return nil, false, errUnprimed
	}
	ctx, span := trace.Start(ctx, "TransformFromStorage with envelopeTransformer", trace.String("transformer.provider.name", p.name))
	defer span.End()
	t, err := p.unseal(ctx, &from)
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
	}
	return value, from.keyID != state.keyID || from.kind != sourceSeed, err
}

// unseal returns what reads the values of a source.
func (p *plugin) unseal(ctx context.Context, from *source) (transformer, error) {
	id := from.id()
	p.openedMu.Lock()
	t := p.opened[id]
	p.openedMu.Unlock()
	if t != nil {
		return t, nil
	}
	p.measure.observe(1, measure.DataKeyMisses)
	span := trace.From(ctx)
	span.Event("About to decrypt DEK using remote service")
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	answer, err := p.service.Decrypt(ctx, &kmsapi.DecryptRequest{
		Ciphertext: from.ciphertext, Uid: uuid.NewString(), KeyId: from.keyID, Annotations: from.annotations,
	})
	if err != nil {
		span.Event("DEK decryption failed")
		return nil, fmt.Errorf("failed to decrypt DEK, error: %w", err)
	}
	span.Event("DEK decryption succeeded")
	if from.kind == sourceSeed {
		t, err = newSeeded(answer.Plaintext)
	} else if block, aesErr := aes.NewCipher(answer.Plaintext); aesErr != nil {
		err = aesErr
	} else {
		t, err = newGCM(block)
	}
	if err != nil {
		return nil, err
	}
	p.keep(id, t)
	return t, nil
}

func (p *plugin) keep(id string, t transformer) {
	p.openedMu.Lock()
	defer p.openedMu.Unlock()
	if len(p.opened) >= maxOpened {
		clear(p.opened)
	}
	p.opened[id] = t
	p.measure.observe(float64(len(p.opened)), measure.KMSSources, p.name)
}

// hash is how messages name a key.
func hash(id string) string {
	if id == "" {
		return ""
	}
	return measure.Hash([]byte(id))
}
