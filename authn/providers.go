package authn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/apikeel/kelson/authn/oidc"
	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/internal/clock"
	"github.com/apikeel/kelson/metrics/measure"
)

// This file is about tokens of OpenID Connect: which providers are trusted, from flags or from
// an AuthenticationConfiguration that can change, and where their keys are.

// addProviders configures the OIDC providers, from the AuthenticationConfiguration or
// from flags.
func (s *Stage) addProviders() error {
	opts := oidc.Options{Algorithms: oidc.AllAlgorithms(), DisallowedIssuers: s.cfg.ServiceAccounts.Issuers, Egress: s.cfg.Egress, NoEgress: s.cfg.NoEgress, Now: s.cfg.Now, Metrics: s.cfg.Metrics}
	if !s.cfg.NoKeyMetrics {
		opts.KeyMetrics = s.cfg.Metrics
	}
	if s.cfg.StructuredFile == "" {
		c, err := s.cfg.OIDC.structured()
		if err != nil || len(c.JWT) == 0 {
			return err
		}
		opts.Algorithms = s.cfg.OIDC.SigningAlgs
		v, err := oidc.New(c, opts)
		s.providers.Store(v)
		return err
	}
	if _, err := os.ReadFile(s.cfg.StructuredFile); err != nil {
		return fmt.Errorf("failed to load authentication configuration from file %q: %w", s.cfg.StructuredFile, err)
	}
	var first *oidc.Configuration
	return s.structured.addOne(s.cfg.StructuredFile, func(data []byte) (err error) {
		if again := first != nil; again {
			defer func() { measure.ConfigReloaded(s.cfg.Metrics, measure.Authentication, data, err) }()
		} else {
			measure.ConfigRead(s.cfg.Metrics, measure.Authentication, data)
		}
		c, err := oidc.Parse(data)
		if err != nil {
			return fmt.Errorf("failed to load authentication configuration from file %q: %w", s.cfg.StructuredFile, err)
		}
		if first != nil && !reflect.DeepEqual(first.Anonymous, c.Anonymous) {
			return errors.New("anonymous: Forbidden: changed from initial configuration file")
		}
		if c.Anonymous != nil && s.cfg.AnonymousSet {
			return errors.New("anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file")
		}
		v, err := oidc.New(c, opts)
		if err != nil {
			return err
		}
		if first == nil {
			first = c
			s.setAnonymous(c.Anonymous)
		} else if err := s.awaitProviders(v); err != nil {
			v.Close()
			return err
		}
		if old := s.providers.Swap(v); old != nil {
			old.Replace(v)
		}
		return nil
	})
}

func (s *Stage) setAnonymous(a *oidc.Anonymous) {
	if a == nil {
		return
	}
	s.anonymous = nil
	if a.Enabled {
		var paths []string
		for _, condition := range a.Conditions {
			paths = append(paths, condition.Path)
		}
		s.anonymous = newAnonymous(paths)
	}
}

func (s *Stage) providerToken(ctx context.Context, token string, _ []string) (*Identity, error) {
	issuer := serviceaccount.UnverifiedIssuer(token)
	if issuer == "" {
		return nil, nil
	}
	user, expires, err := s.providers.Load().Verify(ctx, token, issuer)
	if user == nil || err != nil {
		return nil, err
	}
	return authenticated(&Identity{User: *user, Expires: expires}), nil
}

// discover asks the providers until ctx ends: there may be others when the file has changed.
func (s *Stage) discover(ctx context.Context) {
	if s.providers.Load() == nil {
		return
	}
	last := ""
	ask := func() {
		text := ""
		if err := s.providers.Load().Discover(ctx); err != nil {
			text = err.Error()
		}
		if text != last && text != "" && ctx.Err() == nil {
			s.cfg.Log.Warn("a token provider cannot be used; it is asked again", "error", text)
		}
		last = text
	}
	ask()
	for range clock.Every(ctx, oidc.RetryAfter) {
		ask()
	}
}

// providersWithin is how long the providers of a changed file may take to answer, as in
// kube-apiserver.
const providersWithin = time.Minute

// awaitProviders returns when all providers of a changed file have told where their keys
// are, or the error of those that do not: with a mistake in an issuer, a file must not
// replace one that works. s.structured.mu is held.
func (s *Stage) awaitProviders(v *oidc.Verifier) error {
	if s.watching == nil { // nobody waits for that in Reload
		return v.Discover(context.Background())
	}
	ctx, cancel := context.WithTimeout(s.watching, providersWithin)
	defer cancel()
	err := v.Discover(ctx)
	if err == nil {
		return nil
	}
	for range clock.Every(ctx, oidc.RetryAfter) {
		if err = v.Discover(ctx); err == nil {
			return nil
		}
	}
	return err
}
