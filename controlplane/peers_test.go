package controlplane

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apikeel/kelson/internal/polltest"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/authn"
	"github.com/apikeel/kelson/controller/apiserver"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"github.com/apikeel/kelson/storage/memory"
)

// peerLab has what servers need to be peers: authorities and a certificate.
type peerLab struct{ dir string }

func newPeerLab(t *testing.T) peerLab {
	t.Helper()
	l := peerLab{t.TempDir()}
	if _, err := pki.Open(l.file("pki")); err != nil {
		t.Fatal(err)
	}
	issuer, err := pki.NewIssuer()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := issuer.IssueClient(frontProxy)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"front-ca.crt": string(issuer.CertificatePEM()), "front.pem": string(bundle),
		"tokens": "jane-token,jane,7\n",
	} {
		if err := os.WriteFile(l.file(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func (l peerLab) file(name string) string { return filepath.Join(l.dir, name) }

// config returns that of a server which is on this machine, but has a name of its own.
func (l peerLab) config(t *testing.T, name string, off ...string) Config {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(filepath.Join(dir, "pki"), os.DirFS(l.file("pki"))); err != nil {
		t.Fatal(err)
	}
	runtime := map[string]string{}
	for _, version := range off {
		runtime[version] = "false"
	}
	return Config{
		DataDir: dir, RuntimeConfig: runtime,
		Serving: kelson.Serving{AdvertiseAddress: net.ParseIP("127.0.0.1")}, EndpointReconciler: EndpointNone,
		Authentication: authn.Config{TokenFile: l.file("tokens"), RequestHeader: authn.RequestHeader{
			CAFile: l.file("front-ca.crt"), AllowedNames: []string{frontProxy},
			UsernameHeaders: []string{"X-Remote-User"}, GroupHeaders: []string{"X-Remote-Group"}, ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
		}},
		Aggregation: Aggregation{ProxyCertificate: l.file("front.pem"), ProxyKey: l.file("front.pem")},
		Peers:       Peers{CAFile: filepath.Join(l.file("pki"), "ca.crt"), Identity: "apiserver-" + name},
	}
}

// asJane returns the status of a request by a user without rights.
func (l peerLab) asJane(t *testing.T, url string, header map[string]string) int {
	t.Helper()
	authority, err := pki.Open(l.file("pki"))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.Pool()}}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer jane-token")
	for name, value := range header {
		r.Header.Set(name, value)
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// groupVersions returns what aggregated discovery has at /apis.
func (c *client) groupVersions(profile string) (all []string) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.url+"/apis", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"+profile)
	resp, err := c.http.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	var list apidiscovery.APIGroupDiscoveryList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		c.t.Fatal(err)
	}
	for _, g := range list.Items {
		for _, v := range g.Versions {
			all = append(all, g.Name+"/"+v.Version)
		}
	}
	return all
}

// TestPeers has two servers on one etcd, each of which serves something that the other
// does not. Clients of either reach both, and nobody gets more rights by it.
func TestPeers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd")
	}
	lab, cluster := newPeerLab(t), etcdtest.Start(t)
	run := func(name string, off ...string) (*server, *client) {
		c := lab.config(t, name, off...)
		c.Etcd = etcd.Options{Endpoints: cluster.Endpoints()}
		s := start(t, c)
		client := newClient(t, KubeconfigFile(c.DataDir))
		client.ready()
		return s, client
	}
	const jobs, deployments = "/apis/batch/v1/namespaces/default/jobs", "/apis/apps/v1/namespaces/default/deployments"
	a, atA := run("a", "apps/v1")
	_, atB := run("b", "batch/v1")

	// A server that is ready knows those that were there before.
	if code, text := atB.do(http.MethodGet, jobs, ""); code != http.StatusOK || !strings.Contains(text, "JobList") {
		t.Fatalf("jobs through the other server: got %d %s, want a list", code, text)
	}
	polltest.Until(t, "A knows B", func() bool { code, _ := atA.do(http.MethodGet, deployments, ""); return code == http.StatusOK })
	job := `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j"},"spec":{"suspend":true,"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"x"}]}}}}`
	if code, text := atB.do(http.MethodPost, jobs, job); code != http.StatusCreated {
		t.Errorf("a job through the other server: got %d %s, want 201", code, text)
	}
	if code, _ := atA.do(http.MethodGet, jobs+"/j", ""); code != http.StatusOK {
		t.Errorf("the job at its own server: got %d, want 200", code)
	}

	// A user is the same at the other server, whatever headers say.
	for name, header := range map[string]map[string]string{
		"plain":         nil,
		"forged user":   {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"},
		"forged hop":    {"X-Kubernetes-Peer-Proxied": "true", "X-Remote-User": "admin", "X-Remote-Group": "system:masters"},
		"impersonation": {"Impersonate-User": "admin"},
	} {
		if code := lab.asJane(t, atB.url+jobs, header); code != http.StatusForbidden {
			t.Errorf("%s: got %d, want 403", name, code)
		}
	}

	for name, c := range map[string]*client{"A": atA, "B": atB} {
		polltest.Until(t, name+" merges discovery", func() bool {
			all := c.groupVersions("")
			return slices.Contains(all, "apps/v1") && slices.Contains(all, "batch/v1")
		})
	}
	if own := atA.groupVersions(";profile=nopeer"); slices.Contains(own, "apps/v1") || !slices.Contains(own, "batch/v1") {
		t.Errorf("A alone has %v, want batch/v1 and not apps/v1", own)
	}
	if own := atB.groupVersions(";profile=nopeer"); slices.Contains(own, "batch/v1") || !slices.Contains(own, "apps/v1") {
		t.Errorf("B alone has %v, want apps/v1 and not batch/v1", own)
	}
	var lease coordinationv1.Lease
	_, text := atB.do(http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/apiserver-a", "")
	if err := json.Unmarshal([]byte(text), &lease); err != nil || lease.Annotations[corev1.AnnotationPeerAdvertiseAddress] != strings.TrimPrefix(atA.url, "https://") {
		t.Errorf("the lease of A has the annotations %v, want its address %s", lease.Annotations, atA.url)
	}
	store, err := etcd.Open(t.Context(), etcd.Options{Endpoints: cluster.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if address, err := apiserver.FindPeer(t.Context(), store, "apiserver-a"); "https://"+address != atA.url {
		t.Errorf("the address of A: got %s, %v, want %s", address, err, atA.url)
	}
	_, metrics := atB.do(http.MethodGet, "/metrics", "")
	if want := `apiserver_rerouted_request_total{code="201",group="batch",resource="jobs",version="v1"} 1`; !strings.Contains(metrics, want) {
		t.Errorf("the metrics of B have no %s", want)
	}

	a.end(t)
	polltest.Until(t, "B forgets A", func() bool { code, _ := atB.do(http.MethodGet, jobs, ""); return code == http.StatusNotFound })
	if address, err := apiserver.FindPeer(t.Context(), store, "apiserver-a"); err == nil {
		t.Errorf("A has ended, and its address is still %s", address)
	}
}

// TestPeersNeedACertificate is as with kube-apiserver.
func TestPeersNeedACertificate(t *testing.T) {
	c := newPeerLab(t).config(t, "a")
	c.Aggregation = Aggregation{}
	c.Storage = StorageMemory
	err := c.Run(t.Context())
	if want := "error building peer proxy handler, proxy-cert-file not specified"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got the error %v, want %s", err, want)
	}
}

// TestSingleServerHasNoPeers: on a store that nobody shares, flags for peers make nothing.
func TestSingleServerHasNoPeers(t *testing.T) {
	c := newPeerLab(t).config(t, "a")
	c.Storage = StorageMemory
	c.defaults()
	authority, err := pki.New()
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.assemble(context.Background(), memory.New(memory.Options{}), authority)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.close() }()
	for _, step := range []func() error{a.newManager, a.admission, a.chain} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if a.peers != nil || a.published != nil || len(a.peerHooks()) != 0 || a.aggregator.Discovery().Peers != nil {
		t.Error(fmt.Sprint("got peers ", a.peers, a.published, a.peerHooks(), ", want none"))
	}
}
