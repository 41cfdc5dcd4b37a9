// Package external signs service account tokens with an external signer that keeps the
// private keys: the ExternalJWTSigner v1 API of Kubernetes, over a Unix socket. Start
// at Dial and Signer.
package external

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/externaljwt/apis/v1"

	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/internal/refresh"
	"github.com/apikeel/kelson/metrics/measure"
)

const (
	fetchTimeout    = 60 * time.Second
	metadataTimeout = 10 * time.Second
	signTimeout     = 60 * time.Second
	// fetchRetryDelay is the delay after a failed fetch of the keys.
	fetchRetryDelay = 10 * time.Second
	// fetchAgainDelay is the delay after a fetch before a token of an unknown key, which
	// anybody can send, causes another.
	fetchAgainDelay = 100 * time.Millisecond
	// minLifetime is the smallest maximum token lifetime that a signer may have.
	minLifetime = 10 * time.Minute
	maxKeyID    = 1024
)

// Signer is the client of the external signer. It implements serviceaccount.Signer.
type Signer struct {
	// MaxLifetime is the longest lifetime of tokens that the signer allows.
	MaxLifetime time.Duration

	conn    *grpc.ClientConn
	client  api.ExternalJWTSignerClient
	log     *slog.Logger
	metrics measure.Sink
	changed func(*serviceaccount.Keys)

	fetch *refresh.Shared
	known atomic.Pointer[signerKeys] // written by fetch

	life context.Context // ended by Close
	stop func()
	done sync.WaitGroup
}

// signerKeys are the public keys of the signer.
type signerKeys struct {
	keys    *serviceaccount.Keys
	list    []serviceaccount.NamedKey
	at      time.Time // when the signer last changed the keys
	refresh time.Time
	fetched time.Time
}

// Dial connects to the signer and fetches its keys. changed is called when the keys
// change, and once before Dial returns. metrics may be nil.
func Dial(socket string, log *slog.Logger, metrics measure.Sink, changed func(*serviceaccount.Keys)) (_ *Signer, err error) {
	conn, err := grpc.NewClient("passthrough:///"+socket,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			began := time.Now()
			err := invoke(ctx, method, req, reply, cc, opts...)
			measure.Since(metrics, began, measure.SignerDuration, method, code(err))
			return err
		}))
	if err != nil {
		return nil, fmt.Errorf("while dialing grpc socket at %q: %w", socket, err)
	}
	s := &Signer{conn: conn, client: api.NewExternalJWTSignerClient(conn), log: log, metrics: metrics, changed: changed}
	s.life, s.stop = context.WithCancel(context.Background())
	s.fetch = &refresh.Shared{Fetch: s.fetchKeys, Timeout: fetchTimeout, Retry: fetchRetryDelay, Again: fetchAgainDelay, Life: s.life, Now: time.Now}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := s.fetch.Force(s.life); err != nil {
		return nil, fmt.Errorf("while initially filling key cache: while performing initial cache fill: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), metadataTimeout)
	defer cancel()
	about, err := s.client.Metadata(ctx, &api.MetadataRequest{})
	if err != nil {
		return nil, err
	}
	if s.MaxLifetime = time.Duration(about.MaxTokenExpirationSeconds) * time.Second; s.MaxLifetime < minLifetime {
		return nil, fmt.Errorf("max token life supported by external-jwt-signer (%ds) is less than acceptable (min %ds)", about.MaxTokenExpirationSeconds, minLifetime/time.Second)
	}
	return s, nil
}

// Follow starts fetching the keys periodically, until Close.
func (s *Signer) Follow() {
	s.done.Go(func() { s.follow(s.life) })
}

// Close stops fetching and closes the connection.
func (s *Signer) Close() {
	s.stop()
	s.done.Wait()
	_ = s.conn.Close()
}

// follow fetches the keys when the signer's refresh hint says so.
func (s *Signer) follow(ctx context.Context) {
	wait := time.Until(s.known.Load().refresh)
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		err := s.fetch.Force(ctx)
		wait = time.Until(s.known.Load().refresh)
		if err != nil && ctx.Err() == nil {
			s.log.Error("when syncing supported public keys(Stale set of keys will be supported)", "error", err)
			wait = fetchRetryDelay
		}
	}
}

// Find fetches the keys if id is not among the known ones.
func (s *Signer) Find(ctx context.Context, id string) error {
	for _, key := range s.known.Load().list {
		if key.ID == id || id == "" {
			return nil
		}
	}
	return s.fetch.Wait(ctx)
}

