//go:build unix

package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson/storage/postgres/pgtest"
)

// What a server was given in secret is on none of its pages, in no metric and no log, and not in what the
// doctor says.
func TestSecretsAreShownNowhere(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key := base64.StdEncoding.EncodeToString([]byte(secretMarker + strings.Repeat("k", 32))[:32])
	encryption := file("encryption.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: [{resources: [secrets], providers: [{aescbc: {keys: [{name: a, secret: "+key+"}]}}, {identity: {}}]}]")
	dsn := strings.Replace(db.DSN(), "kelson@", "kelson:"+secretMarker+"@", 1)
	data := filepath.Join(dir, "data")
	s := serve(t, "serve", "--data-dir", data, "--storage-dsn", dsn, "--storage-allow-nosync", "-v=4",
		"--token-auth-file", file("tokens", "token-"+secretMarker+",jane,jane\n"), "--encryption-provider-config", encryption)
	shows := func(where, text string) {
		t.Helper()
		for _, secret := range []string{secretMarker, key} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s shows a secret: …%s…", where, text[max(0, i-80):min(len(text), i+len(secret)+20)])
			}
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(data, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	get := func(path string) string {
		text, err := kubernetes.NewForConfigOrDie(config).RESTClient().Get().RequestURI(path).DoRaw(t.Context())
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	var root struct{ Paths []string }
	if err := json.Unmarshal([]byte(get("/")), &root); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, path := range append(root.Paths, "/flagz", "/statusz", "/configz", "/metrics", "/readyz?verbose", "/debug/kelson/findings", "/debug/kelson/usage", "/debug/kelson/denials",
		"/api/v1/events", "/debug/pprof/goroutine?debug=2", "/debug/api_priority_and_fairness/dump_requests") {
		if strings.HasSuffix(path, "/profile") || strings.HasSuffix(path, "/trace") {
			continue // they take half a minute
		}
		text := get(path)
		seen += len(text)
		shows(path, text)
	}
	if seen < 100<<10 {
		t.Errorf("the pages have %d bytes, want a hundred thousand at least", seen)
	}
	r := kelson(t, "doctor", "--data-dir", data, "--storage-dsn", dsn)
	shows("the doctor", r.out+r.err)
	s.end(syscall.SIGTERM)
	shows("the log", s.log.String()+s.out)
	// One that cannot reach its database says so, and not with which password.
	db.Kill()
	r = kelson(t, "serve", "--data-dir", data, "--storage-dsn", dsn, "--secure-port", "0")
	if r.code == exitOK {
		t.Error("a server without its database has started")
	}
	shows("an error", r.out+r.err)
}
