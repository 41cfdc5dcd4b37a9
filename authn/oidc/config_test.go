package oidc

import (
	"strings"
	"testing"
)

const configHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"

func TestParse(t *testing.T) {
	full := configHead + `
jwt:
- issuer:
    url: https://a
    discoveryURL: https://b/.well-known/openid-configuration
    audiences: [x, y]
    audienceMatchPolicy: MatchAny
  claimValidationRules:
  - claim: hd
    requiredValue: example.com
  - expression: claims.exp - claims.nbf <= 86400.0
    message: too long
  claimMappings:
    username: {expression: "claims.username + ':external'"}
    groups: {claim: roles, prefix: ""}
    uid: {claim: uid}
    extra:
    - {key: example.com/tenant, valueExpression: claims.tenant}
  userValidationRules:
  - expression: "!user.username.startsWith('system:')"
    message: reserved
anonymous: {enabled: false}
`
	for _, version := range []string{"v1", "v1beta1", "v1alpha1"} {
		c, err := Parse([]byte(strings.Replace(full, "/v1", "/"+version, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(c, Options{}); err != nil || len(c.JWT) != 1 || c.Anonymous == nil || c.JWT[0].ClaimMappings.Extra[0].Key != "example.com/tenant" {
			t.Errorf("%s: %+v, error %v", version, c, err)
		}
	}
	for name, data := range map[string]string{
		"empty": "", "unknown field": configHead + "jwts: []\n", "version": strings.Replace(full, "/v1", "/v2", 1),
		"kind": strings.Replace(full, "kind: Authen", "kind: Author", 1), "twice": configHead + "jwt: []\njwt: []\n", "not YAML": "{",
	} {
		if c, err := Parse([]byte(data)); err == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(c *Configuration)
		errs   []string // in their order
	}{
		{name: "good", change: func(*Configuration) {}},
		{name: "no url", change: func(c *Configuration) { c.JWT[0].Issuer.URL = "" }, errs: []string{`jwt[0].issuer.url: Required value`}},
		{name: "bad url", change: func(c *Configuration) { c.JWT[0].Issuer.URL = "http://u:p@a?q#f" }, errs: []string{
			`jwt[0].issuer.url: Invalid value: "http://u:p@a?q#f": URL scheme must be https`,
			`jwt[0].issuer.url: Invalid value: "http://u:p@a?q#f": URL must not contain a username or password`,
			`jwt[0].issuer.url: Invalid value: "http://u:p@a?q#f": URL must not contain a query`,
			`jwt[0].issuer.url: Invalid value: "http://u:p@a?q#f": URL must not contain a fragment`,
		}},
		{name: "own issuer", change: func(c *Configuration) { c.JWT[0].Issuer.URL = "https://own" }, errs: []string{
			`jwt[0].issuer.url: Invalid value: "https://own": URL must not overlap with disallowed issuers: [https://own]`}},
		{name: "same discovery", change: func(c *Configuration) { c.JWT[0].Issuer.DiscoveryURL = "https://a/" }, errs: []string{
			`jwt[0].issuer.discoveryURL: Invalid value: "https://a/": discoveryURL must be different from URL`}},
		{name: "issuer twice", change: func(c *Configuration) { c.JWT = append(c.JWT, c.JWT[0]) }, errs: []string{
			`jwt[1].issuer.url: Duplicate value: "https://a"`}},
		{name: "discovery twice", change: func(c *Configuration) {
			c.JWT[0].Issuer.DiscoveryURL = "https://d"
			c.JWT = append(c.JWT, c.JWT[0])
			c.JWT[1].Issuer.URL = "https://b"
		}, errs: []string{`jwt[1].issuer.discoveryURL: Duplicate value: "https://d"`}},
		{name: "no audiences", change: func(c *Configuration) { c.JWT[0].Issuer.Audiences = nil }, errs: []string{
			`jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required`}},
		{name: "audiences", change: func(c *Configuration) { c.JWT[0].Issuer.Audiences = []string{"x", "", "x"} }, errs: []string{
			`jwt[0].issuer.audiences[1]: Required value`, `jwt[0].issuer.audiences[2]: Duplicate value: "x"`,
			`jwt[0].issuer.audienceMatchPolicy: Invalid value: "": audienceMatchPolicy must be MatchAny for multiple audiences`}},
		{name: "policy", change: func(c *Configuration) { c.JWT[0].Issuer.AudienceMatchPolicy = "All" }, errs: []string{
			`jwt[0].issuer.audienceMatchPolicy: Invalid value: "All": audienceMatchPolicy must be empty or MatchAny for single audience`}},
		{name: "authority", change: func(c *Configuration) { c.JWT[0].Issuer.CertificateAuthority = "secret" }, errs: []string{
			`jwt[0].issuer.certificateAuthority: Invalid value: "<omitted>": data does not contain any valid RSA or ECDSA certificates`}},
		{name: "egress", change: func(c *Configuration) { c.JWT[0].Issuer.EgressSelectorType = "moon" }, errs: []string{
			`jwt[0].issuer.egressSelectorType: Invalid value: "moon": egress selector must be either controlplane or cluster`}},
		{name: "claim rules", change: func(c *Configuration) {
			c.JWT[0].ClaimValidationRules = []ClaimValidationRule{
				{}, {Claim: "a", Expression: "true"}, {Claim: "b", Message: "m"}, {Claim: "b"}, {Expression: "true", RequiredValue: "v"}, {Expression: "true"}, {Expression: "claims.x"},
			}
		}, errs: []string{
			`jwt[0].claimValidationRules[0]: Required value: claim or expression is required`,
			`jwt[0].claimValidationRules[1]: Invalid value: "a": claim and expression can't both be set`,
			`jwt[0].claimValidationRules[2].message: Invalid value: "m": may not be specified when claim is set`,
			`jwt[0].claimValidationRules[3].claim: Duplicate value: "b"`,
			`jwt[0].claimValidationRules[4].requiredValue: Invalid value: "v": may not be specified when expression is set`,
			`jwt[0].claimValidationRules[5].expression: Duplicate value: "true"`,
			`jwt[0].claimValidationRules[6].expression: Invalid value: "claims.x": must evaluate to bool`,
		}},
		{name: "no username", change: func(c *Configuration) { c.JWT[0].ClaimMappings.Username = PrefixedClaim{} }, errs: []string{
			`jwt[0].claimMappings.username: Required value: claim or expression is required`}},
		{name: "no prefix", change: func(c *Configuration) { c.JWT[0].ClaimMappings.Username.Prefix = nil }, errs: []string{
			`jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing`}},
		{name: "two ways", change: func(c *Configuration) {
			c.JWT[0].ClaimMappings = ClaimMappings{
				Username: PrefixedClaim{Expression: "'x'", Prefix: text("p")}, Groups: PrefixedClaim{Claim: "a", Expression: "b"}, UID: Claim{Claim: "a", Expression: "b"},
			}
		}, errs: []string{
			`jwt[0].claimMappings.username.prefix: Invalid value: "p": may not be specified when expression is set`,
			`jwt[0].claimMappings.groups: Invalid value: "": claim and expression can't both be set`,
			`jwt[0].claimMappings.uid: Invalid value: "": claim and expression can't both be set`,
		}},
		{name: "does not compile", change: func(c *Configuration) { c.JWT[0].ClaimMappings.UID.Expression = "nonsense(" }, errs: []string{
			`jwt[0].claimMappings.uid.expression: Invalid value: "nonsense(": compilation failed: ERROR: <input>:1:10: Syntax error`}},
		{name: "extra", change: func(c *Configuration) {
			c.JWT[0].ClaimMappings.Extra = []ExtraMapping{
				{"plain", "''"}, {"example.com/A", "''"}, {"x.kubernetes.io/a", "''"}, {"k8s.io/a", "''"}, {"example.com/b", ""}, {"example.com/c", "''"}, {"example.com/c", "''"},
			}
		}, errs: []string{
			`jwt[0].claimMappings.extra[0].key: Invalid value: "plain": must be a domain-prefixed path`,
			`jwt[0].claimMappings.extra[1].key: Invalid value: "example.com/A": must be lowercase`,
			`jwt[0].claimMappings.extra[2].key: Invalid value: "x.kubernetes.io/a": k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use`,
			`jwt[0].claimMappings.extra[3].key: Invalid value: "k8s.io/a": k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use`,
			`jwt[0].claimMappings.extra[4].valueExpression: Required value`,
			`jwt[0].claimMappings.extra[6].key: Duplicate value: "example.com/c"`,
		}},
		{name: "email", change: func(c *Configuration) { c.JWT[0].ClaimMappings.Username = PrefixedClaim{Expression: "claims.email"} }, errs: []string{
			`jwt[0].claimMappings.username.expression: Invalid value: "claims.email": claims.email_verified must be used in`}},
		{name: "email, optional", change: func(c *Configuration) {
			c.JWT[0].ClaimMappings.Username = PrefixedClaim{Expression: "claims.?email.orValue('')"}
		}, errs: []string{
			`jwt[0].claimMappings.username.expression: Invalid value: "claims.?email.orValue('')": claims.email_verified must be used in`}},
		{name: "email verified in the name", change: func(c *Configuration) {
			c.JWT[0].ClaimMappings.Username = PrefixedClaim{Expression: "claims.email_verified ? claims.email : claims.sub"}
		}},
		{name: "email verified in a rule", change: func(c *Configuration) {
			c.JWT[0].ClaimMappings.Username = PrefixedClaim{Expression: "claims.email"}
			c.JWT[0].ClaimValidationRules = []ClaimValidationRule{{Expression: "claims.?email_verified.orValue(true) == true"}}
		}},
		{name: "user rules", change: func(c *Configuration) {
			c.JWT[0].UserValidationRules = []UserValidationRule{{}, {Expression: "true"}, {Expression: "true"}, {Expression: "user.name == ''"}, {Expression: "user.username"}}
		}, errs: []string{
			`jwt[0].userValidationRules[0].expression: Required value`,
			`jwt[0].userValidationRules[2].expression: Duplicate value: "true"`,
			`jwt[0].userValidationRules[3].expression: Invalid value: "user.name == ''": compilation failed: ERROR: <input>:1:5: undefined field 'name'`,
			`jwt[0].userValidationRules[4].expression: Invalid value: "user.username": must evaluate to bool`,
		}},
		{name: "anonymous", change: func(c *Configuration) {
			c.Anonymous = &Anonymous{Conditions: []AnonymousCondition{{"/a"}}}
		}, errs: []string{`anonymous.conditions: Invalid value: [{"path":"/a"}]: enabled should be set to true when conditions are defined`}},
	}
	e := &celEnvironment{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := &Configuration{JWT: []Authenticator{{
				Issuer:        Issuer{URL: "https://a", Audiences: []string{"x"}},
				ClaimMappings: ClaimMappings{Username: PrefixedClaim{Claim: "sub", Prefix: text("")}},
			}}}
			test.change(c)
			_, errs := c.validate(e, &Options{DisallowedIssuers: []string{"https://own"}})
			for i := range max(len(errs), len(test.errs)) {
				switch {
				case i >= len(errs):
					t.Errorf("missing: %s", test.errs[i])
				case i >= len(test.errs):
					t.Errorf("unexpected: %v", errs[i])
				case !strings.HasPrefix(errs[i].Error(), test.errs[i]):
					t.Errorf("got %v\nwant %s", errs[i], test.errs[i])
				}
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(configHead + "jwt: []\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := Parse(data); err == nil && c.Kind != configKind {
			t.Errorf("%q: %+v", data, c)
		}
	})
}
