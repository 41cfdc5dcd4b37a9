//go:build linux

package main

import (
	"bytes"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
)

func jsonAnswer(status int, body string) *answer {
	return &answer{status, http.Header{"Content-Type": {"application/json"}}, []byte(body)}
}

// TestJudgeOverlooksWhatServersMakeUp compares answers that differ in what no two servers
// have in common, and in more than that.
func TestJudgeOverlooksWhatServersMakeUp(t *testing.T) {
	const one, other = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
	object := func(uid, version, spec string) string {
		return `{"metadata":{"name":"a","uid":"` + uid + `","resourceVersion":"` + version + `"},"spec":` + spec + `}`
	}
	for _, c := range []struct {
		name, reference, kelson, where string
	}{
		{"uid and revision", object(one, "7", "1"), object(other, "12", "1"), ""},
		{"a value", object(one, "7", "1"), object(other, "12", "2"), ".spec"},
		{"a revision that is none", object(one, "7", "1"), object(other, "x", "1"), ".metadata.resourceVersion"},
		{"a field", `{"a":1}`, `{"a":1,"b":2}`, ".b"},
		{"uids in keys", `{"a":{"uid":"` + one + `"},"f":{"k:{\"uid\":\"` + one + `\"}":{}}}`, `{"a":{"uid":"` + other + `"},"f":{"k:{\"uid\":\"` + other + `\"}":{}}}`, ""},
		{"the order of problems", `{"message":"x is invalid: [a: b, c: d]"}`, `{"message":"x is invalid: [c: d, a: b]"}`, ""},
		{"other problems", `{"message":"x is invalid: [a: b, c: d]"}`, `{"message":"x is invalid: [c: d, a: e]"}`, ".message"},
		{"the order of causes", `{"causes":[{"field":"a"},{"field":"b"}]}`, `{"causes":[{"field":"b"},{"field":"a"}]}`, ""},
		{"times", `{"creationTimestamp":"2026-01-01T00:00:00Z"}`, `{"creationTimestamp":"2026-01-01T00:00:01Z"}`, ""},
		{"times that were sent", `{"at":"2001-01-01T00:00:00Z"}`, `{"at":"2001-01-01T00:00:01Z"}`, ".at"},
	} {
		j := &judge{pairs: map[string]string{}}
		where, a, b := j.compare(jsonAnswer(200, c.reference), jsonAnswer(200, c.kelson))
		if where != c.where {
			t.Errorf("%s: got a difference at %q (%s, %s), want %q", c.name, where, a, b, c.where)
		}
	}
	j := &judge{pairs: map[string]string{}}
	if where, _, _ := j.compare(jsonAnswer(200, "{}"), jsonAnswer(201, "{}")); where != "status" {
		t.Errorf("two statuses: got a difference at %q, want status", where)
	}
	// What stands for the same is sent to each in its own words.
	j.compare(jsonAnswer(200, object(one, "7", "1")), jsonAnswer(200, object(other, "12", "1")))
	if got := j.translate(map[string]any{"uid": one, "resourceVersion": "7"}); show(got, true) != `{"resourceVersion":"12","uid":"`+other+`"}` {
		t.Errorf("got %s for a request with the reference's uid and revision, want Kelson's", show(got, true))
	}
	c := &client{judge: j}
	m := c.encode(&request{method: "GET", path: "/x", query: url.Values{"timeoutSeconds": {"7"}, "resourceVersion": {"7"}, "fieldSelector": {one}}}, true)
	if got, want := m.query.Encode(), "fieldSelector="+other+"&resourceVersion=12&timeoutSeconds=7"; got != want {
		t.Errorf("got the query %s, want %s", got, want)
	}
}

// TestGeneratorFillsSchemas makes objects of a schema, changes them, and wants all of it to
// be JSON, and the same for the same seed.
func TestGeneratorFillsSchemas(t *testing.T) {
	str, number := &schema{Type: "string"}, &schema{Type: "integer"}
	kind := &schema{name: "Thing", Type: "object", Required: []string{"spec"}, Properties: map[string]*schema{
		"spec": {name: "Spec", Type: "object", Required: []string{"name"}, Properties: map[string]*schema{
			"name": str, "size": number, "parts": {Type: "array", Items: &schema{Ref: "#/components/schemas/Part"}},
		}},
	}}
	part := &schema{name: "Part", Type: "object", Properties: map[string]*schema{"port": {IntOrString: true}, "labels": {Type: "object", additional: str}}}
	a := &api{schemas: map[string]*schema{"Part": part}, kinds: map[string]*schema{"g/v1/Thing": kind}}
	s := &seeds{valid: map[string][]map[string]any{}, all: map[string][]map[string]any{}}
	g := newGenerator(a, s)
	res := &resource{group: "g", version: "v1", kind: "Thing", plural: "things"}
	for seed := range randomtest.Seeds(t, 200) {
		r := randomtest.Rand(seed, 0)
		o := g.object(r, res)
		if o["kind"] != "Thing" || o["spec"] == nil {
			t.Fatalf("got %s, want a Thing with a spec", show(o, true))
		}
		for range 5 {
			g.mutate(r, kind, o)
		}
		text := show(o, true)
		if !strings.HasPrefix(text, "{") {
			t.Fatalf("got %s, want JSON", text)
		}
		again := randomtest.Rand(seed, 0)
		o = g.object(again, res)
		for range 5 {
			g.mutate(again, kind, o)
		}
		if got := show(o, true); got != text {
			t.Fatalf("got %s the second time, want %s", got, text)
		}
	}
}

// TestScenariosHaveNames wants scenarios that -scenario can select.
func TestScenariosHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range scenarios() {
		if seen[s.name] || s.name == "" || s.about == "" {
			t.Errorf("scenario %q: got no name of its own, or no description", s.name)
		}
		seen[s.name] = true
	}
	if !seen["gates-0"] || !seen["emulated-1.36"] {
		t.Errorf("got the scenarios %v, want gates and emulated versions among them", seen)
	}
}

// TestSameAnswersAsKubeAPIServer sends a few random requests to both servers. With
// KELSON_LONG there are more of them.
func TestSameAnswersAsKubeAPIServer(t *testing.T) {
	peers := filepath.Dir(peertest.Binary(t, "kube-apiserver"))
	peertest.Binary(t, "etcd")
	kelson := filepath.Join(t.TempDir(), "kelson")
	if out, err := exec.Command("go", "build", "-o", kelson, "github.com/apikeel/kelson/cmd/kelson").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	o := options{
		peers: peers, kelson: kelson, recordings: "../replay/testdata", scenario: "default", clients: 4, length: 60,
		requests: testsize.Pick(100, 500, 20000), seed: randomtest.Seed(t, 1), out: filepath.Join(t.TempDir(), "differences"), limit: 10 * time.Minute,
	}
	var out bytes.Buffer
	found, err := run(t.Context(), o, &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if found > 0 {
		t.Errorf("got %d sorts of differences, want none:\n%s", found, &out)
	}
}
