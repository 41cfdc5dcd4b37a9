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
		{"", exitError, "", `"command failed" err="[--etcd-servers must be specified, ` + required + `"` + "\n"},
		{"--etcd-servers=http://127.0.0.1:1", exitError, "", `"command failed" err="[` + required + `"` + "\n"},
		{"--help", exitOK, "Serve with the flags and the defaults of kube-apiserver", ""},
	} {
		var out, errs bytes.Buffer
		args := append([]string{"kube-apiserver"}, strings.Fields(c.args)...)
		code := run(t.Context(), args, streams{out: &out, err: &errs})
		line := errs.String()
		// Warnings come first.
		if errors := strings.Split(line, "\nE"); strings.HasPrefix(line, "W") || strings.HasPrefix(line, "E1") || strings.HasPrefix(line, "E0") {
			_, line, _ = strings.Cut(errors[len(errors)-1], "] ")
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
	_, key := selfSigned(t, "service accounts")
	file := files(t, map[string]string{"sa.key": key})
	err := cmd.ParseFlags([]string{"--etcd-servers=http://127.0.0.1:1", "--service-account-issuer=https://x", "--service-account-key-file=x", "--service-account-signing-key-file=" + file("sa.key")})
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
		"--service-cluster-ip-range=10.0.0.0/24", "--token-auth-file="+tokens, "--controllers=-*", "-v=3", "--watch-cache=false", "--delete-collection-workers=3")
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
		if _, text, ok := strings.Cut(line, "] Serving securely on "); ok {
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
		`"HTTP" verb="GET" URI="/readyz"`, `"settings" flags.`, `flags.token-auth-file="` + tokens + `"`,
		`"flags have no effect here" flags="--watch-cache (the cache has everything, at no fixed size), --delete-collection-workers (collections are deleted as fast as the store takes it)"`,
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
