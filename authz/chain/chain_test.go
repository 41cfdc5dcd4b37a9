package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/authz/webhook"
	"github.com/apikeel/kelson/request"
)

// by is an authorizer that says its name.
type by string

func (b by) Authorize(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	if a.User.Name == string(b) {
		return authz.Allow, "allowed by " + string(b), nil
	}
	return authz.NoOpinion, string(b) + " does not know", nil
}

func (b by) RulesFor(context.Context, *request.User, string) ([]authz.ResourceRule, []authz.PathRule, bool, error) {
	return []authz.ResourceRule{{Verbs: []string{string(b)}}}, nil, false, nil
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// service is a webhook that allows the user called name, and its kubeconfig.
func service(t *testing.T, name string) (kubeconfig string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, r.ContentLength)
		_, _ = r.Body.Read(body)
		fmt.Fprintf(w, `{"status":{"allowed":%v,"reason":"%s"}}`, strings.Contains(string(body), `"user":"`+name+`"`), name)
	}))
	t.Cleanup(s.Close)
	return write(t, "kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c","user":""}}]}`, s.URL))
}

func asks(t *testing.T, c *Chain, user string, groups ...string) string {
	t.Helper()
	d, reason, err := c.Authorize(t.Context(), &authz.Attributes{User: &request.User{Name: user, Groups: groups}, Verb: "get", Path: "/x"})
	return fmt.Sprint([]string{"no opinion", "deny", "allow"}[d], ": ", reason, " ", err)
}

func TestModes(t *testing.T) {
	policy := write(t, "policy", `{"user":"abby"}`)
	for _, c := range []struct {
		name string
		cfg  Config
		user string
		want string
	}{
		{"default", Config{}, "node", "allow: allowed by node <nil>"},
		{"default, order", Config{}, "x", "no opinion: node: node does not know\nrbac: rbac does not know <nil>"},
		{"another order", Config{Modes: []string{ModeRBAC, ModeNode}}, "x", "no opinion: rbac: rbac does not know\nnode: node does not know <nil>"},
		{"AlwaysAllow", Config{Modes: []string{ModeAlwaysAllow}}, "x", "allow:  <nil>"},
		{"AlwaysDeny", Config{Modes: []string{ModeAlwaysDeny}}, "x", "no opinion: alwaysdeny: Everything is forbidden. <nil>"},
		{"AlwaysDeny, RBAC", Config{Modes: []string{ModeAlwaysDeny, ModeRBAC}}, "rbac", "allow: allowed by rbac <nil>"},
		{"ABAC", Config{Modes: []string{ModeABAC}, PolicyFile: policy}, "abby", "allow:  <nil>"},
		{"ABAC, not", Config{Modes: []string{ModeABAC}, PolicyFile: policy}, "x", "no opinion: abac: No policy matched. <nil>"},
		{"Webhook", Config{Modes: []string{ModeWebhook}, WebhookConfigFile: service(t, "wendy"), WebhookVersion: "v1"}, "wendy", "allow: wendy <nil>"},
		{"Webhook, not", Config{Modes: []string{ModeWebhook}, WebhookConfigFile: service(t, "wendy")}, "x", "no opinion: default: wendy <nil>"},
	} {
		c.cfg.RBAC, c.cfg.Node = by("rbac"), by("node")
		all, err := New(c.cfg)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		user := c.user
		if got := asks(t, all, user); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if got := asks(t, all, "m", authz.Masters); got != "allow:  <nil>" {
			t.Errorf("%s: a master: %s", c.name, got)
		}
	}
	all, err := New(Config{RBAC: by("rbac"), Node: by("node")})
	if err != nil {
		t.Fatal(err)
	}
	if rules, _, _, _ := all.RulesFor(t.Context(), &request.User{}, "ns"); fmt.Sprint(rules) != "[{[node] [] [] []} {[rbac] [] [] []}]" {
		t.Error(rules)
	}
}

func TestFlagErrors(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Modes: []string{"Nope"}}, `authorization-mode "Nope" is not a valid mode`},
		{Config{Modes: []string{ModeABAC}}, `authorization-mode ABAC's authorization policy file not passed`},
		{Config{Modes: []string{ModeWebhook}}, `authorization-mode Webhook's authorization config file not passed`},
		{Config{Modes: []string{ModeRBAC}, PolicyFile: "x"}, `cannot specify --authorization-policy-file without mode ABAC`},
		{Config{Modes: []string{ModeRBAC}, WebhookConfigFile: "x"}, `cannot specify --authorization-webhook-config-file without mode Webhook`},
		{Config{Modes: []string{ModeRBAC, ModeRBAC}}, `authorization-mode ["RBAC" "RBAC"] has mode specified more than once`},
		{Config{WebhookBackoff: &wait.Backoff{}}, `number of webhook retry attempts must be greater than 0, but is: 0`},
		{Config{ConfigFile: "x", Modes: []string{ModeRBAC}}, `--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined`},
		{Config{ConfigFile: "x", WebhookVersion: "v1"}, `--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined`},
		{Config{Modes: []string{"A", "B"}}, `[authorization-mode "A" is not a valid mode, authorization-mode "B" is not a valid mode]`},
		{Config{Modes: []string{ModeRBAC}}, `invalid authorization config: authorizer type RBAC is not allowed if it was not enabled at initial server startup`},
		{Config{ConfigFile: "/does/not/exist"}, `open /does/not/exist: no such file or directory`},
		{Config{Modes: []string{ModeABAC}, PolicyFile: "/does/not/exist"}, `invalid authorization config: open /does/not/exist: no such file or directory`},
		{Config{Modes: []string{ModeWebhook}, WebhookConfigFile: "/does/not/exist"}, `invalid authorization config: stat /does/not/exist: no such file or directory`},
		{Config{Modes: []string{ModeWebhook}, WebhookConfigFile: service(t, "x"), WebhookVersion: "v3"},
			`invalid authorization config: unsupported webhook authorizer version "v3", supported versions are "v1", "v1beta1"`},
	} {
		if _, err := New(c.cfg); err == nil || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

const header = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n"

// hook is a webhook in a configuration.
func hook(name, kubeconfig, more string) string {
	return `
- type: Webhook
  name: ` + name + `
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: ` + kubeconfig + `}
` + more
}

func TestFileErrors(t *testing.T) {
	kubeconfig := service(t, "x")
	folder := t.TempDir()
	one := func(fields string) string {
		return header + "authorizers:\n- type: Webhook\n  name: w\n  webhook: {" + fields + "}"
	}
	const fine = `timeout: 3s, subjectAccessReviewVersion: v1, failurePolicy: Deny, connectionInfo: {type: InClusterConfig}`
	with := func(more string) string { return one(fine + ", " + more) }
	for _, c := range []struct{ file, want string }{
		{``, `authorizers: Required value: at least one authorization mode must be defined`},
		{header, `authorizers: Required value: at least one authorization mode must be defined`},
		{header + "authorizers: [{type: RBAC, name: rbac, foo: 1}]", `failed to load AuthorizationConfiguration from file: strict decoding error: unknown field "authorizers[0].foo"`},
		{"authorizers: []", `failed to load AuthorizationConfiguration from file: Object 'Kind' is missing in 'the file'`},
		{"kind: AuthorizationConfiguration", `failed to load AuthorizationConfiguration from file: Object 'apiVersion' is missing in 'the file'`},
		{"apiVersion: v1\nkind: Pod", `failed to load AuthorizationConfiguration from file: no kind "Pod" is registered for version "v1" in scheme "pkg/runtime/scheme.go:111"`},
		{header + "authorizers: [{name: x}]", `authorizers[0].type: Required value`},
		{header + "authorizers: [{type: Foo, name: x}]", `authorizers[0].type: Unsupported value: "Foo": supported values: "ABAC", "AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"`},
		{header + "authorizers: [{type: RBAC, name: rbac}, {type: RBAC, name: rbac2}]", `authorizers[1].type: Duplicate value: "RBAC"`},
		{header + "authorizers: [{type: RBAC}]", `authorizers[0].name: Required value`},
		{header + "authorizers: [{type: RBAC, name: x}, {type: Node, name: x}]", `authorizers[1].name: Duplicate value: "x"`},
		{header + "authorizers: [{type: RBAC, name: X}]", `authorizers[0].name: Invalid value: "X": authorizer name is invalid: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`},
		{header + "authorizers: [{type: RBAC, name: x}]", `expected name rbac for authorizer RBAC instead of x`},
		{header + "authorizers: [{type: RBAC, name: rbac, webhook: {}}]", `authorizers[0].webhook: Invalid value: "non-null": may only be specified when type=Webhook`},
		{header + "authorizers: [{type: Webhook, name: w}]", `authorizers[0].webhook: Required value: required when type=Webhook`},
		{one(``), `[authorizers[0].timeout: Required value, authorizers[0].subjectAccessReviewVersion: Required value, authorizers[0].failurePolicy: Required value, authorizers[0].connectionInfo.type: Required value]`},
		{one(`timeout: 31s, subjectAccessReviewVersion: v2, failurePolicy: Allow, connectionInfo: {type: X}`), `[authorizers[0].timeout: Invalid value: "31s": must be > 0s and <= 30s, authorizers[0].subjectAccessReviewVersion: Unsupported value: "v2": supported values: "v1", "v1beta1", authorizers[0].failurePolicy: Unsupported value: "Allow": supported values: "NoOpinion", "Deny", authorizers[0].connectionInfo.type: Unsupported value: {"Type":"X","KubeConfigFile":null}: supported values: "InClusterConfig", "KubeConfigFile"]`},
		{with(`authorizedTTL: -1s`), `authorizers[0].authorizedTTL: Invalid value: "-1s": must be > 0s`},
		{with(`unauthorizedTTL: -1s`), `authorizers[0].unauthorizedTTL: Invalid value: "-1s": must be > 0s`},
		{with(`matchConditionSubjectAccessReviewVersion: v1beta1`), `authorizers[0].matchConditionSubjectAccessReviewVersion: Unsupported value: "v1beta1": supported values: "v1"`},
		{with(`matchConditions: [{expression: "true"}]`), `authorizers[0].matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified`},
		{with(`matchConditionSubjectAccessReviewVersion: v1, matchConditions: [{expression: "1"}]`), `authorizers[0].matchConditions[0].expression: Invalid value: "1": must evaluate to bool but got int`},
		{one(`timeout: 3s, subjectAccessReviewVersion: v1, failurePolicy: Deny, connectionInfo: {type: InClusterConfig, kubeConfigFile: x}`), `authorizers[0].connectionInfo.kubeConfigFile: Invalid value: "x": can only be set when type=KubeConfigFile`},
		{one(`timeout: 3s, subjectAccessReviewVersion: v1, failurePolicy: Deny, connectionInfo: {type: KubeConfigFile}`), `authorizers[0].connectionInfo.kubeConfigFile: Required value`},
		{one(`timeout: 3s, subjectAccessReviewVersion: v1, failurePolicy: Deny, connectionInfo: {type: KubeConfigFile, kubeConfigFile: x}`), `authorizers[0].connectionInfo.kubeConfigFile: Invalid value: "x": must be an absolute path`},
		{one(`timeout: 3s, subjectAccessReviewVersion: v1, failurePolicy: Deny, connectionInfo: {type: KubeConfigFile, kubeConfigFile: /no/x}`), `authorizers[0].connectionInfo.kubeConfigFile: Invalid value: "/no/x": error loading file: stat /no/x: no such file or directory`},
		{one(`timeout: 3s, subjectAccessReviewVersion: v1, failurePolicy: Deny, connectionInfo: {type: KubeConfigFile, kubeConfigFile: ` + folder + `}`), `authorizers[0].connectionInfo.kubeConfigFile: Invalid value: "` + folder + `": must be a regular file`},
		{one(fine), `invalid authorization config: connections of type InClusterConfig are not for an API server`},
		{header + "authorizers:" + hook("a", kubeconfig, "") + hook("a", kubeconfig, ""), `authorizers[1].name: Duplicate value: "a"`},
	} {
		_, err := New(Config{ConfigFile: write(t, "config", c.file), RBAC: by("rbac"), Node: by("node")})
		if err == nil || err.Error() != c.want {
			t.Errorf("%s\ngot  %v\nwant %s", strings.TrimPrefix(c.file, header), err, c.want)
		}
	}
}

func TestFile(t *testing.T) {
	condition := "    matchConditionSubjectAccessReviewVersion: v1\n    matchConditions: [{expression: \"request.user != 'wendy'\"}]\n"
	file := write(t, "config", header+"authorizers:"+hook("one", service(t, "wendy"), condition)+hook("two", service(t, "will"), "")+
		"\n- {type: RBAC, name: rbac}\n")
	all, err := New(Config{ConfigFile: file, RBAC: by("rbac"), Node: by("node")})
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]string{
		"will":  "allow: will <nil>",
		"rbac":  "allow: allowed by rbac <nil>",
		"wendy": "no opinion: two: will\nrbac: rbac does not know <nil>", // the condition spares her the first
		"node":  "no opinion: one: wendy\ntwo: will\nrbac: rbac does not know <nil>",
	} {
		if got := asks(t, all, user); got != want {
			t.Errorf("%s: got %q, want %q", user, got, want)
		}
	}
}

