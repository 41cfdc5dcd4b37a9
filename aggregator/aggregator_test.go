package aggregator_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/apikeel/kelson/kelsontest"
)

const patience = 30 * time.Second

// fixture is a server, and what tests do with it.
type fixture struct {
	testing.TB
	patience time.Duration
	config   *rest.Config
	clients  *kubernetes.Clientset
	objects  dynamic.NamespaceableResourceInterface
	http     *http.Client
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	return newFixtureOf(t, kelsontest.Start(t, kelsontest.NoControllers()).Config())
}

// newFixtureOf is a fixture of a server that runs.
func newFixtureOf(t testing.TB, config *rest.Config) *fixture {
	t.Helper()
	f := &fixture{TB: t, patience: patience, config: config}
	var err error
	if f.clients, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	all, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	f.objects = all.Resource(apiregistration.SchemeGroupVersion.WithResource("apiservices"))
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	f.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "api"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
	if _, err := f.clients.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return f
}

// register makes an APIService for version v1 of a group.
func (f *fixture) register(group, address string) {
	f.Helper()
	f.registerVersion(group, "v1", address)
}

func (f *fixture) registerVersion(group, version, address string) {
	f.Helper()
	f.create(&apiregistration.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
		Spec: apiregistration.APIServiceSpec{
			Group: group, Version: version, GroupPriorityMinimum: 1000, VersionPriority: 15, InsecureSkipTLSVerify: true,
			Service: &apiregistration.ServiceReference{Namespace: "default", Name: "api", Port: portOf(f, address)},
		},
	})
}

func (f *fixture) create(service *apiregistration.APIService) {
	f.Helper()
	service.TypeMeta = metav1.TypeMeta{APIVersion: "apiregistration.k8s.io/v1", Kind: "APIService"}
	body, err := json.Marshal(service)
	if err != nil {
		f.Fatal(err)
	}
	resp := f.do(http.MethodPost, "/apis/apiregistration.k8s.io/v1/apiservices", string(body), "Content-Type", "application/json")
	if resp.code != http.StatusCreated {
		f.Fatalf("registering %s: %d %s", service.Name, resp.code, resp.body)
	}
}

// portOf returns the port of an address.
func portOf(tb testing.TB, address string) *int32 {
	tb.Helper()
	u, err := url.Parse(address)
	if err != nil {
		tb.Fatal(err)
	}
	port, err := strconv.ParseInt(u.Port(), 10, 32)
	if err != nil {
		tb.Fatal(err)
	}
	number := int32(port)
	return &number
}

// service reads an APIService.
func (f *fixture) service(name string) *apiregistration.APIService {
	f.Helper()
	obj, err := f.objects.Get(f.Context(), name, metav1.GetOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		f.Fatal(err)
	}
	var service apiregistration.APIService
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &service); err != nil {
		f.Fatal(err)
	}
	return &service
}

// waitFor waits until the condition of an APIService has a reason.
func (f *fixture) waitFor(name, reason string) apiregistration.APIServiceCondition {
	f.Helper()
	var last apiregistration.APIServiceCondition
	f.until(func() bool {
		if s := f.service(name); s != nil && len(s.Status.Conditions) == 1 {
			last = s.Status.Conditions[0]
		}
		return last.Reason == reason
	}, func() any { return last })
	return last
}

func (f *fixture) until(done func() bool, last func() any) {
	f.Helper()
	err := wait.PollUntilContextTimeout(f.Context(), 10*time.Millisecond, f.patience, true, func(context.Context) (bool, error) { return done(), nil })
	if err != nil {
		f.Fatalf("%v: %+v", err, last())
	}
}

type answer struct {
	code   int
	header http.Header
	body   string
}

// do sends a request; headers are names and values in turn.
func (f *fixture) do(method, path, body string, headers ...string) answer {
	f.Helper()
	req, err := http.NewRequestWithContext(f.Context(), method, f.config.Host+path, strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	for pair := range slices.Chunk(headers, 2) {
		req.Header.Add(pair[0], pair[1])
	}
	resp, err := f.http.Do(req)
	if err != nil {
		f.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		f.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(data)}
}

// backend serves TLS with a handler for paths that are not discovery.
func (f *fixture) backend(group string, more http.HandlerFunc) string {
	return f.serve(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/apis/" + group + "/v1":
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
				TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: group + "/v1",
				APIResources: []metav1.APIResource{{Name: "things/status", Kind: "Thing"}, {Name: "things", Kind: "Thing", Namespaced: true, Verbs: []string{"get"}}},
			})
		default:
			if more == nil {
				http.NotFound(w, r)
				return
			}
			more(w, r)
		}
	})
}

