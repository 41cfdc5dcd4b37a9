package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/kelsontest"
	accounts "github.com/apikeel/kelson/usage"
)

// asked runs a command against a server, and returns its exit code and output.
func asked(t *testing.T, s *kelsontest.Server, args ...string) (code int, out, complaints string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, s.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), append(args, "--kubeconfig", file), streams{in: strings.NewReader(""), out: &stdout, err: &stderr})
	return code, stdout.String(), stderr.String()
}

// decoded runs a command that answers in JSON.
func decoded[T any](t *testing.T, s *kelsontest.Server, args ...string) (answer T) {
	t.Helper()
	code, out, complaints := asked(t, s, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &answer); code != exitOK || err != nil {
		t.Fatalf("kelson %v: exit code %d, %v, %s%s", args, code, err, out, complaints)
	}
	return answer
}

func clientset(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTop(t *testing.T) {
	t.Parallel()
	s := kelsontest.Start(t, kelsontest.NoControllers())
	hostile := s.User("\x1b[31mmallory", "system:masters")
	hostile.UserAgent = "evil\t\u202e" + strings.Repeat("x", 500)
	for range 3 {
		if _, err := clientset(t, hostile).CoreV1().ConfigMaps("kube-system").List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// Accounts are a moment old.
	var top accounts.Top
	for deadline := time.Now().Add(time.Minute); len(top.Rows) == 0 && time.Now().Before(deadline); {
		top = decoded[accounts.Top](t, s, "top", "--once", "--by", "resource", "--user", "\x1b[31mmallory")
	}
	if len(top.Rows) != 1 || top.Rows[0].Name != "configmaps" || top.Rows[0].Requests != 3 || top.Rows[0].BytesOut == 0 {
		t.Errorf("got %+v, want 3 requests for configmaps", top.Rows)
	}
	for _, by := range []string{"user", "agent"} {
		code, out, complaints := asked(t, s, "top", "--by", by, "--sort", "requests")
		if code != exitOK || strings.ContainsAny(out, "\x1b\t\u202e") {
			t.Errorf("by %s: got exit code %d and %q %s, want no control characters", by, code, out, complaints)
		}
		if want := map[string]string{"user": `\u001b[31mmallory`, "agent": `evil\u0009\u202e`}[by]; !strings.Contains(out, want) {
			t.Errorf("by %s: got %q, want %q in it", by, out, want)
		}
	}
	if code, out, _ := asked(t, s, "top", "--since", "1h", "-o", "yaml"); code != exitOK || !strings.Contains(out, "processCPUSeconds:") {
		t.Errorf("the last hour: got %d %s", code, out)
	}
	for args, want := range map[string]string{"--by nothing": "is not one of user", "--sort nothing": "is not one of bytes", "-o nothing": "is not one of table", "--since 1h --by verb": "leave out since"} {
		code, _, complaints := asked(t, s, append([]string{"top", "--once"}, strings.Fields(args)...)...)
		if code == exitOK || !strings.Contains(complaints, want) {
			t.Errorf("%s: got exit code %d and %q, want %q", args, code, complaints, want)
		}
	}
}

// A user with few rights sees what they may list, and nothing of the rest.
func TestTopShowsWhatMayBeListed(t *testing.T) {
	t.Parallel()
	s := kelsontest.Start(t, kelsontest.NoControllers())
	admin := clientset(t, s.Config())
	ctx := t.Context()
	for _, name := range []string{"dev", "secretive-namespace"} {
		if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.CoreV1().ConfigMaps(name).List(ctx, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.CoreV1().Secrets(name).List(ctx, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	role := func(name, namespace string, rules ...rbacv1.PolicyRule) {
		t.Helper()
		meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
		subjects := []rbacv1.Subject{{Kind: "User", Name: "dana", APIGroup: rbacv1.GroupName}}
		var err, bound error
		if namespace == "" {
			_, err = admin.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
			_, bound = admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}}, metav1.CreateOptions{})
		} else {
			_, err = admin.RbacV1().Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
			_, bound = admin.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}}, metav1.CreateOptions{})
		}
		if err := errors.Join(err, bound); err != nil {
			t.Fatal(err)
		}
	}
	as := []string{"--as", "dana", "--once"}
	for _, command := range [][]string{{"top", "--once"}, {"storm"}, {"findings"}} {
		if code, out, complaints := asked(t, s, append(command, "--as", "dana")...); code != exitError || !strings.Contains(complaints, "forbidden") {
			t.Errorf("%v without the right: got exit code %d, %s%s, want that it is forbidden", command, code, out, complaints)
		}
	}
	role("see", "", rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{accounts.TopPath, accounts.StormPath, accounts.FindingsPath}})
	role("read", "dev", rbacv1.PolicyRule{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"configmaps"}})
	namespaces := decoded[accounts.Top](t, s, append([]string{"top", "--by", "namespace"}, as...)...)
	resources := decoded[accounts.Top](t, s, append([]string{"top", "--by", "resource"}, as...)...)
	users := decoded[accounts.Top](t, s, append([]string{"top", "--by", "user"}, as...)...)
	for _, r := range append(namespaces.Rows, resources.Rows...) {
		switch r.Name {
		case "dev", "configmaps", "(cluster)", "(paths)":
		default:
			t.Errorf("dana sees %+v", r)
		}
		if (r.Name == "dev" || r.Name == "configmaps") && r.Requests != 1 {
			t.Errorf("dana sees %+v, want one request", r)
		}
	}
	if namespaces.Hidden == nil || len(namespaces.Rows) < 2 || len(users.Rows) == 0 {
		t.Errorf("got %+v and %+v, want rows, hidden ones and users", namespaces, users)
	}
	for _, command := range [][]string{{"storm"}, {"findings"}, {"top", "--once", "--by", "verb", "--in-namespace", "secretive-namespace"}} {
		code, out, complaints := asked(t, s, append(command, "--as", "dana", "-o", "json")...)
		if code != exitOK || strings.Contains(out, "list secrets") || strings.Contains(strings.ReplaceAll(out, `"namespace": "secretive-namespace"`, ""), "secretive") {
			t.Errorf("%v: got exit code %d, %s%s, want nothing that dana may not list", command, code, out, complaints)
		}
	}
	if hidden := decoded[accounts.Top](t, s, append([]string{"top", "--by", "verb", "--in-namespace", "secretive-namespace"}, as...)...); len(hidden.Rows) != 0 || hidden.Total.Requests != 0 {
		t.Errorf("of a namespace that is not hers dana sees %+v", hidden)
	}
	if code, _, complaints := asked(t, s, append([]string{"top", "--by", "namespace", "--since", "1h"}, as...)...); code != exitError || !strings.Contains(complaints, "list everything") {
		t.Errorf("the last hour: got exit code %d and %q", code, complaints)
	}
}

