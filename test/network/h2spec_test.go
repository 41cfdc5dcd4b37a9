package network

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/request"
	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

const (
	// h2specCases is how many cases h2spec has, with the strict ones.
	h2specCases = 146
	// h2specTimeout is how long h2spec waits for a frame that does not come.
	h2specTimeout = 3 * time.Second
	// h2specAtOnce is how many cases run at a time. Most of them wait.
	h2specAtOnce = 16
	// largeHeader makes the header block of http2/4.2/3, which has five of them,
	// larger than any SETTINGS_MAX_FRAME_SIZE here.
	largeHeader = 300 << 10
)

// deviation is a case of h2spec that a server does not pass, and why.
type deviation struct {
	// Which servers do not: ours is the full server, netHTTP is net/http's with a
	// handler of ours.
	ours, netHTTP bool
	reason        string
	// It depends on who is faster.
	sometimes bool
}

// deviations are by the key of h2spec. The list is exact: a case that is listed
// must fail, except for those that do so sometimes.
var deviations = map[string]deviation{
	"http2/8.1.2.2/1": {ours: true, netHTTP: true, reason: "a connection-specific header field is answered with 400, which tells the client what is wrong"},
	"http2/8.1.2.2/2": {ours: true, netHTTP: true, reason: "a TE header field other than trailers is answered with 400, which tells the client what is wrong"},
	"http2/6.5.3/1":   {netHTTP: true, reason: "net/http takes a setting that is there twice as an attack"},
	"http2/8.1.2.6/1": {netHTTP: true, reason: "net/http answers before it has seen that the body is not as long as was said", sometimes: true},
	"http2/8.1.2.6/2": {netHTTP: true, reason: "net/http answers before it has seen that the body is not as long as was said", sometimes: true},
}

// TestH2spec runs all cases of h2spec, the strict ones too, against the full
// server, and against net/http's HTTP/2 server with the same paths to compare.
func TestH2spec(t *testing.T) {
	server := kelsontest.Start(t, kelsontest.NoControllers())
	user := server.User("jane")
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	for file, content := range map[string][]byte{certFile: user.CertData, keyFile: user.KeyData} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ours := func(d deviation) bool { return d.ours }
	for _, test := range []struct {
		name, url, certFile, keyFile string
		deviates                     func(deviation) bool
	}{
		{"user", server.URL(), certFile, keyFile, ours},
		{"anonymous", server.URL(), "", "", ours},
		{"net-http", netHTTP(t), "", "", func(d deviation) bool { return d.netHTTP }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			host, port := address(t, test.url)
			c := config.Config{
				Host: host, Port: port, Path: "/version", TLS: true, Insecure: true, CertFile: test.certFile, CertKeyFile: test.keyFile,
				Timeout: h2specTimeout, MaxHeaderLen: 4000, Strict: true,
			}
			cases := runH2spec(c)
			if len(cases) != h2specCases {
				t.Errorf("h2spec ran %d cases, want %d", len(cases), h2specCases)
			}
			left := map[string]deviation{}
			for key, d := range deviations {
				if test.deviates(d) {
					left[key] = d
				}
			}
			for _, one := range cases {
				d, listed := left[one.key]
				delete(left, one.key)
				t.Run(one.key, func(t *testing.T) {
					switch failed := &(spec.TestError{}); {
					case listed && one.err == nil && !d.sometimes:
						t.Errorf("%s: passes, but is listed as a deviation: %s", one.Desc, d.reason)
					case listed || one.err == nil:
					case errors.As(one.err, &failed):
						t.Errorf("%s\n%s\ngot %s, want one of %q", one.Desc, one.Requirement, failed.Actual, failed.Expected)
					default:
						t.Errorf("%s\n%s\ngot %v", one.Desc, one.Requirement, one.err)
					}
				})
			}
			for key := range left {
				t.Errorf("%s is listed as a deviation, but h2spec has no such case", key)
			}
		})
	}
}

// h2specCase is a case that was run. A case that h2spec has skipped has an error,
// too.
type h2specCase struct {
	*spec.TestCase
	key string
	err error
}

// runH2spec runs all cases, each on a connection of its own, many at a time.
func runH2spec(c config.Config) []*h2specCase {
	var cases []*h2specCase
	var collect func(group *spec.TestGroup)
	collect = func(group *spec.TestGroup) {
		for i, tc := range append(group.Tests[:len(group.Tests):len(group.Tests)], group.StrictTests...) {
			cases = append(cases, &h2specCase{TestCase: tc, key: fmt.Sprintf("%s/%d", group.ID(), i+1)})
		}
		for _, g := range group.Groups {
			collect(g)
		}
	}
	for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		collect(group)
	}
	slots := make(chan struct{}, h2specAtOnce)
	var wg sync.WaitGroup
	for _, one := range cases {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			c := c
			if one.key == "http2/4.2/3" {
				c.MaxHeaderLen = largeHeader
			}
			conn, err := spec.Dial(&c)
			if err != nil {
				one.err = err
				return
			}
			defer conn.Close()
			one.err = one.Run(&c, conn)
		})
	}
	wg.Wait()
	return cases
}

// netHTTP serves the paths that every server has on net/http's own HTTP/2, and
// returns where.
func netHTTP(t *testing.T) string {
	t.Helper()
	handler := &kelson.Server{Authenticate: func(*http.Request) (request.User, bool, error) {
		return request.User{Name: "jane", Groups: []string{"system:authenticated"}}, true, nil
	}}
	if err := handler.PrepareRun(); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of every mistake of a client
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}
