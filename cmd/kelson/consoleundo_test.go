package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// consoleUndoOf returns the action undo for a server.
func consoleUndoOf(t *testing.T, p *pastServer) *consoleUndo {
	t.Helper()
	target, err := (&ask{kubeconfig: p.admin, output: "table"}).connect()
	if err != nil {
		t.Fatal(err)
	}
	return newConsoleUndo(target)
}

// post sends a request to the action, and returns the code and the answer.
func (c *consoleUndo) post(t *testing.T, body string) (int, undoAnswerText) {
	t.Helper()
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/console/undo", strings.NewReader(body)))
	var answer undoAnswerText
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("the answer to %s is not JSON: %v\n%s", body, err, w.Body)
	}
	return w.Code, answer
}

// undoAnswerText is an answer as the page reads it.
type undoAnswerText struct {
	ID, Message  string
	Done, Failed int
	Steps        []struct {
		Resource, Name, Action, Result, Error string
		Fields                                []struct {
			Path     string
			Old, New any
		}
	}
}

// What is done is the plan that was shown, once; an object that has changed since stays as
// it is, and is reported.
func TestConsoleUndoDoesThePlanThatWasShown(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), startPast(t)
	c := consoleUndoOf(t, p)
	maps := p.client.CoreV1().ConfigMaps("default")
	for _, name := range []string{"a", "b"} {
		if _, err := maps.Create(ctx, configMap(name, "k", "old"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	was, err := maps.Get(ctx, "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change := func(name, value string) {
		t.Helper()
		m := configMap(name, "k", value)
		if _, err := maps.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	change("a", "new")
	change("b", "new")
	plan := `{"plan":true,"resource":"configmaps","version":"v1","namespace":"default","selector":"app in (a,b)","to":"` + was.ResourceVersion + `"}`
	code, shown := c.post(t, plan)
	if code != http.StatusOK || len(shown.Steps) != 2 || shown.ID == "" {
		t.Fatalf("a plan: got code %d and %+v, want two steps", code, shown)
	}
	if f := shown.Steps[0].Fields; len(f) != 1 || f[0].Path != "data.k" || f[0].Old != "new" || f[0].New != "old" {
		t.Errorf("fields of the first step: got %+v, want data.k from new to old", f)
	}
	change("b", "newer")
	code, done := c.post(t, `{"id":"`+shown.ID+`"}`)
	if code != http.StatusOK || done.Done != 1 || done.Failed != 1 {
		t.Fatalf("doing it: got code %d, %d done and %d failed, want one of each: %+v", code, done.Done, done.Failed, done)
	}
	for _, s := range done.Steps {
		if s.Name == "b" && (s.Result != "failed" || !strings.Contains(s.Error, "modified")) {
			t.Errorf("the changed object: got %+v, want a conflict", s)
		}
	}
	for name, want := range map[string]string{"a": "old", "b": "newer"} {
		if m, err := maps.Get(ctx, name, metav1.GetOptions{}); err != nil || m.Data["k"] != want {
			t.Errorf("%s: got %v (%v), want %s", name, m.Data, err, want)
		}
	}
	if code, again := c.post(t, `{"id":"`+shown.ID+`"}`); code != http.StatusGone {
		t.Errorf("the same plan again: got code %d and %q, want 410", code, again.Message)
	}
}

// A plan does not show the values of secrets.
func TestConsoleUndoHidesSecrets(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), startPast(t)
	c := consoleUndoOf(t, p)
	secrets := p.client.CoreV1().Secrets("default")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "hunter2"}}
	was, err := secrets.Create(ctx, secret, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret.StringData["k"] = "hunter3"
	if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, shown := c.post(t, `{"plan":true,"resource":"secrets","namespace":"default","name":"s","to":"`+was.ResourceVersion+`"}`)
	if len(shown.Steps) != 1 || len(shown.Steps[0].Fields) != 1 {
		t.Fatalf("got %+v, want one step with one field", shown)
	}
	if f := shown.Steps[0].Fields[0]; f.Path != "data.k" || !strings.HasPrefix(f.New.(string), "***") || !strings.HasPrefix(f.Old.(string), "***") {
		t.Errorf("got %+v, want data.k without its values", f)
	}
}

// The action answers wrong requests with a Status.
func TestConsoleUndoRefusesWrongRequests(t *testing.T) {
	t.Parallel()
	c := newConsoleUndo(nil)
	for body, want := range map[string]int{
		"":                                 http.StatusBadRequest,
		`{"plan":true,"to":"10m"}`:         http.StatusBadRequest, // of everything
		`{"plan":true,"namespace":"shop"}`: http.StatusBadRequest, // to when
		`{"plan":true,"namespace":"shop","to":"yesterday"}`: http.StatusBadRequest,
		`{"id":"` + strings.Repeat("x", maxUndoBody) + `"}`: http.StatusBadRequest,
		`{"id":"nobody"}`: http.StatusGone,
	} {
		if code, answer := c.post(t, body); code != want || answer.Message == "" {
			t.Errorf("%.60s: got code %d and message %q, want code %d and a message", body, code, answer.Message, want)
		}
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/console/undo", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: got code %d, want 405", w.Code)
	}
}
