//go:build unix

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/pki"
)

// TestTakeOver is what docs/migrating.md says, with a real kube-apiserver and its etcd:
// this server takes over with the same command line, both serve, kube-apiserver takes
// over again, the data goes into a folder, and from there into another etcd. All objects
// stay as they are, tokens stay good, and addresses of services stay taken.
// KELSON_PEERS names the folder that has the others.
func TestTakeOver(t *testing.T) {
	peertest.Binary(t, "kube-apiserver")
	c := newCluster(t)
	etcd := c.startEtcd()

	kube := c.start("kube-apiserver", etcd)
	c.fill(kube)
	c.use(kube, "kube")
	before := everything(t, kube)
	kube.stop()

	taken := c.start("kelson", etcd)
	unchanged(t, before, everything(t, taken), false)
	c.use(taken, "kelson")

	// Each reads what the other has written.
	beside := c.start("kube-apiserver", etcd)
	c.use(beside, "kube-beside")
	c.use(taken, "kelson-beside")
	unchanged(t, everything(t, taken), everything(t, beside), false)
	before = everything(t, taken)
	taken.stop()
	unchanged(t, before, everything(t, beside), false)
	c.use(beside, "kube-again")
	before = everything(t, beside)
	beside.stop()

	folder := filepath.Join(t.TempDir(), "folder")
	must(t, "Both are the same", "migrate", "--from", etcd, "--to", folder)
	if err := os.Mkdir(filepath.Join(folder, "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.crt", "ca.key", "sa.key"} {
		content, err := os.ReadFile(filepath.Join(c.pki, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, "pki", name), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	alone := c.serve(folder)
	maps.DeleteFunc(before, func(place string, _ map[string]any) bool { return servedObjects.MatchString(place) })
	unchanged(t, before, everything(t, alone), false)
	c.use(alone, "folder")
	before = everything(t, alone)
	alone.stop()

	if r := kelson(t, "migrate", "--from", folder, "--to", etcd); r.code != exitError || !strings.Contains(r.err, "holds") {
		t.Errorf("into the etcd that has the data of before: %+v, want that it is refused", r)
	}
	empty := c.startEtcd()
	must(t, "Both are the same", "migrate", "--from", folder, "--to", empty)
	back := c.start("kube-apiserver", empty)
	unchanged(t, before, everything(t, back), true)
	c.use(back, "kube-back")
}

// cluster has what servers of one cluster share.
type cluster struct {
	t      *testing.T
	pki    string // folder with ca.crt, ca.key, sa.key and the files of the front proxy
	admin  []byte // certificate and key
	pair   pki.Pair
	tokens map[string]string // of the account robot, by who made them
}

// member is a server of the cluster.
type member struct {
	config *rest.Config
	stop   func()
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, pki: t.TempDir(), tokens: map[string]string{}}
	authority, err := pki.Open(c.pki)
	if err != nil {
		t.Fatal(err)
	}
	if c.pair, err = authority.ServerPair(c.pki); err != nil {
		t.Fatal(err)
	}
	if c.admin, err = authority.IssueClient("kubernetes-admin", "system:masters"); err != nil {
		t.Fatal(err)
	}
	proxies, err := pki.NewIssuer()
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := proxies.IssueClient("front-proxy-client")
	if err != nil {
		t.Fatal(err)
	}
	certificate, key := selfSigned(t, "service accounts")
	for name, content := range map[string]string{
		"sa.key": key, "sa.crt": certificate, "front-proxy-ca.crt": string(proxies.CertificatePEM()), "front-proxy-client.pem": string(proxy),
	} {
		if err := os.WriteFile(filepath.Join(c.pki, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// startEtcd starts an etcd that is empty, and returns its URL.
func (c *cluster) startEtcd() string {
	c.t.Helper()
	local := func() string { return fmt.Sprintf("http://127.0.0.1:%d", peertest.FreePort(c.t)) }
	url, others := local(), local()
	peertest.Start(c.t, "etcd", "--data-dir", filepath.Join(c.t.TempDir(), "etcd"), "--unsafe-no-fsync", "--log-level", "error", "--listen-client-urls", url,
		"--advertise-client-urls", url, "--listen-peer-urls", others, "--initial-advertise-peer-urls", others, "--initial-cluster", "default="+others)
	return url
}

// takenRange is where the services of the cluster are; it is no default.
const takenRange = "10.96.0.0/16"

// start starts kube-apiserver, or this server under that name, with the flags that
// kubeadm gives.
func (c *cluster) start(program, etcd string) *member {
	c.t.Helper()
	file := func(name string) string { return filepath.Join(c.pki, name) }
	port := peertest.FreePort(c.t)
	args := []string{
		"--advertise-address=192.0.2.1", "--allow-privileged=true", "--authorization-mode=Node,RBAC", "--bind-address=127.0.0.1", "--client-ca-file=" + file("ca.crt"),
		"--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true", "--etcd-servers=" + etcd,
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname", "--proxy-client-cert-file=" + file("front-proxy-client.pem"),
		"--proxy-client-key-file=" + file("front-proxy-client.pem"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-client-ca-file=" + file("front-proxy-ca.crt"), "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User", fmt.Sprintf("--secure-port=%d", port),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file=" + file("sa.crt"),
		"--service-account-signing-key-file=" + file("sa.key"), "--service-cluster-ip-range=" + takenRange,
		"--tls-cert-file=" + c.pair.CertFile, "--tls-private-key-file=" + c.pair.KeyFile,
	}
	cmd := command(c.t, append([]string{kubeName}, args...)...)
	if program != "kelson" {
		cmd = exec.CommandContext(c.t.Context(), peertest.Binary(c.t, program), args...)
	}
	return c.launch(cmd, fmt.Sprintf("https://127.0.0.1:%d", port))
}

// serve serves a folder.
func (c *cluster) serve(folder string) *member {
	c.t.Helper()
	port := peertest.FreePort(c.t)
	return c.launch(command(c.t, "serve", "--data-dir", folder, "--secure-port", fmt.Sprint(port), "--service-cluster-ip-range", takenRange), fmt.Sprintf("https://127.0.0.1:%d", port))
}

// launch starts a server, which ends with the test at the latest.
func (c *cluster) launch(cmd *exec.Cmd, url string) *member {
	c.t.Helper()
	cmd.Stderr = c.t.Output()
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(c.pki, "ca.crt"))
	if err != nil {
		c.t.Fatal(err)
	}
	ended := false
	m := &member{
		config: &rest.Config{Host: url, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: ca, CertData: c.admin, KeyData: c.admin}},
		stop: func() {
			if !ended {
				ended = true
				_ = cmd.Process.Signal(syscall.SIGTERM)
				_ = cmd.Wait()
			}
		},
	}
	c.t.Cleanup(m.stop)
	peertest.WaitReady(c.t, m.config)
	return m
}

// takenNamespace has the objects of the cluster.
const takenNamespace = "shop"

var takenWidgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// fill creates what a cluster has, and the first token.
func (c *cluster) fill(m *member) {
	c.t.Helper()
	ctx, api := c.t.Context(), kubernetes.NewForConfigOrDie(m.config)
	ok := func(_ any, err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	labels := map[string]string{"app": "web"}
	created := metav1.CreateOptions{}
	ok(api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: meta(takenNamespace)}, created))
	for _, name := range []string{"default", "robot"} {
		ok(api.CoreV1().ServiceAccounts(takenNamespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta(name)}, created))
	}
	ok(api.CoreV1().ConfigMaps(takenNamespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta("settings"), Data: map[string]string{"colour": "red"}}, created))
	ok(api.CoreV1().Secrets(takenNamespace).Create(ctx, &corev1.Secret{ObjectMeta: meta("password"), StringData: map[string]string{"password": "secret"}}, created))
	ok(api.AppsV1().Deployments(takenNamespace).Create(ctx, &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}, created))
	ok(api.CoreV1().Services(takenNamespace).Create(ctx, &corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Selector: labels, Ports: []corev1.ServicePort{{Port: 80}},
	}}, created))
	ok(api.RbacV1().Roles(takenNamespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta("reader"), Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}}}, created))
	ok(api.RbacV1().RoleBindings(takenNamespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta("robot-reads"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "robot", Namespace: takenNamespace}},
	}, created))
	ok(api.RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").Body([]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
		"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","names":{"kind":"Widget","plural":"widgets","singular":"widget"},"scope":"Namespaced",
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer","maximum":9}}}}}}}]}}`)).DoRaw(ctx))
	patiently(c.t, "widgets", func(context.Context) error { return c.createWidget(m, "first", 3) })
}

