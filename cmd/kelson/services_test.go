package main

import (
	"fmt"
	"testing"
)

// TestParseRanges has the ranges of services that kube-apiserver takes, and its
// words for others.
func TestParseRanges(t *testing.T) {
	const small = "error determining service IP ranges for primary service cidr: the service cluster IP range must be at least 8 IP addresses"
	for text, want := range map[string]string{
		"":                          "[10.0.0.0/24] <nil>",
		"10.0.0.5/24":               "[10.0.0.0/24] <nil>",
		"10.0.0.0/29,fd00::/127":    "[10.0.0.0/29 fd00::/127] <nil>",
		"fd00::/64,010.0.0.0/16":    "[fd00::/64 10.0.0.0/16] <nil>",
		"10.0.0.0":                  "[] service-cluster-ip-range[0] is not a valid cidr",
		"10.0.0.0/30":               "[] " + small,
		"10.0.0.0/24,":              "[] service-cluster-ip-range[1] is not an ip net",
		"10.0.0.0/24,10.1.0.0/24":   "[10.0.0.0/24 10.1.0.0/24] --service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family",
		"10.0.0.0/24,fd00::/108,no": "[10.0.0.0/24 fd00::/108] --service-cluster-ip-range must not contain more than two entries",
	} {
		ranges, err := parseRanges(text)
		if err == nil {
			err = (&serviceFlags{ranges: text}).checkRanges(ranges)
		}
		if got := fmt.Sprint(ranges, " ", err); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
