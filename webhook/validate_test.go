package webhook

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestValidate(t *testing.T) {
	path := func(s string) *string { return &s }
	at := field.NewPath("x")
	for _, c := range []struct {
		name string
		errs field.ErrorList
		want string
	}{
		{"good URL", ValidateURL(at, "https://host/path"), ""},
		{"no https", ValidateURL(at, "http://host"), `x: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]`},
		{"no host", ValidateURL(at, "https:///p"), `x: Invalid value: "": host must be specified; desired format: https://host[/path]`},
		{"query", ValidateURL(at, "https://h/?a=b"), `x: Invalid value: "a=b": query parameters are not permitted in the URL`},
		{"good service", ValidateService(at, "ns", "n", path("/a/b"), 443), ""},
		{"no namespace", ValidateService(at, "", "n", nil, 443), `x.name: Required value`},
		{"port", ValidateService(at, "ns", "n", nil, 0), `x.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive`},
		{"segment", ValidateService(at, "ns", "n", path("/a//b"), 443), `x.path: Invalid value: "/a//b": segment[1] may not be empty`},
		{"bundle", ValidateCABundle(at, []byte("none")), `unable to load root certificates: unable to parse bytes as PEM block`},
	} {
		got := ""
		if err := c.errs.ToAggregate(); err != nil {
			got = err.Error()
		}
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// A path may have slashes too many: what is asked for has not.
func TestURL(t *testing.T) {
	for in, want := range map[string]string{
		"https://host:1//convert": "https://host:1/convert", "https://host:1/a/b/": "https://host:1/a/b", "https://host:1": "https://host:1/",
	} {
		u, _, err := (&Endpoint{URL: in}).url()
		if err != nil || u.String() != want {
			t.Errorf("%s leads to %v, %v", in, u, err)
		}
	}
	u, _, err := (&Endpoint{Service: &Service{Namespace: "team", Name: "hook", Path: "validate"}}).url()
	if err != nil || u.String() != "https://hook.team.svc:443/validate" {
		t.Errorf("the service is at %v, %v", u, err)
	}
}