// fetchKeys requests the keys from the signer.
func (s *Signer) fetchKeys(ctx context.Context) error {
	var next *signerKeys
	answer, err := s.client.FetchKeys(ctx, &api.FetchKeysRequest{})
	if err != nil {
		err = fmt.Errorf("while getting externally supported jwt signing keys: %w", err)
	} else {
		next, err = parseKeys(answer)
	}
	measure.Count(s.metrics, measure.SignerFetches, code(err))
	if err != nil {
		return fmt.Errorf("while fetching token verification keys: %w", err)
	}
	before := s.known.Load()
	s.known.Store(next)
	measure.SeriesOf(s.metrics, measure.SignerKeysFetched).Observe(seconds(next.fetched))
	measure.SeriesOf(s.metrics, measure.SignerKeysChanged).Observe(seconds(next.at))
	if before == nil || !before.equal(next) {
		s.changed(next.keys)
	}
	return nil
}

// seconds is a time as metrics have it.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// code returns the gRPC code of an error, as metrics label it.
func code(err error) string {
	s, ok := status.FromError(err)
	if !ok {
		return "unknown-non-grpc"
	}
	return s.Code().String()
}

// equal reports whether the keys are unchanged, by the signer's timestamp and the list.
func (k *signerKeys) equal(other *signerKeys) bool {
	if !k.at.Equal(other.at) || len(k.list) != len(other.list) {
		return false
	}
	for i := range k.list {
		if k.list[i].ID != other.list[i].ID || k.list[i].Hidden != other.list[i].Hidden {
			return false
		}
	}
	return true
}

// parseKeys converts the response of the signer.
func parseKeys(answer *api.FetchKeysResponse) (*signerKeys, error) {
	now := time.Now()
	if answer.RefreshHintSeconds <= 0 {
		return nil, fmt.Errorf("found invalid refresh hint (%ds)", answer.RefreshHintSeconds)
	}
	if len(answer.Keys) == 0 {
		return nil, errors.New("found no keys")
	}
	if err := answer.DataTimestamp.CheckValid(); err != nil {
		return nil, fmt.Errorf("invalid data timestamp: %w", err)
	}
	k := &signerKeys{at: answer.DataTimestamp.AsTime(), refresh: now.Add(time.Duration(answer.RefreshHintSeconds) * time.Second), fetched: now}
	for _, key := range answer.Keys {
		switch {
		case key == nil:
			return nil, errors.New("found nil public key")
		case len(key.KeyId) == 0 || len(key.KeyId) > maxKeyID:
			return nil, fmt.Errorf("found invalid public key id %q", key.KeyId)
		case len(key.Key) == 0:
			return nil, errors.New("found empty public key")
		}
		public, err := x509.ParsePKIXPublicKey(key.Key)
		if err != nil {
			return nil, fmt.Errorf("while parsing external public keys: %w", err)
		}
		k.list = append(k.list, serviceaccount.NamedKey{ID: key.KeyId, Key: public, Hidden: key.ExcludeFromOidcDiscovery})
	}
	var err error
	k.keys, err = serviceaccount.NewNamedKeys(k.list)
	return k, err
}

// MaxAge is how long verifiers may cache the keys.
func (s *Signer) MaxAge() time.Duration { return max(0, time.Until(s.known.Load().refresh)) }

// Sign implements serviceaccount.Signer.
func (s *Signer) Sign(claims []byte) (string, error) {
	token, err := s.sign(claims)
	measure.Count(s.metrics, measure.SignerSignatures, code(err))
	return token, err
}

func (s *Signer) sign(claims []byte) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), signTimeout)
	defer cancel()
	payload := base64.RawURLEncoding.EncodeToString(claims)
	answer, err := s.client.Sign(ctx, &api.SignJWTRequest{Claims: payload})
	if err != nil {
		return "", fmt.Errorf("while signing jwt: %w", err)
	}
	if err := s.check(ctx, answer.Header); err != nil {
		return "", fmt.Errorf("while validating header: %w", err)
	}
	if len(answer.Signature) == 0 {
		return "", errors.New("empty signature returned")
	}
	return answer.Header + "." + payload + "." + answer.Signature, nil
}

// check validates the header of a signed token.
func (s *Signer) check(ctx context.Context, encoded string) error {
	text, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return fmt.Errorf("while unwrapping header: %w", err)
	}
	var header struct {
		Algorithm string `json:"alg"`
		KeyID     string `json:"kid"`
		Type      string `json:"typ"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&header); err != nil {
		return fmt.Errorf("while parsing header JSON: %w", err)
	}
	switch {
	case header.Type != "JWT":
		return errors.New("bad type")
	case header.KeyID == "":
		return errors.New("key id missing")
	case len(header.KeyID) > maxKeyID:
		return errors.New("key id longer than 1 kb")
	}
	switch header.Algorithm {
	case "RS256", "ES256", "ES384", "ES512":
	default:
		return fmt.Errorf("bad signing algorithm %q", header.Algorithm)
	}
	// Keys that are excluded from discovery may only verify older tokens.
	s.Find(ctx, header.KeyID)
	for _, key := range s.known.Load().list {
		if key.ID == header.KeyID && key.Hidden {
			return fmt.Errorf("key used for signing JWT (kid: %s) is excluded from OIDC discovery docs", header.KeyID)
		}
	}
	return nil
}
