package authn

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/apikeel/kelson/authn/oidc"
	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/metrics/measure"
)

// DefaultIssuer is the default issuer of service account tokens.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// Config configures authentication. The flags of kube-apiserver are beside the fields.
// The zero value allows only anonymous requests.
type Config struct {
	// DisableAnonymous refuses requests without a credential: --anonymous-auth=false.
	DisableAnonymous bool
	// AnonymousSet: --anonymous-auth was given, so the AuthenticationConfiguration must
	// not configure anonymous requests.
	AnonymousSet bool
	// APIAudiences are the audiences of the server, --api-audiences. The default is the
	// issuers of service account tokens.
	APIAudiences []string

	X509            X509
	RequestHeader   RequestHeader
	TokenFile       string // --token-auth-file
	BasicFile       string // --basic-auth-file
	BootstrapTokens bool   // --enable-bootstrap-token-auth
	ServiceAccounts ServiceAccounts
	OIDC            OIDC
	// StructuredFile is the path of an AuthenticationConfiguration,
	// --authentication-config.
	StructuredFile string
	Webhook        Webhook
	// Egress connects to the webhook, and to OIDC providers with an egressSelectorType;
	// nil dials directly. NoEgress refuses providers with one.
	Egress   *egress.Selector
	NoEgress bool
	// Tokens is asked last about tokens that are not known otherwise; its results are
	// cached like the others.
	Tokens Tokens

	// TokenSuccessTTL and TokenFailureTTL are how long the results of token
	// authentication are cached. Negative is never. The defaults are ten seconds and
	// never.
	TokenSuccessTTL, TokenFailureTTL time.Duration

	// Objects reads the objects that tokens refer to, for bootstrap tokens and service
	// accounts.
	Objects serviceaccount.Objects
	// Reloaded, if set, is called after a changed file has been read: CAs may be others.
	Reloaded func()
	// Log gets failed reloads, refused tokens and insecure settings; nil discards them.
	Log *slog.Logger
	// Now returns the time; nil is time.Now.
	Now func() time.Time
	// Metrics counts tokens; nil does not. NoKeyMetrics leaves out when keys of providers
	// were fetched.
	Metrics      measure.Sink
	NoKeyMetrics bool
}

// X509 configures client certificates.
type X509 struct {
	// CAFile has the CAs of users, --client-ca-file.
	CAFile string
	// CAs are more CAs of users, in PEM, such as the server's own.
	CAs []byte
	// Now returns the time for certificate verification; nil is that of the Config.
	Now func() time.Time
	// NoUID does not read the UID of a user from the certificate.
	NoUID bool
}

// RequestHeader configures authenticating proxies.
type RequestHeader struct {
	CAFile              string   // --requestheader-client-ca-file
	CAs                 []byte   // the same as PEM, if there is no file
	AllowedNames        []string // --requestheader-allowed-names
	UsernameHeaders     []string // --requestheader-username-headers
	UIDHeaders          []string // --requestheader-uid-headers
	NoUID               bool     // refuse UIDHeaders: the gate RemoteRequestHeaderUID is off
	GroupHeaders        []string // --requestheader-group-headers
	ExtraHeaderPrefixes []string // --requestheader-extra-headers-prefix
}

// ServiceAccounts configures service account tokens.
type ServiceAccounts struct {
	// Issuers is --service-account-issuer: the first one issues tokens, tokens of all
	// are accepted. The default is DefaultIssuer.
	Issuers []string
	// KeyFiles are the files with public keys, --service-account-key-file. The default
	// is the signing key.
	KeyFiles []string
	// SigningKeyFile is the file with the private key,
	// --service-account-signing-key-file.
	SigningKeyFile string
	// SigningEndpoint is the Unix socket of an external signer,
	// --service-account-signing-endpoint. A name that begins with @ is in the abstract
	// namespace.
	SigningEndpoint string
	// SigningKey is the private key if it is not in a file. Without a signing key the
	// server issues no tokens; without KeyFiles too, it accepts none.
	SigningKey crypto.Signer
	// SkipLookup is --service-account-lookup=false.
	SkipLookup bool
	// JWKSURI is the published address of the public keys, --service-account-jwks-uri.
	// The default is below the address of the server.
	JWKSURI string
	// MaxExpiration is the longest lifetime of tokens,
	// --service-account-max-token-expiration. Zero is no limit.
	MaxExpiration time.Duration
	// NoExtension is --service-account-extend-token-expiration=false: the default
	// tokens of pods expire when they say, not after a year.
	NoExtension bool
	// WebhookTokens accepts tokens that are bound to the configuration of admission
	// webhooks: the feature gate APIServerWebhookAuthenticationToken.
	WebhookTokens bool
}

