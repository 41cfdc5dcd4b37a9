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
		user   bool // who is known, and has no role
	}{
		"audit id":            {"/version", []string{"audit-id", long}, false},
		"audit id, bad token": {"/version", []string{"authorization", "Bearer no", "audit-id", long}, false},
		"bad token":           {"/version", []string{"authorization", "Bearer " + long}, false},
		"malformed JWT":       {"/version", []string{"authorization", "Bearer e30." + long + ".x"}, false},
		"URI":                 {"/" + long, nil, false},
		"URI, bad token":      {"/" + long, []string{"authorization", "Bearer no"}, false},
		"user agent":          {"/version", []string{"user-agent", long, "authorization", "Bearer no"}, false},
		"impersonation":       {"/version", []string{"impersonate-user", long}, true},
		"content type":        {"/version", []string{"content-type", long, "accept", long}, true},
		"timeout":             {"/version?timeout=" + long, nil, true},
		"selector":            {"/api/v1/configmaps?labelSelector=" + long, nil, true},
		"forwarded":           {"/version", []string{"x-forwarded-for", long, "x-forwarded-uri", long, "x-forwarded-host", long}, false},
		"traceparent":         {"/version", []string{"traceparent", long, "origin", long}, false},
		"front proxy":         {"/version", []string{"x-remote-user", long}, false},
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, price{cpu: 2 * 1e6, held: 16 << 10, log: 256}, func(a *assault) {
				user := stranger
				if c.user {
					user = jane
				}
				a.again(user, 30, nil, func(p *peer) {
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
