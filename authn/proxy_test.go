package authn

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
)

func proxyHeaders(c Config) Config {
	c.RequestHeader.UsernameHeaders = []string{"x-remote-user", "X-Other-User"}
	c.RequestHeader.UIDHeaders = []string{"X-Remote-Uid"}
	c.RequestHeader.GroupHeaders = []string{"X-Remote-Group"}
	c.RequestHeader.ExtraHeaderPrefixes = []string{"X-Remote-Extra-", "X-Other-Extra-"}
	return c
}

func TestProxy(t *testing.T) {
	users, proxies, others := newAuthority(t, "users"), newAuthority(t, "proxies"), newAuthority(t, "proxies")
	server := serve(t, newStage(t, proxyHeaders(Config{
		X509:          X509{CAs: users.pem()},
		RequestHeader: RequestHeader{CAFile: writeFile(t, "proxy.crt", proxies.pem()), AllowedNames: []string{"front", "second"}},
	})))
	front := pkix.Name{CommonName: "front"}
	says := http.Header{
		"X-Remote-User": {"boss"}, "X-Remote-Uid": {"7"}, "X-Remote-Group": {"a", "", "b"},
		"X-Remote-Extra-Scopes": {"x", "y"}, "X-Other-Extra-Example.com%2fkey": {"v"}, "X-Kept": {"k"}, "X-Other-User": {"z"},
	}
	tests := []struct {
		name   string
		cert   *tls.Certificate
		header http.Header
		user   request.User
		err    string
	}{
		{name: "proxy", cert: proxies.issue(t, front), header: says, user: request.User{
			Name: "boss", UID: "7", Groups: []string{"a", "b", "system:authenticated"},
			Extra: map[string][]string{"scopes": {"x", "y"}, "example.com/key": {"v"}},
		}},
		{name: "second header", cert: proxies.issue(t, pkix.Name{CommonName: "second"}), header: http.Header{"X-Other-User": {"joe"}},
			user: request.User{Name: "joe", Groups: []string{"system:authenticated"}}},
		{name: "proxy that says nothing", cert: proxies.issue(t, front), err: "certificate signed by unknown authority"},
		{name: "forged without a certificate", header: says, user: request.User{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}}},
		{name: "forged by a user", cert: users.issue(t, pkix.Name{CommonName: "jane"}), header: says,
			user: request.User{Name: "jane", Groups: []string{"system:authenticated"}}},
		{name: "forged by a user who is called like the proxy", cert: users.issue(t, front), header: says,
			user: request.User{Name: "front", Groups: []string{"system:authenticated"}}},
		{name: "name that is not allowed", cert: proxies.issue(t, pkix.Name{CommonName: "mallory"}), header: says,
			err: "x509: subject with cn=mallory is not in the allowed list"},
		{name: "another authority of the same name", cert: others.issue(t, front), header: says, err: "certificate signed by unknown authority"},
		{name: "expired", cert: proxies.issue(t, front, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), header: says,
			err: "certificate has expired or is not yet valid"},
		{name: "for servers only", cert: proxies.issue(t, front, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}), header: says, err: "certificate specifies an incompatible key usage"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := client(t, server, test.cert)
			for range 2 {
				got := ask(t, c, server.URL, test.header.Clone())
				for name := range got.Header {
					if strings.HasPrefix(name, "X-Remote-") || strings.HasPrefix(name, "X-Other-") {
						t.Errorf("header %s is still there", name)
					}
				}
				if test.header.Get("X-Kept") != got.Header.Get("X-Kept") {
					t.Error("a header that is none of a proxy's is gone")
				}
				if test.err != "" {
					if got.User != nil || !strings.Contains(got.Err, test.err) {
						t.Fatalf("got %+v, want error %q", got, test.err)
					}
					continue
				}
				if got.User == nil {
					t.Fatalf("got %+v", got)
				}
				delete(got.User.Extra, extraCredentialID)
				if len(got.User.Extra) == 0 {
					got.User.Extra = nil
				}
				if !reflect.DeepEqual(*got.User, test.user) {
					t.Errorf("got %+v, want %+v", *got.User, test.user)
				}
			}
		})
	}
}

func TestProxyWarnings(t *testing.T) {
	var l logs
	newStage(t, Config{RequestHeader: RequestHeader{UsernameHeaders: []string{"x-remote-user"}, GroupHeaders: []string{"X-Groups"}}, Log: l.logger()})
	if text := l.String(); strings.Contains(text, "username") || !strings.Contains(text, "header=X-Remote-Group") {
		t.Errorf("log %s", text)
	}
}

