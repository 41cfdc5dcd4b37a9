package kubectl

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// bundle is the definitions that a Go module carries, and objects of theirs.
type bundle struct {
	module  string // with its version, unless this module requires it
	folders []string
	good    string
	bad     map[string][]string // an object, and what is said about it
}

func bundles() []bundle {
	return []bundle{
		{
			module: "sigs.k8s.io/controller-runtime", folders: []string{"pkg/client/testdata", "pkg/controller/testdata/crds"},
			good: `{apiVersion: chaosapps.metamagical.io/v1, kind: ChaosPod, metadata: {name: p}}`,
			bad: map[string][]string{
				`{apiVersion: chaosapps.metamagical.io/v1, kind: ChaosPod, metadata: {name: bad}, spec: {}}`: {`unknown field "spec"`},
			},
		},
		{
			module: "github.com/cert-manager/cert-manager@v1.21.2", folders: []string{"deploy/crds"},
			good: `
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: self}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: web}
spec: {secretName: web-tls, dnsNames: [example.com], issuerRef: {name: self}, privateKey: {algorithm: ECDSA, size: 256}}`,
			bad: map[string][]string{
				`{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: bad}, spec: {secretName: tls, privateKey: {algorithm: DSA}}}`: {
					`spec.privateKey.algorithm: Unsupported value: "DSA": supported values: "RSA", "ECDSA", "Ed25519"`, `spec.issuerRef: Required value`},
				`{apiVersion: cert-manager.io/v1, kind: Issuer, metadata: {name: bad}, spec: {acme: {server: "https://x.example", solvers: [{http01: {ingress: {serviceType: 1}}}]}}}`: {
					`spec.acme.solvers[0].http01.ingress.serviceType: Invalid value: "integer"`, `spec.acme.privateKeySecretRef: Required value`, `some validation rules were not checked`},
			},
		},
		{
			module: "sigs.k8s.io/cluster-api@v1.14.2", folders: []string{"core/config/crd/bases", "bootstrap/kubeadm/config/crd/bases", "controlplane/kubeadm/config/crd/bases"},
			good: `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: one}
spec:
  clusterNetwork: {pods: {cidrBlocks: [10.0.0.0/16]}}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: DockerCluster, name: one}`,
			bad: map[string][]string{
				`{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: bad}, spec: {paused: maybe, topology: {classRef: {name: Not a name}, version: v1.30}}}`: {
					`spec.paused: Invalid value: "string": spec.paused in body must be of type boolean: "string"`, `spec.topology.classRef.name: Invalid value: "Not a name"`},
			},
		},
		{
			module: "github.com/fluxcd/source-controller@v1.10.1", folders: []string{"config/crd/bases"},
			good: `{apiVersion: source.toolkit.fluxcd.io/v1, kind: GitRepository, metadata: {name: pod}, spec: {interval: 5m, url: "https://example.com/pod", ref: {branch: master}}}`,
			bad: map[string][]string{
				`{apiVersion: source.toolkit.fluxcd.io/v1, kind: GitRepository, metadata: {name: bad}, spec: {interval: soon, url: "ftp://example.com", serviceAccountName: x}}`: {
					`spec.url: Invalid value: "ftp://example.com"`, `spec.interval: Invalid value: "soon"`, `spec: Invalid value: serviceAccountName can only be set when provider is`},
			},
		},
		{
			module: "github.com/fluxcd/kustomize-controller@v1.10.1", folders: []string{"config/crd/bases"},
			good: `{apiVersion: kustomize.toolkit.fluxcd.io/v1, kind: Kustomization, metadata: {name: pod}, spec: {interval: 10m, prune: true, sourceRef: {kind: GitRepository, name: pod}}}`,
			bad: map[string][]string{
				`{apiVersion: kustomize.toolkit.fluxcd.io/v1, kind: Kustomization, metadata: {name: bad}, spec: {interval: 10m, sourceRef: {kind: Nothing, name: pod}, pruned: true}}`: {
					`strict decoding error: unknown field "spec.pruned"`},
			},
		},
	}
}

// Definitions that people use, as they are published, are applied by the client
// and by the server, and judge objects. The modules that carry them are
// downloaded, except for one that is here anyway.
func TestBundles(t *testing.T) {
	for _, b := range bundles() {
		t.Run(b.module, func(t *testing.T) {
			if strings.Contains(b.module, "@") && os.Getenv("KELSON_LONG") == "" {
				t.Skip("KELSON_LONG is not set: the module would have to be downloaded")
			}
			s := start(t)
			names := s.definitions(moduleFolder(t, b.module), b)
			if len(names) == 0 {
				t.Fatal("the module has no definitions")
			}
			for _, name := range names {
				s.run("apply -f @"+name, name+" created")
				s.run("apply --server-side --force-conflicts -f @"+name, name+" serverside-applied")
			}
			s.run("wait --for=condition=Established crd --all", names...)
			s.file("good", b.good)
			s.run("apply -f @good", "created")
			s.run("apply --server-side --force-conflicts -f @good", "serverside-applied")
			for object, want := range b.bad {
				s.file("bad", object)
				for _, text := range want {
					s.fails("apply -f @bad", text)
				}
			}
			s.run("delete -f @good", "deleted")
			s.run("delete crd --all", "deleted")
		})
	}
}

// definitions writes the definitions of a module to files of their names.
func (s *shell) definitions(folder string, b bundle) (names []string) {
	s.Helper()
	for _, sub := range b.folders {
		paths, err := filepath.Glob(filepath.Join(folder, sub, "*.yaml"))
		if err != nil {
			s.Fatal(err)
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				s.Fatal(err)
			}
			for _, doc := range bytes.Split(append([]byte("\n"), content...), []byte("\n---")) {
				var crd apiextensions.CustomResourceDefinition
				if err := yaml.Unmarshal(doc, &crd); err != nil || crd.Kind != "CustomResourceDefinition" || crd.APIVersion != "apiextensions.k8s.io/v1" {
					continue // something else
				}
				if !slices.Contains(names, crd.Name) {
					names = append(names, crd.Name)
					s.file(crd.Name, string(doc))
				}
			}
		}
	}
	return names
}

// moduleFolder returns where a Go module is, after downloading it if it has a
// version.
func moduleFolder(t *testing.T, module string) string {
	t.Helper()
	cmd := exec.Command("go", "list", "-m", "-json", module)
	if strings.Contains(module, "@") {
		// Modules may want a newer Go, which nobody needs to read them.
		cmd = exec.Command("go", "mod", "download", "-json", module)
		cmd.Dir = t.TempDir()
	}
	out, err := cmd.Output()
	var found struct{ Dir string }
	if decodeErr := json.Unmarshal(out, &found); decodeErr != nil || found.Dir == "" {
		name, version, _ := strings.Cut(module, "@")
		cache, _ := exec.Command("go", "env", "GOMODCACHE").Output()
		found.Dir = filepath.Join(strings.TrimSpace(string(cache)), name+"@"+version)
		if _, missing := os.Stat(found.Dir); missing != nil {
			t.Skipf("%s cannot be downloaded: %v", module, err)
		}
	}
	return found.Dir
}
