// Package oidc verifies the ID tokens of OpenID Connect providers and maps
// their claims to users.
//
// Providers are described by an AuthenticationConfiguration, from a file or made
// from flags. Nothing is asked of a provider before the first token that claims
// to be from it: a server starts without its providers, and one that is down
// costs only its own users.
package oidc

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/internal/configfile"
)

const (
	configGroup = "apiserver.config.k8s.io"
	configKind  = "AuthenticationConfiguration"
)

// Configuration is the AuthenticationConfiguration of a file. All its versions
// have the same form.
type Configuration struct {
	metav1.TypeMeta `json:",inline"`
	JWT             []Authenticator `json:"jwt"`
	Anonymous       *Anonymous      `json:"anonymous,omitempty"`
}

// Anonymous says whether there are anonymous requests, and for which paths.
type Anonymous struct {
	Enabled    bool                 `json:"enabled"`
	Conditions []AnonymousCondition `json:"conditions,omitempty"`
}

// AnonymousCondition allows anonymous requests for a path.
type AnonymousCondition struct {
	Path string `json:"path"`
}

// Authenticator describes a provider and what its claims mean.
type Authenticator struct {
	Issuer               Issuer                `json:"issuer"`
	ClaimValidationRules []ClaimValidationRule `json:"claimValidationRules,omitempty"`
	ClaimMappings        ClaimMappings         `json:"claimMappings"`
	UserValidationRules  []UserValidationRule  `json:"userValidationRules,omitempty"`
}

// Issuer is a provider.
type Issuer struct {
	URL string `json:"url"`
	// DiscoveryURL is where the provider describes itself, if that is not below
	// its URL.
	DiscoveryURL         string   `json:"discoveryURL,omitempty"`
	CertificateAuthority string   `json:"certificateAuthority,omitempty"`
	Audiences            []string `json:"audiences"`
	AudienceMatchPolicy  string   `json:"audienceMatchPolicy,omitempty"`
	EgressSelectorType   string   `json:"egressSelectorType,omitempty"`
}

// ClaimValidationRule must be met by the claims: a claim has a value, or an
// expression is true.
type ClaimValidationRule struct {
	Claim         string `json:"claim,omitempty"`
	RequiredValue string `json:"requiredValue,omitempty"`
	Expression    string `json:"expression,omitempty"`
	Message       string `json:"message,omitempty"`
}

// ClaimMappings make a user from claims.
type ClaimMappings struct {
	Username PrefixedClaim  `json:"username"`
	Groups   PrefixedClaim  `json:"groups,omitempty"`
	UID      Claim          `json:"uid"`
	Extra    []ExtraMapping `json:"extra,omitempty"`
}

// PrefixedClaim is a claim with a prefix, or an expression.
type PrefixedClaim struct {
	Claim      string  `json:"claim,omitempty"`
	Prefix     *string `json:"prefix,omitempty"`
	Expression string  `json:"expression,omitempty"`
}

// Claim is a claim or an expression.
type Claim struct {
	Claim      string `json:"claim,omitempty"`
	Expression string `json:"expression,omitempty"`
}

// ExtraMapping is an expression for an extra value of the user.
type ExtraMapping struct {
	Key             string `json:"key"`
	ValueExpression string `json:"valueExpression"`
}

// UserValidationRule must be met by the user that the mappings have made.
type UserValidationRule struct {
	Expression string `json:"expression"`
	Message    string `json:"message,omitempty"`
}

// Parse reads a configuration. It is not validated yet: New does that.
func Parse(data []byte) (*Configuration, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("empty config data")
	}
	if err := configfile.Check(data, configKind, configGroup+"/v1", configGroup+"/v1beta1", configGroup+"/v1alpha1"); err != nil {
		return nil, err
	}
	c := &Configuration{}
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return nil, err
	}
	return c, nil
}
