package rules

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"github.com/apikeel/kelson/features"
)

// StrictIPs reports whether IP addresses and CIDRs with leading zeros, and other forms that
// programs read in different ways, are refused.
func StrictIPs(ctx context.Context) bool { return features.From(ctx).Enabled("StrictIPCIDRValidation") }

// ValidateEndpointIP returns an error if an address is not an IP address that
// other machines can reach.
func ValidateEndpointIP(address string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	ip := utilnet.ParseIPSloppy(address)
	if ip == nil {
		return field.ErrorList{field.Invalid(path, address, "must be a valid IP address")}
	}
	for _, rule := range []struct {
		broken  bool
		message string
	}{
		{ip.IsUnspecified(), fmt.Sprintf("may not be unspecified (%v)", address)},
		{ip.IsLoopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)"},
		{ip.IsLinkLocalUnicast(), "may not be in the link-local range (169.254.0.0/16, fe80::/10)"},
		{ip.IsLinkLocalMulticast(), "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"},
	} {
		if rule.broken {
			errs = append(errs, field.Invalid(path, address, rule.message))
		}
	}
	return errs
}

// ValidateSignerName returns everything that is wrong with the name of a signer
// of certificates, which has the form example.com/name.
func ValidateSignerName(name string, p *field.Path) field.ErrorList {
	var e Errors
	const (
		maxDomain = validation.DNS1123SubdomainMaxLength
		maxPath   = validation.DNS1123SubdomainMaxLength + validation.DNS1123LabelMaxLength + 1
	)
	if !e.NotEmpty(p, name) {
		return field.ErrorList(e)
	}
	parts := strings.Split(name, "/")
	if len(parts) != 2 {
		e.Invalid(p, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
		return field.ErrorList(e)
	}
	// labels reports the first invalid label of a part.
	labels := func(part string, check func(string) []string) {
		for label := range strings.SplitSeq(part, ".") {
			if messages := check(label); len(messages) > 0 {
				for _, m := range messages {
					e.Invalid(p, part, fmt.Sprintf("validating label %q: %s", label, m))
				}
				return
			}
		}
	}
	if len(parts[0]) > maxDomain {
		e.Add(field.TooLong(p, "", maxDomain))
	}
	labels(parts[0], validation.IsDNS1123Label)
	if !strings.Contains(parts[0], ".") {
		e.Invalid(p, parts[0], "should be a domain with at least two segments separated by dots")
	}
	labels(parts[1], validation.IsDNS1123Subdomain)
	if len(name) > maxDomain+maxPath+1 {
		e.Add(field.TooLong(p, "", maxDomain+maxPath+1))
	}
	return field.ErrorList(e)
}

// IsSemver reports whether a text is a semantic version (semver.org): three
// numbers with an optional pre-release and build.
func IsSemver(text string) bool {
	const number, pre, build = `(0|[1-9]\d*)`, `(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)`, `[0-9a-zA-Z-]+`
	return regexp.MustCompile(`^` + number + `\.` + number + `\.` + number + `(-` + pre + `(\.` + pre + `)*)?(\+` + build + `(\.` + build + `)*)?$`).MatchString(text)
}
