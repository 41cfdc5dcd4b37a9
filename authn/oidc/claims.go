package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/cel/lazy"

	"github.com/apikeel/kelson/request"
)

// This file maps the claims of a token to a user.

const credentialID = "authentication.kubernetes.io/credential-id"

// rules are the compiled rules of a provider. A program is nil if a claim is used as it
// is.
type rules struct {
	username, groups, uid *program
	extra                 []extraMapping
	claims, users         []condition
	required              map[string]string // claim -> required value
}

type extraMapping struct {
	*program
	key string
}

// claims are the claims of a token, by name.
type claims map[string]json.RawMessage

func (c claims) get(name string, v any) error {
	raw, ok := c[name]
	if !ok {
		return errors.New("claim not present")
	}
	return json.Unmarshal(raw, v)
}

// mapper maps the claims of one provider to users.
type mapper struct {
	mappings ClaimMappings
	*rules
}

// user returns the user and checks the validation rules.
func (m *mapper) user(ctx context.Context, c claims) (*request.User, error) {
	value := claimsValue(c)
	u := &request.User{}
	var err error
	if u.Name, err = m.name(ctx, c, value); err != nil {
		return nil, err
	}
	if u.Groups, err = m.groupsOf(ctx, c, value); err != nil {
		return nil, err
	}
	if u.UID, err = m.uidOf(ctx, c, value); err != nil {
		return nil, err
	}
	if u.Extra, err = m.extraOf(ctx, c, value); err != nil {
		return nil, err
	}
	for name, want := range m.required {
		if err := required(c, name, want); err != nil {
			return nil, err
		}
	}
	for _, rule := range m.claims {
		if err := rule.check(ctx, value); err != nil {
			return nil, fmt.Errorf("oidc: error evaluating claim validation expression: %w", err)
		}
	}
	for _, rule := range m.users {
		if err := rule.check(ctx, userValue(u)); err != nil {
			return nil, fmt.Errorf("oidc: error evaluating user info validation rule: %w", err)
		}
	}
	return u, nil
}

func required(c claims, name, want string) error {
	var got string
	if _, ok := c[name]; !ok {
		return fmt.Errorf("oidc: required claim %s not present in ID token", name)
	}
	if err := c.get(name, &got); err != nil {
		return fmt.Errorf("oidc: parse claim %s: %w", name, err)
	}
	if got != want {
		return fmt.Errorf("oidc: required claim %s value does not match. Got = %s, want = %s", name, got, want)
	}
	return nil
}

func (m *mapper) name(ctx context.Context, c claims, value *lazy.MapValue) (string, error) {
	if m.username != nil {
		name, err := m.username.evalString(ctx, value, "username")
		if err == nil && name == "" {
			err = errors.New("oidc: empty username via CEL expression is not allowed")
		}
		return name, err
	}
	claim := m.mappings.Username.Claim
	var name string
	if err := c.get(claim, &name); err != nil {
		return "", fmt.Errorf("oidc: parse username claims %q: %w", claim, err)
	}
	// An email address that is not verified could be anybody's.
	if _, has := c["email_verified"]; has && claim == "email" {
		var verified bool
		if err := c.get("email_verified", &verified); err != nil {
			return "", fmt.Errorf("oidc: parse 'email_verified' claim: %w", err)
		}
		if !verified {
			return "", errors.New("oidc: email not verified")
		}
	}
	return prefix(m.mappings.Username) + name, nil
}

func prefix(m PrefixedClaim) string {
	if m.Prefix == nil {
		return ""
	}
	return *m.Prefix
}

func (m *mapper) groupsOf(ctx context.Context, c claims, value *lazy.MapValue) ([]string, error) {
	if claim := m.mappings.Groups.Claim; claim != "" {
		if _, ok := c[claim]; ok {
			var groups oneOrMore
			if err := c.get(claim, &groups); err != nil {
				return nil, fmt.Errorf("oidc: parse groups claim %q: %w", claim, err)
			}
			for i := range groups {
				groups[i] = prefix(m.mappings.Groups) + groups[i]
			}
			return groups, nil
		}
	}
	if m.groups == nil {
		return nil, nil
	}
	result, err := m.groups.eval(ctx, value)
	if err != nil {
		return nil, fmt.Errorf("oidc: error evaluating group claim expression: %w", err)
	}
	groups, err := stringList(result)
	if err != nil {
		return nil, fmt.Errorf("oidc: error evaluating group claim expression: %w", err)
	}
	return groups, nil
}

func (m *mapper) uidOf(ctx context.Context, c claims, value *lazy.MapValue) (string, error) {
	claim := m.mappings.UID.Claim
	if claim != "" {
		var uid string
		if err := c.get(claim, &uid); err != nil {
			return "", fmt.Errorf("oidc: parse uid claim %q: %w", claim, err)
		}
		return uid, nil
	}
	if m.uid == nil {
		return "", nil
	}
	return m.uid.evalString(ctx, value, "uid")
}

func (m *mapper) extraOf(ctx context.Context, c claims, value *lazy.MapValue) (map[string][]string, error) {
	extra := map[string][]string{}
	var id string
	if c.get("jti", &id) == nil && id != "" {
		extra[credentialID] = []string{"JTI=" + id}
	}
	for _, e := range m.extra {
		result, err := e.eval(ctx, value)
		if err != nil {
			return nil, err
		}
		values, err := stringList(result)
		if err != nil {
			return nil, fmt.Errorf("oidc: error evaluating extra claim expression: %s: %w", e.text, err)
		}
		if len(values) > 0 {
			extra[e.key] = values
		}
	}
	if len(extra) == 0 {
		return nil, nil
	}
	return extra, nil
}

// oneOrMore is a string or a list of strings in JSON.
type oneOrMore []string

// UnmarshalJSON implements json.Unmarshaler.
func (s *oneOrMore) UnmarshalJSON(data []byte) error {
	var list []string
	if json.Unmarshal(data, &list) == nil {
		*s = list
		return nil
	}
	var one string
	err := json.Unmarshal(data, &one)
	*s = []string{one}
	return err
}
