package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// consoleKubeconfig is for a server that is away, with names of a stranger.
const consoleKubeconfig = "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://name:secret@127.0.0.1:1/base'}}]\nusers: [{name: a, user: {token: t}}]\n" +
	"contexts: [{name: \"<script>\\e[31m\", context: {cluster: a, user: a}}]\ncurrent-context: \"<script>\\e[31m\"\n"

// TestConsoleRefuses: what is wrong is told with what to do, before anything listens.
func TestConsoleRefuses(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	certificate, key := selfSigned(t, "localhost")
	file := files(t, map[string]string{"kubeconfig": consoleKubeconfig, "pass": "correct horse battery\n", "short": "short", "tls.crt": certificate, "tls.key": key})
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen=0.0.0.0:0"}, "can be reached by others"},
		{[]string{"--listen=:0"}, "can be reached by others"},
		{[]string{"--listen=[::]:0", "--password-file=" + file("pass")}, "can be reached by others"},
		{[]string{"--listen=192.0.2.1:0", "--tls-cert-file=" + file("tls.crt"), "--tls-private-key-file=" + file("tls.key")}, "can be reached by others"},
		{[]string{"--listen=example.com:0"}, "can be reached by others"},
		{[]string{"--listen=127.0.0.1"}, "is not an address with a port"},
		{[]string{"--tls-cert-file=" + file("tls.crt")}, "together"},
		{[]string{"--tls-cert-file=" + file("tls.crt"), "--tls-private-key-file=" + file("pass")}, "--tls-cert-file and --tls-private-key-file"},
		{[]string{"--password-file=" + file("short")}, "12 at least"},
		{[]string{"--password-file=/none"}, "--password-file"},
		{[]string{"--listen=" + taken.Addr().String()}, "another program listens on"},
		{[]string{"--kubeconfig=/none"}, "/none"},
		{[]string{"--context=none"}, "none"},
		{[]string{"extra"}, "extra"},
	} {
		var out, complaints bytes.Buffer
		args := append([]string{"console", "--open=false", "--kubeconfig=" + file("kubeconfig")}, test.args...)
		if code := run(t.Context(), args, streams{in: strings.NewReader(""), out: &out, err: &complaints}); code == exitOK || !strings.Contains(complaints.String(), test.want) {
			t.Errorf("%q: got %d, %s, want %s", test.args, code, complaints.String(), test.want)
		}
	}
}

// TestConsoleOpensWithoutItsServer: the page is what tells that the server is away.
func TestConsoleOpensWithoutItsServer(t *testing.T) {
	t.Parallel()
	certificate, key := selfSigned(t, "localhost")
	file := files(t, map[string]string{"kubeconfig": consoleKubeconfig, "pass": "correct horse battery\n", "tls.crt": certificate, "tls.key": key})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(certificate))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "localhost"}, DisableKeepAlives: true}}
	for name, test := range map[string]struct {
		args []string
		link string
		body string // of the login
	}{
		"link":     {nil, `http://127\.0\.0\.1:\d+/#key=(\w+)`, `{"key":"$1"}`},
		"password": {[]string{"--password-file=" + file("pass"), "--tls-cert-file=" + file("tls.crt"), "--tls-private-key-file=" + file("tls.key")}, `\n  https://127\.0\.0\.1:\d+/()`, `{"password":"correct horse battery"}`},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			out, write := io.Pipe()
			var complaints bytes.Buffer
			var code int
			var group sync.WaitGroup
			group.Go(func() {
				code = run(ctx, append([]string{"console", "--open=false", "--kubeconfig=" + file("kubeconfig")}, test.args...), streams{in: strings.NewReader(""), out: write, err: &complaints})
				_ = write.Close()
			})
			defer func() {
				cancel()
				group.Wait()
				if code != exitOK {
					t.Errorf("got exit code %d, %s, want %d", code, complaints.String(), exitOK)
				}
			}()
			said := ""
			link := regexp.MustCompile(test.link)
			buffer := make([]byte, 1024)
			for !link.MatchString(said) {
				n, err := out.Read(buffer)
				said += string(buffer[:n])
				if err != nil {
					t.Fatalf("the command ended with %q %s", said, complaints.String())
				}
			}
			go func() { _, _ = io.Copy(io.Discard, out) }()
			if strings.Contains(said, "secret") || strings.Contains(said, "\x1b") {
				t.Errorf("got %q, want no password and nothing that changes a terminal", said)
			}
			found := link.FindStringSubmatch(said)
			at, _, _ := strings.Cut(strings.TrimSpace(found[0]), "#")
			resp, err := client.Post(at+"session", "application/json", strings.NewReader(strings.ReplaceAll(test.body, "$1", found[1])))
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("login: got %d %s, want 200", resp.StatusCode, text)
			}
			pageKey := regexp.MustCompile(`"key":"(\w+)"`).FindStringSubmatch(string(text))[1]
			for path, want := range map[string]string{"console/info": `"context":"\u003cscript\u003e\u001b[31m","server":"https://127.0.0.1:1/base"`, "k8s/api": "cannot be reached"} {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, at+path, nil)
				req.Header.Set("X-Kelson-Console", pageKey)
				req.AddCookie(resp.Cookies()[0])
				answer, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				if !strings.Contains(string(text), want) {
					t.Errorf("%s: got %s, want %s", path, text, want)
				}
			}
		})
	}
}

func TestConsoleNames(t *testing.T) {
	t.Parallel()
	at := &net.TCPAddr{Port: 8443}
	for listen, want := range map[string]string{"127.0.0.1:0": "127.0.0.1:8443 localhost:8443", "[::1]:0": "[::1]:8443 localhost:8443", "console.example:0": "console.example:8443"} {
		if got := strings.Join(hostsOf(listen, at), " "); got != want {
			t.Errorf("%s: got %s, want %s", listen, got, want)
		}
	}
	if got := hostsOf("0.0.0.0:0", at); len(got) < 2 || got[len(got)-1] != "localhost:8443" {
		t.Errorf("0.0.0.0: got %v, want the names of the machine", got)
	}
	got := namesOf(&x509.Certificate{DNSNames: []string{"Console.example"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}}, at)
	if strings.Join(got, " ") != "console.example:8443 192.0.2.1:8443" {
		t.Errorf("certificate: got %v", got)
	}
}

// TestConsoleKeepsTheLinkFromOthers: other users see the arguments of programs.
func TestConsoleKeepsTheLinkFromOthers(t *testing.T) {
	t.Parallel()
	name, err := writeRedirect("http://127.0.0.1:1/#key=a\"><script>")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(name)
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: got %v, %v, want a file for its owner", filepath.Base(name), info.Mode(), err)
	}
	if text, _ := os.ReadFile(name); bytes.Contains(text, []byte("<script>")) || !bytes.Contains(text, []byte("http://127.0.0.1:1/#key=a")) {
		t.Errorf("got %s", text)
	}
}
