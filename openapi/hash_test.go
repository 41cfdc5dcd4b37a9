package openapi_test

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
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

// TestBuiltAhead: a document that was built ahead is the same when it is read piece by piece, as
// the first reader does, and from memory, as later ones do; and its hash is that of its text. An
// index that was prepared is the one that is made for who asks.
func TestBuiltAhead(t *testing.T) {
	catalog := usualCatalog(t)
	h := openapi.New(func() *resource.Catalog { return catalog }, openapi.Config{})
	asked := do(t, h, "/openapi/v3").Body.String()
	other := openapi.New(func() *resource.Catalog { return catalog }, openapi.Config{})
	if err := other.Prepare(); err != nil {
		t.Fatal(err)
	}
	if prepared := do(t, other, "/openapi/v3").Body.String(); prepared != asked {
		t.Errorf("got an index %q after it was prepared, want %q", prepared, asked)
	}
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal([]byte(asked), &index); err != nil || len(index.Paths) < 40 {
		t.Fatalf("got %d documents, %v", len(index.Paths), err)
	}
	for _, at := range index.Paths {
		first := do(t, h, at.ServerRelativeURL)
		if sum := fmt.Sprintf("%X", sha512.Sum512(first.Body.Bytes())); !strings.HasSuffix(at.ServerRelativeURL, "?hash="+sum) {
			t.Errorf("%s: the text has the hash %s", at.ServerRelativeURL, sum)
		}
		for range 2 {
			if again := do(t, h, at.ServerRelativeURL); !bytes.Equal(again.Body.Bytes(), first.Body.Bytes()) {
				t.Errorf("%s: got another text when it was read again", at.ServerRelativeURL)
			}
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
