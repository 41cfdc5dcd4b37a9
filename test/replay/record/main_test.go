package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRecordingTwiceChangesNothing records a request written by hand, on a server whose
// answers have another revision, time and UID each time.
func TestRecordingTwiceChangesNothing(t *testing.T) {
	requests, data := 0, "1"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		if r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s %s: Authorization is %q, want that of -token", r.Method, r.URL, r.Header.Get("Authorization"))
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Audit-Id", fmt.Sprint(requests))
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"metadata":{"uid":"00000000-0000-0000-0000-%012d","resourceVersion":"%d"},"data":%s}`, requests, requests, data)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "a.txtar")
	const request = "-- a/one/0/request --\nPOST /api/v1/namespaces/{{ns}}/configmaps\n\n{}\n"
	const response = `-- a/one/0/response --
201 Created
Audit-Id: <uid>
Content-Type: application/json

{"data": %s, "metadata": {"resourceVersion": "<rv>", "uid": "<uid>"}}
`
	write(t, file, request)
	for _, step := range []struct {
		name, data, before string
		flags              []string
		out, err, want     string
	}{
		{name: "first", data: "1", out: "1 recordings played, 1 changed", want: request + fmt.Sprintf(response, "1")},
		{name: "again", data: "1", out: "1 recordings played, 0 changed", want: request + fmt.Sprintf(response, "1")},
		{name: "only what is missing", data: "2", flags: []string{"-missing"}, out: "0 recordings played", want: request + fmt.Sprintf(response, "1")},
		{name: "filtered out", data: "2", flags: []string{"-filter", "two"}, out: "0 recordings played", want: request + fmt.Sprintf(response, "1")},
		{name: "check", data: "2", flags: []string{"-check"}, out: "is 2, recorded is 1", err: "1 recordings differ", want: request + fmt.Sprintf(response, "1")},
		{name: "other answer", data: "2", out: "1 recordings played, 1 changed", want: request + fmt.Sprintf(response, "2")},
		{
			name: "own", data: "2", flags: []string{"-missing"}, out: "@own is removed",
			before: request + strings.Replace(fmt.Sprintf(response, "2"), "Created\n", "Created\n@own\n", 1),
			want:   request + fmt.Sprintf(response, "2"),
		},
	} {
		data = step.data
		if step.before != "" {
			write(t, file, step.before)
		}
		var out strings.Builder
		err := run(t.Context(), append(append([]string{"-server", server.URL, "-token", "secret"}, step.flags...), file), &out)
		if got := fmt.Sprint(err); err != nil && got != step.err || err == nil && step.err != "" {
			t.Errorf("%s: got error %v, want %q", step.name, err, step.err)
		}
		if !strings.Contains(out.String(), step.out) {
			t.Errorf("%s: got output %q, want %q in it", step.name, out.String(), step.out)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != step.want {
			t.Errorf("%s: got\n%s\nwant\n%s", step.name, got, step.want)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
