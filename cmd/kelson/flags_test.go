//go:build unix

package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/spf13/pflag"
)

// TestFlagsOfKubeAPIServer checks that all flags of kube-apiserver are known,
// and have its defaults where nothing is said here.
func TestFlagsOfKubeAPIServer(t *testing.T) {
	var flags serveFlags
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	flags.bind(fs)
	different := map[string]string{
		"allow-privileged": "true",
		"bind-address":     "127.0.0.1", // a laptop should not be open to its network
		"cert-dir":         "",
		// There is nothing to lose by it here.
		"encryption-provider-config-automatic-reload": "true",
		"lease-reuse-duration-seconds":                "2", // what expires goes sooner
		"service-cluster-ip-range":                    "10.0.0.0/24",
	}
	// Those that say it in their usage, since it matters whether they are given.
	told := map[string]string{
		"authentication-token-webhook-cache-ttl": "(default 2m0s)",
		"authorization-webhook-version":          "(default v1beta1)",
	}
	for line := range strings.Lines(read(t, "testdata/flags.tsv")) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		name, want := f[0], strings.Trim(f[2], `"`)
		if name == "flag" {
			continue
		}
		flag := fs.Lookup(name)
		if flag == nil {
			t.Errorf("there is no --%s", name)
			continue
		}
		if text, ok := told[name]; ok {
			if !strings.Contains(flag.Usage, text) {
				t.Errorf("--%s does not tell its default: %s", name, flag.Usage)
			}
			continue
		}
		if other, ok := different[name]; ok {
			want = other
		}
		empty := map[string]bool{"": true, "0": true, "0s": true, "[]": true, "false": true, "<nil>": true}
		if got := flag.DefValue; got != want && !(empty[got] && empty[want]) {
			t.Errorf("--%s is %q by default, not %q", name, got, want)
		}
	}
	seen := map[string]bool{}
	for _, f := range foreignFlags() {
		if seen[f.name] || f.reason == "" {
			t.Errorf("--%s is there twice, or for no reason", f.name)
		}
		seen[f.name] = true
	}
}

