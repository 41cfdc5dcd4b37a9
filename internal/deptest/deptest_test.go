// Package deptest holds no code, only the test that keeps the imports of this
// module as ARCHITECTURE.md describes them.
package deptest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"strings"
	"testing"
)

const module = "github.com/apikeel/kelson"

// A rule forbids packages to know others. Patterns are paths below the module;
// "..." stands for a package and everything below it.
type rule struct {
	who, whom []string
	exempt    []string // of who
	except    []string // of whom
	reason    string
}

func rules() []rule {
	r := []rule{
		{who: p("storage/..."), whom: p("request/...", "resource/...", "rest/...", "store/...", "controlplane/..."),
			reason: "storage keeps bytes under keys; it must stay replaceable, so it knows neither objects nor requests"},
		{who: p("request/..."), whom: p("..."), except: p("request/..."),
			reason: "request is a leaf: every stage speaks in its terms"},
		{who: p("features/..."), whom: p("..."), except: p("features/..."),
			reason: "features is a leaf: gates are values that any package can be given, and know neither kinds nor servers"},
		{who: p("storage/..."), whom: p("features/..."),
			reason: "feature gates change the API, never how bytes are kept: data must stay readable whatever the gates are"},
		{who: p("resource/..."), whom: p("wire/...", "store/...", "storage/...", "rest/..."),
			reason: "a definition says what a kind is, not how it is encoded, where it is kept or how it is served"},
		{who: p("wire/..."), whom: p("..."), except: p("wire/...", "resource/...", "features/...", "internal/gzipped", "internal/jsonscan", "internal/jsonstruct", "internal/jsonvalue", "internal/protojson", "internal/yamltext", "budget"),
			reason: "bytes follow from a record, a definition and a format alone, so store and rest share one encoder that knows neither of them"},
		{who: p("", "serverflags"), whom: p("storage/engine/...", "storage/etcd/...", "storage/postgres/...", "serverflags/stores"),
			reason: "who uses the library chooses where objects are kept, and links nothing but that"},
		{who: p("usage"), whom: p("..."), except: p("status", "request", "internal/clock"),
			reason: "accounts are kept of finished requests as values: whoever serves requests can keep them, and no stage decides by them"},
		{who: p("impersonate"), whom: p("..."), except: p("authz", "request", "metrics/measure", "internal/..."),
			reason: "who goes on as somebody else is a question of rights: the stage asks an authorizer, and knows nothing else"},
		{who: p("why"), whom: p("..."), except: p("authz", "admission", "request", "resource", "features", "status", "metrics/measure", "internal/..."),
			reason: "an explanation is what authorizers and admission themselves say, filtered by what the asker may read: it knows no kind, no store and no way around them"},
		{who: p("builtin/..."), whom: p("rest/...", "store/...", "storage/...", "controller/..."),
			reason: "built-in kinds are definitions like those of any library user"},
		{who: p("builtin/..."), exempt: p("builtin", "builtin/core"), whom: p("builtin/core"),
			reason: "builtin/core is one API group among others; what groups share is in builtin/rules and builtin/podspec"},
		{who: p("builtin/rules"), whom: p("builtin/..."),
			reason: "rules for single fields know no kind and no group, so that every group can use them"},
		{who: p("builtin/podspec"), whom: p("builtin/..."), except: p("builtin/rules", "builtin/declared"),
			reason: "rules for pod specs know no kind and no group, so that every group with a pod template can use them"},
		{who: p("rest/..."), whom: p("crd/...", "aggregator/...", "builtin/..."),
			reason: "the verbs treat every kind alike; one that needs a special case lacks something in its definition"},
		{who: p("connect/..."), whom: p("rest/...", "store/...", "storage/...", "builtin/..."),
			reason: "a connection goes where a location says, whatever kind has said it"},
		{who: p("store/..."), whom: p("rest/...", "crd/...", "aggregator/...", "builtin/..."),
			reason: "the cache serves whatever has a definition, below the HTTP verbs"},
		{who: p("history/..."), whom: p("rest/...", "store/...", "builtin/...", "crd/...", "controller/...", "admission/...", "storage/engine/...", "storage/etcd/...", "storage/postgres/..."),
			reason: "history reads what is stored, past the cache, of whatever has a definition; it writes nothing, and knows no kind and no store"},
		{who: p("peer"), whom: p("..."), except: p("connect", "discovery", "egress", "filewatch", "metrics/measure", "request", "resource", "features", "status", "trace", "internal/..."),
			reason: "a request is forwarded to another server by its resource alone: peers are found by leases and asked for discovery, whoever keeps the leases and whatever the resource is"},
		{who: p("controller"), whom: p("rest/...", "store/...", "storage/...", "authz/...", "admission/..."),
			reason: "controllers use the API like any client, so that they can run beside another server too"},
		{who: p("controller/feed"), whom: p("rest/...", "store/..."),
			reason: "the feed reads storage past the cache: controllers that follow it load nothing into memory"},
		{who: p("controller/apiserver"), whom: p("rest/...", "store/...", "crd/...", "aggregator/..."),
			reason: "what a server owns is kept through the contracts of resource, whoever implements them"},
		{who: p("resource/...", "request/...", "store/...", "rest/...", "authn/...", "authz/...", "audit/...", "flow/...", "admission/..."), whom: p("internal/loopback"),
			reason: "what a request goes through must not send requests to its own server; only what runs beside requests does"},
		{who: p("..."), whom: p("controlplane/..."),
			reason: "controlplane assembles everything, so nothing it assembles may know it; commands and kelsontest start it"},
		{who: p("..."), whom: p("storage/storagetest/...", "storage/etcd/etcdtest/...", "storage/postgres/pgtest/..."),
			reason: "what judges or starts a store in tests is not part of the product"},
	}
	// The stages of the request know request and resource, never each other.
	stages := p("authn/...", "authz/...", "audit/...", "flow/...", "admission/...")
	for i, stage := range stages {
		others := append(append([]string{}, stages[:i]...), stages[i+1:]...)
		r = append(r, rule{who: []string{stage}, whom: others, reason: "a stage can be understood, tested and left out alone"})
	}
	return r
}

