package oidc

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/internal/refresh"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
)

const (
	requestTimeout = 30 * time.Second
	// RetryAfter is how long a provider is not contacted again because of a token after an
	// attempt has failed, askAgain after one has not: anybody can send a token of an unknown key.
	RetryAfter = 10 * time.Second
	askAgain   = time.Second
	// keysTTL is how long keys are used before they are fetched again, so that a
	// withdrawn key stops working.
	keysTTL = 10 * time.Minute
	// maxDocument is the largest document in bytes that is read from a provider.
	maxDocument = 1 << 20
)

// AllAlgorithms returns the supported signing algorithms.
func AllAlgorithms() []string {
	return []string{
		oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.RS256, oidc.RS384, oidc.RS512,
	}
}

// Options are the settings besides the configuration.
type Options struct {
	// Algorithms are the accepted signing algorithms; RS256 if empty.
	Algorithms []string
	// DisallowedIssuers are the server's own issuers.
	DisallowedIssuers []string
	// Egress connects to providers with an egressSelectorType. NoEgress refuses providers
	// that have one.
	Egress   *egress.Selector
	NoEgress bool
	// Now returns the time; nil is time.Now.
	Now func() time.Time
	// Metrics measures how long tokens take, and KeyMetrics when keys were fetched; nil does
	// not.
	Metrics, KeyMetrics measure.Sink
}

// Verifier verifies the tokens of the providers of a configuration.
type Verifier struct {
	providers map[string]*provider // by issuer
}

// New validates a configuration and returns its verifier. It contacts no provider; see
// Discover.
func New(c *Configuration, o Options) (*Verifier, error) {
	for _, alg := range o.Algorithms {
		if !slices.Contains(AllAlgorithms(), alg) {
			return nil, fmt.Errorf("oidc: unsupported signing alg: %q", alg)
		}
	}
	if len(o.Algorithms) == 0 {
		o.Algorithms = []string{oidc.RS256}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	all, errs := c.validate(&celEnvironment{}, &o)
	if len(errs) > 0 {
		return nil, fmt.Errorf("invalid authentication configuration: %w", errs.ToAggregate())
	}
	v := &Verifier{providers: map[string]*provider{}}
	for i, a := range c.JWT {
		p, err := newProvider(a, all[i], o)
		if err != nil {
			return nil, err
		}
		v.providers[a.Issuer.URL] = p
	}
	return v, nil
}

// Verify returns the user of a token and its expiry, or nil and no error if the issuer
// is not one of the providers.
func (v *Verifier) Verify(ctx context.Context, token, issuer string) (*request.User, time.Time, error) {
	p := v.providers[canonical(issuer)]
	if p == nil {
		return nil, time.Time{}, nil
	}
	began := time.Now()
	user, expires, err := p.verify(ctx, token)
	result := "success"
	if err != nil {
		result = "failure"
	}
	measure.Since(p.metrics, began, measure.JWTLatency, result, measure.Hash([]byte(p.issuer.URL)))
	return user, expires, err
}

// Discover asks those providers for the address of their keys that have not told it yet, so
// that their first token need not wait for that, and fetches keys that are old. It returns
// when all have answered or failed. It should be called every RetryAfter.
func (v *Verifier) Discover(ctx context.Context) error {
	errs := make([]error, 0, len(v.providers))
	var asking sync.WaitGroup
	var mu sync.Mutex // guards errs
	for _, p := range v.providers {
		for _, t := range p.all() {
			asking.Go(func() {
				if err := t.renew(ctx); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, fmt.Errorf("%s: %w", t.issuer, err))
				}
			})
		}
	}
	asking.Wait()
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// Close ends the connections to the providers, and what is asked of them.
func (v *Verifier) Close() {
	for _, p := range v.providers {
		p.end()
		p.release()
	}
}

// Replace releases the connections of v, which next replaces; requests that have begun with
// v may still ask for keys. Nothing is told any more about the keys of providers that next
// does not have.
func (v *Verifier) Replace(next *Verifier) {
	for issuer, p := range v.providers {
		p.release()
		if next.providers[issuer] == nil {
			measure.IssuerIsGone(p.keyMetrics, issuer)
		}
	}
}

// canonical maps the two names of Google's issuer to one.
func canonical(issuer string) string {
	if issuer == "accounts.google.com" {
		return "https://accounts.google.com"
	}
	return issuer
}

// provider verifies the tokens of one provider.
type provider struct {
	issuer Issuer
	mapper mapper
	client *http.Client
	config *oidc.Config
	now    func() time.Time

	metrics, keyMetrics measure.Sink

	life               context.Context // of what is asked of the provider; end ends it
	end                context.CancelFunc
	closed             atomic.Bool // nothing is measured any more
	tokenKeys          *issuerKeys
	mu                 sync.Mutex             // guards others
	distributedIssuers map[string]*issuerKeys // keys of issuers of distributed claims
	distributed        string                 // the name of the groups claim, which may be distributed
}

func newProvider(a Authenticator, r *rules, o Options) (*provider, error) {
	roots, err := a.Issuer.roots()
	if err != nil {
		return nil, err
	}
	var dial egress.Dial
	if network := a.Issuer.EgressSelectorType; network != "" {
		if o.Egress == nil {
			return nil, fmt.Errorf("oidc: egress lookup required with egress selector type %q", network)
		}
		if dial = o.Egress.For(network); !o.Egress.IsConfigured(network) {
			return nil, fmt.Errorf("oidc: egress lookup for %q is not configured", network)
		}
	}
	p := &provider{
		issuer: a.Issuer, mapper: mapper{a.ClaimMappings, r}, now: o.Now, distributedIssuers: map[string]*issuerKeys{},
		client: &http.Client{Timeout: requestTimeout, Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second, MaxIdleConns: 4, MaxResponseHeaderBytes: 1 << 20,
		}},
		// Audiences are checked here: the library supports only one.
		metrics: o.Metrics, keyMetrics: o.KeyMetrics,
		config:      &oidc.Config{SkipClientIDCheck: true, SupportedSigningAlgs: o.Algorithms, Now: o.Now},
		distributed: a.ClaimMappings.Groups.Claim,
	}
	p.life, p.end = context.WithCancel(context.Background())
	p.tokenKeys = newIssuerKeys(p, a.Issuer.URL, a.Issuer.DiscoveryURL)
	return p, nil
}

