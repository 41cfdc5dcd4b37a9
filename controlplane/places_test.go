package controlplane

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/apikeel/kelson/storage/encrypt"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

// TestEtcds: overrides with the same servers, in whatever order, are one etcd, a
// resource counts more than its group, and a later override more than an earlier.
func TestEtcds(t *testing.T) {
	servers, find := etcds([]EtcdOverride{
		{"", "events", []string{"a", "b"}},
		{"apps", "*", []string{"c"}},
		{"apps", "deployments", []string{"b", "a"}},
		{"", "pods", []string{"a"}},
		{"", "pods", []string{"c"}},
	})
	if got := fmt.Sprint(servers); got != "[[a b] [c] [a]]" {
		t.Errorf("servers are %s", got)
	}
	for _, c := range []struct {
		group, name string
		want        int
	}{
		{"", "events", 0}, {"events.k8s.io", "events", -1}, {"", "secrets", -1}, {"", "pods", 1},
		{"apps", "deployments", 0}, {"apps", "replicasets", 1}, {"batch", "jobs", -1},
	} {
		if got := find(c.group, c.name); got != c.want {
			t.Errorf("%s/%s is in %d, not in %d", c.group, c.name, got, c.want)
		}
	}
}

// TestOverrides: some resources are in an etcd of their own, with the revisions of that
// one, and everything works across the two.
func TestOverrides(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd")
	}
	first, second := etcdtest.Start(t), etcdtest.Start(t)
	inFirst, inSecond := first.Client(t), second.Client(t)
	// The counters are far from each other: who takes one for the other waits in vain.
	const ahead = 1000
	for range ahead {
		if _, err := inSecond.Put(t.Context(), "/elsewhere", ""); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	encryption := filepath.Join(dir, "encryption.yaml")
	if err := os.WriteFile(encryption, []byte(`{"kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1", "resources": [{"resources": ["configmaps"],
		"providers": [{"aesgcm": {"keys": [{"name": "k", "secret": "MDEyMzQ1Njc4OWFiY2RlZg=="}]}}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const roles = "rbac.authorization.k8s.io"
	config := Config{Etcd: etcd.Options{Endpoints: first.Endpoints()}, DataDir: filepath.Join(dir, "data"), Encryption: encrypt.Options{File: encryption}}
	for _, o := range []EtcdOverride{{Resource: "events"}, {Resource: "configmaps"}, {Group: "coordination.k8s.io", Resource: "leases"}, {Group: roles, Resource: "*"}, {Group: "nothing", Resource: "here"}} {
		o.Servers = second.Endpoints()
		config.EtcdOverrides = append(config.EtcdOverrides, o)
	}
	begin := func() (*server, *client) {
		s := start(t, config)
		c := newClient(t, KubeconfigFile(config.DataDir))
		c.ready()
		return s, c
	}
	s, c := begin()
	// What is read of an answer.
	type object struct {
		Metadata metav1.ObjectMeta
		Items    []struct{ Metadata metav1.ObjectMeta }
	}
	do := func(method, path, body string) (obj object) {
		t.Helper()
		code, text := c.do(method, path, body)
		if code >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, code, text)
		}
		if err := json.Unmarshal([]byte(text), &obj); err != nil {
			t.Fatal(err)
		}
		return obj
	}
	revision := func(o object) int {
		t.Helper()
		n, err := strconv.Atoi(o.Metadata.ResourceVersion)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const core = "/api/v1/namespaces/default/"
	owner := do(http.MethodPost, core+"secrets", `{"metadata":{"name":"owner"}}`)
	owned := do(http.MethodPost, core+"configmaps", fmt.Sprintf(`{"metadata":{"name":"owned","ownerReferences":[{"apiVersion":"v1","kind":"Secret","name":"owner","uid":%q}]}}`, owner.Metadata.UID))
	do(http.MethodPost, core+"events", `{"metadata":{"name":"e"},"involvedObject":{"kind":"Secret","name":"owner","namespace":"default"},"reason":"Test","type":"Normal"}`)
	if r := revision(owner); r > ahead {
		t.Errorf("the secret has revision %d", r)
	}
	if r := revision(owned); r <= ahead {
		t.Errorf("the config map has revision %d", r)
	}
	for _, query := range []string{"", "?resourceVersion=0", "?resourceVersion=" + owned.Metadata.ResourceVersion, "?resourceVersionMatch=Exact&resourceVersion=" + owned.Metadata.ResourceVersion} {
		list := do(http.MethodGet, core+"configmaps"+query, "")
		if !slices.ContainsFunc(list.Items, func(o struct{ Metadata metav1.ObjectMeta }) bool { return o.Metadata.Name == "owned" }) || revision(list) < ahead {
			t.Errorf("%q finds %+v", query, list)
		}
	}
	// Those who decide follow what is in either place.
	may := func() bool {
		code, text := c.do(http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", `{"spec":{"user":"joe","resourceAttributes":{"verb":"get","resource":"pods","namespace":"default"}}}`)
		return code == http.StatusCreated && strings.Contains(text, `"allowed":true`)
	}
	if may() {
		t.Error("joe may get pods")
	}
	do(http.MethodPost, "/apis/"+roles+"/v1/namespaces/default/roles", `{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`)
	do(http.MethodPost, "/apis/"+roles+"/v1/namespaces/default/rolebindings", `{"metadata":{"name":"b"},"roleRef":{"apiGroup":"`+roles+`","kind":"Role","name":"r"},"subjects":[{"kind":"User","apiGroup":"`+roles+`","name":"joe"}]}`)
	if !may() {
		t.Error("joe may not get pods")
	}

	keys := func(in *clientv3.Client, prefix string) (keys []string) {
		t.Helper()
		got, err := in.Get(t.Context(), prefix, clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range got.Kvs {
			keys = append(keys, string(kv.Key))
		}
		return keys
	}
	for _, moved := range []string{"events", "configmaps", "leases", "roles", "rolebindings", "clusterroles"} {
		prefix := "/registry/" + moved + "/"
		if here, there := keys(inFirst, prefix), keys(inSecond, prefix); len(here) > 0 || len(there) == 0 {
			t.Errorf("%s are %v in the first etcd, %v in the second", moved, here, there)
		}
	}
	for _, key := range keys(inSecond, "/registry/") {
		name, _, _ := strings.Cut(strings.TrimPrefix(key, "/registry/"), "/")
		if !slices.Contains([]string{"events", "configmaps", "leases", "roles", "rolebindings", "clusterroles", "clusterrolebindings"}, name) {
			t.Errorf("%s is in the second etcd", key)
		}
	}
	if got, err := inSecond.Get(t.Context(), "/registry/events/default/e"); err != nil || len(got.Kvs) != 1 || got.Kvs[0].Lease == 0 {
		t.Errorf("the event does not expire: %v, %v", got, err)
	}
	const key = "/registry/configmaps/default/owned"
	kept, err := inSecond.Get(t.Context(), key)
	if err != nil || !bytes.HasPrefix(kept.Kvs[0].Value, []byte("k8s:enc:aesgcm:v1:k:")) {
		t.Errorf("the config map is not encrypted: %v, %v", kept, err)
	}
	// What is left of them in the first is nobody's.
	if _, err := inFirst.Put(t.Context(), "/registry/configmaps/default/old", string(kept.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	if code, text := c.do(http.MethodGet, core+"configmaps/old", ""); code != http.StatusNotFound {
		t.Errorf("what was left behind: %d %s", code, text)
	}

	_, text := c.do(http.MethodGet, "/readyz?verbose&exclude=etcd", "")
	for _, line := range []string{"[+]etcd excluded: ok", "[+]etcd-readiness ok\n[+]etcd-override-0 excluded with etcd: ok\n[+]etcd-override-readiness-0 ok\n"} {
		if !strings.Contains(text, line) || strings.Contains(text, "override-1") {
			t.Errorf("no %q in %s", line, text)
		}
	}
	if n := len(c.scrape()["apiserver_storage_size_bytes"].GetMetric()); n != 2 {
		t.Errorf("%d stores have a size", n)
	}

	// Objects in one place have owners in the other, and namespaces have both.
	do(http.MethodDelete, core+"secrets/owner", "")
	gone := func(code int, _ string) bool { return code == http.StatusNotFound }
	c.until(core+"configmaps/owned", gone)
	do(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"n"}}`)
	do(http.MethodPost, "/api/v1/namespaces/n/configmaps", `{"metadata":{"name":"c"}}`)
	do(http.MethodDelete, "/api/v1/namespaces/n", "")
	c.until("/api/v1/namespaces/n", gone)
	if left := keys(inSecond, "/registry/configmaps/n/"); len(left) > 0 {
		t.Errorf("the namespace has left %v", left)
	}

	do(http.MethodPost, core+"configmaps", `{"metadata":{"name":"stays"}}`)
	s.end(t)
	s, c = begin()
	do(http.MethodGet, core+"configmaps/stays", "")
	second.Stop(0)
	c.until("/readyz", func(code int, text string) bool {
		return code == http.StatusInternalServerError && strings.Contains(text, "[-]etcd-override-0 failed") && strings.Contains(text, "[+]etcd ok")
	})
	do(http.MethodPost, core+"secrets", `{"metadata":{"name":"meanwhile"}}`)
	second.Restart(0)
	c.until("/readyz", func(code int, _ string) bool { return code == http.StatusOK })
	do(http.MethodPost, core+"configmaps", `{"metadata":{"name":"again"}}`)
	s.end(t)
}
