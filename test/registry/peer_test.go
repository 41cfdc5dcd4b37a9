package registry

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

const (
	// patience is how long a server may take for something.
	patience = 60 * time.Second
	again    = 100 * time.Millisecond
)

// bearer authenticates by a token.
type bearer struct {
	token string
	http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.RoundTripper.RoundTrip(r)
}

// startPeer starts kube-apiserver on an etcd.
func startPeer(t *testing.T, binary string, cluster *etcdtest.Cluster, encryption string) *api {
	t.Helper()
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	signer := write("sa.key", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	token := rand.Text()
	tokens := write("tokens", []byte(token+",admin,1,system:masters\n"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(address)

	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--etcd-servers=" + strings.Join(cluster.Endpoints(), ","), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + port,
		"--cert-dir=" + dir, "--token-auth-file=" + tokens, "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file=" + signer, "--service-account-signing-key-file=" + signer,
		"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none", "--runtime-config=api/all=true",
	}
	if encryption != "" {
		args = append(args, "--encryption-provider-config="+encryption)
	}
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	a := &api{t: t, url: "https://" + address, stop: func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			_ = log.Close()
		})
	}}
	t.Cleanup(a.stop)
	a.client = &http.Client{Transport: bearer{token, &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	a.wait("it is not ready", func() bool {
		code, _ := a.do(http.MethodGet, "/readyz", nil)
		return code == http.StatusOK
	})
	return a
}

// wait tries until something is done.
func (a *api) wait(what string, try func() bool) {
	a.t.Helper()
	tick := time.NewTicker(again)
	defer tick.Stop()
	for end := time.After(patience); !try(); {
		select {
		case <-tick.C:
		case <-end:
			a.t.Fatal(what)
		}
	}
}

// do returns no status if there is no answer.
func (a *api) do(method, path string, body any) (int, []byte) {
	a.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		a.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, bytes.NewReader(text))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.client.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return resp.StatusCode, text
}

// fill makes one of everything.
func (a *api) fill() {
	a.t.Helper()
	for _, o := range objects(a.t) {
		var code int
		var text []byte
		a.wait("it cannot be created: "+o.location(), func() bool {
			code, text = a.do(http.MethodPost, o.Path, o.Body)
			return code != http.StatusNotFound // a custom resource takes a moment
		})
		if code != http.StatusCreated {
			a.t.Errorf("%s: %d %s", o.location(), code, text)
		}
	}
}

// read returns all of it.
func (a *api) read() map[string]map[string]any {
	a.t.Helper()
	all := map[string]map[string]any{}
	for _, o := range objects(a.t) {
		var code int
		var text []byte
		a.wait("it cannot be read: "+o.location(), func() bool {
			code, text = a.do(http.MethodGet, o.location(), nil)
			return code != http.StatusNotFound
		})
		var obj map[string]any
		if err := json.Unmarshal(text, &obj); err != nil || code != http.StatusOK {
			a.t.Errorf("%s: %d %s", o.location(), code, text)
		}
		all[o.location()] = obj
	}
	return all
}

// rewrite changes all of it, which takes more than reading it.
func (a *api) rewrite() {
	a.t.Helper()
	for path, obj := range a.read() {
		metadata := obj["metadata"].(map[string]any)
		metadata["annotations"] = map[string]any{"rewritten": "true"}
		if code, text := a.do(http.MethodPut, path, obj); code != http.StatusOK && code != http.StatusConflict {
			a.t.Errorf("%s: %d %s", path, code, text)
		}
	}
}
