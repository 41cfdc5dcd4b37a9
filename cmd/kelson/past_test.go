package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage/engine"
)

// pastServer is a server that keeps history, and its commands.
type pastServer struct {
	*kelsontest.Server
	client *kubernetes.Clientset
	admin  string // kubeconfig
}

func startPast(t *testing.T, opts ...kelsontest.Option) *pastServer {
	t.Helper()
	backend, err := engine.Open(engine.Options{Dir: t.TempDir(), RetainAge: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = backend.Close() })
	s := kelsontest.Start(t, append([]kelsontest.Option{kelsontest.Backend(backend)}, opts...)...)
	p := &pastServer{Server: s, client: kubernetes.NewForConfigOrDie(s.Config())}
	p.admin = p.kubeconfig(t, s.Config())
	return p
}

func (p *pastServer) kubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	file, err := p.KubeconfigFile(config)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// runKelson runs a command, and returns its output, the rest, and the exit code.
func runKelson(t *testing.T, kubeconfig string, args ...string) (out, err string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	code = run(ctx, append(args, "--kubeconfig", kubeconfig), streams{in: strings.NewReader(""), out: &stdout, err: &stderr})
	return stdout.String(), stderr.String(), code
}

// must runs a command that succeeds.
func (p *pastServer) must(t *testing.T, args ...string) string {
	t.Helper()
	out, stderr, code := runKelson(t, p.admin, args...)
	if code != 0 {
		t.Fatalf("kelson %s: exit code %d, want 0\n%s%s", strings.Join(args, " "), code, out, stderr)
	}
	return out
}

func configMap(name string, data ...string) *corev1.ConfigMap {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Data: map[string]string{}}
	for i := 0; i+1 < len(data); i += 2 {
		m.Data[data[i]] = data[i+1]
	}
	return m
}

// nextMillisecond waits until the clock shows another millisecond: the store records the
// time of a write in milliseconds.
func nextMillisecond() {
	for before := time.Now().UnixMilli(); time.Now().UnixMilli() == before; {
		runtime.Gosched()
	}
}

