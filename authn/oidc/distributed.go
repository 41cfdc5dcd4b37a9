package oidc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// This file resolves distributed claims.

// maxDistributedIssuers is the largest number of issuers of distributed claims that are kept for a
// provider.
const maxDistributedIssuers = 32

// expand fetches the groups of a user whose token only says where they are (a
// distributed claim), as large providers do for users in many groups.
func (p *provider) expand(ctx context.Context, c claims) error {
	if p.distributed == "" {
		return nil
	}
	if _, has := c[p.distributed]; has {
		return nil
	}
	if _, has := c["_claim_names"]; !has {
		return nil
	}
	var names map[string]string
	if err := c.get("_claim_names", &names); err != nil {
		return fmt.Errorf("oidc: error parsing distributed claim names: %w", err)
	}
	if _, has := c["_claim_sources"]; !has {
		return errors.New("oidc: no claim sources")
	}
	var sources map[string]struct {
		Endpoint    string `json:"endpoint,omitempty"`
		AccessToken string `json:"access_token,omitempty"`
	}
	if err := c.get("_claim_sources", &sources); err != nil {
		return fmt.Errorf("oidc: could not parse claim sources: %w", err)
	}
	name, has := names[p.distributed]
	if !has {
		return nil
	}
	source, has := sources[name]
	if !has {
		return fmt.Errorf("id token _claim_names contained a source %s missing in _claims_sources", name)
	}
	if source.Endpoint == "" {
		return nil // an aggregated claim, which is not supported
	}
	return p.resolve(ctx, source.Endpoint, source.AccessToken, c)
}

// resolve fetches a claim from its endpoint. It comes in a token of its own, whose
// issuer must have signed it.
func (p *provider) resolve(ctx context.Context, url, bearer string, c claims) error {
	body, err := p.get(ctx, url, bearer)
	if err != nil {
		return fmt.Errorf("while getting distributed claim %q: %w", p.distributed, err)
	}
	token := string(body)
	issuer, err := unverifiedIssuer(token)
	if err != nil {
		return fmt.Errorf("getting untrusted issuer from endpoint %v failed for claim %q: %w", url, p.distributed, err)
	}
	t, err := p.distributedIssuer(issuer)
	if err != nil {
		return fmt.Errorf("verifying untrusted issuer %v failed: %w", issuer, err)
	}
	id, err := t.verify(ctx, token)
	if err != nil {
		return fmt.Errorf("verify distributed claim token: %w", err)
	}
	var more claims
	if err := id.Claims(&more); err != nil {
		return fmt.Errorf("could not parse distributed claims for claim %v: %w", p.distributed, err)
	}
	value, has := more[p.distributed]
	if !has {
		return fmt.Errorf("jwt returned by distributed claim endpoint %q did not contain claim: %v", url, p.distributed)
	}
	c[p.distributed] = value
	return nil
}

// distributedIssuer returns the keys of an issuer of distributed claims.
func (p *provider) distributedIssuer(issuer string) (*issuerKeys, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.distributedIssuers[issuer]
	if t == nil {
		if len(p.distributedIssuers) >= maxDistributedIssuers {
			return nil, errors.New("too many issuers of distributed claims")
		}
		t = newIssuerKeys(p, issuer, "")
		p.distributedIssuers[issuer] = t
	}
	return t, nil
}

func unverifiedIssuer(token string) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", errors.New("malformed token")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", fmt.Errorf("error decoding token: %w", err)
	}
	var c struct {
		Issuer string `json:"iss"`
	}
	if err := json.Unmarshal(payload, &c); err != nil {
		return "", fmt.Errorf("while unmarshaling token: %w", err)
	}
	return canonical(c.Issuer), nil
}
