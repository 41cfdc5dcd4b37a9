package authn

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/apikeel/kelson/authn/oidc"
	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/authn/serviceaccount/external"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/status"
)

// This file assembles the authenticators of a server from its configuration.

// Stage authenticates the requests of a server. Watch reloads its files; Close closes
// its connections.
type Stage struct {
	cfg Config
	// authenticators are those of credentials, in order; anonymous is that of requests
	// without a credential, nil if these are refused.
	authenticators Union
	anonymous      *anonymous
	cache          *Cache // of token authentication
	files          files
	// structured is the AuthenticationConfiguration, apart from the other files: a reload
	// waits for its providers. watching is the context of Watch, nil before; guarded by
	// structured.mu.
	structured files
	watching   context.Context

	clientCAs, proxyCAs pool
	clients, proxies    [][]byte // the PEM files in clientCAs and proxyCAs
	advertised          pool     // both, announced in the TLS handshake
	proxy               *proxy
	accounts            *serviceaccount.Verifier
	issuer              atomic.Pointer[serviceaccount.Issuer]
	keys                atomic.Pointer[serviceaccount.Keys]
	providers           atomic.Pointer[oidc.Verifier]
	signer              *external.Signer // external signer of tokens, nil if there is none
	webhook             *webhook
}

// New reads the files of the configuration and returns the stage. Authenticators are
// asked in the order of kube-apiserver: proxies, certificates, tokens that are verified
// here, tokens that another service verifies.
func (c Config) New() (*Stage, error) {
	c = c.defaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Objects == nil && (c.BootstrapTokens || c.ServiceAccounts.enabled()) {
		return nil, errors.New("tokens of service accounts and bootstrap tokens need access to objects")
	}
	c.RequestHeader.warn(c.Log)
	s := &Stage{cfg: c, files: files{log: c.Log}, structured: files{log: c.Log}}
	if !c.DisableAnonymous {
		s.anonymous = newAnonymous(nil)
	}
	// Files are read in kube-apiserver's order (for its errors), which is not the order
	// of authentication.
	for _, add := range []func() error{s.readClients, s.addProviders, s.readProxies, s.addServiceAccounts, s.addCertificates, s.addTokens, s.addBasic} {
		if err := add(); err != nil {
			s.Close()
			return nil, err
		}
	}
	s.files.changed = func() {
		s.cache.Purge()
		if c.Reloaded != nil {
			c.Reloaded()
		}
	}
	s.structured.changed = s.files.changed
	if s.signer != nil {
		s.signer.Follow()
	}
	return s, nil
}

// readClients reads the CAs of users.
func (s *Stage) readClients() error {
	x := s.cfg.X509
	return s.readAuthorities(x.CAFile, "client-ca-bundle", &s.clientCAs, &s.clients, x.CAs)
}

// readProxies reads the CAs of authenticating proxies.
func (s *Stage) readProxies() error {
	h := s.cfg.RequestHeader
	return s.readAuthorities(h.CAFile, "request-header", &s.proxyCAs, &s.proxies, h.CAs)
}

// readAuthorities fills a pool of CAs from a file, if there is one, and from given.
// pems gets the PEM data, for the handshake.
func (s *Stage) readAuthorities(file, name string, p *pool, pems *[][]byte, given []byte) error {
	// A pool is replaced as a whole: verifications that are cached for the old pool are
	// not used any more.
	set := func(all ...[]byte) error {
		roots := x509.NewCertPool()
		for _, pem := range all {
			if len(pem) > 0 && !roots.AppendCertsFromPEM(pem) {
				return errors.New("data does not contain any valid RSA or ECDSA certificates")
			}
		}
		old := *pems
		*pems = all
		if err := s.cfg.RequestHeader.checkApart(s.clients, s.cfg.X509.CAs, s.proxies); err != nil {
			*pems = old
			return err
		}
		p.Store(roots)
		advertised := x509.NewCertPool()
		for _, pem := range slices.Concat(s.clients, s.proxies) {
			advertised.AppendCertsFromPEM(pem)
		}
		s.advertised.Store(advertised)
		return nil
	}
	switch {
	case file != "":
		return s.files.addOne(file, func(data []byte) error { return caBundleError(name, file, data, set(data, given)) })
	case len(given) > 0:
		return set(given)
	}
	return nil
}

func (s *Stage) addCertificates() error {
	if s.proxyCAs.Load() != nil {
		s.proxy = newProxy(&s.proxyCAs, s.cfg.X509.Now, s.cfg.RequestHeader)
		s.authenticators = append(s.authenticators, s.proxy)
	}
	if s.clientCAs.Load() != nil {
		s.authenticators = append(s.authenticators, &certificates{roots: &s.clientCAs, now: s.cfg.X509.Now, noUID: s.cfg.X509.NoUID})
	}
	return nil
}

