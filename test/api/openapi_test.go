package api

import (
	"encoding/json"
	"maps"
	"os"
	"testing"

	"github.com/apikeel/kelson/kelsontest"
)

// TestOpenAPIIndex: a whole server has the documents of kube-apiserver v1.37.1, each
// with its hash, so they are the same to the last byte.
func TestOpenAPIIndex(t *testing.T) {
	type index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	var want, got index
	recorded, err := os.ReadFile("../../openapi/testdata/index.json")
	if err != nil {
		t.Fatal(err)
	}
	served, err := client(t, kelsontest.Start(t)).Discovery().RESTClient().Get().AbsPath("/openapi/v3").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(recorded, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(served, &got); err != nil {
		t.Fatal(err)
	}
	if maps.Equal(got.Paths, want.Paths) {
		return
	}
	for name, at := range want.Paths {
		if got.Paths[name] != at {
			t.Errorf("%s is %q, want %q", name, got.Paths[name].ServerRelativeURL, at.ServerRelativeURL)
		}
	}
	for name := range got.Paths {
		if _, ok := want.Paths[name]; !ok {
			t.Errorf("%s is not in kube-apiserver's", name)
		}
	}
}