func (c *cluster) createWidget(m *member, name string, size int) error {
	_, err := dynamic.NewForConfigOrDie(m.config).Resource(takenWidgets).Namespace(takenNamespace).Apply(c.t.Context(), name, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": map[string]any{"size": int64(size)},
	}}, metav1.ApplyOptions{FieldManager: "test"})
	return err
}

// use reads and writes at a server what all others have to see, and checks what it is to
// refuse.
func (c *cluster) use(m *member, name string) {
	c.t.Helper()
	ctx, api := c.t.Context(), kubernetes.NewForConfigOrDie(m.config)
	for _, n := range []string{"web", "settings", "password"} {
		var err error
		switch n {
		case "web":
			_, err = api.AppsV1().Deployments(takenNamespace).Patch(ctx, n, types.StrategicMergePatchType, []byte(`{"metadata":{"annotations":{"example.com/by":"`+name+`"}}}`), metav1.PatchOptions{})
		case "settings":
			_, err = api.CoreV1().ConfigMaps(takenNamespace).Patch(ctx, n, types.MergePatchType, []byte(`{"data":{"`+name+`":"was here"}}`), metav1.PatchOptions{})
		default:
			var secret *corev1.Secret
			if secret, err = api.CoreV1().Secrets(takenNamespace).Get(ctx, n, metav1.GetOptions{}); err == nil && string(secret.Data["password"]) != "secret" {
				c.t.Errorf("%s: got the password %q, want secret", name, secret.Data["password"])
			}
		}
		if err != nil {
			c.t.Errorf("%s: %s: %v", name, n, err)
		}
	}
	if err := c.createWidget(m, name, 4); err != nil {
		c.t.Errorf("%s: a widget: %v", name, err)
	}
	if err := c.createWidget(m, name+"-large", 10); !apierrors.IsInvalid(err) {
		c.t.Errorf("%s: a widget that is too large: got %v, want it invalid", name, err)
	}

	services := api.CoreV1().Services(takenNamespace)
	web, err := services.Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	service := func(name string, spec corev1.ServiceSpec) *corev1.Service {
		spec.Ports = append(spec.Ports, corev1.ServicePort{Port: 80})[:1]
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	}
	made, err := services.Create(ctx, service("s-"+name, corev1.ServiceSpec{}), metav1.CreateOptions{})
	if err != nil || !strings.HasPrefix(made.Spec.ClusterIP, "10.96.") {
		c.t.Errorf("%s: a service: got %v, %v, want one in %s", name, made, err, takenRange)
	}
	for what, spec := range map[string]corev1.ServiceSpec{
		"address": {ClusterIP: web.Spec.ClusterIP},
		"port":    {Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: web.Spec.Ports[0].NodePort}}},
	} {
		if _, err := services.Create(ctx, service("taken-"+what, spec), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "already allocated") {
			c.t.Errorf("%s: a service with the %s of another: got %v, want that it is taken", name, what, err)
		}
	}

	token, err := api.CoreV1().ServiceAccounts(takenNamespace).CreateToken(ctx, "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.tokens[name] = token.Status.Token
	for by, token := range c.tokens {
		robot := kubernetes.NewForConfigOrDie(&rest.Config{Host: m.config.Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: m.config.CAData}})
		if _, err := robot.CoreV1().ConfigMaps(takenNamespace).Get(ctx, "settings", metav1.GetOptions{}); err != nil {
			c.t.Errorf("%s: with the token of %s: %v", name, by, err)
		}
		if _, err := robot.CoreV1().Secrets(takenNamespace).Get(ctx, "password", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			c.t.Errorf("%s: a secret with the token of %s: got %v, want it forbidden", name, by, err)
		}
	}
}

