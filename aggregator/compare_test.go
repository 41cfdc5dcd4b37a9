package aggregator_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

// TestLikeKubeAPIServer does the same with this server and with kube-apiserver,
// which KELSON_PEERS has, and compares what comes of it.
func TestLikeKubeAPIServer(t *testing.T) {
	peertest.Binary(t, "kube-apiserver")
	cluster := etcdtest.Start(t)
	theirs := observe(newFixtureOf(t, peertest.KubeAPIServer(t, cluster.Endpoints())))
	ours := observe(newFixture(t))
	names := maps.Clone(theirs)
	maps.Copy(names, ours)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if theirs[name] == ours[name] {
			t.Logf("%s: %s", name, ours[name])
		} else {
			t.Errorf("%s:\nours   %s\ntheirs %s", name, ours[name], theirs[name])
		}
	}
}

// changing are parts of texts that are not the same twice.
var changing = regexp.MustCompile(`(localhost|127\.0\.0\.1):\d+(->127\.0\.0\.1:\d+)?|\[::1\]:\d+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|stream ID \d+|(context deadline exceeded|net/http: request canceled) \(Client.Timeout`)

func steady(text string) string { return changing.ReplaceAllString(text, "…") }

// observe registers backends of all sorts, and returns what a client sees of them.
func observe(f *fixture) map[string]string {
	seen := map[string]string{}
	f.patience = time.Minute // theirs looks for discovery only so often
	other, err := pki.New("localhost")
	if err != nil {
		f.Fatal(err)
	}
	echo := f.echoServer()
	dead := httptest.NewTLSServer(http.NotFoundHandler())
	dead.Close()
	release := make(chan struct{})
	slow := f.serve(func(http.ResponseWriter, *http.Request) { <-release })
	f.Cleanup(func() { close(release) })
	status := func(code int) string {
		return f.serve(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(code) })
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	f.Cleanup(plain.Close)

	f.makeServices()
	conditions := map[string]func(*apiregistration.APIServiceSpec){
		"none":      func(s *apiregistration.APIServiceSpec) { s.Service.Name = "none" },
		"port":      func(s *apiregistration.APIServiceSpec) { s.Service.Name = "port" },
		"endpoints": func(s *apiregistration.APIServiceSpec) { s.Service.Name = "endpoints" },
		"notready":  func(s *apiregistration.APIServiceSpec) { s.Service.Name = "notready" },
		"unnamed":   func(s *apiregistration.APIServiceSpec) { s.Service.Name = "unnamed" },
		"headless":  func(s *apiregistration.APIServiceSpec) { s.Service.Name = "headless" },
		"ca": func(s *apiregistration.APIServiceSpec) {
			s.InsecureSkipTLSVerify, s.CABundle, s.Service.Port = false, other.CertificatePEM(), portOf(f, echo)
		},
		"system": func(s *apiregistration.APIServiceSpec) {
			s.InsecureSkipTLSVerify, s.Service.Port = false, portOf(f, echo)
		},
		"dead":     func(s *apiregistration.APIServiceSpec) { s.Service.Port = portOf(f, dead.URL) },
		"slow":     func(s *apiregistration.APIServiceSpec) { s.Service.Port = portOf(f, slow) },
		"404":      func(s *apiregistration.APIServiceSpec) { s.Service.Port = portOf(f, status(404)) },
		"500":      func(s *apiregistration.APIServiceSpec) { s.Service.Port = portOf(f, status(500)) },
		"401":      func(s *apiregistration.APIServiceSpec) { s.Service.Port = portOf(f, status(401)) },
		"redirect": func(s *apiregistration.APIServiceSpec) { s.Service.Port = portOf(f, status(302)) },
		"plain":    func(s *apiregistration.APIServiceSpec) { s.Service.Port = portOf(f, plain.URL) },
		"echo": func(s *apiregistration.APIServiceSpec) {
			s.Service.Name, s.Service.Port = "echo", portOf(f, echo) // theirs remembers discovery by service
		},
	}
	for name, change := range conditions {
		spec := apiregistration.APIServiceSpec{
			Group: name + ".example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 15, InsecureSkipTLSVerify: true,
			Service: &apiregistration.ServiceReference{Namespace: "default", Name: "api", Port: new(int32(443))},
		}
		change(&spec)
		f.create(&apiregistration.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1." + spec.Group}, Spec: spec})
	}
	for name := range conditions {
		var last apiregistration.APIServiceCondition
		f.until(func() bool {
			if c := f.service("v1." + name + ".example.com").Status.Conditions; len(c) == 1 {
				last = c[0]
			}
			// It begins as one of these for want of news.
			return last.Reason != "" && !(name != "dead" && strings.Contains(last.Message, "connection refused"))
		}, func() any { return name })
		seen["condition of "+name] = steady(fmt.Sprintf("%s %s %s", last.Status, last.Reason, last.Message))
	}
	f.until(func() bool { v := f.versions("echo.example.com"); return len(v) == 1 && v[0].Freshness == "Current" }, func() any { return f.versions("echo.example.com") })
	observeDiscovery(f, seen)
	observeRequests(f, seen)
	return seen
}

// observeDiscovery looks at groups whose servers answer, and those that do not.
func observeDiscovery(f *fixture, seen map[string]string) {
	for _, group := range []string{"echo", "dead"} {
		for _, v := range f.versions(group + ".example.com") {
			text, _ := json.Marshal(v)
			seen["aggregated discovery of "+group] = string(text)
		}
		for _, path := range []string{"", "/v1", "/v2", "/v1/things"} {
			a := f.do(http.MethodGet, "/apis/"+group+".example.com"+path, "")
			if group != "echo" || path == "" {
				seen["discovery of "+group+path] = steady(fmt.Sprintf("%d %s %s", a.code, a.header.Get("Content-Type"), a.body))
			}
		}
	}
	var list metav1.APIGroupList
	a := f.do(http.MethodGet, "/apis", "")
	if err := json.Unmarshal([]byte(a.body), &list); err != nil {
		f.Fatal(err)
	}
	for _, g := range list.Groups {
		if strings.HasSuffix(g.Name, ".example.com") {
			text, _ := json.Marshal(g)
			seen["group list: "+g.Name] = string(text)
		}
	}
	a = f.do(http.MethodGet, "/", "")
	var index struct{ Paths []string }
	if err := json.Unmarshal([]byte(a.body), &index); err != nil {
		f.Fatal(err)
	}
	index.Paths = slices.DeleteFunc(index.Paths, func(p string) bool { return !strings.Contains(p, "example.com") })
	seen["index"] = fmt.Sprint(index.Paths)
}

// observeRequests looks at what is passed on, in both directions.
func observeRequests(f *fixture, seen map[string]string) {
	const things = "/apis/echo.example.com/v1/namespaces/default/things"
	ask := func(name, method, path, body string, headers ...string) {
		if !slices.Contains(headers, "Impersonate-User") { // the two have other administrators
			headers = append(headers, "Impersonate-User", "root", "Impersonate-Group", "system:masters")
		}
		a := f.do(method, path, body, headers...)
		seen["answer: "+name] = steady(fmt.Sprintf("%d %s\n%s", a.code, strings.Join(headerLines(a.header, "Date", "Content-Length"), "; "), a.body))
	}
	ask("get", http.MethodGet, things+"/echo?b=2&a=1&c=%2F", "", "X-Remote-User", "mallory", "X-Remote-Extra-Scope", "x", "Accept", "application/json", "X-Forwarded-For", "10.1.1.1",
		"X-Forwarded-Host", "elsewhere", "Te", "trailers", "Keep-Alive", "5", "Origin", "https://a.example.com")
	ask("someone else", http.MethodGet, things+"/echo", "", "Impersonate-User", "jane", "Impersonate-Group", "system:masters", "Impersonate-Uid", "7", "Impersonate-Extra-Example.com%2fteam", "a")
	ask("post", http.MethodPost, things+"/echo", `{"a":1}`, "Content-Type", "application/json")
	ask("delete", http.MethodDelete, things+"/echo", "")
	ask("escaped", http.MethodGet, things+"/echo%20a%2Fb/", "")
	ask("redirect", http.MethodGet, things+"/redirect", "")
	ask("redirect without location", http.MethodGet, things+"/notmodified", "")
	ask("cors", http.MethodGet, things+"/cors", "", "Origin", "https://a.example.com")
	ask("broken", http.MethodPost, things+"/broken", "{}", "Content-Type", "application/json")
	ask("teapot", http.MethodGet, things+"/teapot", "")
	ask("forbidden", http.MethodGet, things+"/teapot", "", "Impersonate-User", "jane")
	ask("dead", http.MethodGet, "/apis/dead.example.com/v1/things", "")
	ask("unknown version", http.MethodGet, "/apis/echo.example.com/v9/things", "")
	for _, path := range []string{"refuse", "ignore"} {
		conn, reader := f.upgrade(things + "/" + path)
		resp, err := http.ReadResponse(reader, nil)
		if err != nil {
			seen["upgrade: "+path] = err.Error()
			continue
		}
		seen["upgrade: "+path] = steady(fmt.Sprint(resp.StatusCode, headerLines(resp.Header, "Date", "Content-Length")))
		conn.Close()
	}
}

// headerLines returns headers, sorted, without some, and without those that tell
// which server it is.
func headerLines(h http.Header, without ...string) []string {
	var lines []string
	for name, values := range h {
		if !slices.Contains(without, name) && !strings.HasPrefix(name, "X-Kubernetes-Pf-") {
			lines = append(lines, steady(name+": "+strings.Join(values, " | ")))
		}
	}
	slices.Sort(lines)
	return lines
}

// echoServer starts a backend that says what it was asked.
func (f *fixture) echoServer() string {
	return f.serve(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		switch name := parts[len(parts)-1]; {
		case len(parts) == 4 && parts[1] == "apis":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"%s/v1","resources":[
				{"name":"things","singularName":"thing","kind":"Thing","namespaced":true,"verbs":["get","list"],"shortNames":["t"]},
				{"name":"things/status","singularName":"","kind":"Thing","namespaced":true,"verbs":["get"]}]}`, parts[2])
		case parts[1] == "openapi" || len(parts) == 2:
			http.NotFound(w, r)
		case name == "redirect":
			http.Redirect(w, r, "https://example.com/", http.StatusFound)
		case name == "notmodified":
			w.WriteHeader(http.StatusNotModified)
		case name == "cors":
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.Header().Set("Cache-Control", "max-age=5")
			w.Header().Set("Audit-Id", "own")
			w.Header().Set("X-Own", "1")
		case name == "broken":
			panic(http.ErrAbortHandler)
		case name == "teapot":
			http.Error(w, "tea", http.StatusTeapot)
		case name == "refuse":
			http.Error(w, "no", http.StatusForbidden)
		case name == "ignore":
			fmt.Fprint(w, "no")
		default:
			fmt.Fprintf(w, "%s %s %s\n%s\n", r.Method, steady(r.Host), r.RequestURI, strings.Join(headerLines(r.Header, "Traceparent", "Accept-Encoding"), "\n"))
		}
	})
}

// makeServices makes services that have something wrong with them.
func (f *fixture) makeServices() {
	for name, spec := range map[string]corev1.ServiceSpec{
		"port":      {Ports: []corev1.ServicePort{{Port: 444}}},
		"endpoints": {Ports: []corev1.ServicePort{{Port: 443}}},
		"notready":  {Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
		"unnamed":   {Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
		"echo":      {Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
		"headless":  {ClusterIP: "None", Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	} {
		if _, err := f.clients.CoreV1().Services("default").Create(f.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
			f.Fatal(err)
		}
	}
	for name, ready := range map[string]bool{"notready": false, "unnamed": true, "headless": true} {
		port := "https"
		if name == "unnamed" {
			port = "other"
		}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
			Ports:     []discoveryv1.EndpointPort{{Name: &port, Port: new(int32(443))}},
		}
		if _, err := f.clients.DiscoveryV1().EndpointSlices("default").Create(f.Context(), slice, metav1.CreateOptions{}); err != nil {
			f.Fatal(err)
		}
	}
}