func revision(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestHistoryOfAnObject(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), startPast(t)
	maps := p.client.CoreV1().ConfigMaps("default")
	first, err := maps.Create(ctx, configMap("web", "a", "1", "evil", "\x1b[31mred\u009b"), metav1.CreateOptions{FieldManager: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	between := time.Now()
	nextMillisecond()
	second := first.DeepCopy()
	second.Data["a"], second.Data["b"] = "2", "new"
	if second, err = maps.Update(ctx, second, metav1.UpdateOptions{FieldManager: "bob"}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	out := p.must(t, "history", "configmap", "web")
	want := regexp.MustCompile(`(?s)^` + first.ResourceVersion + ` .* create  configmaps/web -n default  by alice, user [^\n]+\n` +
		second.ResourceVersion + ` .* update  configmaps/web -n default  by bob, user [^\n]+\n    - data.a: "1"\n    \+ data.a: "2"\n    \+ data.b: "new"\n` +
		`\d+ .* delete  configmaps/web -n default  by user [^\n]+\n$`)
	if !want.MatchString(out) {
		t.Errorf("history:\n%swant %s", out, want)
	}
	// By revision and by time, as an object and as a table.
	for _, at := range []string{first.ResourceVersion, between.Format(time.RFC3339Nano)} {
		var got corev1.ConfigMap
		if err := json.Unmarshal([]byte(p.must(t, "get", "cm", "web", "--at", at, "-o", "json")), &got); err != nil {
			t.Fatal(err)
		}
		if got.Data["a"] != "1" || got.UID != first.UID || got.ResourceVersion != first.ResourceVersion || got.Kind != "ConfigMap" {
			t.Errorf("at %s: %+v, want the first version", at, got)
		}
	}
	if out := p.must(t, "get", "cm", "-l", "app=web", "--at", second.ResourceVersion); !regexp.MustCompile(`^NAME +DATA +AGE\nweb +3 +\S+\n$`).MatchString(out) {
		t.Errorf("table: %q", out)
	}
	if out, stderr, code := runKelson(t, p.admin, "get", "cm", "web"); code != 1 || !strings.Contains(stderr, "not found at revision") {
		t.Errorf("get of what is deleted: %q %q %d, want an error", out, stderr, code)
	}
	out = p.must(t, "blame", "cm", "web", "--at", second.ResourceVersion)
	for path, want := range map[string]string{"  a: ": second.ResourceVersion + ` .* bob +`, "  b: ": second.ResourceVersion + ` .* bob +`, "  evil: ": first.ResourceVersion + ` .* alice +`} {
		if !regexp.MustCompile(`(?m)^` + want + path).MatchString(out) {
			t.Errorf("blame has no line %q for %q:\n%s", want, path, out)
		}
	}
	out = p.must(t, "diff", "--from", first.ResourceVersion, "--to", second.ResourceVersion, "-n", "default")
	if want := "~ configmaps/web -n default\n    - data.a: \"1\"\n    + data.a: \"2\"\n    + data.b: \"new\"\n"; out != want {
		t.Errorf("diff: %q, want %q", out, want)
	}
	for _, args := range []string{"history cm web -o json", "history cm web -o yaml", "history -n default", "get cm web -o yaml --at " + first.ResourceVersion,
		"get cm web -o json --at " + first.ResourceVersion, "blame cm web --at " + first.ResourceVersion, "diff --from " + first.ResourceVersion + " -o json"} {
		if out := p.must(t, strings.Fields(args)...); strings.ContainsAny(out, "\x1b\u009b") {
			t.Errorf("%s prints control characters: %q", args, out)
		}
	}
}

// History names the user of each write, also of a deletion.
func TestHistoryNamesUsers(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), startPast(t)
	as := func(user string) *kubernetes.Clientset {
		return kubernetes.NewForConfigOrDie(p.User(user, "system:masters"))
	}
	m, err := as("jane").CoreV1().ConfigMaps("default").Create(ctx, configMap("web", "a", "1"), metav1.CreateOptions{FieldManager: "tool"})
	if err != nil {
		t.Fatal(err)
	}
	m.Data["a"] = "2"
	if _, err := as("bob").CoreV1().ConfigMaps("default").Update(ctx, m, metav1.UpdateOptions{FieldManager: "tool"}); err != nil {
		t.Fatal(err)
	}
	if err := as("joe").CoreV1().ConfigMaps("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?s) create  configmaps/web -n default  by tool, user jane\n.* update  configmaps/web -n default  by tool, user bob\n.* delete  configmaps/web -n default  by user joe\n$`)
	if out := p.must(t, "history", "configmap", "web"); !want.MatchString(out) {
		t.Errorf("history:\n%s\nwant %s", out, want)
	}
	if out := p.must(t, "history", "configmap", "web", "-o", "json"); strings.Count(out, `"user": `) != 3 {
		t.Errorf("history -o json:\n%s\nwant three users", out)
	}
}

func TestUndoOfAnObject(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), startPast(t)
	maps := p.client.CoreV1().ConfigMaps("default")
	first, err := maps.Create(ctx, configMap("web", "a", "1"), metav1.CreateOptions{FieldManager: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	next := first.DeepCopy()
	for i, manager := range []string{"bob", "carol"} {
		next.Data["a"] = fmt.Sprint(i + 2)
		if next, err = maps.Update(ctx, next, metav1.UpdateOptions{FieldManager: manager}); err != nil {
			t.Fatal(err)
		}
	}
	out := p.must(t, "undo", "cm", "web", "--to", first.ResourceVersion, "--dry-run")
	if !regexp.MustCompile(`(?m)^update +configmaps/web -n default +carol *$`).MatchString(out) {
		t.Errorf("plan does not name the conflict:\n%s", out)
	}
	if now, err := maps.Get(ctx, "web", metav1.GetOptions{}); err != nil || now.Data["a"] != "3" {
		t.Fatalf("after a dry run: %v, %v", now.Data, err)
	}
	// Nobody says yes.
	if _, stderr, code := runKelson(t, p.admin, "undo", "cm", "web", "--to", first.ResourceVersion); code != 1 || !strings.Contains(stderr, "nothing was done") {
		t.Errorf("without an answer: %q, exit code %d", stderr, code)
	}
	p.must(t, "undo", "cm", "web", "--to", first.ResourceVersion, "--yes")
	if now, err := maps.Get(ctx, "web", metav1.GetOptions{}); err != nil || now.Data["a"] != "1" || now.UID != first.UID {
		t.Fatalf("after undo: %v, %v", now, err)
	}
	if err := maps.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.must(t, "undo", "cm", "web", "--to", next.ResourceVersion, "--yes")
	if now, err := maps.Get(ctx, "web", metav1.GetOptions{}); err != nil || now.Data["a"] != "3" || now.UID == first.UID {
		t.Fatalf("after undo of the deletion: %v, %v", now, err)
	}
	// And back to before there was one, first as a dry run.
	before := fmt.Sprint(revision(t, first.ResourceVersion) - 1)
	p.must(t, "undo", "cm", "web", "--to", before, "--dry-run")
	if _, err := maps.Get(ctx, "web", metav1.GetOptions{}); err != nil {
		t.Fatalf("after a dry run of a deletion: %v", err)
	}
	p.must(t, "undo", "cm", "web", "--to", before, "--yes")
	if _, err := maps.Get(ctx, "web", metav1.GetOptions{}); err == nil {
		t.Error("the object is still there")
	}
}

// Every command shows a user what the user may read, and nothing else.
func TestHistoryHeedsRights(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), startPast(t)
	if _, err := p.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	begin := ""
	for _, ns := range []string{"default", "other"} {
		m, err := p.client.CoreV1().ConfigMaps(ns).Create(ctx, configMap("shown", "a", "canary-shown-"+ns), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if begin == "" {
			begin = fmt.Sprint(revision(t, m.ResourceVersion) - 1)
		}
		m.Data["a"] += "-2"
		if _, err := p.client.CoreV1().ConfigMaps(ns).Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "canary-secret-" + ns}, StringData: map[string]string{"a": "x"}}
		if _, err := p.client.CoreV1().Secrets(ns).Create(ctx, s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "canary-account-" + ns}}
		if _, err := p.client.CoreV1().ServiceAccounts(ns).Create(ctx, sa, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pages := rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/debug/kelson/*"}}
	grant := func(user, namespace string, cluster []rbacv1.PolicyRule, rules ...rbacv1.PolicyRule) string {
		t.Helper()
		meta := metav1.ObjectMeta{Name: user}
		subject := []rbacv1.Subject{{Kind: "User", Name: user, APIGroup: rbacv1.GroupName}}
		if _, err := p.client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: cluster}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if len(rules) > 0 {
			if _, err := p.client.RbacV1().Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := p.client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		return p.kubeconfig(t, p.User(user))
	}
	core := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs}
	}
	users := map[string]struct {
		config string
		sees   []string // of the canaries
	}{
		"nobody":    {grant("nobody", "default", nil), nil},
		"page-only": {grant("page-only", "default", []rbacv1.PolicyRule{pages}), nil},
		// Without the right to the page the rights to the objects do not help.
		"objects-only":   {grant("objects-only", "default", nil, core("configmaps", "get", "list")), nil},
		"getter":         {grant("getter", "default", []rbacv1.PolicyRule{pages}, core("configmaps", "get")), []string{"get canary-shown-default"}},
		"lister":         {grant("lister", "default", []rbacv1.PolicyRule{pages}, core("configmaps", "list")), []string{"list canary-shown-default"}},
		"secret-lister":  {grant("secret-lister", "default", []rbacv1.PolicyRule{pages}, core("secrets", "list")), nil},
		"secret-reader":  {grant("secret-reader", "default", []rbacv1.PolicyRule{pages}, core("secrets", "list", "get")), []string{"list canary-secret-default", "get canary-secret-default"}},
		"account-lister": {grant("account-lister", "other", []rbacv1.PolicyRule{pages}, core("serviceaccounts", "list")), []string{"list canary-account-other"}},
	}
	commands := []struct{ verb, line string }{
		{"list", "history -n NS"}, {"list", "history -A"}, {"list", "history cm -n NS"}, {"list", "history cm -A"}, {"list", "history secrets -n NS"}, {"list", "history -n NS -o json"},
		{"get", "history cm shown -n NS"}, {"get", "history secret canary-secret-NS -n NS"}, {"get", "history secret canary-secret-NS -n NS -o json"},
		{"list", "get cm -n NS"}, {"list", "get cm -n NS -o json"}, {"list", "get cm -A -o json"}, {"list", "get secrets -n NS"}, {"list", "get sa -n NS -o yaml"},
		{"get", "get cm shown -n NS -o json"}, {"get", "get secret canary-secret-NS -n NS -o json"}, {"get", "blame cm shown -n NS"}, {"get", "blame secret canary-secret-NS -n NS -o json"},
		{"list", "diff -n NS --from BEGIN"}, {"list", "diff -A --from BEGIN -o json"}, {"list", "diff cm -n NS --from BEGIN -o json"}, {"list", "diff -n NS --from BEGIN -o json"},
		{"get", "diff cm shown -n NS --from BEGIN -o json"},
		{"list", "undo -n NS --to BEGIN --dry-run"}, {"list", "undo -A --to BEGIN --dry-run -o json"}, {"get", "undo cm shown -n NS --to BEGIN --dry-run -o json"},
	}
	seen := map[string]bool{}
	for user, c := range users {
		for _, command := range commands {
			for _, ns := range []string{"default", "other"} {
				line := strings.NewReplacer("NS", ns, "BEGIN", begin).Replace(command.line)
				out, stderr, _ := runKelson(t, c.config, strings.Fields(line)...)
				// The command line itself names some.
				text := out + strings.ReplaceAll(stderr, fmt.Sprintf("secrets %q is forbidden", "canary-secret-"+ns), "")
				for _, canary := range []string{"canary-shown-default", "canary-shown-other", "canary-secret-default", "canary-secret-other", "canary-account-default", "canary-account-other"} {
					if !strings.Contains(text, canary) {
						continue
					}
					what := command.verb + " " + canary
					seen[user+" "+what] = true
					if !contains(c.sees, what) {
						t.Errorf("%s: kelson %s shows %s:\n%s%s", user, line, canary, out, stderr)
					}
				}
			}
		}
		for _, what := range c.sees {
			if !seen[user+" "+what] {
				t.Errorf("%s sees no %s, although it may", user, what)
			}
		}
	}
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

func TestMoments(t *testing.T) {
	now := time.Date(2026, 5, 2, 13, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"": "", "now": "now", "812": "812", "10m": "2026-05-02T12:50:00Z", "12:30": "2026-05-02T12:30:00Z", "14:05": "2026-05-01T14:05:00Z",
		"14:05:06": "2026-05-01T14:05:06Z", "2026-05-01": "2026-05-01T00:00:00Z", "2026-05-01 10:00": "2026-05-01T10:00:00Z", "2026-05-01T10:00:00+02:00": "2026-05-01T10:00:00+02:00",
		"-10m": "error", "yesterday": "error", "25:00": "error",
	} {
		got, err := moment(text, now)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("moment %q: %q (%v), want %q", text, got, err, want)
		}
	}
}

func TestCleanText(t *testing.T) {
	for text, want := range map[string]string{
		"plain ü 日本": "plain ü 日本", "\x1b[2J": `\u001b[2J`, "a\nb\tc": `a\u000ab\u0009c`, "\u009b31m": `\u009b31m`, "\u202eabc": `\u202eabc`, "\U000e0041": `\udb40\udc41`,
	} {
		if got := clean(text); got != want {
			t.Errorf("clean(%q) = %q, want %q", text, got, want)
		}
	}
}