// OIDC is one OpenID Connect provider, configured by flags.
type OIDC struct {
	IssuerURL      string            // --oidc-issuer-url
	ClientID       string            // --oidc-client-id
	CAFile         string            // --oidc-ca-file
	UsernameClaim  string            // --oidc-username-claim, sub by default
	UsernamePrefix string            // --oidc-username-prefix
	GroupsClaim    string            // --oidc-groups-claim
	GroupsPrefix   string            // --oidc-groups-prefix
	SigningAlgs    []string          // --oidc-signing-algs, RS256 by default
	RequiredClaims map[string]string // --oidc-required-claim
}

// Webhook configures a TokenReview webhook.
type Webhook struct {
	KubeconfigFile string // --authentication-token-webhook-config-file
	// Version of the reviews, --authentication-token-webhook-version; v1beta1
	// by default.
	Version string
	// CacheTTL is how long answers are cached,
	// --authentication-token-webhook-cache-ttl; two minutes by default, never if
	// negative.
	CacheTTL time.Duration
	// Backoff configures retries; by default five attempts, the second one half a
	// second after the first.
	Backoff wait.Backoff
}

func (c Config) defaults() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.X509.Now == nil {
		c.X509.Now = c.Now
	}
	if c.TokenSuccessTTL == 0 {
		c.TokenSuccessTTL = 10 * time.Second
	}
	if c.OIDC.UsernameClaim == "" {
		c.OIDC.UsernameClaim = "sub"
	}
	if len(c.OIDC.SigningAlgs) == 0 {
		c.OIDC.SigningAlgs = []string{"RS256"}
	}
	if c.Webhook.Version == "" {
		c.Webhook.Version = "v1beta1"
	}
	if c.Webhook.CacheTTL == 0 {
		c.Webhook.CacheTTL = 2 * time.Minute
	}
	if c.Webhook.Backoff == (wait.Backoff{}) {
		c.Webhook.Backoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
	}
	if len(c.ServiceAccounts.Issuers) == 0 {
		c.ServiceAccounts.Issuers = []string{DefaultIssuer}
	}
	if len(c.APIAudiences) == 0 {
		c.APIAudiences = c.ServiceAccounts.Issuers
	}
	return c
}

// Validate checks the configuration without opening anything.
func (c Config) Validate() error { return c.defaults().validate() }

func (c Config) validate() error {
	errs := append(c.ServiceAccounts.validate(), c.RequestHeader.validate(c.X509.CAFile)...)
	refuse := func(when bool, text string) {
		if when {
			errs = append(errs, errors.New(text))
		}
	}
	flags := c.OIDC.IssuerURL != "" || c.OIDC.ClientID != "" || c.OIDC.CAFile != "" || c.OIDC.UsernamePrefix != "" ||
		c.OIDC.GroupsClaim != "" || c.OIDC.GroupsPrefix != "" || len(c.OIDC.RequiredClaims) > 0
	if c.StructuredFile != "" {
		refuse(flags, "authentication-config file and oidc-* flags are mutually exclusive")
	} else {
		refuse(flags && (c.OIDC.IssuerURL == "" || c.OIDC.ClientID == ""), "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set")
	}
	refuse(c.Webhook.Backoff.Steps <= 0, fmt.Sprintf("number of webhook retry attempts must be greater than 0, but is: %d", c.Webhook.Backoff.Steps))
	return errors.Join(errs...)
}

