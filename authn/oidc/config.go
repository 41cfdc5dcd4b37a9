// Package oidc authenticates ID tokens of OpenID Connect providers and maps their
// claims to users. Start at Configuration and New.
//
// Providers are described by an AuthenticationConfiguration, from a file or from flags.
// A provider is not contacted before the first token that claims to come from it: the
// server starts without its providers, and one that is down affects only its own users.
package oidc

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/internal/configfile"
)

const (
	configGroup = "apiserver.config.k8s.io"
	configKind  = "AuthenticationConfiguration"
)

// Configuration is an AuthenticationConfiguration. All versions have the same fields.
type Configuration struct {
	metav1.TypeMeta `json:",inline"`
	JWT             []Authenticator `json:"jwt"`
	Anonymous       *Anonymous      `json:"anonymous,omitempty"`
}

// Anonymous configures anonymous requests, and their paths.
type Anonymous struct {
	Enabled    bool                 `json:"enabled"`
	Conditions []AnonymousCondition `json:"conditions,omitempty"`
}

// AnonymousCondition allows anonymous requests for a path.
type AnonymousCondition struct {
	Path string `json:"path"`
}

// Authenticator describes a provider and the mapping of its claims.
type Authenticator struct {
	Issuer               Issuer                `json:"issuer"`
	ClaimValidationRules []ClaimValidationRule `json:"claimValidationRules,omitempty"`
	ClaimMappings        ClaimMappings         `json:"claimMappings"`
	UserValidationRules  []UserValidationRule  `json:"userValidationRules,omitempty"`
}

// Issuer is a provider.
type Issuer struct {
	URL string `json:"url"`
	// DiscoveryURL is the address of the discovery document, if it is not below URL.
	DiscoveryURL         string   `json:"discoveryURL,omitempty"`
	CertificateAuthority string   `json:"certificateAuthority,omitempty"`
	Audiences            []string `json:"audiences"`
	AudienceMatchPolicy  string   `json:"audienceMatchPolicy,omitempty"`
	EgressSelectorType   string   `json:"egressSelectorType,omitempty"`
}

// ClaimValidationRule is a rule about claims: a claim has a value, or an expression is
// true.
type ClaimValidationRule struct {
	Claim         string `json:"claim,omitempty"`
	RequiredValue string `json:"requiredValue,omitempty"`
	Expression    string `json:"expression,omitempty"`
	Message       string `json:"message,omitempty"`
}

// ClaimMappings map claims to a user.
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

// UserValidationRule is a rule about the mapped user.
type UserValidationRule struct {
	Expression string `json:"expression"`
	Message    string `json:"message,omitempty"`
}

// Parse decodes a configuration. New validates it.
func Parse(data []byte) (*Configuration, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("empty config data")
	}
	if err := configfile.Check(data, configKind, configGroup+"/v1", configGroup+"/v1beta1", configGroup+"/v1alpha1"); err != nil {
		return nil, err
	}
	c := &Configuration{}
	if err := configfile.UnmarshalYAML(data, c); err != nil {
		return nil, err
	}
	return c, nil
}