// release gives up what is kept beside what is in progress.
func (p *provider) release() {
	p.closed.Store(true)
	p.client.CloseIdleConnections()
}

// shared returns a fetch from the provider that all tokens share.
func (p *provider) shared(fetch func(ctx context.Context) error) *refresh.Shared {
	return &refresh.Shared{Fetch: fetch, Timeout: requestTimeout, Retry: RetryAfter, Again: askAgain, Life: p.life, Now: p.now}
}

// all returns the keys of tokens, and those of issuers of distributed claims that have told
// where theirs are.
func (p *provider) all() []*issuerKeys {
	all := []*issuerKeys{p.tokenKeys}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.distributedIssuers {
		if t.keys.Load() != nil {
			all = append(all, t)
		}
	}
	return all
}

func (p *provider) verify(ctx context.Context, token string) (*request.User, time.Time, error) {
	id, err := p.tokenKeys.verify(ctx, token)
	if err != nil {
		return nil, time.Time{}, err
	}
	var c claims
	if err := id.Claims(&c); err != nil {
		return nil, time.Time{}, fmt.Errorf("oidc: parse claims: %w", err)
	}
	if err := p.expand(ctx, c); err != nil {
		return nil, time.Time{}, fmt.Errorf("oidc: could not expand distributed claims: %w", err)
	}
	u, err := p.mapper.user(ctx, c)
	return u, id.Expiry, err
}

// issuerKeys holds the keys of an issuer and where they are.
type issuerKeys struct {
	*provider
	issuer, discovery string
	keys              atomic.Pointer[keySet] // nil before discovery
	asked             *refresh.Shared        // discovery
}

func newIssuerKeys(p *provider, issuer, discovery string) *issuerKeys {
	t := &issuerKeys{provider: p, issuer: issuer, discovery: discovery}
	t.asked = p.shared(t.discover)
	return t
}

func (t *issuerKeys) verify(ctx context.Context, token string) (*oidc.IDToken, error) {
	keys, err := t.discovered(ctx)
	if err != nil {
		return nil, err
	}
	signature := &signatureCheck{keySet: keys}
	id, err := oidc.NewVerifier(t.issuer, signature, t.config).Verify(ctx, token)
	if signature.err != nil {
		return nil, fmt.Errorf("oidc: verify token: failed to verify signature: %w", signature.err)
	}
	if err != nil {
		return nil, fmt.Errorf("oidc: verify token: %w", err)
	}
	if !slices.ContainsFunc(id.Audience, func(a string) bool { return slices.Contains(t.provider.issuer.Audiences, a) }) {
		want := t.provider.issuer.Audiences
		if len(want) == 1 {
			return nil, fmt.Errorf("oidc: verify token: oidc: expected audience %q got %q", want[0], id.Audience)
		}
		return nil, fmt.Errorf("oidc: verify token: oidc: expected audience in %q got %q", slices.Sorted(slices.Values(want)), id.Audience)
	}
	return id, nil
}

// discovered returns the keys of the issuer. The first tokens wait for discovery; after it
// has failed, it is repeated without keeping anybody waiting.
func (t *issuerKeys) discovered(ctx context.Context) (*keySet, error) {
	if keys := t.keys.Load(); keys != nil {
		return keys, nil
	}
	err := t.asked.Failed()
	if err != nil {
		t.asked.Begin()
	} else {
		err = t.asked.Wait(ctx)
	}
	if keys := t.keys.Load(); keys != nil {
		return keys, nil
	}
	return nil, fmt.Errorf("oidc: authenticator not initialized: %w", err)
}

// renew asks the issuer where its keys are, or for its keys if those that are known are old.
func (t *issuerKeys) renew(ctx context.Context) error {
	if keys := t.keys.Load(); keys != nil {
		return keys.renew(ctx)
	}
	return t.asked.Force(ctx)
}

// discover reads the address of the keys from the discovery document.
func (t *issuerKeys) discover(ctx context.Context) error {
	url := t.discovery
	if url == "" {
		url = strings.TrimSuffix(t.issuer, "/") + "/.well-known/openid-configuration"
	}
	body, err := t.get(ctx, url, "")
	if err != nil {
		return err
	}
	var doc struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return fmt.Errorf("oidc: failed to decode provider discovery object: %w", err)
	}
	if doc.Issuer != t.issuer {
		return fmt.Errorf("oidc: issuer did not match the issuer returned by provider, expected %q got %q", t.issuer, doc.Issuer)
	}
	if doc.JWKSURI == "" {
		return errors.New("provider did not return JWKS URL")
	}
	t.keys.Store(newKeySet(t.provider, doc.JWKSURI, func(ctx context.Context, url string) ([]byte, error) {
		keys, err := t.get(ctx, url, "")
		if t == t.tokenKeys && !t.closed.Load() { // not those of distributed claims
			measure.KeysWereFetched(t.keyMetrics, t.issuer, keys, err)
		}
		return keys, err
	}))
	return nil
}

// get reads a document of a provider. Errors never contain the document, which may be
// secret.
func (p *provider) get(ctx context.Context, url, bearer string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	request.EndArrival(ctx)
	resp, err := p.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return body, nil
}