// enabled reports whether service account tokens can be verified.
func (s *ServiceAccounts) enabled() bool {
	return s.SigningKey != nil || s.SigningKeyFile != "" || len(s.KeyFiles) > 0 || s.SigningEndpoint != ""
}

func (s *ServiceAccounts) validate() []error {
	var errs []error
	for i, issuer := range s.Issuers {
		_, err := url.Parse(issuer)
		switch {
		case strings.Contains(issuer, ":") && err != nil:
			errs = append(errs, fmt.Errorf("service-account-issuer %q contained a ':' but was not a valid URL: %w", issuer, err))
		case issuer == "":
			errs = append(errs, errors.New("service-account-issuer should not be an empty string"))
		case slices.Contains(s.Issuers[:i], issuer):
			errs = append(errs, fmt.Errorf("service-account-issuer %q is already specified", issuer))
		}
	}
	if s.JWKSURI != "" {
		if u, err := url.Parse(s.JWKSURI); err != nil {
			errs = append(errs, fmt.Errorf("service-account-jwks-uri must be a valid URL: %w", err))
		} else if u.Scheme != "https" {
			errs = append(errs, fmt.Errorf("service-account-jwks-uri requires https scheme, parsed as: %v", u))
		}
	}
	if s.MaxExpiration != 0 && (s.MaxExpiration < time.Hour || s.MaxExpiration > (1<<32)*time.Second) {
		errs = append(errs, errors.New("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds"))
	}
	if s.SigningKey != nil && s.SigningKeyFile != "" {
		errs = append(errs, errors.New("a signing key and service-account-signing-key-file are mutually exclusive"))
	}
	if s.SigningEndpoint != "" {
		if s.SigningKey != nil || s.SigningKeyFile != "" || len(s.KeyFiles) > 0 {
			errs = append(errs, errors.New("can't set `--service-account-signing-key-file` and/or `--service-account-key-file` with `--service-account-signing-endpoint` (They are mutually exclusive)"))
		}
		if name, abstract := strings.CutPrefix(s.SigningEndpoint, "@"); abstract && !isAbstractName(name) {
			errs = append(errs, fmt.Errorf("invalid value %q passed for `--service-account-signing-endpoint`, when prefixed with @ must be a valid abstract socket name", s.SigningEndpoint))
		}
	}
	return errs
}

// isAbstractName reports whether the name of an abstract socket is words separated by
// dots.
func isAbstractName(name string) bool {
	for word := range strings.SplitSeq(name, ".") {
		if word == "" || strings.ContainsFunc(word, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
		}) {
			return false
		}
	}
	return true
}

