//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/recorded"
)

// commandLine is one that was given to kube-apiserver v1.37.1.
type commandLine struct {
	Args []string
	// Bare ones were given without the flags that every line needs.
	Bare bool
	// Text is what kube-apiserver had against it; none if it went on.
	Text string
}

// in returns text with the name of a folder in it.
func (c *commandLine) in(text, dir string) string { return strings.ReplaceAll(text, "{D}", dir) }

// TestCommandLines: what kube-apiserver says to command lines is said here, in the
// same words.
func TestCommandLines(t *testing.T) {
	t.Parallel()
	etcd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(idleHeader, "true") }))
	t.Cleanup(etcd.Close)
	certificate, key := selfSigned(t, "localhost")
	_, other := selfSigned(t, "other")
	file := files(t, map[string]string{
		"tls.crt": certificate, "tls.key": key, "other.key": other, "sa.pub": certificate, "sa.key": key,
		"empty": "", "broken.yaml": "hello: [\n", "words": "just words\n", "other.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\n",
		"tokens": "token,user,uid,\"g1,g2\"\n", "tokens-short": "token,user\n",
		"kubeconfig": "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: a, user: {}}]\n" +
			"contexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\n",
	})
	dir := filepath.Dir(file("empty"))
	always := []string{
		"--etcd-servers=" + etcd.URL, "--service-account-issuer=https://x", "--service-account-key-file=" + file("sa.pub"),
		"--service-account-signing-key-file=" + file("sa.key"), "--advertise-address=192.0.2.1", "--bind-address=127.0.0.1", "--secure-port=0",
	}
	lines := recorded.Read[commandLine](t, "testdata/commandlines.gz")
	if len(lines) < 300 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, line := range lines {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			args := []string{"--cert-dir=" + filepath.Join(dir, "certs")}
			if !line.Bare {
				args = append(args, always...)
			}
			for _, arg := range line.Args {
				args = append(args, strings.Replace(line.in(arg, dir), "--etcd-servers=http://127.0.0.1:1", "--etcd-servers="+etcd.URL, 1))
			}
			// It quotes the file, which may have keys in it.
			want := strings.NewReplacer("!!str `just words` into", "!!str into", "line 1: just words: ", "line 1: ").Replace(line.in(line.Text, dir))
			got := complaint(t, args, want == "")
			// Gates that kube-apiserver can do without, or has, and this server not.
			if want == "" && strings.HasPrefix(got, "--feature-gates: this server ") {
				return
			}
			if got != want {
				t.Errorf("%q: %s, want %s", line.Args, got, want)
			}
		})
	}
}

// complaint returns what the server has against a command line. If it is expected to
// have nothing, it is not started.
func complaint(t *testing.T, args []string, fine bool) string {
	t.Helper()
	if fine {
		var flags serveFlags
		cmd := newKubeAPIServer(streams{})
		cmd.ResetFlags()
		flags.bind(cmd.Flags())
		cmd.SetContext(t.Context())
		cmd.SetErr(io.Discard)
		if err := cmd.ParseFlags(args); err != nil {
			return err.Error()
		}
		if _, err := kubeConfig(cmd, &flags, io.Discard); err != nil {
			return kubeText(err)
		}
		return ""
	}
	var errs bytes.Buffer
	// Who should not have started is stopped.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	code := run(ctx, append([]string{kubeName}, args...), streams{out: io.Discard, err: &errs})
	if code != exitError {
		t.Errorf("exit code %d", code)
	}
	text := strings.TrimSuffix(errs.String(), "\n")
	// Texts of several lines are shown as such.
	if _, lines, ok := strings.Cut(text, `"command failed" err=<`+"\n\t"); ok {
		return strings.ReplaceAll(strings.TrimSuffix(lines, "\n >"), "\n\t", "\n")
	}
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if strings.HasPrefix(text, "{") {
		var line struct{ Err string }
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Error(err)
		}
		return line.Err
	}
	if m := regexp.MustCompile(`"command failed" err=(.*)$`).FindStringSubmatch(text); m != nil {
		if unquoted, err := strconv.Unquote(m[1]); err == nil {
			return unquoted
		}
		return m[1]
	}
	return text
}
