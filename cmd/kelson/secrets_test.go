package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/apikeel/kelson/storage/postgres"
)

// secretMarker stands for keys, tokens and passwords.
const secretMarker = "Zm9vYmFyMARKER"

// TestSecretFlagsAreNotShown: what /flagz and the log have of the flags has no password in it,
// and a password on the command line gets a warning.
func TestSecretFlagsAreNotShown(t *testing.T) {
	for _, dsn := range []string{
		"postgres://jane:" + secretMarker + "@db/kelson", "postgres://db/kelson?user=jane&password=" + secretMarker,
		"host=db user=jane password='" + secretMarker + "'", "host=db password = " + secretMarker, "postgres://jane:1/" + secretMarker + "@db/kelson", "postgres://jane:a/" + secretMarker + "@db/kelson",
	} {
		var flags serveFlags
		cmd := &cobra.Command{Use: "serve"}
		flags.bind(cmd.Flags())
		var log bytes.Buffer
		if err := cmd.ParseFlags([]string{
			"--storage=postgres", "--storage-dsn=" + dsn, "-v=4", "--oidc-client-id=kelson", "--oidc-issuer-url=https://jane:" + secretMarker + "@idp",
			"--etcd-servers-overrides=/events#http://jane:" + secretMarker + "@etcd:2379;http://b:" + secretMarker + "@etcd",
		}); err != nil {
			t.Fatal(err)
		}
		config, err := flags.config(cmd, &log)
		if err != nil && strings.Contains(err.Error(), secretMarker) {
			t.Errorf("%s: the error has the password: %v", dsn, err)
		}
		for name, value := range config.Debug.Flags {
			if strings.Contains(value, secretMarker) {
				t.Errorf("%s: /flagz has --%s=%s, want it without the password", dsn, name, value)
			}
		}
		if len(config.Debug.Flags) == 0 || strings.Contains(log.String(), secretMarker) || !strings.Contains(log.String(), "--storage-dsn-file") {
			t.Errorf("%s: got %d flags and the log %s\nwant a warning that names --storage-dsn-file, and no password", dsn, len(config.Debug.Flags), log.String())
		}
		if _, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn + "&sslmode=\x01 sslmode=x", AllowNoSync: true, ConnectTimeout: time.Millisecond}); err == nil || strings.Contains(err.Error(), secretMarker) {
			t.Errorf("%s: got %v, want an error without the password", dsn, err)
		}
	}
}

// TestMistakesInFilesQuoteNothing: errors of files that have keys and passwords in them, which
// are logged, name files and fields and have no text of them.
func TestMistakesInFilesQuoteNothing(t *testing.T) {
	const m = secretMarker
	contents := map[string]string{
		"no kind": "secret: " + m + "\n", "wrong kind": `{"apiVersion":"x/v1","kind":"Wrong","secret":"` + m + `"}`, "no version": "kind: Config\nsecret: " + m,
		"bad YAML": "secret: " + m + "\n  bad: : [", "truncated": `{"kind":"X","secret":"` + m, "binary": "\x00\x01" + m + "\xff", "words": m, "alias": "a: *" + m,
		"duplicate": "secret: " + m + "\nsecret: " + m, "wrong types": "kind: [" + m + "]\napiVersion: {a: " + m + "}",
	}
	for flag, test := range map[string]struct{ head, body string }{
		"encryption-provider-config": {"apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n",
			"resources: [{resources: [secrets], providers: [{aescbc: {keys: [{name: a, secret: " + m + "}]}, aesgcm: {keys: [{name: a, secret: " + m + "}]}}]}]"},
		"authentication-config":                    {"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n", "jwt: " + m},
		"authorization-config":                     {"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n", "authorizers: " + m},
		"admission-control-config-file":            {"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n", "plugins: " + m},
		"egress-selector-config-file":              {"apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n", "egressSelections: [{name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: \"ftp://a:" + m + "@b\"}}}}]"},
		"tracing-config-file":                      {"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n", "samplingRatePerMillion: " + m},
		"audit-policy-file":                        {"apiVersion: audit.k8s.io/v1\nkind: Policy\n", "rules: " + m},
		"audit-webhook-config-file":                {"apiVersion: v1\nkind: Config\n", "users: [{name: a, user: {token: [" + m + "]}}]"},
		"authentication-token-webhook-config-file": {"apiVersion: v1\nkind: Config\n", "users: [{name: a, user: {client-key-data: " + m + "%}}]"},
		"authorization-policy-file":                {"", `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":"` + m + `"}`},
		"token-auth-file":                          {"", m + ",a\n"},
		"basic-auth-file":                          {"", m + ",\"a\n"},
		"storage-dsn-file":                         {"", "postgres://a:x/" + m + "@b/c"},
	} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			cases := map[string]string{"its kind": test.head + test.body, "its kind with a duplicate": test.head + test.body + "\n" + test.body}
			for name, content := range contents {
				cases[name] = content
			}
			for name, content := range cases {
				file := filepath.Join(t.TempDir(), "file")
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				args := []string{"serve", "--secure-port=0", "--data-dir=" + t.TempDir(), "--" + flag + "=" + file}
				switch flag {
				case "storage-dsn-file":
				case "audit-webhook-config-file":
					policy := filepath.Join(t.TempDir(), "policy")
					if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
						t.Fatal(err)
					}
					args = append(args, "--storage=memory", "--audit-policy-file="+policy)
				case "authorization-policy-file":
					args = append(args, "--storage=memory", "--authorization-mode=ABAC")
				default:
					args = append(args, "--storage=memory")
				}
				var out, stderr bytes.Buffer
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				code := run(ctx, args, streams{in: strings.NewReader(""), out: &out, err: &stderr})
				cancel()
				if strings.Contains(out.String()+stderr.String(), m) {
					t.Errorf("%s: got %s, want nothing of the file in it", name, stderr.String())
				}
				if code == 0 && name == "its kind" {
					t.Errorf("%s: the server has started, so that the test is of no use: %s", name, stderr.String())
				}
			}
		})
	}
}