// caBundleError returns the error for a file of CAs, with kube-apiserver's text.
func caBundleError(name, file string, data []byte, err error) error {
	switch {
	case len(data) == 0:
		return fmt.Errorf("missing content for CA bundle %q", name+"::"+file)
	case err != nil:
		return fmt.Errorf("error loading CA bundle for %q: %w", name+"::"+file, err)
	}
	return nil
}

func (s *Stage) addBasic() error {
	if s.cfg.BasicFile == "" {
		return nil
	}
	s.cfg.Log.Warn("passwords in a file are not safe: use another way to authenticate", "file", s.cfg.BasicFile)
	b := &basic{}
	s.authenticators = append(s.authenticators, b)
	return s.files.addOne(s.cfg.BasicFile, b.load(s.cfg.BasicFile))
}

func (s *Stage) addTokens() error {
	var all TokensUnion
	if path := s.cfg.TokenFile; path != "" {
		t := &tokenFile{}
		if err := s.files.addOne(path, t.load(path, s.cfg.Log)); err != nil {
			return err
		}
		all = append(all, serverAudience{t, s.cfg.APIAudiences})
	}
	if s.accounts != nil {
		all = append(all, TokensFunc(s.serviceAccountToken))
	}
	if s.cfg.BootstrapTokens {
		all = append(all, serverAudience{&bootstrap{s.cfg.Objects, s.cfg.Log, s.cfg.Now}, s.cfg.APIAudiences})
	}
	// After the tokens that are verified here: other services may have to be asked.
	if s.providers.Load() != nil {
		all = append(all, serverAudience{TokensFunc(s.providerToken), s.cfg.APIAudiences})
	}
	if w := s.cfg.Webhook; w.KubeconfigFile != "" {
		var err error
		if s.webhook, err = newWebhook(w.KubeconfigFile, w.Version, s.cfg.APIAudiences, w.Backoff, s.cfg.Egress.For("controlplane"), s.cfg.Metrics, s.cfg.Log); err != nil {
			return err
		}
		all = append(all, NewCache(&gate{Tokens: s.webhook}, CacheConfig{Success: w.CacheTTL, Failure: w.CacheTTL, Log: s.cfg.Log, Now: s.cfg.Now, Metrics: s.cfg.Metrics}))
	}
	if s.cfg.Tokens != nil {
		all = append(all, &gate{Tokens: s.cfg.Tokens})
	}
	// The token authenticator always exists: an unknown token is an error, never an
	// anonymous request.
	s.cache = NewCache(all, CacheConfig{
		Success: s.cfg.TokenSuccessTTL, Failure: s.cfg.TokenFailureTTL, Errors: true, Log: s.cfg.Log, Now: s.cfg.Now, Metrics: s.cfg.Metrics,
	})
	s.authenticators = append(s.authenticators, bearer{s.cache}, webSocket{s.cache})
	return nil
}

func (s *Stage) addServiceAccounts() error {
	sa := s.cfg.ServiceAccounts
	if !sa.enabled() {
		return nil
	}
	s.accounts = &serviceaccount.Verifier{
		Issuers: sa.Issuers, Audiences: s.cfg.APIAudiences, Objects: s.cfg.Objects,
		SkipLookup: sa.SkipLookup, WebhookTokens: sa.WebhookTokens, Log: s.cfg.Log, Now: s.cfg.Now, Metrics: s.cfg.Metrics,
	}
	if sa.SigningEndpoint != "" {
		return s.addSigner()
	}
	paths := slices.Clone(sa.KeyFiles)
	if sa.SigningKeyFile != "" {
		paths = append(paths, sa.SigningKeyFile)
	}
	return s.files.add(func(data [][]byte) error {
		key := sa.SigningKey
		if sa.SigningKeyFile != "" {
			var err error
			last := len(data) - 1
			if key, err = serviceaccount.ParsePrivateKey(data[last]); err != nil {
				return fmt.Errorf("failed to parse service-account-issuer-key-file: %w", err)
			}
			data = data[:last]
		}
		return s.setKeys(key, data)
	}, paths...)
}