// ownObjects are those that each server writes for itself.
var ownObjects = regexp.MustCompile(`^/leases/kube-system/apiserver-|^/(endpoints|endpointslices)/default/kubernetes$|^/events/`)

// servedObjects are those that 'kelson serve' writes in addition: its controllers join the
// rules of roles, its own proxies may speak for users, and its port is another.
var servedObjects = regexp.MustCompile(`^/clusterroles//(admin|edit|view)$|^/configmaps/kube-system/extension-apiserver-authentication$|^/services/default/kubernetes$`)

// everything returns all objects of a server, by their place.
func everything(t *testing.T, m *member) map[string]map[string]any {
	t.Helper()
	lists, err := kubernetes.NewForConfigOrDie(m.config).Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]any{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || r.Name == "componentstatuses" {
				continue
			}
			objects, err := dynamic.NewForConfigOrDie(m.config).Resource(version.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatalf("%s: %v", r.Name, err)
			}
			for _, o := range objects.Items {
				place := "/" + r.Name + "/" + o.GetNamespace() + "/" + o.GetName()
				if !ownObjects.MatchString(place) {
					all[place] = o.Object
				}
			}
		}
	}
	return all
}

// unchanged checks that all objects are as they were, but for their revisions if those
// are new.
func unchanged(t *testing.T, before, after map[string]map[string]any, newRevisions bool) {
	t.Helper()
	if len(before) < 100 {
		t.Errorf("got %d objects, want those of a cluster", len(before))
	}
	for _, place := range slices.Sorted(maps.Keys(before)) {
		was, is := unstructured.Unstructured{Object: before[place]}, unstructured.Unstructured{Object: after[place]}
		if newRevisions && is.Object != nil {
			was = *was.DeepCopy()
			was.SetResourceVersion(is.GetResourceVersion())
		}
		if !reflect.DeepEqual(was.Object, is.Object) {
			t.Errorf("%s: got %v, want %v", place, is.Object, was.Object)
		}
	}
}