// TestRefusedFlags has flags that make no server.
func TestRefusedFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags string
		code  int
		want  string
	}{
		{"--nonsense", exitUsage, "unknown flag: --nonsense; see 'kelson serve --help'"},
		{"--runtime-config=nonsense=true", exitError, "runtime-config invalid key nonsense"},
		{"--runtime-config=nonsense/v1=true", exitError, "unknown api groups nonsense/v1"},
		{"--runtime-config=api/all=maybe", exitError, "invalid value api/all=maybe"},
		{"--feature-gates=Foo=true", exitError, "unrecognized feature gate: Foo"},
		{"--feature-gates=WatchList", exitError, "missing bool value for WatchList"},
		{"--feature-gates=WatchList=maybe", exitError, `invalid value of WatchList=maybe, err: strconv.ParseBool: parsing "maybe": invalid syntax`},
		{"--feature-gates=foo:WatchList=true", exitError, "component not registered: foo"},
		{"--feature-gates=ImageVolume=false", exitError, "cannot set feature gate ImageVolume to false, feature is locked to true"},
		{"--oidc-required-claim=a", exitUsage, `invalid argument "a" for "--oidc-required-claim" flag: malformed pair, expect string=string`},
		{"--oidc-issuer-url=https://x", exitError, "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"},
		{"--authorization-mode=Nope", exitError, `authorization-mode "Nope" is not a valid mode`},
		{"--authorization-mode=ABAC", exitError, "authorization-mode ABAC's authorization policy file not passed"},
		{"--authorization-config=x --authorization-mode=RBAC", exitError, "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined"},
		{"--audit-log-path=- --audit-log-mode=sometimes", exitError, "invalid audit log mode sometimes"},
		{"--tls-cert-file=x", exitError, "--tls-cert-file and --tls-private-key-file go together"},
		{"--tls-cert-file=/no/x --tls-private-key-file=/no/y", exitError, "no such file or directory; check the path"},
		{"--tls-min-version=SSL", exitError, `unknown tls version "SSL"`},
		{"--tls-cipher-suites=ROT13", exitError, "Cipher suite ROT13 not supported or doesn't exist"},
		{"--tls-sni-cert-key=x", exitUsage, "expected comma separated certificate and key file paths"},
		{"--http2-server=nghttp2", exitError, `--http2-server is "nghttp2", not one of kelson and net/http`},
		{"--goaway-chance=0.5", exitError, "--goaway-chance can not be less than 0 or greater than 0.02"},
		{"--cors-allowed-origins=example.com", exitError, "does not pin to start/end of host"},
		{"--client-ca-file=/no/ca", exitError, "/no/ca"},
		{"--token-auth-file=/no/tokens", exitError, "/no/tokens"},
		{"--service-account-key-file=/no/key", exitError, "--service-account-key-file needs --service-account-signing-key-file"},
		{"--service-account-max-token-expiration=1m", exitError, "the service-account-max-token-expiration must be between 1 hour and 2^32 seconds"},
		{"--min-request-timeout=-1", exitError, "--min-request-timeout can not be negative value"},
		{"--max-requests-inflight=0 --max-mutating-requests-inflight=0", exitError, "they must add up to something positive"},
		{"--tracing-config-file=/no/file", exitError, "failed to read tracing config: unable to read tracing configuration from \"/no/file\": open /no/file: no such file or directory"},
		{"--max-requests-inflight=-1", exitError, "--max-requests-inflight can not be negative value"},
		{"--encryption-provider-config=/no/file", exitError, "error reading encryption provider configuration file"},
		{"--storage-backend=etcd2", exitError, "--storage-backend invalid, allowed values: etcd3. If not specified, it will default to 'etcd3'"},
		{"--show-hidden-metrics-for-version=1.20", exitError, `metrics.showHiddenMetricsForVersion: Invalid value: "1.20": must be omitted or have the value '1.36'; only the previous minor version is allowed`},
		{"--disabled-metrics=9x", exitError, "metrics.disabledMetrics: Invalid value: [\"9x\"]: must be fully qualified metric names"},
		{"--allow-metric-labels=ab=1,2", exitError, "metrics.allowListMapping: Invalid value: {\"ab\":\"1,2\"}: must have keys with format"},
		{"--allow-metric-labels=a,b", exitUsage, `invalid argument "a,b" for "--allow-metric-labels" flag: a,b must be formatted as key=value`},
		{"--kubernetes-service-node-port=70000", exitError, "--kubernetes-service-node-port 70000 must be between 0 and 65535, inclusive."},
		{"--bind-address=nope", exitUsage, `invalid argument "nope" for "--bind-address" flag: failed to parse IP: "nope"`},
		{"--service-cluster-ip-range=fd00::/108", exitError, `service IP family "fd00::/108" must match public address family`},
		{"--service-node-port-range=30000-29000", exitUsage, "end port cannot be less than start port: 30000-29000"},
		{"--kubelet-timeout=x", exitUsage, `invalid argument "x" for "--kubelet-timeout" flag: time: invalid duration "x"`},
		{"--delete-collection-workers=x", exitUsage, "strconv.ParseInt: parsing \"x\": invalid syntax"},
		{"--kubernetes-service-node-port=80", exitError, "kubernetes service node port range 30000-32767 doesn't contain 80"},
		{"--logging-format=xml", exitError, `--logging-format "xml": it is text or json`},
	} {
		t.Run(c.flags, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var out, errs bytes.Buffer
			args := append([]string{"serve", "--storage", "memory", "--data-dir", t.TempDir(), "--secure-port", "0"}, strings.Fields(c.flags)...)
			code := run(ctx, args, streams{out: &out, err: &errs})
			if code != c.code || !strings.Contains(errs.String(), c.want) || !strings.HasPrefix(errs.String(), "kelson: ") || strings.Count(errs.String(), "\n") != 1 {
				t.Errorf("exit code %d, %q, %q; want %d, %q", code, out.String(), errs.String(), c.code, c.want)
			}
		})
	}
}