// serve serves TLS.
func (f *fixture) serve(handler http.HandlerFunc) string {
	s := httptest.NewUnstartedServer(handler)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	f.Cleanup(s.Close)
	return s.URL
}

// versions returns what aggregated discovery says of a group.
func (f *fixture) versions(group string) []apidiscovery.APIVersionDiscovery {
	f.Helper()
	a := f.do(http.MethodGet, "/apis", "", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	var list apidiscovery.APIGroupDiscoveryList
	if err := json.Unmarshal([]byte(a.body), &list); err != nil {
		f.Fatal(err)
	}
	for _, g := range list.Items {
		if g.Name == group {
			return g.Versions
		}
	}
	return nil
}

// TestProxy checks what the other server gets to see.
func TestProxy(t *testing.T) {
	f := newFixture(t)
	var seen atomic.Pointer[http.Request]
	f.register("a.example.com", f.backend("a.example.com", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/openapi") {
			http.NotFound(w, r) // which the aggregator asks for by itself
			return
		}
		seen.Store(r)
		w.Header().Set("Audit-Id", r.Header.Get("Audit-Id"))
		w.Header().Set("X-Own", "yes")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, "tea")
	}))
	f.waitFor("v1.a.example.com", "Passed")
	a := f.do(http.MethodGet, "/apis/a.example.com/v1/namespaces/x/things?q=1&watch=0", "",
		"X-Remote-User", "mallory", "X-Remote-Group", "system:masters", "X-Remote-Extra-Scope", "all", "X-Remote-Uid", "7",
		"Authorization", "Bearer nobody-knows", "Impersonate-User", "jane", "Impersonate-Group", "readers", "Impersonate-Uid", "u1", "Impersonate-Extra-Team", "a")
	if a.code == http.StatusUnauthorized {
		// The token is looked at before the certificate; without it then.
		a = f.do(http.MethodGet, "/apis/a.example.com/v1/namespaces/x/things?q=1&watch=0", "",
			"X-Remote-User", "mallory", "X-Remote-Group", "system:masters", "X-Remote-Extra-Scope", "all", "X-Remote-Uid", "7",
			"Impersonate-User", "jane", "Impersonate-Group", "readers", "Impersonate-Uid", "u1", "Impersonate-Extra-Team", "a")
	}
	if a.code != http.StatusForbidden {
		t.Errorf("jane may not: %d %s", a.code, a.body)
	}
	a = f.do(http.MethodGet, "/apis/a.example.com/v1/namespaces/x/things?q=1&watch=0", "",
		"X-Remote-User", "mallory", "X-Remote-Extra-Scope", "all", "X-Remote-Uid", "7",
		"Impersonate-User", "jane", "Impersonate-Group", "system:masters", "Impersonate-Uid", "u1", "Impersonate-Extra-Team", "a")
	if a.code != http.StatusTeapot || a.body != "tea" || a.header.Get("X-Own") != "yes" || len(a.header["Audit-Id"]) != 2 {
		t.Fatalf("%+v", a)
	}
	r := seen.Load()
	if got := r.URL.RequestURI(); got != "/apis/a.example.com/v1/namespaces/x/things?q=1&watch=0" {
		t.Errorf("URI %s", got)
	}
	for name, want := range map[string]string{
		"X-Remote-User": "jane", "X-Remote-Uid": "u1", "X-Remote-Extra-Team": "a", "X-Remote-Extra-Scope": "",
		"Authorization": "", "Impersonate-User": "", "Audit-Id": a.header.Get("Audit-Id"),
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if groups := r.Header.Values("X-Remote-Group"); !slices.Contains(groups, "system:masters") || !slices.Contains(groups, "system:authenticated") {
		t.Errorf("groups %q", groups)
	}
	if v := f.versions("a.example.com"); len(v) != 1 || v[0].Freshness != "Current" || len(v[0].Resources) != 1 || len(v[0].Resources[0].Subresources) != 1 {
		t.Errorf("discovery: %+v", v)
	}
}

