//go:build linux

package attack

import (
	"strings"
	"testing"
)

// TestLogAmplification fills what a log line could have in it.
func TestLogAmplification(t *testing.T) {
	long := strings.Repeat("l", 20<<10)
	for name, c := range map[string]struct {
		path   string
		fields []string
	}{
		"audit id":            {"/version", []string{"audit-id", long}},
		"audit id, bad token": {"/version", []string{"authorization", "Bearer no", "audit-id", long}},
		"bad token":           {"/version", []string{"authorization", "Bearer " + long}},
		"malformed JWT":       {"/version", []string{"authorization", "Bearer e30." + long + ".x"}},
		"URI":                 {"/" + long, nil},
		"URI, bad token":      {"/" + long, []string{"authorization", "Bearer no"}},
		"user agent":          {"/version", []string{"user-agent", long, "authorization", "Bearer no"}},
		"impersonation":       {"/version", []string{"impersonate-user", long}},
		"content type":        {"/version", []string{"content-type", long, "accept", long}},
		"timeout":             {"/version?timeout=" + long, nil},
		"selector":            {"/api/v1/configmaps?labelSelector=" + long, nil},
		"forwarded":           {"/version", []string{"x-forwarded-for", long, "x-forwarded-uri", long, "x-forwarded-host", long}},
		"traceparent":         {"/version", []string{"traceparent", long, "origin", long}},
		"front proxy":         {"/version", []string{"x-remote-user", long}},
	} {
		t.Run(name, func(t *testing.T) {
			asEach(t, price{cpu: 2 * 1e6, held: 16 << 10, log: 64}, func(a *assault, user string) {
				a.again(user, 40, nil, func(p *peer) {
					p.open(true, "GET", c.path, c.fields...)
					p.done()
				})
				a.hold()
			})
		})
	}
}

// TestLogFlood sends small requests that a server could have something to say about.
func TestLogFlood(t *testing.T) {
	for name, fields := range map[string][]string{
		"bad tokens":     {"authorization", "Bearer no"},
		"malformed JWTs": {"authorization", "Bearer e30.e30.e30"},
		"impersonation":  {"impersonate-user", "x"},
		"front proxy":    {"x-remote-user", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, price{cpu: 15 * 1e6, held: 16 << 10, log: 1 << 10}, func(a *assault) {
				a.again(stranger, 2000, nil, func(p *peer) { p.open(true, "GET", "/version", fields...) })
			})
		})
	}
}