// mayKnowEveryone are the packages to which the rules for all do not apply.
func mayKnowEveryone() []string {
	return p("cmd/...", "controlplane/...", "kelsontest/...", "storage/storagetest/...", "storage/etcd/etcdtest/...", "storage/postgres/pgtest/...")
}

// A ban forbids the product to import a module, or parts of it.
type ban struct {
	prefix string
	except []string
	reason string
}

func bans() []ban {
	return []ban{
		{prefix: "k8s.io/kubernetes", reason: "it is the peer that we are measured against; nothing of it is ours"},
		{prefix: "k8s.io/apiserver", except: []string{
			"k8s.io/apiserver/pkg/cel",
			// The types that the authorizer functions of the dialect take.
			"k8s.io/apiserver/pkg/authentication/user", "k8s.io/apiserver/pkg/authorization/authorizer",
		}, reason: "serving the API is the product; only the CEL dialect is a field library"},
		{prefix: "k8s.io/apiextensions-apiserver", except: []string{"k8s.io/apiextensions-apiserver/pkg/apis"},
			reason: "API types only; custom resources are served by our own code"},
		{prefix: "k8s.io/kube-aggregator", except: []string{"k8s.io/kube-aggregator/pkg/apis"},
			reason: "API types only; aggregation is done by our own code"},
		{prefix: "k8s.io/klog", reason: "logs go through log/slog, injected"},
		{prefix: "go.etcd.io/etcd/server", reason: "etcd is a server that we talk to; only etcdtest starts one"},
		{prefix: "github.com/anishathalye/porcupine", reason: "a checker for tests"},
		{prefix: "go.uber.org/goleak", reason: "a checker for tests"},
	}
}