// Of fifty clients one overloads the server, and is named within five seconds.
func TestStormNamesOneOfFifty(t *testing.T) {
	t.Parallel()
	s := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.Configure(func(c *controlplane.Config) {
		c.Flow.MaxReading, c.Flow.MaxWriting = 8, 2
	}))
	admin := clientset(t, s.Config())
	for i := range 100 {
		if _, err := admin.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("map-%d", i)}, Data: map[string]string{"x": strings.Repeat("x", 4000)},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Apply(t.Context(), "testdata/readers.yaml"); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	const culprit, flood = 31, 40
	begun := make(chan struct{}, 50)
	for i := range 50 {
		config := s.Token(fmt.Sprintf("system:serviceaccount:apps:client-%d", i), "readers", "system:authenticated", "system:serviceaccounts")
		config.UserAgent = fmt.Sprintf("client-%d/v1", i)
		c := clientset(t, config)
		if i == culprit {
			for range flood {
				clients.Go(func() {
					for ctx.Err() == nil {
						_, _ = c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
					}
				})
			}
			continue
		}
		clients.Go(func() {
			tick := time.NewTicker(500 * time.Millisecond)
			defer tick.Stop()
			for {
				_, _ = c.CoreV1().ConfigMaps("default").Get(ctx, "map-1", metav1.GetOptions{})
				select {
				case begun <- struct{}{}:
				default:
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	<-begun
	began := time.Now()
	agent := fmt.Sprintf("client-%d/v1", culprit)
	// Only requests that have ended are counted; while the first ones wait it may be another.
	var storm accounts.Storm
	for (storm.Culprit == nil || storm.Culprit.Agent != agent) && time.Since(began) < time.Minute {
		storm = decoded[accounts.Storm](t, s, "storm")
	}
	// How long it takes is what it is only on a machine with nothing else to do.
	took, limit := time.Since(began), time.Minute
	if testsize.Long() {
		limit = 5 * time.Second
	}
	if storm.Culprit == nil || storm.Culprit.Agent != agent || took > limit {
		t.Fatalf("after %v: got %+v %+v, want client-%d within %v: %v", took, storm.Culprit, storm.Clients, culprit, limit, storm.Words)
	}
	t.Logf("named after %v: %s", took, strings.Join(storm.Words, " "))
	// The storm may rest for a moment.
	code, out := exitOK, ""
	for deadline := time.Now().Add(time.Minute); code != exitStorm && time.Now().Before(deadline); {
		code, out, _ = asked(t, s, "storm", "--check")
	}
	if code != exitStorm || !strings.Contains(out, "likeliest culprit") || !strings.Contains(out, "kind: FlowSchema") {
		t.Errorf("got exit code %d and %s, want %d and a flow schema", code, out, exitStorm)
	}
	objects := ""
	for deadline := time.Now().Add(time.Minute); !strings.Contains(objects, "kind: FlowSchema") && time.Now().Before(deadline); {
		_, objects, _ = asked(t, s, "storm", "--apply")
	}
	stop()
	clients.Wait()

	// The objects are valid, strictly, and match the client.
	file := filepath.Join(t.TempDir(), "limit.yaml")
	if err := os.WriteFile(file, []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(t.Context(), file); err != nil {
		t.Fatalf("%v:\n%s", err, objects)
	}
	_, text, _ := strings.Cut(objects, "---\n")
	var schema flowcontrolv1.FlowSchema
	if err := yaml.UnmarshalStrict([]byte(text), &schema); err != nil {
		t.Fatal(err)
	}
	applied, err := admin.FlowcontrolV1().FlowSchemas().Get(t.Context(), schema.Name, metav1.GetOptions{})
	if err != nil || applied.Spec.Rules[0].Subjects[0].ServiceAccount.Name != fmt.Sprintf("client-%d", culprit) {
		t.Errorf("got %+v, %v, want a flow schema for client-%d", applied, err, culprit)
	}
}

func TestFindings(t *testing.T) {
	t.Parallel()
	s := kelsontest.Start(t, kelsontest.NoControllers())
	ctx := t.Context()
	if err := s.Apply(ctx, "testdata/gadgets.yaml"); err != nil {
		t.Fatal(err)
	}
	config := s.Config()
	config.UserAgent, config.DisableCompression = "careless/1", true
	c := clientset(t, config)
	for i := range 10 {
		if _, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("map-%d", i)}, Data: map[string]string{"x": strings.Repeat("x", 50_000+i)},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.RESTClient().Get().AbsPath("/apis/example.com/v1beta1/gadgets").Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		w, err := c.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		<-w.ResultChan()
		w.Stop()
		for range w.ResultChan() { // until it has ended
		}
	}
	var report accounts.Report
	for late := time.After(10 * time.Second); len(report.Restarted) == 0; {
		select {
		case <-late:
			t.Fatalf("got %+v, want a restarted watch", report)
		default:
		}
		report = decoded[accounts.Report](t, s, "findings")
	}
	if d := report.Deprecated; len(d) != 1 || d[0].Resource != "gadgets.v1beta1.example.com" || d[0].Agent != "careless/1" {
		t.Errorf("deprecated: got %+v, want gadgets of careless", d)
	}
	if u := report.Unpaged; len(u) != 1 || u[0].Resource != "configmaps" || u[0].Namespace != "default" || u[0].Bytes < 500_000 {
		t.Errorf("unpaged: got %+v, want configmaps", u)
	}
	if got := fmt.Sprint(report.Unused); got != "[gizmos.example.com]" {
		t.Errorf("unused: got %s, want gizmos", got)
	}
	if o := report.Objects; len(o) == 0 || o[0].Name != "map-9" || o[0].Namespace != "default" {
		t.Errorf("largest objects: got %+v, want map-9 first", o)
	}
	if k := report.Kinds; len(k) == 0 || k[0].Resource != "configmaps" || k[0].Objects < 10 {
		t.Errorf("largest kinds: got %+v, want configmaps first", k)
	}
	if code, out, complaints := asked(t, s, "findings"); code != exitOK || !strings.Contains(out, "gizmos.example.com") || !strings.Contains(out, "careless/1") {
		t.Errorf("got exit code %d, %s%s", code, out, complaints)
	}
}

// Keys change what kelson top shows.
func TestLiveTop(t *testing.T) {
	keys, press := io.Pipe()
	screen, drawn := io.Pipe()
	queries := make(chan accounts.Query, 100)
	live := &liveTop{every: time.Hour, query: accounts.Query{By: accounts.ByUser}, ask: func(_ context.Context, q accounts.Query) (*accounts.Top, error) {
		queries <- q
		return &accounts.Top{By: accounts.Dimensions()[q.By], Rows: []accounts.Row{{Name: "first\x1b[2J"}, {Name: "second"}}}, nil
	}}
	ended := make(chan error, 1)
	go func() {
		err := live.run(t.Context(), keys, drawn, func() (int, int) { return 60, 24 })
		drawn.CloseWithError(io.EOF)
		ended <- err
	}()
	var all bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&all, screen)
	}()
	first := <-queries
	if first.By != accounts.ByUser {
		t.Errorf("got %+v, want users first", first)
	}
	for _, step := range []struct{ keys, want string }{
		{"n", "by namespace"}, {"w", "by namespace sort watches"}, {"u", "by user sort watches"},
		{"\x1b[Ajj\x1b[A\x1b[B\r", "by agent sort watches of user second"}, {"\r", "by resource sort watches of user second of agent first\x1b[2J"},
		{"\x7f", "by agent sort watches of user second"}, {"\x7f", "by user sort watches"},
	} {
		if _, err := io.WriteString(press, step.keys); err != nil {
			t.Fatal(err)
		}
		q := <-queries
		got := "by " + accounts.Dimensions()[q.By]
		if q.Sort != "" {
			got += " sort " + q.Sort
		}
		for i, d := range accounts.Dimensions() {
			if name, ok := q.Only[accounts.Dimension(i)]; ok {
				got += " of " + d + " " + name
			}
		}
		if got != step.want {
			t.Errorf("%q: got %q, want %q", step.keys, got, step.want)
		}
	}
	if _, err := io.WriteString(press, "q"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	<-read
	text := strings.ReplaceAll(all.String(), redraw, "")
	if strings.Contains(text, "\x1b") || !strings.Contains(text, "> second") || !strings.Contains(text, `first\u001b[2J`) {
		t.Errorf("got %q, want a marked row, and no control characters of names", text)
	}
}