// addSigner connects to the external signer of tokens.
func (s *Stage) addSigner() (err error) {
	sa := &s.cfg.ServiceAccounts
	s.signer, err = external.Dial(sa.SigningEndpoint, s.cfg.Log, s.cfg.Metrics, func(keys *serviceaccount.Keys) {
		s.accounts.SetKeys(keys)
		s.keys.Store(keys)
		if s.cache != nil {
			s.cache.Purge() // of results that were verified with the old keys
		}
	})
	if err != nil {
		return fmt.Errorf("while setting up external-jwt-signer: %w", err)
	}
	if most := s.signer.MaxLifetime; sa.MaxExpiration > most {
		return fmt.Errorf("service-account-max-token-expiration cannot be set longer than the token expiration supported by service-account-signing-endpoint: %s > %s", sa.MaxExpiration, most)
	} else if sa.MaxExpiration == 0 {
		sa.MaxExpiration = most
	}
	s.accounts.Find = s.signer.Find
	issuer := serviceaccount.NewExternalIssuer(sa.Issuers[0], s.signer)
	issuer.Now = s.cfg.Now
	s.issuer.Store(issuer)
	return nil
}

// TokenLifetime returns the longest lifetime of service account tokens, and of the
// extended tokens of pods; 0 is no limit.
func (s *Stage) TokenLifetime() (most, extended time.Duration) {
	if s.signer != nil {
		extended = s.signer.MaxLifetime
	}
	return s.cfg.ServiceAccounts.MaxExpiration, extended
}

// setKeys switches to a signing key and files of public keys.
func (s *Stage) setKeys(signing crypto.Signer, public [][]byte) error {
	var all []any
	for i, data := range public {
		keys, err := serviceaccount.ParsePublicKeys(data)
		if err != nil {
			return fmt.Errorf("error reading public key file %s: %w", s.cfg.ServiceAccounts.KeyFiles[i], err)
		}
		all = append(all, keys...)
	}
	if len(all) == 0 {
		all = append(all, signing)
	}
	keys, err := serviceaccount.NewKeys(all...)
	if err != nil {
		return fmt.Errorf("failed to set up public service account keys: %w", err)
	}
	var issuer *serviceaccount.Issuer
	if signing != nil {
		if issuer, err = serviceaccount.NewIssuer(s.cfg.ServiceAccounts.Issuers[0], signing); err != nil {
			return fmt.Errorf("failed to build token generator: %w", err)
		}
		issuer.Now = s.cfg.Now
	}
	s.accounts.SetKeys(keys)
	s.keys.Store(keys)
	s.issuer.Store(issuer)
	return nil
}

func (s *Stage) serviceAccountToken(ctx context.Context, token string, audiences []string) (*Identity, error) {
	v, err := s.accounts.Verify(ctx, token, audiences)
	if v == nil || err != nil {
		return nil, err
	}
	return authenticated(&Identity{
		User: v.User, Audiences: v.Audiences, Expires: v.Expires, Annotations: v.Annotations, Warnings: v.Warnings,
		Valid: allExist(s.cfg.Objects, v.Needs...),
	}), nil
}

// allExist returns a function that reports whether all objects exist, so that a cached
// token is refused as soon as one of them is deleted.
func allExist(objects serviceaccount.Objects, refs ...serviceaccount.Reference) func(ctx context.Context) bool {
	return func(ctx context.Context) bool {
		for _, ref := range refs {
			if !objects.Exists(ctx, ref) {
				return false
			}
		}
		return true
	}
}

// Authenticate implements Authenticator.
func (s *Stage) Authenticate(r *http.Request) (*Identity, error) {
	id, err := s.authenticators.Authenticate(r)
	if id == nil && err == nil && s.anonymous != nil {
		return s.anonymous.Authenticate(r)
	}
	return id, err
}

// User returns the user of a request, and false if it is not authenticated. Warnings
// and annotations are added to the request.
func (s *Stage) User(r *http.Request) (request.User, bool, error) {
	id, err := s.Authenticate(r)
	if id == nil || err != nil {
		return request.User{}, false, err
	}
	if len(id.Warnings) > 0 || len(id.Annotations) > 0 {
		req := request.From(r.Context())
		for _, w := range id.Warnings {
			req.Warn(w)
		}
		for key, value := range id.Annotations {
			req.Annotate(key, value)
		}
	}
	return id.User, true, nil
}

// Strip removes credentials and proxy headers from a request, so that no later stage
// sees them.
func (s *Stage) Strip(h http.Header) {
	delete(h, "Authorization")
	if s.proxy != nil {
		s.proxy.strip(h)
	}
	for name := range h {
		switch name {
		case "X-Remote-User", "X-Remote-Uid", "X-Remote-Group":
			delete(h, name)
		default:
			if hasFoldedPrefix(name, "X-Remote-Extra-") {
				delete(h, name)
			}
		}
	}
}

// ClientCAs returns the CAs to announce in the TLS handshake. They may change.
func (s *Stage) ClientCAs() *x509.CertPool { return s.advertised.Load() }

