package networking

import (
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestHostsCell(t *testing.T) {
	for hosts, want := range map[string]string{
		"":          "*",
		",":         "*",
		"a":         "a",
		"a,b,c":     "a,b,c",
		"a,,b,c":    "a,b,c",
		"a,b,c,d,e": "a,b,c + 2 more...",
		"a,,b,c,d":  "a,b,c + 2 more...", // rules are counted, not hosts
	} {
		var rules []networkingv1.IngressRule
		for host := range strings.SplitSeq(hosts, ",") {
			rules = append(rules, networkingv1.IngressRule{Host: host})
		}
		if got := hostsCell(rules); got != want {
			t.Errorf("%q: %q, want %q", hosts, got, want)
		}
	}
}

func TestValidateRangesUpdate(t *testing.T) {
	const v4, v6 = "10.0.0.0/24", "fd00::/112"
	for _, tt := range []struct{ old, new, want string }{
		{v4, v4, ""},
		{v4, v4 + "," + v6, ""},
		{v4, v6 + "," + v4, `spec.cidrs[0]: Invalid value: "fd00::/112": field is immutable`},
		{v4, v6, `spec.cidrs[0]: Invalid value: "fd00::/112": field is immutable`},
		{v4 + "," + v6, v4, `spec.cidrs: Invalid value: ["10.0.0.0/24"]: field is immutable`},
		{v4, v4 + ",10.1.0.0/24", `spec.cidrs: Invalid value: ["10.0.0.0/24","10.1.0.0/24"]: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64`},
	} {
		errs := validateRangesUpdate(&networkingv1.ServiceCIDRSpec{CIDRs: strings.Split(tt.new, ",")}, &networkingv1.ServiceCIDRSpec{CIDRs: strings.Split(tt.old, ",")})
		if got := errorText(errs); got != tt.want {
			t.Errorf("%s to %s: %q, want %q", tt.old, tt.new, got, tt.want)
		}
	}
}

func TestValidateIPBlock(t *testing.T) {
	path := field.NewPath("b")
	for _, tt := range []struct {
		cidr, except, want string
		had                []string
	}{
		{cidr: "10.0.0.0/8", except: "10.1.0.0/16"},
		{cidr: "10.0.0.0/8", except: "10.0.0.0/8", want: `b.except[0]: Invalid value: "10.0.0.0/8": must be a strict subset of ` + "`cidr`"},
		{cidr: "10.0.0.0/8", except: "11.0.0.0/16", want: `b.except[0]: Invalid value: "11.0.0.0/16": must be a strict subset of ` + "`cidr`"},
		{except: "10.0.0.0/8", want: "b.cidr: Required value"},
		{cidr: "010.0.0.0/8", except: "10.1.0.0/16", had: []string{"010.0.0.0/8"}},
	} {
		errs := validateIPBlock(t.Context(), &networkingv1.IPBlock{CIDR: tt.cidr, Except: []string{tt.except}}, path, tt.had)
		if got := errorText(errs); got != tt.want {
			t.Errorf("%s except %s: %q, want %q", tt.cidr, tt.except, got, tt.want)
		}
	}
}

func errorText(errs field.ErrorList) string {
	if len(errs) == 0 {
		return ""
	}
	return errs.ToAggregate().Error()
}