// TestLiars has backends that say what they should not.
func TestLiars(t *testing.T) {
	f := newFixture(t)
	f.register("redirect.example.com", f.backend("redirect.example.com", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://example.com/", http.StatusFound)
	}))
	huge := strings.Repeat(" ", 1<<20)
	f.register("huge.example.com", f.backend("huge.example.com", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		for range 64 {
			if _, err := io.WriteString(w, huge); err != nil {
				return
			}
		}
	}))
	f.register("wrong.example.com", f.backend("wrong.example.com", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		fmt.Fprint(w, `{"items":[{"metadata":{"name":"apps"},"versions":[{"version":"v1"}]}], "paths":{"apis/wrong.example.com/v1":{"serverRelativeURL":"https://example.com/"}}}`)
	}))
	f.register("garbage.example.com", f.backend("garbage.example.com", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		fmt.Fprint(w, `<html>`)
	}))
	for _, group := range []string{"redirect", "huge", "wrong", "garbage"} {
		f.waitFor("v1."+group+".example.com", "Passed")
	}
	if a := f.do(http.MethodGet, "/apis/redirect.example.com/v1/things", ""); a.code != http.StatusBadGateway || a.header.Get("Location") != "" {
		t.Errorf("redirect: %+v", a)
	}
	f.until(func() bool { v := f.versions("wrong.example.com"); return len(v) == 1 && v[0].Freshness == "Current" }, func() any { return "wrong" })
	for group, fresh := range map[string]apidiscovery.DiscoveryFreshness{"garbage": "Stale", "wrong": "Current"} {
		if v := f.versions(group + ".example.com"); len(v) != 1 || v[0].Freshness != fresh || len(v[0].Resources) != 0 {
			t.Errorf("%s: %+v", group, v)
		}
	}
	if v := f.versions("apps"); len(v) != 1 || len(v[0].Resources) < 5 {
		t.Errorf("apps: %+v", v)
	}
	if a := f.do(http.MethodGet, "/openapi/v3", ""); a.code != http.StatusOK || strings.Contains(a.body, "https://") {
		t.Errorf("OpenAPI: %d %q", a.code, a.body)
	}
}

// TestSlowAndDead checks that nobody waits for those who do not answer.
func TestSlowAndDead(t *testing.T) {
	f := newFixture(t)
	release := make(chan struct{})
	slow := f.serve(func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) })
	dead := httptest.NewTLSServer(http.NotFoundHandler())
	dead.Close()
	f.register("slow.example.com", slow)
	f.register("dead.example.com", dead.URL)
	c := f.waitFor("v1.dead.example.com", "FailedDiscoveryCheck")
	if c.Status != "False" || !strings.HasPrefix(c.Message, "failing or missing response from https://localhost:") {
		t.Errorf("%+v", c)
	}
	begin := time.Now()
	for _, path := range []string{"/apis", "/apis/apps/v1", "/openapi/v3", "/readyz", "/api/v1/namespaces"} {
		if a := f.do(http.MethodGet, path, ""); a.code != http.StatusOK {
			t.Errorf("%s: %d", path, a.code)
		}
	}
	if took := time.Since(begin); took > 4*time.Second {
		t.Errorf("others take %v", took)
	}
	for _, group := range []string{"slow.example.com", "dead.example.com"} {
		if a := f.do(http.MethodGet, "/apis/"+group+"/v1/things", ""); a.code != http.StatusServiceUnavailable || a.body != "service unavailable\n" {
			t.Errorf("%s: %+v", group, a)
		}
		if v := f.versions(group); len(v) != 1 || v[0].Freshness != "Stale" {
			t.Errorf("%s: %+v", group, v)
		}
	}
	f.waitFor("v1.slow.example.com", "FailedDiscoveryCheck")
}

// TestConditions has services that cannot be reached for reasons that are told.
func TestConditions(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	port := int32(443)
	make := func(group, name string, spec *corev1.ServiceSpec) {
		if spec != nil {
			if _, err := f.clients.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *spec}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		body := fmt.Sprintf(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.%s"},"spec":{"group":"%[1]s","version":"v1",
			"groupPriorityMinimum":100,"versionPriority":1,"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"%s","port":%d}}}`, group, name, port)
		if a := f.do(http.MethodPost, "/apis/apiregistration.k8s.io/v1/apiservices", body, "Content-Type", "application/json"); a.code != http.StatusCreated {
			t.Fatalf("%+v", a)
		}
	}
	make("none.example.com", "none", nil)
	make("port.example.com", "port", &corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 444}}})
	make("endpoints.example.com", "endpoints", &corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}})
	for group, want := range map[string][2]string{
		"none.example.com":      {"ServiceNotFound", `service/none in "default" is not present`},
		"port.example.com":      {"ServicePortError", `service/port in "default" is not listening on port 443`},
		"endpoints.example.com": {"EndpointsNotFound", `cannot find endpointslices for service/endpoints in "default"`},
	} {
		if c := f.waitFor("v1."+group, want[0]); c.Message != want[1] || c.Status != "False" {
			t.Errorf("%s: %+v", group, c)
		}
	}
}