// ReviewToken answers a TokenReview. A token that is not valid is not an error.
func (s *Stage) ReviewToken(ctx context.Context, token string, audiences []string) (authenticationv1.TokenReviewStatus, error) {
	var status authenticationv1.TokenReviewStatus
	if len(audiences) == 0 {
		audiences = s.cfg.APIAudiences
	}
	id, err := s.cache.AuthenticateToken(ctx, token, audiences)
	if errors.Is(err, request.ErrBusy) {
		return status, apierrors.NewTooManyRequests(err.Error(), 1)
	}
	if id == nil || err != nil {
		// kube-apiserver reports its loopback token authenticator first.
		status.Error = utilerrors.NewAggregate([]error{errInvalidToken, err}).Error()
		return status, nil
	}
	if len(audiences) > 0 && len(intersect(audiences, id.Audiences)) == 0 {
		return status, apierrors.NewInternalError(errors.New("error validating audiences"))
	}
	status.Authenticated = true
	status.Audiences = id.Audiences
	status.User = UserInfo(&id.User)
	return status, nil
}

// UserInfo converts a user for reviews.
func UserInfo(u *request.User) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.Name, UID: u.UID, Groups: u.Groups}
	for key, values := range u.Extra {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[key] = values
	}
	return info
}

// CanIssue reports whether there is a key to sign service account tokens with.
func (s *Stage) CanIssue() bool { return s.issuer.Load() != nil }

// Audiences returns the audiences of the server.
func (s *Stage) Audiences() []string { return s.cfg.APIAudiences }

// Issue signs a service account token; for the parameters see serviceaccount.Issuer.
func (s *Stage) Issue(account *corev1.ServiceAccount, bound []metav1.Object, audiences []string, attestations map[string]authenticationv1.AttestationValue, lifetime, warnAfter time.Duration) (token, id string, err error) {
	issuer := s.issuer.Load()
	if issuer == nil {
		return "", "", errors.New("there is no key to sign tokens with")
	}
	return issuer.Issue(account, bound, audiences, attestations, lifetime, warnAfter)
}

// Paths returns the handlers of the OpenID discovery documents, by path. address
// returns the address of the server.
func (s *Stage) Paths(address func() string) map[string]http.Handler {
	if s.keys.Load() == nil {
		return nil
	}
	sa := s.cfg.ServiceAccounts
	documents := func(address string) (*serviceaccount.Documents, error) {
		d, err := serviceaccount.NewDocuments(sa.Issuers[0], sa.JWKSURI, address, s.keys.Load())
		if err == nil && s.signer != nil {
			d.MaxAge = s.signer.MaxAge()
		}
		return d, err
	}
	if _, err := documents("localhost"); err != nil {
		s.cfg.Log.Info("no OpenID documents are served for the issuer of service account tokens", "reason", err)
		return nil
	}
	serve := func(write func(d *serviceaccount.Documents, w http.ResponseWriter, r *http.Request)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d, err := documents(address())
			if err != nil {
				s.cfg.Log.Error("OpenID documents cannot be made", "error", err)
				http.NotFound(w, r)
				return
			}
			write(d, w, r)
		})
	}
	paths := map[string]http.Handler{}
	for path, handler := range map[string]http.Handler{
		serviceaccount.ConfigurationPath: serve((*serviceaccount.Documents).ServeConfiguration),
		serviceaccount.KeysPath:          serve((*serviceaccount.Documents).ServeKeys),
	} {
		paths[path] = handler
		paths[path+"/"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.TrimRight(r.URL.Path, "/") != path {
				status.Write(w, r, apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false).ErrStatus)
				return
			}
			handler.ServeHTTP(w, r)
		})
	}
	return paths
}

// Reload loads the files that have changed.
func (s *Stage) Reload() {
	s.files.reload()
	s.structured.reload()
}

// Watch reloads files when they change, and asks the OIDC providers for the addresses of
// their keys, until ctx ends.
func (s *Stage) Watch(ctx context.Context) {
	s.structured.mu.Lock()
	s.watching = ctx
	s.structured.mu.Unlock()
	var others sync.WaitGroup
	others.Go(func() { s.discover(ctx) })
	others.Go(func() { s.structured.watch(ctx) })
	s.files.watch(ctx)
	others.Wait()
}

// Close closes the connections to providers and webhooks.
func (s *Stage) Close() {
	if v := s.providers.Load(); v != nil {
		v.Close()
	}
	if s.webhook != nil {
		s.webhook.Close()
	}
	if s.signer != nil {
		s.signer.Close()
	}
}