// TestStripWithoutProxy makes sure that the usual headers go even if there is
// no proxy: an aggregated server behind this one would believe them.
func TestStripWithoutProxy(t *testing.T) {
	s := newStage(t, Config{})
	h := http.Header{
		"Authorization": {"x"}, "X-Remote-User": {"x"}, "X-Remote-Group": {"x"}, "X-Remote-Uid": {"x"},
		"X-Remote-Extra-A": {"x"}, "X-Remote": {"kept"},
	}
	s.Strip(h)
	if want := (http.Header{"X-Remote": {"kept"}}); !reflect.DeepEqual(h, want) {
		t.Errorf("headers %v", h)
	}
}

func TestProxyConfig(t *testing.T) {
	ca, other := newAuthority(t, "a"), newAuthority(t, "b")
	caFile, both := writeFile(t, "a.crt", ca.pem()), writeFile(t, "b.crt", append(other.pem(), ca.pem()...))
	tests := []struct {
		name string
		c    Config
		err  string
	}{
		{"overlapping authorities", Config{X509: X509{CAFile: caFile}, RequestHeader: RequestHeader{CAFile: both}}, "contain overlapping certificates"},
		{"overlapping authorities with names", Config{X509: X509{CAFile: caFile}, RequestHeader: RequestHeader{CAFile: both, AllowedNames: []string{"p"}}}, ""},
		{"empty name", Config{RequestHeader: RequestHeader{AllowedNames: []string{" "}}}, `empty value in "requestheader-allowed-names"`},
		{"uid header", Config{RequestHeader: RequestHeader{UIDHeaders: []string{"X-Uid"}}}, "X-Remote-Uid"},
		{"no file", Config{RequestHeader: RequestHeader{CAFile: "/nonexistent"}}, "no such file"},
		{"no certificates", Config{RequestHeader: RequestHeader{CAFile: writeFile(t, "c", []byte("x"))}}, "does not contain any valid RSA or ECDSA certificates"},
	}
	for _, test := range tests {
		if _, err := test.c.New(); (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.err)
		}
	}
}

// TestProxiesAreNotUsers: while any certificate of their authority may speak for others, proxies
// and users have no authority in common, be it the server's own, signed anew, an intermediate
// one, or one that a changed file brings.
func TestProxiesAreNotUsers(t *testing.T) {
	users, proxies := newAuthority(t, "users"), newAuthority(t, "proxies")
	template := *users.cert
	template.SerialNumber = big.NewInt(9)
	again := &authority{sign(t, &template, &template, users.key.Public(), users.key), users.key}
	front := func(names ...string) RequestHeader { return RequestHeader{AllowedNames: names} }
	for name, test := range map[string]struct {
		users, proxies []byte
		header         RequestHeader
		refused        bool
	}{
		"the same":             {users.pem(), users.pem(), front(), true},
		"the same among other": {users.pem(), append(proxies.pem(), users.pem()...), front(), true},
		"signed anew":          {users.pem(), again.pem(), front(), true},
		"intermediate":         {proxies.intermediate(t).pem(), proxies.pem(), front(), true},
		"others":               {users.pem(), proxies.pem(), front(), false},
		"the same with a name": {users.pem(), users.pem(), front("front-proxy-client"), false},
	} {
		test.header.CAFile = writeFile(t, "proxies", test.proxies)
		for _, own := range []bool{true, false} {
			c := Config{RequestHeader: test.header, X509: X509{CAs: test.users}}
			want := "contains the authority with which this server signs certificates of users; --requestheader-allowed-names must be specified"
			if !own {
				c.X509 = X509{CAFile: writeFile(t, "users", test.users)}
				want = "contain overlapping certificates; --requestheader-allowed-names must be specified"
			}
			if _, err := c.New(); (err != nil) != test.refused || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s, own %v: got %v, want it refused: %v, with %q", name, own, err, test.refused, want)
			}
		}
	}
	// After a start with two authorities either file changes.
	for _, changed := range []string{"users", "proxies"} {
		var l logs
		files := map[string]string{"users": writeFile(t, "users", users.pem()), "proxies": writeFile(t, "proxies", proxies.pem())}
		s := newStage(t, Config{Log: l.logger(), X509: X509{CAFile: files["users"]}, RequestHeader: RequestHeader{CAFile: files["proxies"]}})
		before := []*x509.CertPool{s.clientCAs.Load(), s.proxyCAs.Load()}
		rewrite(t, files[changed], append(users.pem(), proxies.pem()...))
		s.Reload()
		if s.clientCAs.Load() != before[0] || s.proxyCAs.Load() != before[1] || !strings.Contains(l.String(), "overlapping") {
			t.Errorf("%s: a file with an authority of both is in use, or nothing is logged: %s", changed, l.String())
		}
		rewrite(t, files[changed], newAuthority(t, "new").pem())
		s.Reload()
		if s.clientCAs.Load() == before[0] && s.proxyCAs.Load() == before[1] {
			t.Errorf("%s: a right file after a wrong one is not in use: %s", changed, l.String())
		}
	}
}
