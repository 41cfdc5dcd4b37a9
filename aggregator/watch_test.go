package aggregator_test

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
