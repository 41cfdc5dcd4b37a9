package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/kelsontest"
)

// TestControl: what tests in other languages can do with the server of 'kelson run'.
func TestControl(t *testing.T) {
	t.Parallel()
	server := kelsontest.Start(t)
	c, err := startControl(server)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	ask := func(token, method, path, body string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, c.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d %s", resp.StatusCode, strings.TrimSpace(string(text)))
	}
	client := kubernetes.NewForConfigOrDie(server.Config()).CoreV1().ConfigMaps("default")
	create := func(name string) string {
		made, err := client.Create(t.Context(), configMap(name), metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		return made.CreationTimestamp.UTC().String()
	}
	list := func() (names []string) {
		all, err := client.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range all.Items {
			names = append(names, item.Name)
		}
		return names
	}
	before := fmt.Sprint(list())
	for _, step := range []struct{ token, method, path, body, want string }{
		{"", "POST", "/snapshots", `{"name":"clean"}`, `401 {"error":"the header Authorization must be Bearer and $KELSON_CONTROL_TOKEN"}`},
		{"guess", "DELETE", "/faults", ``, `401`},
		{c.token, "POST", "/snapshots", `{"name":"clean"}`, `200 {}`},
		{c.token, "POST", "/snapshots", `{}`, `400 {"error":"a snapshot needs a name"}`},
		{c.token, "POST", "/snapshots", `{"nam":"clean"}`, `400 {"error":"the body is not what POST /snapshots takes: json: unknown field \"nam\""}`},
		{c.token, "POST", "/snapshots", `{"name":"` + strings.Repeat("x", maxControlBody) + `"}`, `400`},
		{c.token, "GET", "/", ``, `404`},
		{c.token, "POST", "/faults", `{"rule":{"verb":"create"}}`, `400 {"error":"a fault has one of delay, fail, drop and loseAnswer, not 0"}`},
		{c.token, "POST", "/faults", `{"fail":{"code":200}}`, `400 {"error":"fail.code is 200, and not between 400 and 599"}`},
		{c.token, "POST", "/faults", `{"delay":"soon"}`, `400 {"error":"delay: time: invalid duration \"soon\""}`},
		{c.token, "POST", "/faults", `{"rule":{"verb":"create","resource":"configmaps"},"fail":{"code":403,"reason":"Forbidden","message":"not today"},"times":1}`, `200 {"fault":0}`},
	} {
		if got := ask(step.token, step.method, step.path, step.body); !strings.HasPrefix(got, step.want) {
			t.Errorf("%s %s %.100s: got %.200s, want %s", step.method, step.path, step.body, got, step.want)
		}
	}
	if got := create("a"); got != "not today" {
		t.Errorf("got %q, want the fault", got)
	}
	if got := ask(c.token, "GET", "/faults", ""); got != `200 {"hits":[1]}` {
		t.Errorf("got %s, want one hit", got)
	}
	ask(c.token, "DELETE", "/faults", "")
	if got := ask(c.token, "POST", "/clock", `{"freeze":"2030-01-02T03:04:05Z"}`); got != `200 {"now":"2030-01-02T03:04:05Z"}` {
		t.Errorf("got %s, want the clock to stand", got)
	}
	if got := create("a"); got != "2030-01-02 03:04:05 +0000 UTC" {
		t.Errorf("got %q, want the time of the clock", got)
	}
	if got := ask(c.token, "POST", "/restore", `{"name":"clean"}`); got != "200 {}" || fmt.Sprint(list()) != before {
		t.Errorf("got %s and %v, want %v", got, list(), before)
	}
	file := strings.TrimSuffix(strings.TrimPrefix(ask(c.token, "POST", "/users", `{"name":"jane"}`), `200 {"kubeconfig":"`), `"}`)
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), server.URL()) {
		t.Errorf("got error %v and %s, want a kubeconfig for %s", err, text, server.URL())
	}
}