// TestFlagsWithoutEffect has flags that are taken, with a word about them.
func TestFlagsWithoutEffect(t *testing.T) {
	for _, c := range []struct{ flags, want string }{
		{"--storage_backend=etcd3 --watch-cache --profiling=false", ""},
		{"--watch-cache=false", `"flags have no effect here" flags="--watch-cache (`},
		{"--vmodule=x=3 --delete-collection-workers 3 --kubelet-timeout 1s", "--delete-collection-workers (collections are deleted as fast as the store takes it), --kubelet-timeout ("},
		{"--peer-ca-file x --peer-advertise-ip 10.0.0.1 --peer-advertise-port 6443", ""},
		{"--feature-gates=kube:WatchList=true,kube:AllAlpha=false,kube:KubeProxyIPVS=false", ""},
		{"--basic-auth-file=x", "--basic-auth-file is for tests"},
		{"--authorization-mode=AlwaysAllow", "AnonymousAuth is not allowed with the AlwaysAllow authorizer"},
		{"--authorization-mode=AlwaysAllow --anonymous-auth=false", ""},
	} {
		var log bytes.Buffer
		cmd := newServe(streams{})
		var flags serveFlags
		cmd.ResetFlags()
		flags.bind(cmd.Flags())
		err := cmd.ParseFlags(strings.Fields(c.flags))
		if err == nil {
			_, err = flags.config(cmd, &log)
		}
		if err != nil || !strings.Contains(log.String(), c.want) || (c.want == "") != (log.Len() == 0) {
			t.Errorf("%s: %v, %q; want %q", c.flags, err, log.String(), c.want)
		}
	}
	// The settings that flags leave alone are those of an empty configuration.
	config := configOf(t, "")
	if config.Authentication.DisableAnonymous || config.Authentication.AnonymousSet || config.DenyPrivileged || config.Audit.PolicyFile != "" {
		t.Errorf("without flags: %+v", config)
	}
	if c := configOf(t, "--admission-control=AlwaysAdmit").Admission; len(c.Enable) != 1 || len(c.Disable) < 20 {
		t.Errorf("one plugin is on: %+v", c)
	}
	if c := configOf(t, "--max-requests-inflight=0").Flow; c.MaxReading >= 0 || c.MaxWriting != 200 {
		t.Errorf("no reads count: %+v", c)
	}
	config = configOf(t, "--allow-metric-labels=a,b=1,2 --allow-metric-labels=a,c=3 --disabled-metrics=x,y --show-hidden-metrics-for-version=1.36 "+
		"--etcd-healthcheck-timeout=3s --kubelet-port=1 --max-connection-bytes-per-sec=10 --kubernetes-service-node-port=30001 --audit-webhook-batch-initial-backoff=7s")
	if m := config.Debug.Metrics; len(m.Labels) != 2 || m.Labels["a,b"] != "1,2" || len(m.Disabled) != 2 || m.ShowHidden != "1.36" || config.HealthTimeout != 3*time.Second ||
		config.ReadyTimeout != 2*time.Second || config.KubeletPort != 1 || config.Kubelets.MaxBytesPerSecond != 10 || config.ServiceNodePort != 30001 || config.Audit.Webhook.InitialBackoff != 7*time.Second {
		t.Errorf("with flags: %+v", config)
	}
	config = configOf(t, "--anonymous-auth=false --allow-privileged=false --event-ttl=2h --min-request-timeout=0 --authentication-token-webhook-cache-ttl=0 --service-account-lookup=false -v 4")
	if a := config.Authentication; !a.DisableAnonymous || !a.AnonymousSet || !config.DenyPrivileged || config.EventTTL != 2*time.Hour ||
		config.MinRequestTimeout >= 0 || a.Webhook.CacheTTL >= 0 || !a.ServiceAccounts.SkipLookup || !config.Logger.Enabled(t.Context(), slog.LevelDebug) {
		t.Errorf("with flags: %+v", config)
	}
}

// TestFlagsOfStoredObjects has the encoding of stored objects, and lists as without a cache.
func TestFlagsOfStoredObjects(t *testing.T) {
	for text, want := range map[string]controlplane.Config{
		"serve": {StorageMediaType: "application/vnd.kubernetes.protobuf"},
		"serve --storage-media-type=application/yaml --watch-cache=false": {StorageMediaType: "application/yaml", NoWatchCache: true},
		"serve --storage-media-type= --watch-cache":                       {StorageMediaType: "application/json"},
	} {
		if got := configOf(t, text); got.StorageMediaType != want.StorageMediaType || got.NoWatchCache != want.NoWatchCache {
			t.Errorf("%s: got %q and %v, want %q and %v", text, got.StorageMediaType, got.NoWatchCache, want.StorageMediaType, want.NoWatchCache)
		}
	}
}

// configOf returns the configuration that flags make.
func configOf(t *testing.T, text string) controlplane.Config {
	t.Helper()
	cmd := newServe(streams{})
	cmd.ResetFlags()
	var flags serveFlags
	flags.bind(cmd.Flags())
	err := cmd.ParseFlags(strings.Fields(text))
	if err != nil {
		t.Fatal(err)
	}
	config, err := flags.config(cmd, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// TestHelp has what newcomers need on the first screen.
func TestHelp(t *testing.T) {
	for _, c := range []struct {
		args  string
		lines int
		want  []string
		not   string
	}{
		{"--help", 60, []string{"Commands:", "  serve ", "Common flags:", "--data-dir folder", "kelson serve --help"}, "--audit-policy-file"},
		{"serve --help", 1000, []string{"Common flags:", "Authentication:", "--client-ca-file file", "Auditing:", "--runtime-config versions"}, "--watch-cache"},
		{"serve -h", 1000, []string{"Common flags:", "--peer-ca-file file"}, "--kubelet-timeout"},
		{"snapshot save --help", 60, []string{"Usage:\n  kelson snapshot save", "--data-dir folder"}, "--client-ca-file"},
		{"--version", 2, []string{"kelson "}, "Usage"},
	} {
		var out bytes.Buffer
		code := run(t.Context(), strings.Fields(c.args), streams{out: &out, err: &out})
		if n := strings.Count(out.String(), "\n"); code != exitOK || n > c.lines || strings.Contains(out.String(), c.not) {
			t.Errorf("kelson %s: exit code %d, %d lines: %s", c.args, code, n, out.String())
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("kelson %s does not tell of %q: %s", c.args, want, out.String())
			}
		}
	}
}
