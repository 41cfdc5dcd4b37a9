//go:build unix

package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/controlplane"
)

// TestKubeCommandLine has what kube-apiserver says to command lines that start
// nothing.
func TestKubeCommandLine(t *testing.T) {
	t.Parallel()
	const required = "service-account-issuer is a required flag, either `--service-account-key-file` or `--service-account-signing-endpoint` must be set, --service-account-signing-key-file and --service-account-issuer are required flags]"
	for _, c := range []struct {
		args     string
		code     int
		out, err string // err without the time of the line
	}{
		{"--version", exitOK, "Kubernetes v1.37.1+kelson\n", ""},
		{"--version=raw", exitOK, `version.Info{Major:"1", Minor:"37", `, ""},
		{"--version=nonsense", exitError, "", "Error: invalid argument \"nonsense\" for \"--version\" flag: strconv.ParseBool: parsing \"nonsense\": invalid syntax\n"},
		{"--version=v1.2.3", exitError, "", "Error: invalid argument \"v1.2.3\" for \"--version\" flag: version \"v1.2.3\" must match major/minor/patch of default version \"v1.37.1\"\n"},
		{"--nonsense", exitError, "", "Error: unknown flag: --nonsense\n"},
		{"more words", exitError, "", "Error: \"kube-apiserver\" does not take any arguments, got [\"more\" \"words\"]\n"},
		{"-v=x", exitError, "", "Error: invalid argument \"x\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"x\": invalid syntax\n"},
		{"--vmodule=x", exitError, "", "Error: invalid argument \"x\" for \"--vmodule\" flag: \"x\" does not have the pattern=N format\n"},
		{"", exitError, "", `level=ERROR msg="command failed" err="[--etcd-servers must be specified, ` + required + `"` + "\n"},
		{"--etcd-servers=http://127.0.0.1:1", exitError, "", `level=ERROR msg="command failed" err="[` + required + `"` + "\n"},
		{"--help", exitOK, "Serve with the flags and the defaults of kube-apiserver", ""},
	} {
		var out, errs bytes.Buffer
		args := append([]string{"kube-apiserver"}, strings.Fields(c.args)...)
		code := run(t.Context(), args, streams{out: &out, err: &errs})
		line := errs.String()
		if strings.HasPrefix(line, "time=") {
			// Warnings come first.
			line = line[strings.LastIndex(line, "time="):]
			_, line, _ = strings.Cut(line, " ")
		}
		if code != c.code || !strings.HasPrefix(out.String(), c.out) || line != c.err {
			t.Errorf("kube-apiserver %s: %d, %q, %q", c.args, code, out.String(), errs.String())
		}
	}
	for name, want := range map[string]string{"/usr/bin/kube-apiserver": "kube-apiserver --x", "kelson": "--x", "./kube-apiserver.exe": "kube-apiserver --x"} {
		if got := strings.Join(called([]string{name, "--x"}), " "); got != want {
			t.Errorf("%s --x is kelson %s", name, got)
		}
	}
}

