// Package registry holds tests of what is in etcd: the keys and the values that
// kube-apiserver writes, so that the two can be exchanged on the same data.
//
// KELSON_PEERS names a folder with a kube-apiserver binary. With it, the data
// of each server is read by the other, and with -update what kube-apiserver
// stores becomes testdata/keys.txt.
package registry

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"github.com/apikeel/kelson/wire"
	"k8s.io/client-go/rest"
)

var update = flag.Bool("update", false, "write what kube-apiserver stores to testdata/keys.txt")

const golden = "testdata/keys.txt"

// startKelson starts a server on an etcd.
func startKelson(t *testing.T, cluster *etcdtest.Cluster, encryption string) *api {
	t.Helper()
	backend, err := etcd.Open(t.Context(), etcd.Options{Endpoints: cluster.Endpoints(), CompactInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = backend.Close() })
	opts := []kelsontest.Option{kelsontest.Backend(backend), kelsontest.NoControllers(), kelsontest.Configure(func(c *controlplane.Config) {
		c.RuntimeConfig = map[string]string{"api/all": "true"}
	})}
	if encryption != "" {
		opts = append(opts, kelsontest.Encryption(encryption))
	}
	server := kelsontest.Start(t, opts...)
	client, err := rest.HTTPClientFor(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	return &api{t: t, url: server.URL(), client: client, stop: server.Stop}
}

// TestKeys checks what Kelson stores.
func TestKeys(t *testing.T) {
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	cluster := etcdtest.Start(t)
	startKelson(t, cluster, "").fill()
	// Kelson has definitions in the version that it serves, which kube-apiserver
	// reads as well.
	served := strings.ReplaceAll(string(want), " json apiextensions.k8s.io/v1beta1 ", " json apiextensions.k8s.io/v1 ")
	compare(t, served, keys(t, cluster))
}

// TestEncrypted checks that nothing of it is plain if nothing is to be, and that
// it can be read.
func TestEncrypted(t *testing.T) {
	cluster := etcdtest.Start(t)
	file := encryption(t, "aesgcm")
	s := startKelson(t, cluster, file)
	s.fill()
	before := s.read()
	for _, line := range strings.Split(strings.TrimSpace(keys(t, cluster)), "\n") {
		if !strings.HasSuffix(line, " k8s:enc:aesgcm:v1:key1:") {
			t.Errorf("not encrypted: %s", line)
		}
	}
	s.stop()
	same(t, before, startKelson(t, cluster, file).read())
}

// TestPeer has each server read what the other has written.
func TestPeer(t *testing.T) {
	folder := os.Getenv("KELSON_PEERS")
	if folder == "" {
		t.Skip("KELSON_PEERS names no folder with a kube-apiserver")
	}
	binary := filepath.Join(folder, "kube-apiserver")
	for _, provider := range []string{"", "aescbc", "secretbox"} {
		var file string
		if provider != "" {
			file = encryption(t, provider)
		}
		kelson := func(t *testing.T, c *etcdtest.Cluster) *api { return startKelson(t, c, file) }
		peer := func(t *testing.T, c *etcdtest.Cluster) *api { return startPeer(t, binary, c, file) }
		for name, servers := range map[string][]func(*testing.T, *etcdtest.Cluster) *api{"from": {peer, kelson}, "to": {kelson, peer}} {
			t.Run(strings.TrimPrefix(provider+"/"+name, "/"), func(t *testing.T) {
				cluster := etcdtest.Start(t)
				first := servers[0](t, cluster)
				first.fill()
				if name == "from" && provider == "" {
					stored := keys(t, cluster)
					if *update {
						if err := os.WriteFile(golden, []byte(stored), 0o644); err != nil {
							t.Fatal(err)
						}
					}
					want, err := os.ReadFile(golden)
					if err != nil {
						t.Fatal(err)
					}
					compare(t, string(want), stored)
				}
				before := first.read()
				first.stop()
				second := servers[1](t, cluster)
				same(t, before, second.read())
				second.rewrite()
			})
		}
	}
}

// encryption writes a file by which everything is encrypted.
func encryption(t *testing.T, provider string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	text := fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: ["*.*"]
  providers:
  - %s: {keys: [{name: key1, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}]}
`, provider)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// object is one of everything.
type object struct {
	Path string
	Body map[string]any
}

func (o *object) location() string {
	return o.Path + "/" + o.Body["metadata"].(map[string]any)["name"].(string)
}

func objects(t *testing.T) (all []object) {
	t.Helper()
	text, err := os.ReadFile("testdata/objects.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var o object
		if err := d.Decode(&o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

// keys lists what is stored of the objects: the key, the encoding, and the
// version and kind, or how an encrypted value begins.
func keys(t *testing.T, cluster *etcdtest.Cluster) string {
	t.Helper()
	answer, err := cluster.Client(t).Get(t.Context(), storage.Root, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, kv := range answer.Kvs {
		key := string(kv.Key)
		if !slices.ContainsFunc([]string{"everything", "aggregated", "172.20.0.16"}, func(s string) bool { return strings.Contains(key, s) }) ||
			key == storage.Root+"serviceaccounts/everything/default" { // some admission makes it
			continue
		}
		lines = append(lines, key+" "+describe(kv.Value)+"\n")
	}
	return strings.Join(lines, "")
}

func describe(value []byte) string {
	if bytes.HasPrefix(value, []byte("k8s:enc:")) {
		parts := bytes.SplitN(value, []byte(":"), 6)
		return string(bytes.Join(parts[:5], []byte(":"))) + ":"
	}
	if apiVersion, kind, _, ok := wire.OpenEnvelope(value); ok {
		return "protobuf " + apiVersion + " " + kind
	}
	var meta struct{ APIVersion, Kind string }
	if err := json.Unmarshal(value, &meta); err != nil {
		return "unknown"
	}
	return "json " + meta.APIVersion + " " + meta.Kind
}

func compare(t *testing.T, want, got string) {
	t.Helper()
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for _, line := range a {
		if !slices.Contains(b, line) {
			t.Errorf("missing: %s", line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			t.Errorf("unexpected: %s", line)
		}
	}
}

// same compares what two servers have answered.
func same(t *testing.T, want, got map[string]map[string]any) {
	t.Helper()
	for path, w := range want {
		g := got[path]
		settle(w)
		settle(g)
		if !reflect.DeepEqual(w, g) {
			a, _ := json.Marshal(w)
			b, _ := json.Marshal(g)
			t.Errorf("%s\n- %s\n+ %s", path, a, b)
		}
	}
}

// settle takes out what a server changes in objects when it starts.
func settle(obj map[string]any) {
	switch obj["kind"] {
	case "APIService", "CustomResourceDefinition", "FlowSchema":
		delete(obj, "status")
		metadata, _ := obj["metadata"].(map[string]any)
		delete(metadata, "resourceVersion")
		delete(metadata, "managedFields")
	}
}

// api is a running server.
type api struct {
	t      *testing.T
	url    string
	client *http.Client
	stop   func()
}
