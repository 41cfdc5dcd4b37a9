package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apikeel/kelson/authn"
	"github.com/spf13/pflag"
	"k8s.io/client-go/util/keyutil"
)

// authnFlags are the flags of authentication.
type authnFlags struct{ authn.Config }

func (f *authnFlags) bind(fs *pflag.FlagSet) {
	bindOpposite(fs, &f.DisableAnonymous, "anonymous-auth", "let requests without a credential be made by system:anonymous; otherwise they are refused")
	fs.StringVar(&f.X509.CAFile, "client-ca-file", "", "`file` with authorities whose client certificates are good: the common name is the user, the organizations are groups")
	fs.StringVar(&f.TokenFile, "token-auth-file", "", "`file` with tokens: lines of token,user,uid,\"group1,group2\"")
	fs.StringVar(&f.BasicFile, "basic-auth-file", "", "`file` with passwords: lines of password,user,uid,\"group1,group2\"; for tests, since passwords are not for servers")
	fs.BoolVar(&f.BootstrapTokens, "enable-bootstrap-token-auth", false, "let the secrets of type bootstrap.kubernetes.io/token in kube-system be used as tokens")
	fs.StringVar(&f.StructuredFile, "authentication-config", "", "`file` with an AuthenticationConfiguration, read again when it changes; instead of --oidc-…")

	sa := &f.ServiceAccounts
	fs.StringArrayVar(&sa.Issuers, "service-account-issuer", nil, "`name` of who issues the tokens of service accounts; with several, all are accepted, and the first is used (default "+authn.DefaultIssuer+")")
	fs.StringArrayVar(&sa.KeyFiles, "service-account-key-file", nil, "`file` with keys that verify the tokens of service accounts; can be given several times (default the signing key)")
	fs.StringVar(&sa.SigningKeyFile, "service-account-signing-key-file", "", "`file` with the key that signs the tokens of service accounts (default pki/sa.key in the data folder, which is made)")
	fs.StringVar(&sa.SigningEndpoint, "service-account-signing-endpoint", "", "`socket` of a service that signs the tokens of service accounts (ExternalJWTSigner v1), instead of a key")
	bindOpposite(fs, &sa.SkipLookup, "service-account-lookup", "check that what a token of a service account is about still exists")
	fs.StringVar(&sa.JWKSURI, "service-account-jwks-uri", "", "`URL` at which others find the public keys (default /openid/v1/jwks of this server)")
	fs.DurationVar(&sa.MaxExpiration, "service-account-max-token-expiration", 0, "the longest that a token of a service account is good for")
	bindOpposite(fs, &sa.NoExtension, "service-account-extend-token-expiration", "let the tokens that pods get by default be good for a year")
	fs.StringSliceVar(&f.APIAudiences, "api-audiences", nil, "`audiences` of tokens that are meant for this server (default the issuers of service account tokens)")

	o := &f.OIDC
	fs.StringVar(&o.IssuerURL, "oidc-issuer-url", "", "`URL` of an OpenID Connect provider")
	fs.StringVar(&o.ClientID, "oidc-client-id", "", "`audience` that its tokens must be for")
	fs.StringVar(&o.CAFile, "oidc-ca-file", "", "`file` with the authority of the provider's certificate (default those of the system)")
	fs.StringVar(&o.UsernameClaim, "oidc-username-claim", "sub", "`claim` that is the user")
	fs.StringVar(&o.UsernamePrefix, "oidc-username-prefix", "", "`text` before users; - is none (default the URL and #, unless the claim is email)")
	fs.StringVar(&o.GroupsClaim, "oidc-groups-claim", "", "`claim` that is the groups")
	fs.StringVar(&o.GroupsPrefix, "oidc-groups-prefix", "", "`text` before groups")
	fs.StringSliceVar(&o.SigningAlgs, "oidc-signing-algs", []string{"RS256"}, "`algorithms` of signatures")
	fs.Var(settings{to: &o.RequiredClaims, whole: true}, "oidc-required-claim", "`claim=value` that tokens must have; can be given several times")

	w := &f.Webhook
	fs.StringVar(&w.KubeconfigFile, "authentication-token-webhook-config-file", "", "kubeconfig `file` of a service that is asked about tokens")
	fs.StringVar(&w.Version, "authentication-token-webhook-version", "v1beta1", "`version` of the TokenReview that it gets: v1 or v1beta1")
	fs.DurationVar(&w.CacheTTL, "authentication-token-webhook-cache-ttl", 0, "how long its answers are remembered (default 2m0s)")

	h := &f.RequestHeader
	fs.StringVar(&h.CAFile, "requestheader-client-ca-file", "", "`file` with authorities of proxies that say in headers who asks")
	fs.StringSliceVar(&h.AllowedNames, "requestheader-allowed-names", nil, "common `names` of such proxies (default any)")
	fs.StringSliceVar(&h.UsernameHeaders, "requestheader-username-headers", nil, "`headers` with the user: X-Remote-User")
	fs.StringSliceVar(&h.UIDHeaders, "requestheader-uid-headers", nil, "`headers` with the UID of the user: X-Remote-Uid")
	fs.StringSliceVar(&h.GroupHeaders, "requestheader-group-headers", nil, "`headers` with groups: X-Remote-Group")
	fs.StringSliceVar(&h.ExtraHeaderPrefixes, "requestheader-extra-headers-prefix", nil, "`beginnings` of headers with more about the user: X-Remote-Extra-")
}

