package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestSpecs(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	program, config := write("kelson", 0o755), write("admin.kubeconfig", 0o600)
	write("peers/kube-apiserver", 0o755)
	write("peers/etcd", 0o755)
	write("half/kube-apiserver", 0o755)
	write("workspaces/kcp", 0o755)
	write("tree/go.mod", 0o644)
	for text, want := range map[string]Spec{
		program:                           {Name: "kelson", Kind: KelsonProgram},
		"new=" + program:                  {Name: "new", Kind: KelsonProgram},
		program + ",arg=--v=2,etcd=/e":    {Name: "kelson", Kind: KelsonProgram, Etcd: "/e", Args: []string{"--v=2"}},
		filepath.Join(dir, "peers"):       {Name: "kube-apiserver", Kind: KubeAPIServer},
		filepath.Join(dir, "workspaces"):  {Name: "kcp", Kind: Kcp},
		"x=" + filepath.Join(dir, "tree"): {Name: "x", Kind: KelsonSources},
		config:                            {Name: "admin.kubeconfig", Kind: Running},
	} {
		got, err := Parse(text)
		if err != nil {
			t.Errorf("%s: got the error %v, want none", text, err)
		}
		got.Path = ""
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %+v, want %+v", text, got, want)
		}
	}
	for _, text := range []string{filepath.Join(dir, "none"), dir, filepath.Join(dir, "half"), program + ",colour=red", program + ",etcd=/e,postgres=/p"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%s: got %+v, want an error", text, got)
		}
	}
}

func TestKubeconfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	text := "current-context: b\ncontexts:\n- {name: a, context: {cluster: a, user: a}}\n- {name: b, context: {cluster: b, user: b}}\n" +
		"clusters:\n- {name: a, cluster: {server: 'https://a'}}\n- {name: b, cluster: {server: 'https://b/', insecure-skip-tls-verify: true}}\n" +
		"users:\n- {name: a, user: {token: ta}}\n- {name: b, user: {token: tb}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := fromKubeconfig("x", file)
	if err != nil {
		t.Fatal(err)
	}
	if v.URL != "https://b" || v.Token != "tb" || !v.TLS.InsecureSkipVerify {
		t.Errorf("got %s with token %s, insecure %v; want https://b, tb, true", v.URL, v.Token, v.TLS.InsecureSkipVerify)
	}
}
