package api

import (
	"bytes"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/kelsontest"
)

// Tests of classes of faults that other servers of this API have had; docs/security.md
// lists them.

// TestCustomResourcesDoNotSeeEachOther: a list of a resource has no objects of another
// one in the same group, also if the names of resources, namespaces and objects begin
// alike (CVE-2022-3162).
func TestCustomResourcesDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	server := newHostile(t)
	kinds := map[string]string{"things": "Thing", "thingsets": "ThingSet", "thin": "Thin"}
	for plural, kind := range kinds {
		if err := server.define(plural, kind, fields{"type": "object"}); err != nil {
			t.Fatal(err)
		}
	}
	for plural, kind := range kinds {
		for _, name := range []string{"a", "s", "sets"} {
			if err := server.create(t.Context(), plural, kind, name, fields{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for plural, kind := range kinds {
		for _, version := range []string{"", "0"} {
			list, err := server.objects(plural).List(t.Context(), metav1.ListOptions{ResourceVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != 3 {
				t.Errorf("list of %s: got %d objects, want 3", plural, len(list.Items))
			}
			for _, item := range list.Items {
				if item.GetKind() != kind {
					t.Errorf("list of %s has a %s", plural, item.GetKind())
				}
			}
		}
		w, err := server.objects(plural).Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got := next(t, w).Object.GetObjectKind().GroupVersionKind().Kind; got != kind {
				t.Errorf("watch of %s has a %s", plural, got)
			}
		}
		w.Stop()
	}
	if err := server.objects("thin").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if list, err := server.objects("things").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 3 {
		t.Errorf("after deletion of all of another resource: %v, %d objects, want 3", err, len(list.Items))
	}
}

// do sends a request and returns the status code and the body of the response.
func do(t *testing.T, config *rest.Config, method, path, media, body string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", media)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestScopeOfThePath: an object of the cluster is not to be had by a path with a
// namespace, where other rights count (CVE-2019-11247), nor one of a namespace without.
func TestScopeOfThePath(t *testing.T) {
	t.Parallel()
	s := kelsontest.Start(t, kelsontest.NoControllers())
	config := s.Config()
	post := func(path, body string, want int) {
		t.Helper()
		if code, text := do(t, config, http.MethodPost, path, "application/json", body); code != want {
			t.Fatalf("POST %s: got %d %s, want %d", path, code, text, want)
		}
	}
	for _, c := range []struct{ plural, kind, scope string }{{"globals", "Global", "Cluster"}, {"locals", "Local", "Namespaced"}} {
		post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
			"metadata":{"name":"`+c.plural+`.example.com"},"spec":{"group":"example.com","scope":"`+c.scope+`","names":{"plural":"`+c.plural+`","kind":"`+c.kind+`"},
			"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, 201)
	}
	post("/apis/example.com/v1/globals", `{"apiVersion":"example.com/v1","kind":"Global","metadata":{"name":"x"}}`, 201)
	post("/apis/example.com/v1/namespaces/default/locals", `{"apiVersion":"example.com/v1","kind":"Local","metadata":{"name":"x"}}`, 201)
	for _, path := range []string{
		"/apis/example.com/v1/namespaces/default/globals/x", "/apis/example.com/v1/namespaces/default/globals",
		"/apis/example.com/v1/locals/x", "/api/v1/namespaces/default/nodes", "/api/v1/configmaps/x",
	} {
		for _, method := range []string{"GET", "PUT", "PATCH", "DELETE"} {
			media := "application/json"
			if method == "PATCH" {
				media = "application/merge-patch+json"
			}
			code, text := do(t, config, method, path, media, `{"apiVersion":"example.com/v1","kind":"Global","metadata":{"name":"x"}}`)
			if code != http.StatusNotFound && code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: got %d %s, want 404 or 405", method, path, code, text)
			}
		}
	}
	for _, path := range []string{"/apis/example.com/v1/globals/x", "/apis/example.com/v1/namespaces/default/locals/x"} {
		if code, text := do(t, config, "GET", path, "", ""); code != 200 {
			t.Errorf("GET %s afterwards: got %d %s, want 200", path, code, text)
		}
	}
}

// TestEndpointsAreElsewhere: endpoints cannot make proxies of the cluster reach the
// machine that they run on (CVE-2021-25737).
func TestEndpointsAreElsewhere(t *testing.T) {
	t.Parallel()
	server := kelsontest.Start(t, kelsontest.NoControllers())
	c, config := client(t, server), server.Config()
	for _, ip := range []string{"127.0.0.1", "127.8.8.8", "0.0.0.0", "169.254.169.254", "224.0.0.1", "::1", "::", "fe80::1", "ff02::1", "::ffff:127.0.0.1"} {
		family := discoveryv1.AddressTypeIPv4
		if strings.Contains(ip, ":") {
			family = discoveryv1.AddressTypeIPv6
		}
		_, err := c.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "e-"}, AddressType: family, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}}},
		}, metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) {
			t.Errorf("endpoint slice with %s: got %v, want Invalid", ip, err)
		}
		code, text := do(t, config, "POST", "/api/v1/namespaces/default/endpoints", "application/json",
			`{"metadata":{"generateName":"e-"},"subsets":[{"addresses":[{"ip":"`+ip+`"}]}]}`)
		if code != http.StatusUnprocessableEntity {
			t.Errorf("endpoints with %s: got %d %s, want 422", ip, code, text)
		}
	}
}