// TestUpgrade checks that only an answer of 101 makes a connection of a request.
func TestUpgrade(t *testing.T) {
	f := newFixture(t)
	f.register("up.example.com", f.backend("up.example.com", func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/refuse"):
			http.Error(w, "no", http.StatusForbidden)
			return
		case !strings.HasSuffix(path, "/agree"):
			fmt.Fprint(w, "no")
			return
		}
		conn, buffer, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(buffer, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-User: %s\r\nX-Connection: %s\r\n\r\n",
			r.Header.Get("X-Remote-User"), strings.Join(r.Header["Connection"], ","))
		_ = buffer.Flush()
		line, _ := buffer.ReadString('\n')
		_, _ = buffer.WriteString("echo " + line)
		_ = buffer.Flush()
	}))
	f.waitFor("v1.up.example.com", "Passed")

	conn, reader := f.upgrade("/apis/up.example.com/v1/agree")
	defer conn.Close()
	resp, err := http.ReadResponse(reader, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("X-User") == "" {
		t.Fatalf("%v, %+v", err, resp)
	}
	// A proxy on the way to the backend would drop what else is in there.
	if got := resp.Header.Get("X-Connection"); got != "Upgrade" {
		t.Errorf("the backend got Connection: %s, want Upgrade alone", got)
	}
	fmt.Fprint(conn, "hello\n")
	if line, err := reader.ReadString('\n'); line != "echo hello\n" {
		t.Errorf("%q, %v", line, err)
	}

	for path, code := range map[string]int{"refuse": http.StatusForbidden, "ignore": http.StatusServiceUnavailable} {
		conn, reader := f.upgrade("/apis/up.example.com/v1/" + path)
		if resp, err = http.ReadResponse(reader, nil); err != nil || resp.StatusCode != code {
			t.Fatalf("%s: %v, %+v", path, err, resp)
		}
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		// What follows must go nowhere: the connection is over.
		fmt.Fprint(conn, "GET /apis/up.example.com/v1/other HTTP/1.1\r\nHost: x\r\nX-Remote-User: system:admin\r\n\r\n")
		if rest, _ := io.ReadAll(reader); len(rest) > 0 {
			t.Errorf("%s: an answer on a connection that was not upgraded: %q", path, rest)
		}
		conn.Close()
	}
}

// upgrade sends a request for an upgrade.
func (f *fixture) upgrade(path string) (net.Conn, *bufio.Reader) {
	f.Helper()
	cfg, err := rest.TLSConfigFor(f.config)
	if err != nil {
		f.Fatal(err)
	}
	cfg.NextProtos = []string{"http/1.1"}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(f.config.Host, "https://"), cfg)
	if err != nil {
		f.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	login := ""
	if token := f.config.BearerToken; token != "" {
		login = "Authorization: Bearer " + token + "\r\n"
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n%sConnection: Upgrade, X-Remote-User\r\nUpgrade: echo\r\n\r\n", path, login)
	return conn, bufio.NewReader(conn)
}

// TestLocal checks the APIServices that the server makes itself.
func TestLocal(t *testing.T) {
	f := newFixture(t)
	s := f.service("v2.autoscaling")
	if s == nil || s.Labels["kube-aggregator.kubernetes.io/automanaged"] != "onstart" || s.Spec.GroupPriorityMinimum != 17500 || s.Spec.VersionPriority != 30 {
		t.Fatalf("%+v", s)
	}
	if c := s.Status.Conditions; len(c) != 1 || c[0].Reason != "Local" || c[0].Status != "True" {
		t.Errorf("%+v", c)
	}

	crd := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.crd.example.com"},"spec":{
		"group":"crd.example.com","scope":"Cluster","names":{"plural":"things","kind":"Thing"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	if a := f.do(http.MethodPost, path, crd, "Content-Type", "application/json"); a.code != http.StatusCreated {
		t.Fatalf("%+v", a)
	}
	f.waitFor("v1.crd.example.com", "Local")
	if s := f.service("v1.crd.example.com"); s.Labels["kube-aggregator.kubernetes.io/automanaged"] != "true" || s.Spec.GroupPriorityMinimum != 1000 {
		t.Errorf("%+v", s)
	}
	// One that is managed always comes back, one of the start does not.
	for _, name := range []string{"v1.crd.example.com", "v1.batch"} {
		if err := f.objects.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	f.waitFor("v1.crd.example.com", "Local")
	if f.service("v1.batch") != nil {
		t.Error("v1.batch is back")
	}
	if a := f.do(http.MethodGet, "/apis/batch/v1/jobs", ""); a.code != http.StatusOK {
		t.Errorf("jobs: %d", a.code)
	}
	if a := f.do(http.MethodDelete, path+"/things.crd.example.com", ""); a.code != http.StatusOK {
		t.Fatalf("%+v", a)
	}
	f.until(func() bool { return f.service("v1.crd.example.com") == nil }, func() any { return "v1.crd.example.com is still there" })
	if v := f.versions("crd.example.com"); v != nil {
		t.Errorf("discovery: %+v", v)
	}
}
