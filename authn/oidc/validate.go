package oidc

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"slices"
	"strings"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/cert"
)

// validate returns the errors of a configuration, and compiles the expressions of its
// providers.
func (c *Configuration) validate(e *celEnvironment, o *Options) ([]*rules, field.ErrorList) {
	var errs field.ErrorList
	var all []*rules
	issuers, discovery := duplicates{}, duplicates{}
	for i, a := range c.JWT {
		path := field.NewPath("jwt").Index(i)
		compiled, problems := a.validate(e, path, o)
		all, errs = append(all, compiled), append(errs, problems...)
		errs = append(errs, issuers.check(path.Child("issuer", "url"), a.Issuer.URL)...)
		if a.Issuer.DiscoveryURL != "" {
			errs = append(errs, discovery.check(path.Child("issuer", "discoveryURL"), a.Issuer.DiscoveryURL)...)
		}
	}
	if a := c.Anonymous; a != nil && !a.Enabled && len(a.Conditions) > 0 {
		errs = append(errs, field.Invalid(field.NewPath("anonymous", "conditions"), a.Conditions, "enabled should be set to true when conditions are defined"))
	}
	return all, errs
}

// duplicates finds duplicates.
type duplicates map[string]bool

func (s duplicates) check(path *field.Path, value string) field.ErrorList {
	if s[value] {
		return field.ErrorList{field.Duplicate(path, value)}
	}
	s[value] = true
	return nil
}

func (a *Authenticator) validate(e *celEnvironment, path *field.Path, o *Options) (*rules, field.ErrorList) {
	c := &compiler{celEnvironment: e, rules: &rules{required: map[string]string{}}}
	errs := a.Issuer.validate(path.Child("issuer"), o)
	errs = append(errs, c.claimRules(a.ClaimValidationRules, path.Child("claimValidationRules"))...)
	errs = append(errs, c.mappings(&a.ClaimMappings, path.Child("claimMappings"))...)
	errs = append(errs, c.userRules(a.UserValidationRules, path.Child("userValidationRules"))...)
	return c.rules, errs
}

func (i *Issuer) validate(path *field.Path, o *Options) field.ErrorList {
	var errs field.ErrorList
	if i.URL == "" {
		errs = append(errs, field.Required(path.Child("url"), ""))
	} else {
		errs = append(errs, validateURL(i.URL, o.DisallowedIssuers, path.Child("url"))...)
	}
	if i.DiscoveryURL != "" {
		p := path.Child("discoveryURL")
		if i.URL != "" && strings.TrimRight(i.URL, "/") == strings.TrimRight(i.DiscoveryURL, "/") {
			errs = append(errs, field.Invalid(p, i.DiscoveryURL, "discoveryURL must be different from URL"))
		}
		errs = append(errs, validateURL(i.DiscoveryURL, nil, p)...)
	}
	errs = append(errs, i.validateAudiences(path)...)
	if _, err := i.roots(); err != nil {
		errs = append(errs, field.Invalid(path.Child("certificateAuthority"), "<omitted>", err.Error()))
	}
	if i.EgressSelectorType != "" && o.NoEgress {
		errs = append(errs, field.Invalid(path.Child("egressSelectorType"), i.EgressSelectorType, "egress selector is not supported when StructuredAuthenticationConfigurationEgressSelector feature gate is disabled"))
	}
	switch i.EgressSelectorType {
	case "", "controlplane", "cluster":
	default:
		errs = append(errs, field.Invalid(path.Child("egressSelectorType"), i.EgressSelectorType, "egress selector must be either controlplane or cluster"))
	}
	return errs
}

func (i *Issuer) validateAudiences(path *field.Path) field.ErrorList {
	p, policy := path.Child("audiences"), path.Child("audienceMatchPolicy")
	if len(i.Audiences) == 0 {
		return field.ErrorList{field.Required(p, fmt.Sprintf("at least one %s is required", p))}
	}
	var errs field.ErrorList
	names := duplicates{}
	for n, audience := range i.Audiences {
		if audience == "" {
			errs = append(errs, field.Required(p.Index(n), ""))
		}
		errs = append(errs, names.check(p.Index(n), audience)...)
	}
	switch {
	case i.AudienceMatchPolicy == "MatchAny":
	case len(i.Audiences) > 1:
		errs = append(errs, field.Invalid(policy, i.AudienceMatchPolicy, "audienceMatchPolicy must be MatchAny for multiple audiences"))
	case i.AudienceMatchPolicy != "":
		errs = append(errs, field.Invalid(policy, i.AudienceMatchPolicy, "audienceMatchPolicy must be empty or MatchAny for single audience"))
	}
	return errs
}

// roots returns the CAs of the provider, nil for those of the host.
func (i *Issuer) roots() (*x509.CertPool, error) {
	if i.CertificateAuthority == "" {
		return nil, nil
	}
	return cert.NewPoolFromBytes([]byte(i.CertificateAuthority))
}

func validateURL(text string, disallowed []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	invalid := func(message string) { errs = append(errs, field.Invalid(path, text, message)) }
	if slices.Contains(disallowed, text) {
		invalid(fmt.Sprintf("URL must not overlap with disallowed issuers: %s", slices.Sorted(slices.Values(disallowed))))
	}
	u, err := url.Parse(text)
	if err != nil {
		invalid(err.Error())
		return errs
	}
	if u.Scheme != "https" {
		invalid("URL scheme must be https")
	}
	if u.User != nil {
		invalid("URL must not contain a username or password")
	}
	if u.RawQuery != "" {
		invalid("URL must not contain a query")
	}
	if u.Fragment != "" {
		invalid("URL must not contain a fragment")
	}
	return errs
}