// prepare reads the key that signs service account tokens.
func (f *authnFlags) prepare(s *setup) error {
	accounts := &f.ServiceAccounts
	if d := accounts.MaxExpiration; d != 0 && (d < time.Hour || d > (1<<32)*time.Second) {
		return errors.New("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds")
	}
	if !s.kube || len(accounts.Issuers) == 0 || accounts.Issuers[0] == "" || accounts.SigningKeyFile == "" {
		return nil
	}
	if accounts.SigningEndpoint != "" {
		return errors.New("service-account-signing-key-file and service-account-signing-endpoint are mutually exclusive and cannot be set at the same time")
	}
	if _, err := keyutil.PrivateKeyFromFile(accounts.SigningKeyFile); err != nil {
		return fmt.Errorf("failed to parse service-account-issuer-key-file: %w", err)
	}
	return nil
}

// check validates in kube-apiserver's order.
func (f *authnFlags) check(s *setup) {
	accounts := f.ServiceAccounts
	s.flags.Visit(func(flag *pflag.Flag) {
		if strings.HasPrefix(flag.Name, "oidc-") && f.StructuredFile == "" && (f.OIDC.IssuerURL == "" || f.OIDC.ClientID == "") {
			s.refuse(checkAuthentication, errors.New("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"))
		}
	})
	parts := []authn.Config{{OIDC: f.OIDC, StructuredFile: f.StructuredFile}, {ServiceAccounts: authn.ServiceAccounts{Issuers: accounts.Issuers}}}
	for _, part := range parts {
		s.refuse(checkAuthentication, part.Validate())
	}
	if s.kube && len(accounts.Issuers) == 0 {
		s.refuse(checkAuthentication, errors.New("service-account-issuer is a required flag"))
	}
	if elsewhere := accounts.SigningEndpoint != "" && len(accounts.Issuers) > 0; s.kube && len(accounts.KeyFiles) == 0 && !elsewhere {
		s.refuse(checkAuthentication, errors.New("either `--service-account-key-file` or `--service-account-signing-endpoint` must be set"))
	}
	parts = []authn.Config{
		{ServiceAccounts: authn.ServiceAccounts{JWKSURI: accounts.JWKSURI}}, {RequestHeader: f.RequestHeader, X509: f.X509},
	}
	for _, part := range parts {
		s.refuse(checkAuthentication, part.Validate())
	}
	accounts.Issuers, accounts.JWKSURI = nil, ""
	s.refuse(checkSigner, (authn.Config{ServiceAccounts: accounts}).Validate())
}

func (f *authnFlags) apply(s *setup) {
	f.check(s)
	f.AnonymousSet = s.given("anonymous-auth")
	// In a Config zero is the default.
	if s.given("authentication-token-webhook-cache-ttl") && f.Webhook.CacheTTL == 0 {
		f.Webhook.CacheTTL = -1
	}
	if sa := f.ServiceAccounts; len(sa.KeyFiles) > 0 && sa.SigningKeyFile == "" && !s.kube {
		s.refuse(checkTokens, errors.New("--service-account-key-file needs --service-account-signing-key-file: tokens would be signed with a key that none of the files has"))
	}
	if f.BasicFile != "" {
		s.log.Warn("--basic-auth-file is for tests: passwords are sent with every request, are in the file in clear text, and do not expire")
	}
	s.config.Authentication = f.Config
}