// directBans are about direct imports only: what a library needs is its affair.
func directBans() []rule {
	return []rule{
		{who: p("storage", "storage/engine"), whom: []string{"net/http", "k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"},
			reason: "storage knows neither HTTP nor objects"},
		{who: p("wire/..."), whom: []string{"net/http", module + "/request"},
			reason: "status codes, headers and requests are the business of rest; wire appends to buffers and writes to an io.Writer"},
		{who: p("rest/...", "wire/...", "store/...", "discovery/...", "managedfields/..."), whom: []string{module + "/features"},
			reason: "what is behind a gate is said in the definition of a kind (Gate, GatedFields, the rules), so the verbs ask for none"},
		{who: p("authn/...", "authz/...", "audit/...", "flow/...", "admission/..."), whom: []string{module + "/features"},
			reason: "a stage has a setting for what a gate changes; whoever assembles the server knows the gates"},
	}
}

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func TestImports(t *testing.T) {
	packages := list(t)
	own := map[string]bool{}
	for _, p := range packages {
		own[p.ImportPath] = true
	}
	for _, p := range packages {
		name := rel(p.ImportPath)
		for _, r := range rules() {
			if !matches(name, r.who) || matches(name, r.exempt) || r.who[0] == "..." && matches(name, mayKnowEveryone()) {
				continue
			}
			for _, dep := range p.Deps {
				d := rel(dep)
				if own[dep] && dep != p.ImportPath && matches(d, r.whom) && !matches(d, r.except) {
					t.Errorf("%s must not depend on %s: %s", name, d, r.reason)
				}
			}
		}
		for _, r := range directBans() {
			for _, imp := range p.Imports {
				for _, banned := range r.whom {
					if matches(name, r.who) && below(imp, banned) {
						t.Errorf("%s must not import %s: %s", name, imp, r.reason)
					}
				}
			}
		}
		if matches(name, mayKnowEveryone()) && strings.HasSuffix(name, "test") {
			continue
		}
		for _, b := range bans() {
			for _, imp := range p.Imports {
				if below(imp, b.prefix) && !belowAny(imp, b.except) {
					t.Errorf("%s must not import %s: %s", name, imp, b.reason)
				}
			}
		}
	}
}

// TestRules checks that the table above can catch something.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		name    string
		pattern string
		want    bool
	}{
		{"storage", "storage/...", true},
		{"storage/engine", "storage/...", true},
		{"store", "storage/...", false},
		{"storage/engine", "storage", false},
		{"storage", "storage", true},
		{"", "...", true},
		{"cmd/kelson", "...", true},
	} {
		if got := matches(c.name, []string{c.pattern}); got != c.want {
			t.Errorf("matches(%q, %q) = %v", c.name, c.pattern, got)
		}
	}
	if !below("k8s.io/apiserver/pkg/server", "k8s.io/apiserver") || below("k8s.io/apiserverless", "k8s.io/apiserver") {
		t.Error("below is wrong")
	}
}

// list returns the packages of the module, without their tests.
func list(t *testing.T) (packages []pkg) {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", module+"/...")
	cmd.Dir = path.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %s", exit.Stderr)
		}
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	if len(packages) < 3 {
		t.Fatalf("go list found only %d packages", len(packages))
	}
	return packages
}

func p(patterns ...string) []string { return patterns }

func rel(importPath string) string {
	return strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
}

func matches(name string, patterns []string) bool {
	for _, pattern := range patterns {
		base, tree := strings.CutSuffix(pattern, "...")
		base = strings.TrimSuffix(base, "/")
		if name == base || tree && (base == "" || strings.HasPrefix(name, base+"/")) {
			return true
		}
	}
	return false
}

func below(importPath, prefix string) bool {
	return importPath == prefix || strings.HasPrefix(importPath, prefix+"/")
}

func belowAny(importPath string, prefixes []string) bool {
	for _, p := range prefixes {
		if below(importPath, p) {
			return true
		}
	}
	return false
}
