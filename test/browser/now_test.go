package browser

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	flowv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/kelsontest"
)

// worker lets a user with a user agent do something again and again until the test ends.
func worker(t *testing.T, s *kelsontest.Server, user, agent string, pause time.Duration, do func(ctx context.Context, api *kubernetes.Clientset, n int)) {
	t.Helper()
	config := s.User(user)
	config.UserAgent = agent
	api := client(t, config)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	group.Go(func() {
		turn := time.NewTicker(pause)
		defer turn.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			do(ctx, api, n)
			select {
			case <-ctx.Done():
			case <-turn.C:
			}
		}
	})
}

// allow gives users a cluster role.
func allow(t *testing.T, api *kubernetes.Clientset, role string, users ...string) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
	for _, user := range users {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: user})
	}
	if _, err := api.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// stormer is a user whose name is meant to do harm in a page.
const stormer = "<script>alert(1)</script>\u202emrots"

// starve gives the requests of a user a priority level without seats and without a queue. Such
// a level serves one request at a time; one whose body does not end takes that place, and
// all others are refused.
func starve(t *testing.T, s *kelsontest.Server, user string) {
	t.Helper()
	api := client(t, s.Config())
	none, level := int32(0), "starved"
	configuration := &flowv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: level}, Spec: flowv1.PriorityLevelConfigurationSpec{
		Type: flowv1.PriorityLevelEnablementLimited,
		Limited: &flowv1.LimitedPriorityLevelConfiguration{
			NominalConcurrencyShares: &none, LendablePercent: &none, BorrowingLimitPercent: &none, LimitResponse: flowv1.LimitResponse{Type: flowv1.LimitResponseTypeReject},
		},
	}}
	if _, err := api.FlowcontrolV1().PriorityLevelConfigurations().Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	schema := &flowv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: level}, Spec: flowv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowv1.PriorityLevelConfigurationReference{Name: level}, MatchingPrecedence: 100,
		Rules: []flowv1.PolicyRulesWithSubjects{{
			Subjects:      []flowv1.Subject{{Kind: flowv1.SubjectKindUser, User: &flowv1.UserSubject{Name: user}}},
			ResourceRules: []flowv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}, ClusterScope: true}},
		}},
	}}
	if _, err := api.FlowcontrolV1().FlowSchemas().Create(t.Context(), schema, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	holdSeat(t, s, user)
}

// holdSeat sends the beginning of a request, whose rest comes when the test ends.
func holdSeat(t *testing.T, s *kelsontest.Server, user string) {
	t.Helper()
	config := s.User(user)
	way, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	body, end := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+"/api/v1/namespaces/default/configmaps", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	done := make(chan struct{})
	go func() {
		defer close(done)
		if answer, err := way.Do(request); err == nil {
			_ = answer.Body.Close()
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = end.Close()
		<-done
	})
	if _, err := end.Write([]byte("{")); err != nil { // which the client has taken, and sends
		t.Fatal(err)
	}
}