// TestKubeDefaults: what is not said is what kube-apiserver does.
func TestKubeDefaults(t *testing.T) {
	var flags serveFlags
	cmd := newKubeAPIServer(streams{})
	cmd.ResetFlags()
	flags.bind(cmd.Flags())
	err := cmd.ParseFlags(strings.Fields("--etcd-servers=http://127.0.0.1:1 --service-account-issuer=https://x --service-account-key-file=x --service-account-signing-key-file=x"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.SetContext(t.Context())
	var log bytes.Buffer
	config, err := kubeConfig(cmd, &flags, &log)
	if err != nil {
		t.Fatal(err)
	}
	if config.BindAddress != "0.0.0.0" || !config.DenyPrivileged || config.Serving.CertDir != "/var/run/kubernetes" || !config.NoFolder || config.Encryption.Reload ||
		fmt.Sprint(config.Authorization.Modes) != "[AlwaysAllow]" || !config.Authentication.DisableAnonymous || fmt.Sprint(config.Controllers) != "[-*]" || config.Etcd.LeaseReuse != time.Minute {
		t.Errorf("%+v", config)
	}
	if !strings.Contains(log.String(), "No CIDR for service cluster IPs specified") || config.Debug.Flags["bind-address"] != "0.0.0.0" || config.Debug.Flags["watch-cache"] != "true" {
		t.Errorf("%s, %v", log.String(), config.Debug.Flags)
	}
}

// TestKubeRefusals has what kube-apiserver says to command lines in which it finds
// mistakes before it starts anything: to several at once, too.
func TestKubeRefusals(t *testing.T) {
	const required = "--service-account-issuer=https://x --service-account-key-file=x --service-account-signing-key-file=x --advertise-address=192.0.2.1 "
	for _, c := range []struct{ args, want string }{
		{"--etcd-servers=", "--etcd-servers must be specified"},
		{"--secure-port=70000", "--secure-port 70000 must be between 1 and 65535, inclusive. It cannot be turned off with 0"},
		{"--request-timeout=-1s --goaway-chance=1 --max-requests-inflight=-1",
			"[--goaway-chance can not be less than 0 or greater than 0.02, --request-timeout can not be negative value, --max-requests-inflight can not be negative value]"},
		{"--shutdown-delay-duration=-1s --shutdown-watch-termination-grace-period=-1s",
			"[--shutdown-delay-duration can not be negative value, shutdown-watch-termination-grace-period, if provided, can not be a negative value]"},
		{"--storage-initialization-timeout=-1s", "--storage-initialization-timeout can not be negative value"},
		{"--storage-media-type=text/plain", `--storage-media-type "text/plain" invalid, allowed values: application/json, application/vnd.kubernetes.protobuf, application/yaml`},
		{"--etcd-servers-overrides=/pods", "--etcd-servers-overrides invalid, must be of format: group/resource#servers, where servers are URLs, semicolon separated"},
		{"--etcd-servers-overrides=/pods#http://x", "--etcd-servers-overrides is not supported: all objects are in one etcd"},
		{"--watch-cache-sizes=pods#5,pods", "invalid value of watch cache size: pods"},
		{"--watch-cache-sizes=pods#-1", "watch cache size cannot be negative: pods#-1"},
		{"--watch-cache-sizes=pods#x", "invalid size of watch cache size: pods#x"},
		{"--emulated-version=1.20", "[emulation version 1.20 is not between [1.34, 1.37.0], minCompatibilityVersion version 1.34 is not between [1.34, 1.20]]"},
		{"--emulated-version=1.40", "emulation version 1.40 is not between [1.34, 1.37.0]"},
		{"--emulated-version=abc", `could not parse "abc" as version`},
		{"--emulated-version=foo=1.36", "component not registered: foo"},
		{"--emulated-version=1.36", "--emulated-version is not supported: there is one version of the server to be"},
		{"--min-compatibility-version=1.20", "minCompatibilityVersion version 1.20 is not between [1.34, 1.37]"},
		{"--emulation-forward-compatible", "ServerRunOptions.EmulationForwardCompatible cannot be set to true if the emulation version is the same as the binary version"},
		{"--coordinated-leadership-lease-duration=5s", "--coordinated-leadership-lease-duration must be greater than --coordinated-leadership-renew-deadline"},
		{"--coordinated-leadership-renew-deadline=1s", "--coordinated-leadership-renew-deadline must be greater than --coordinated-leadership-retry-period"},
		{"--log-json-split-stream", "options.json.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled"},
		{"--log-text-info-buffer-size=5", "options.text.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled"},
		{"--log-json-split-stream --feature-gates=LoggingAlphaOptions=true", ""},
		{"--admission-control=AlwaysAdmit,X --enable-admission-plugins=AlwaysDeny",
			`[admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive, admission-control plugin "X" is unknown]`},
		{"--runtime-config=api/ga=false", "--runtime-config=api/ga=false conflicts with --enable-priority-and-fairness=true"},
		{"--runtime-config=flowcontrol.apiserver.k8s.io/v1=true,api/all=false", ""},
		{"--runtime-config=api/v1=true,api/legacy=true", ""},
		{"--feature-gates=Nope=true,Nada=true", "unrecognized feature gate: Nope"},
		{"--service-cluster-ip-range=fd00::/108", `service IP family "fd00::/108" must match public address family "192.0.2.1"`},
		{"--service-cluster-ip-range=fd00::/108 --endpoint-reconciler-type=none", ""},
		{"--kubernetes-service-node-port=70000",
			"[--kubernetes-service-node-port 70000 must be between 0 and 65535, inclusive. If 0, the Kubernetes master service will be of type ClusterIP, kubernetes service node port range 30000-32767 doesn't contain 70000]"},
		{"--service-node-port-range= --http2-max-streams-per-connection=-1", ""},
		{"--apiserver-count=0", "--apiserver-count should be a positive number, but value '0' provided"},
	} {
		var flags serveFlags
		cmd := newKubeAPIServer(streams{})
		cmd.ResetFlags()
		flags.bind(cmd.Flags())
		cmd.SetErr(io.Discard)
		args := required + c.args
		if !strings.Contains(args, "--etcd-servers=") {
			args += " --etcd-servers=http://127.0.0.1:1"
		}
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		cmd.SetContext(t.Context())
		got := ""
		if _, err := kubeConfig(cmd, &flags, io.Discard); err != nil {
			got = kubeText(err)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.args, got, c.want)
		}
	}
	config := configOf(t, "--admission-control=AlwaysAdmit").Admission
	if len(config.Enable) != 1 || len(config.Disable) < 20 {
		t.Errorf("one plugin is on: %+v", config)
	}
}

// TestKubeAPIServer starts the server as envtest and kubeadm do: by a link, with
// files for everything, beside an etcd, which here keeps nothing.
func TestKubeAPIServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	etcd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(idleHeader, "true")
		_, _ = io.WriteString(w, `{"health":"true"}`)
	}))
	defer etcd.Close()
	certificate, private := selfSigned(t, "service accounts")
	file := files(t, map[string]string{"sa.crt": certificate, "sa.key": private, "tokens.csv": "secret,joe,1,\"system:masters\"\n"})
	tokens := file("tokens.csv")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "kube-apiserver")
	if err := os.Symlink(self, name); err != nil {
		t.Fatal(err)
	}
	// A service manager wants to know, too.
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()

	cmd := command(t, "--advertise-address=127.0.0.1", "--allow-privileged=true", "--authorization-mode=RBAC", "--bind-address=127.0.0.1",
		"--cert-dir="+filepath.Join(dir, "certs"), "--disable-admission-plugins=ServiceAccount", "--etcd-servers="+etcd.URL, "--secure-port=0",
		"--service-account-issuer=https://127.0.0.1/", "--service-account-key-file="+file("sa.crt"), "--service-account-signing-key-file="+file("sa.key"),
		"--service-cluster-ip-range=10.0.0.0/24", "--token-auth-file="+tokens, "--controllers=-*", "-v=3", "--watch-cache=false", "--peer-ca-file=x")
	cmd.Path, cmd.Dir = name, dir
	cmd.Args[0] = name
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+filepath.Join(dir, "notify"))
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	lines := bufio.NewReader(pipe)
	address := ""
	for address == "" {
		line, err := lines.ReadString('\n')
		log.WriteString(line)
		if err != nil {
			t.Fatalf("the server ended: %s", log.String())
		}
		if _, text, ok := strings.Cut(line, "msg=serving server=aggregator address="); ok {
			address = strings.TrimSpace(text)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = lines.WriteTo(&log)
	}()
	told := func() string {
		buf := make([]byte, 100)
		_ = socket.SetReadDeadline(time.Now().Add(30 * time.Second))
		n, err := socket.Read(buf)
		if err != nil {
			t.Error(err)
		}
		return string(buf[:n])
	}
	if state := told(); state != "READY=1" {
		t.Errorf("the service manager is told %q", state)
	}
	http := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(path string) string {
		req, _ := httpRequest(t, "https://"+address+path)
		resp, err := http.Do(req)
		if err != nil {
			t.Error(err)
			return ""
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return string(body)
	}
	if body := get("/readyz"); body != "ok" {
		t.Errorf("/readyz: %s", body)
	}
	var version struct{ GitVersion string }
	if body := get("/version"); json.Unmarshal([]byte(body), &version) != nil || !strings.HasPrefix(version.GitVersion, "v1.37.") {
		t.Errorf("/version: %s", body)
	}
	if body := get("/flagz"); !strings.Contains(body, "token-auth-file") {
		t.Errorf("/flagz: %s", body)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if state := told(); state != "STOPPING=1" {
		t.Errorf("the service manager is told %q", state)
	}
	<-ended
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	for _, file := range []string{"certs/apiserver.crt", "certs/apiserver.key"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Error(err)
		}
	}
	absent(t, filepath.Join(dir, "kelson-data"))
	for _, want := range []string{
		"level=INFO msg=HTTP verb=GET URI=/readyz", "msg=settings flags.", "flags.token-auth-file=" + tokens,
		`msg="flags have no effect here" flags="--watch-cache (the cache has everything, at no fixed size), --peer-ca-file (servers do not pass requests on to each other)"`,
	} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("%q is not once in the log: %s", want, log.String())
		}
	}
}