// TestReload changes the file under a chain that runs.
func TestReload(t *testing.T) {
	file := write(t, "config", header+"authorizers: [{type: RBAC, name: rbac}]")
	log := &lines{seen: make(chan string, 16)}
	all, err := New(Config{ConfigFile: file, RBAC: by("rbac"), Node: by("node"), Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	all.files.Interval = time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); all.Run(ctx) }()
	defer func() { stop(); <-done }()
	replace := func(text string) string {
		t.Helper()
		next := write(t, "next", text)
		if err := os.Rename(next, file); err != nil {
			t.Fatal(err)
		}
		select {
		case line := <-log.seen:
			return line
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was logged")
		}
		return ""
	}
	replace(header + "authorizers: [{type: RBAC, name: rbac}, {type: AlwaysAllow, name: alwaysallow}]")
	if got := asks(t, all, "x"); got != "allow:  <nil>" {
		t.Error(got)
	}
	for _, c := range []struct{ file, want string }{
		{"nonsense", "failed to load AuthorizationConfiguration from file"},
		{header + "authorizers: [{type: AlwaysAllow, name: alwaysallow}]", "missing required types: [RBAC]"},
		{header + "authorizers: [{type: RBAC, name: rbac}, {type: Node, name: node}]", "authorizer type Node is not allowed if it was not enabled at initial server startup"},
	} {
		if line := replace(c.file); !strings.Contains(line, c.want) {
			t.Errorf("got %q, want %q", line, c.want)
		}
		if got := asks(t, all, "x"); got != "allow:  <nil>" {
			t.Errorf("%s: the old configuration is gone: %s", c.file, got)
		}
	}
	replace(header + "authorizers: [{type: RBAC, name: rbac}]")
	if got := asks(t, all, "x"); got != "no opinion: rbac: rbac does not know <nil>" {
		t.Error(got)
	}
}

// lines is a log handler that passes lines on.
type lines struct{ seen chan string }

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	l.seen <- text
	return nil
}
func (l *lines) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *lines) WithGroup(string) slog.Handler      { return l }

func FuzzConfiguration(f *testing.F) {
	f.Add([]byte(header + "authorizers: [{type: RBAC, name: rbac}]"))
	f.Add([]byte(header + "authorizers:" + hook("a", "/x", "    matchConditions: [{expression: 'true'}]\n")))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decode(data)
		if err != nil {
			return
		}
		c.defaults()
		if errs := c.validate(func() (*webhook.Compiler, error) { return nil, errors.New("none") }); len(errs) == 0 && len(c.Authorizers) == 0 {
			t.Error("nobody to ask is valid")
		}
	})
}