// TestPoliciesSeeTheOldNode: what judges a change of a node compares with what is
// stored, in whatever way the change comes (CVE-2021-25735).
func TestPoliciesSeeTheOldNode(t *testing.T) {
	t.Parallel()
	c := client(t, kelsontest.Start(t, kelsontest.NoControllers()))
	node := must(c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"guarded": "yes"}, Annotations: map[string]string{"guarded": "yes"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "guarded", Effect: corev1.TaintEffectNoSchedule}}, PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}},
	}, metav1.CreateOptions{}))(t)
	p := policyOn("", "nodes",
		"object.metadata.labels == oldObject.metadata.labels", "object.metadata.annotations == oldObject.metadata.annotations",
		"object.spec.taints == oldObject.spec.taints", "object.spec.podCIDR == oldObject.spec.podCIDR")
	rule := &p.Spec.MatchConstraints.ResourceRules[0].RuleWithOperations
	rule.Operations, rule.Resources = []registrationv1.OperationType{registrationv1.Update}, []string{"nodes", "nodes/status"}
	must(c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), p, metav1.CreateOptions{}))(t)
	must(c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), &registrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name},
		Spec:       registrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: p.Name, ValidationActions: []registrationv1.ValidationAction{registrationv1.Deny}},
	}, metav1.CreateOptions{}))(t)
	for name, change := range map[string]func(*corev1.Node){
		"label":      func(n *corev1.Node) { n.Labels["guarded"] = "no" },
		"annotation": func(n *corev1.Node) { n.Annotations["guarded"] = "no" },
		"taint":      func(n *corev1.Node) { n.Spec.Taints[0].Key = "open" },
	} {
		changed := node.DeepCopy()
		change(changed)
		if _, err := c.CoreV1().Nodes().Update(t.Context(), changed, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			t.Errorf("%s: got %v, want a refusal by the policy", name, err)
		}
	}
	changed := node.DeepCopy()
	changed.Annotations["guarded"] = "no"
	changed.Status.Capacity = corev1.ResourceList{}
	if _, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), changed, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("annotation by the status: got %v, want a refusal by the policy", err)
	}
	node.Spec.Unschedulable = true
	must(c.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}))(t)
}

// TestCredentialsAreNotLogged: nobody who reads the log at its highest verbosity can act
// as a client or knows its secrets (CVE-2020-8564, CVE-2020-8565, CVE-2019-11250).
func TestCredentialsAreNotLogged(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	s := kelsontest.Start(t, kelsontest.Logger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.Level(math.MinInt)}))))
	c := client(t, s)
	const secret = "c29tZXRoaW5nLXRoYXQtbm9ib2R5LW1heS1rbm93"
	must(c.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: named("s"), StringData: map[string]string{"k": secret}}, metav1.CreateOptions{}))(t)
	polltest.Until(t, "the account is there", func() bool {
		_, err := c.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	token := must(c.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(t).Status.Token
	for _, bearer := range []string{token, "x" + token, secret} {
		config := rest.AnonymousClientConfig(s.Config())
		config.BearerToken = bearer
		for _, path := range []string{"/api/v1/namespaces/default/secrets/s", "/healthz", "/nothing", "/api/v1/namespaces/default/pods/p/exec"} {
			do(t, config, "GET", path, "", "")
		}
		do(t, config, "POST", "/api/v1/namespaces/default/secrets", "application/json", `{"data":{"k":"`+secret+`"},"broken`)
	}
	admin := s.Config()
	do(t, admin, "POST", "/api/v1/namespaces/default/secrets", "application/json", `{"stringData":{"k":"`+secret+`"},"broken`)
	do(t, admin, "PUT", "/api/v1/namespaces/default/secrets/s", "application/json", `{"metadata":{"name":"s"},"stringData":{"k":"`+secret+`"},"type":"other"}`)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	text := log.String()
	if len(text) == 0 {
		t.Error("nothing was logged, so that nothing is shown")
	}
	for what, word := range map[string]string{"secret": secret, "token": token, "signature of the token": token[strings.LastIndexByte(token, '.')+1:]} {
		for line := range strings.Lines(text) {
			if strings.Contains(line, word) {
				t.Errorf("the log has the %s: %s", what, line)
			}
		}
	}
}

// lockedBuffer is a buffer that may be written to by many.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestYAMLBombs: YAML that stands for much more than it is, or that takes long to
// parse, is refused at once (CVE-2019-11253, CVE-2019-11254).
func TestYAMLBombs(t *testing.T) {
	t.Parallel()
	config := kelsontest.Start(t, kelsontest.NoControllers()).Config()
	laughs := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n  a0: &a0 [lol,lol,lol,lol,lol,lol,lol,lol,lol]\n"
	for i := 1; i < 12; i++ {
		prev, this := string(rune('a'+i-1))+"0", string(rune('a'+i))+"0"
		laughs += "  " + this + ": &" + this + " [" + strings.TrimSuffix(strings.Repeat("*"+prev+",", 9), ",") + "]\n"
	}
	for name, body := range map[string]string{
		"aliases":       laughs,
		"dashes":        "- " + strings.Repeat("- ", 500<<10),
		"open brackets": strings.Repeat("[", 1<<20),
		"open braces":   strings.Repeat("{", 1<<20),
		"keys":          strings.Repeat("? ", 500<<10),
		"colons":        strings.Repeat("---: ", 200<<10),
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			code, text := do(t, config, "POST", "/api/v1/namespaces/default/configmaps", "application/yaml", body)
			if code != http.StatusBadRequest && code != http.StatusRequestEntityTooLarge {
				t.Errorf("got %d %.200s, want 400", code, text)
			}
			// The time of a slow machine, not that of the attack, which is minutes.
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}