func httpRequest(t *testing.T, url string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err == nil {
		req.Header.Set("Authorization", "Bearer secret")
	}
	return req, err
}

// TestLogLevels: how much is logged can be said for all, for some files, and
// changed later.
func TestLogLevels(t *testing.T) {
	logged := func(args string, change func(*controlplane.Config)) string {
		var out bytes.Buffer
		var flags serveFlags
		cmd := newServe(streams{})
		cmd.ResetFlags()
		flags.bind(cmd.Flags())
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		config, err := flags.config(cmd, &out)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(&config)
		}
		out.Reset()
		log := config.Logger.With("a", 1).WithGroup("g")
		for _, level := range []slog.Level{slog.LevelWarn, slog.LevelInfo, slog.LevelInfo - 2, slog.LevelDebug, slog.LevelDebug - 1} {
			log.Log(t.Context(), level, level.String(), "b", 2)
		}
		return fmt.Sprint(strings.Count(out.String(), "\n"))
	}
	louder := func(c *controlplane.Config) { c.Debug.SetVerbosity(4) }
	for args, want := range map[string]string{
		"": "1", "-v 1": "2", "-v 3": "3", "-v 4": "4", "-v 9": "5", "--logging-format json -v 3": "3",
		"--vmodule kubeapiserver_test=4": "4", "--vmodule kubeapi*=3,other=9": "3", "--vmodule other=9": "1", "--vmodule other=9 -v 1": "2",
		"-v 9 --vmodule kubeapiserver_test=0": "1", "--vmodule */cmd/kelson/*=9": "1",
	} {
		if got := logged(args, nil); got != want {
			t.Errorf("%s: %s lines, want %s", args, got, want)
		}
	}
	if got := logged("", louder); got != "4" {
		t.Errorf("when it is changed: %s lines", got)
	}
}
