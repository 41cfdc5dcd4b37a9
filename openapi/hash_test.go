package openapi_test

import (
	"flag"
	"os"
	"testing"

	"github.com/apikeel/kelson/aggregator"
	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/openapi"
	"github.com/apikeel/kelson/resource"
)

var update = flag.Bool("update", false, "rewrite data/hashes and data/documents.s2")

// TestHashes: the documents that are built ahead are those that a server with its usual
// settings has. If the documents have changed, run it with -update.
func TestHashes(t *testing.T) {
	catalog := usualCatalog(t)
	h := openapi.New(func() *resource.Catalog { return catalog }, openapi.Config{})
	lines, texts, missing, err := h.BuildAhead()
	if err != nil {
		t.Fatal(err)
	}
	for file, got := range map[string]string{"data/hashes": lines, "data/documents.s2": texts} {
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is not up to date; documents that are not in it: %q", file, missing)
		}
	}
}

// usualCatalog is that of a server with its usual settings.
func usualCatalog(t testing.TB) *resource.Catalog {
	t.Helper()
	cfg := builtin.Config{Core: core.Config{Tokens: core.Tokens{Issuer: noTokens{}}}}
	groups, err := builtin.Select(builtin.Groups(cfg), nil)
	if err != nil {
		t.Fatal(err)
	}
	catalog, err := resource.NewCatalog(append(groups, crd.Definitions(nil), aggregator.Definitions())...)
	if err != nil {
		t.Fatal(err)
	}
	return catalog
}

// noTokens is there for service accounts to have tokens.
type noTokens struct{ core.TokenIssuer }
