package aggregator_test

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/kelsontest"
)

// TestWatch has a watch that another server serves: its events come at once, it is
// counted as long-running, and holds nothing of what this server has to share out.
func TestWatch(t *testing.T) {
	f := newFixture(t)
	more, ended := make(chan string), make(chan struct{})
	f.register("w.example.com", f.backend("w.example.com", func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/things") {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case text := <-more:
				fmt.Fprintln(w, text)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				close(ended)
				return
			}
		}
	}))
	f.waitFor("v1.w.example.com", "Passed")
	_, err := f.clients.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "jane"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "jane"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.config.Host+"/apis/w.example.com/v1/things?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Impersonate-User", "jane")
	resp, err := f.http.Do(req) // the header comes before any event
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(resp.Body)
	for _, text := range []string{"one", "two"} {
		more <- text
		if line, err := lines.ReadString('\n'); err != nil || line != text+"\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}

	// Kinds of others are not told apart: they could be any number.
	const counted = `apiserver_longrunning_requests{component="",group="",resource="",scope="",subresource="",verb="WATCH",version=""} `
	metrics := f.do(http.MethodGet, "/metrics", "").body
	if !strings.Contains(metrics, counted+"1\n") {
		t.Errorf("it is not counted as long-running: %s", grep(metrics, "longrunning"))
	}
	if seats := grep(metrics, `apiserver_flowcontrol_current_executing_seats{flow_schema="global-default"`); len(seats) != 1 || !strings.HasSuffix(seats[0], " 0") {
		t.Errorf("it holds seats: %s", seats)
	}
	resp.Body.Close()
	<-ended
	f.until(func() bool { return strings.Contains(f.do(http.MethodGet, "/metrics", "").body, counted+"0\n") }, func() any { return "it is still counted" })
}

// grep returns the lines that have a text.
func grep(text, part string) (found []string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) && !strings.HasPrefix(line, "#") {
			found = append(found, strings.TrimSuffix(line, "\n"))
		}
	}
	return found
}

// TestWatchesAreBounded: watches that another server serves count with what they take here, in the
// name of the user who asks for them, not of one who is impersonated.
func TestWatchesAreBounded(t *testing.T) {
	s := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.MemoryLimit(128<<20))
	f := newFixtureOf(t, s.Config())
	f.register("w.example.com", f.backend("w.example.com", func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/things") {
			http.NotFound(w, r)
			return
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	f.waitFor("v1.w.example.com", "Passed")
	const group = "watchers"
	rights := f.clients.RbacV1()
	if _, err := rights.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: group}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"watch"}, APIGroups: []string{"w.example.com"}, Resources: []string{"things"}},
		{Verbs: []string{"impersonate"}, APIGroups: []string{""}, Resources: []string{"users", "groups"}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := rights.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: group}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: group},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mallory, victim := s.User("mallory", group), s.User("victim", group)
	// watch opens watches until one is refused, and returns how many are open.
	watch := func(config *rest.Config, as string, most int) (n int) {
		t.Helper()
		transport, err := rest.TransportFor(config)
		if err != nil {
			t.Fatal(err)
		}
		for ; n < most; n++ {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+"/apis/w.example.com/v1/things?watch=1", nil)
			if err != nil {
				t.Fatal(err)
			}
			if as != "" {
				req.Header.Set("Impersonate-User", as)
				req.Header.Set("Impersonate-Group", group)
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { resp.Body.Close() })
			if resp.StatusCode == http.StatusTooManyRequests {
				return n
			}
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("watch %d: %s", n, resp.Status)
			}
		}
		return n
	}
	if n := watch(mallory, "victim", 1000); n < 50 || n > 100 {
		t.Errorf("%d watches as another user, want about 90: four fifths of what there is", n)
	}
	if n := watch(victim, "", 5); n != 5 {
		t.Errorf("the user who was impersonated: %d watches, want 5", n)
	}
	if n := watch(mallory, "", 5); n != 0 {
		t.Errorf("%d more watches, want none", n)
	}
}
