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

var update = flag.Bool("update", false, "rewrite data/hashes")

// TestHashes: the hashes that are known ahead are those of the documents that a
// server with its usual settings has. If the documents have changed, run it with
// -update.
func TestHashes(t *testing.T) {
	catalog := usualCatalog(t)
	h := openapi.New(func() *resource.Catalog { return catalog }, openapi.Config{})
	got, unknown, err := h.Hashes()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("data/hashes", []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile("data/hashes")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("data/hashes is not up to date; of %d documents no hash is known: %q", len(unknown), unknown)
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