func (h *RequestHeader) validate(clientCAFile string) []error {
	var errs []error
	for _, list := range []struct {
		flag   string
		values []string
	}{
		{"requestheader-username-headers", h.UsernameHeaders}, {"requestheader-group-headers", h.GroupHeaders},
		{"requestheader-extra-headers-prefix", h.ExtraHeaderPrefixes}, {"requestheader-allowed-names", h.AllowedNames},
		{"requestheader-uid-headers", h.UIDHeaders},
	} {
		if slices.ContainsFunc(list.values, func(v string) bool { return strings.TrimSpace(v) == "" }) {
			errs = append(errs, fmt.Errorf("empty value in %q", list.flag))
		}
	}
	if len(h.UIDHeaders) > 0 && h.NoUID {
		errs = append(errs, errors.New(`--requestheader-uid-headers requires the "RemoteRequestHeaderUID" feature to be enabled`))
	} else if len(h.UIDHeaders) > 0 && !slices.ContainsFunc(h.UIDHeaders, func(v string) bool { return strings.EqualFold(v, "X-Remote-Uid") }) {
		errs = append(errs, errors.New("--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API aggregation will not work"))
	}
	// If one CA signs for users and for proxies, every user could act as a proxy.
	if clientCAFile != "" && h.CAFile != "" {
		users, errUsers := os.ReadFile(clientCAFile)
		proxies, errProxies := os.ReadFile(h.CAFile)
		if errUsers == nil && errProxies == nil { // another error shows when they are used
			if err := h.checkApart([][]byte{users}, nil, [][]byte{proxies}); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errs
}

// checkApart returns an error if users and proxies have an authority in common, while any name
// is that of a proxy. own are the authorities of users that are in no file.
func (h *RequestHeader) checkApart(users [][]byte, own []byte, proxies [][]byte) error {
	const consequence = "--requestheader-allowed-names must be specified to ensure regular client certificates cannot set authenticating proxy headers for arbitrary users"
	switch {
	case len(h.AllowedNames) > 0:
	case overlap([][]byte{own}, proxies):
		return errors.New("--requestheader-client-ca-file contains the authority with which this server signs certificates of users; " + consequence)
	case overlap(users, proxies):
		return errors.New("--requestheader-client-ca-file and --client-ca-file contain overlapping certificates; " + consequence)
	}
	return nil
}

// warn logs when the standard headers are missing, which aggregated API servers expect.
func (h *RequestHeader) warn(log *slog.Logger) {
	for _, list := range []struct {
		flag, usual string
		values      []string
	}{
		{"requestheader-username-headers", "X-Remote-User", h.UsernameHeaders},
		{"requestheader-group-headers", "X-Remote-Group", h.GroupHeaders},
		{"requestheader-extra-headers-prefix", "X-Remote-Extra-", h.ExtraHeaderPrefixes},
	} {
		if len(list.values) > 0 && !slices.ContainsFunc(list.values, func(v string) bool { return strings.EqualFold(v, list.usual) }) {
			log.Warn("a standard request header is not accepted: aggregated API servers will not work", "flag", list.flag, "header", list.usual)
		}
	}
}

// overlap reports whether a certificate that an authority of users signs is also valid with
// those of proxies: one has the key of the other, or is signed by it.
func overlap(users, proxies [][]byte) bool {
	fronts := certificatesOf(proxies)
	return slices.ContainsFunc(certificatesOf(users), func(user *x509.Certificate) bool {
		return slices.ContainsFunc(fronts, func(front *x509.Certificate) bool {
			return bytes.Equal(user.RawSubjectPublicKeyInfo, front.RawSubjectPublicKeyInfo) || user.CheckSignatureFrom(front) == nil
		})
	})
}

// certificatesOf returns the certificates in PEM files that a pool takes.
func certificatesOf(pems [][]byte) (all []*x509.Certificate) {
	for _, rest := range pems {
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if c, err := x509.ParseCertificate(block.Bytes); err == nil {
				all = append(all, c)
			}
		}
	}
	return all
}

// structured returns the provider as an AuthenticationConfiguration.
func (o *OIDC) structured() (*oidc.Configuration, error) {
	c := &oidc.Configuration{}
	if o.IssuerURL == "" {
		return c, nil
	}
	prefix := o.UsernamePrefix
	switch {
	case prefix == "-":
		prefix = ""
	case prefix == "" && o.UsernameClaim != "email":
		prefix = o.IssuerURL + "#"
	}
	a := oidc.Authenticator{
		Issuer:        oidc.Issuer{URL: o.IssuerURL, Audiences: []string{o.ClientID}},
		ClaimMappings: oidc.ClaimMappings{Username: oidc.PrefixedClaim{Prefix: &prefix, Claim: o.UsernameClaim}},
	}
	if o.GroupsClaim != "" {
		a.ClaimMappings.Groups = oidc.PrefixedClaim{Prefix: &o.GroupsPrefix, Claim: o.GroupsClaim}
	}
	if o.CAFile != "" {
		ca, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, err
		}
		a.Issuer.CertificateAuthority = string(ca)
	}
	for claim, value := range o.RequiredClaims {
		a.ClaimValidationRules = append(a.ClaimValidationRules, oidc.ClaimValidationRule{Claim: claim, RequiredValue: value})
	}
	c.JWT = []oidc.Authenticator{a}
	return c, nil
}