func TestNowShowsTheLoadAndWhoCausesIt(t *testing.T) {
	t.Parallel()
	needChromium(t)
	s := kelsontest.Start(t)
	api := client(t, s.Config())
	namespace := newNamespace(t, api, "load")
	fill(t, api, namespace, 50)
	allow(t, api, "cluster-admin", "lister", "writer", stormer)
	worker(t, s, "lister", "list-agent/1.0", 10*time.Millisecond, func(ctx context.Context, api *kubernetes.Clientset, _ int) {
		_, _ = api.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	})
	worker(t, s, "writer", "write-agent/1.0", 50*time.Millisecond, func(ctx context.Context, api *kubernetes.Clientset, n int) {
		_, _ = api.CoreV1().ConfigMaps(namespace).Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "entry-000001"}, Data: map[string]string{"n": fmt.Sprint(n)}}, metav1.UpdateOptions{})
	})
	tab := newTab(t)
	tab.logIn(open(t, s.Config(), nil))
	tab.view("/")
	tab.untilPart("Load in words", "processors in the last seconds")

	// The charts have numbers of the load, and the canvas has lines in the colours of series.
	number := func(chart, series string) string {
		if row := tab.row(chart, series); len(row) == 3 {
			return row[1]
		}
		return ""
	}
	for _, want := range [][2]string{{"Requests", "reads"}, {"Requests", "writes"}, {"Latency", "p99"}, {"Memory by holder", "heap in use"}} {
		tab.eventually(fmt.Sprint("a number of ", want), func() bool { return !slices.Contains([]string{"", "–", "0/s"}, number(want[0], want[1])) })
	}
	tab.until("a line in the chart of requests", `(() => {
		const canvas = document.querySelector("[aria-label=Requests] canvas");
		if (!canvas) return false;
		const probe = document.querySelector("[aria-label=Requests] .swatch.s1");
		const want = getComputedStyle(probe).backgroundColor.match(/\d+/g).map(Number);
		const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
		let found = 0;
		for (let i = 0; i < data.length; i += 4) found += want.every((v, k) => k > 2 || Math.abs(data[i + k] - v) < 40) && data[i + 3] > 100;
		return found > 5;
	})()`)
	tab.eventually("the verbs of the load", func() bool {
		return tab.row("Latency by verb", "list") != nil && tab.row("Latency by verb", "put") != nil
	})

	// The users are named by what they do.
	tab.set("combobox", "by", "requests")
	tab.eventually("the user with the most requests", func() bool {
		rows := tab.rows("Users")
		return len(rows) > 1 && rows[0][0] == "lister" && tab.row("Users", "writer") != nil
	})
	if got := tab.row("Resources", "configmaps"); got == nil {
		t.Errorf("resources: got %q, want configmaps among them", tab.rows("Resources"))
	}
	tab.set("combobox", "by", "writes")
	tab.eventually("the user who writes", func() bool { rows := tab.rows("Users"); return len(rows) > 0 && rows[0][0] == "writer" })
	tab.click("button", "writer")
	tab.eventually("what is behind the user", func() bool {
		agents := tab.rows("Clients")
		return len(agents) == 1 && strings.HasPrefix(agents[0][0], "write-agent")
	})
	tab.click("button", "No longer only user writer")
	tab.eventually("all users", func() bool { return len(tab.rows("Users")) > 1 })

	// Levels have seats; the one that refuses says how much.
	for _, level := range []string{"exempt", "global-default", "catch-all"} {
		if row := tab.row("Priority levels", level); len(row) != 6 || row[3] == "" || row[3] == "0" && level != "exempt" {
			t.Errorf("priority level %s: got %q, want its seats", level, row)
		}
	}
	if got := tab.row("Priority levels", "exempt")[3]; got != "∞" {
		t.Errorf("seats of the level exempt: got %s, want ∞", got)
	}
	starve(t, s, stormer)
	worker(t, s, stormer, "storm-agent/1.0", 10*time.Millisecond, func(ctx context.Context, api *kubernetes.Clientset, _ int) {
		_ = api.CoreV1().RESTClient().Get().AbsPath("/api/v1/pods").MaxRetries(0).Do(ctx).Error()
	})
	tab.eventually("the level that refuses", func() bool {
		row := tab.row("Priority levels", "starved")
		return len(row) == 6 && row[5] != "0"
	})
	tab.untilPart("Load in words", "Priority level starved refused")
	tab.untilPart("Load in words", `The likeliest culprit is user "<script>alert(1)</script>`)
	tab.eventually("refused requests in the chart of errors", func() bool { return !slices.Contains([]string{"", "–", "0/s"}, number("Errors", "429: refused")) })
	if got := eval[bool](tab, "document.querySelector('.storm').classList.contains('pressed')"); !got {
		t.Error("the panel of the load is as usual, want it to stand out")
	}

	// What the page offers to apply is what the server takes, for exactly this user.
	documents := strings.Split(tab.code("Objects that limit the client"), "---\n")
	if len(documents) != 2 {
		t.Fatalf("objects to apply: got %q, want two", documents)
	}
	for i, resource := range []string{"prioritylevelconfigurations", "flowschemas"} {
		request := api.FlowcontrolV1().RESTClient().Post().Resource(resource).Param("dryRun", "All").SetHeader("Content-Type", "application/yaml").Body([]byte(documents[i]))
		if err := request.Do(t.Context()).Error(); err != nil {
			t.Errorf("%s: %v, want the server to take it:\n%s", resource, err, documents[i])
		}
	}
	var schema flowv1.FlowSchema
	if err := yaml.Unmarshal([]byte(documents[1]), &schema); err != nil {
		t.Fatal(err)
	}
	if got := schema.Spec.Rules[0].Subjects[0].User.Name; got != stormer {
		t.Errorf("the user to limit: got %q, want %q", got, stormer)
	}
	tab.harmless()
	tab.accessible()

	// Pause stops the numbers; they go on afterwards.
	tab.click("button", "Pause")
	tab.untilText("paused")
	tab.click("button", "Go on")
	tab.untilText("live")
}