// compiler validates the rules of a provider and collects the compiled programs.
type compiler struct {
	*celEnvironment
	rules *rules
	// email and emailVerified are set if an expression reads these claims: an
	// expression that uses the email must also check that it is verified.
	email, emailVerified bool
}

func (c *compiler) claimRules(list []ClaimValidationRule, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	claims, expressions := duplicates{}, duplicates{}
	for i, rule := range list {
		p := path.Index(i)
		switch {
		case rule.Claim != "" && rule.Expression != "":
			errs = append(errs, field.Invalid(p, rule.Claim, "claim and expression can't both be set"))
		case rule.Claim == "" && rule.Expression == "":
			errs = append(errs, field.Required(p, "claim or expression is required"))
		case rule.Claim != "":
			if rule.Message != "" {
				errs = append(errs, field.Invalid(p.Child("message"), rule.Message, "may not be specified when claim is set"))
			}
			errs = append(errs, claims.check(p.Child("claim"), rule.Claim)...)
			c.rules.required[rule.Claim] = rule.RequiredValue
		default:
			if rule.RequiredValue != "" {
				errs = append(errs, field.Invalid(p.Child("requiredValue"), rule.RequiredValue, "may not be specified when expression is set"))
			}
			if twice := expressions.check(p.Child("expression"), rule.Expression); twice != nil {
				errs = append(errs, twice...)
				continue
			}
			program, err := c.compile(claimsVariable, rule.Expression, true, p.Child("expression"))
			if err != nil {
				errs = append(errs, err)
				continue
			}
			c.emailVerified = c.emailVerified || program.selects("email_verified")
			c.rules.claims = append(c.rules.claims, condition{program, rule.Message})
		}
	}
	return errs
}

func (c *compiler) mappings(m *ClaimMappings, path *field.Path) field.ErrorList {
	var errs, problems field.ErrorList
	if c.rules.username, problems = c.prefixed(m.Username, path.Child("username"), true); len(problems) > 0 {
		errs = append(errs, problems...)
	} else if p := c.rules.username; p != nil {
		c.email = p.selects("email")
		c.emailVerified = c.emailVerified || p.selects("email_verified")
	}
	c.rules.groups, problems = c.prefixed(m.Groups, path.Child("groups"), false)
	errs = append(errs, problems...)

	switch {
	case m.UID.Claim != "" && m.UID.Expression != "":
		errs = append(errs, field.Invalid(path.Child("uid"), "", "claim and expression can't both be set"))
	case m.UID.Expression != "":
		var err *field.Error
		if c.rules.uid, err = c.compile(claimsVariable, m.UID.Expression, false, path.Child("uid", "expression")); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, c.extra(m.Extra, path.Child("extra"))...)
	if c.email && !c.emailVerified {
		errs = append(errs, field.Invalid(path.Child("username", "expression"), m.Username.Expression,
			"claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression"))
	}
	return errs
}

func (c *compiler) prefixed(m PrefixedClaim, path *field.Path, required bool) (*program, field.ErrorList) {
	switch {
	case m.Expression != "" && m.Claim != "":
		return nil, field.ErrorList{field.Invalid(path, "", "claim and expression can't both be set")}
	case m.Expression == "" && m.Claim == "" && required:
		return nil, field.ErrorList{field.Required(path, "claim or expression is required")}
	case m.Expression != "":
		var errs field.ErrorList
		if m.Prefix != nil {
			errs = append(errs, field.Invalid(path.Child("prefix"), *m.Prefix, "may not be specified when expression is set"))
		}
		program, err := c.compile(claimsVariable, m.Expression, false, path.Child("expression"))
		if err != nil {
			errs = append(errs, err)
		}
		return program, errs
	case m.Claim != "" && m.Prefix == nil:
		return nil, field.ErrorList{field.Required(path.Child("prefix"), "prefix is required when claim is set. It can be set to an empty string to disable prefixing")}
	}
	return nil, nil
}

func (c *compiler) extra(list []ExtraMapping, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	keys := duplicates{}
	for i, m := range list {
		p := path.Index(i)
		errs = append(errs, utilvalidation.IsDomainPrefixedPath(p.Child("key"), m.Key)...)
		if m.Key != strings.ToLower(m.Key) {
			errs = append(errs, field.Invalid(p.Child("key"), m.Key, "must be lowercase"))
		}
		if domain, _, ok := strings.Cut(m.Key, "/"); ok && reserved(domain) {
			errs = append(errs, field.Invalid(p.Child("key"), m.Key, "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use"))
		}
		if twice := keys.check(p.Child("key"), m.Key); twice != nil {
			errs = append(errs, twice...)
			continue
		}
		if m.ValueExpression == "" {
			errs = append(errs, field.Required(p.Child("valueExpression"), ""))
			continue
		}
		program, err := c.compile(claimsVariable, m.ValueExpression, false, p.Child("valueExpression"))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.emailVerified = c.emailVerified || program.selects("email_verified")
		c.rules.extra = append(c.rules.extra, extraMapping{program, m.Key})
	}
	return errs
}

func reserved(domain string) bool {
	return slices.ContainsFunc([]string{"kubernetes.io", "k8s.io"}, func(d string) bool {
		return domain == d || strings.HasSuffix(domain, "."+d)
	})
}

func (c *compiler) userRules(list []UserValidationRule, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	expressions := duplicates{}
	for i, rule := range list {
		p := path.Index(i).Child("expression")
		if rule.Expression == "" {
			errs = append(errs, field.Required(p, ""))
			continue
		}
		if twice := expressions.check(p, rule.Expression); twice != nil {
			errs = append(errs, twice...)
			continue
		}
		program, err := c.compile(userVariable, rule.Expression, true, p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.rules.users = append(c.rules.users, condition{program, rule.Message})
	}
	return errs
}
