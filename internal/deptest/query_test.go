package deptest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

// queryReaders are files and folders that may parse queries by themselves, with the reason.
func queryReaders() map[string]string {
	return map[string]string{
		"request/query.go":        "it is the parser",
		"request/parse.go":        "it parses the query once, for everybody behind it",
		"controlplane/control.go": "the control socket has no pipeline in front of it; it uses the same parser",
		"connect/translate.go":    "it reads the query of a location that this server has made",
		"webhook/validate.go":     "it refuses the query of a configured address, and shows it",
		"console":                 "the console is a client: what it serves to a browser is authorized by the API server",
		"cmd":                     "commands are clients",
		"test":                    "tests are clients",
		"docs":                    "the site of the documents is no part of the server",
		"examples":                "examples are clients",
		"clients":                 "kits are clients",
	}
}

// TestQueriesHaveOneReader keeps the rule that the query of a request is parsed in one place: two
// readers of one query can disagree, and then what is authorized is not what is done. Handlers
// use request.Request.Query, or request.QueryOf.
func TestQueriesHaveOneReader(t *testing.T) {
	root := os.DirFS(path.Join("..", ".."))
	exempt, seen := queryReaders(), map[string]bool{}
	files := 0
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if exempt[name] != "" || name != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules" {
				seen[name] = true
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		files++
		found, err := parsesQuery(name, text)
		if err != nil {
			return err
		}
		if exempt[name] != "" {
			seen[name] = seen[name] || len(found) > 0
			return nil
		}
		for _, at := range found {
			t.Errorf("%s parses a query: use the Query of package request, which everybody else has read too", at)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 300 {
		t.Errorf("looked at %d files, want those of the whole module", files)
	}
	for name := range exempt {
		if !seen[name] {
			t.Errorf("%s is exempt, and parses no query: remove it from the list", name)
		}
	}
}

// parsesQuery returns the positions of calls that parse a query or a form.
func parsesQuery(name string, text []byte) (found []string, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && isQueryParser(call) {
			found = append(found, set.Position(call.Pos()).String())
		}
		return true
	})
	return found, nil
}

func isQueryParser(call *ast.CallExpr) bool {
	if f, ok := call.Fun.(*ast.SelectorExpr); ok {
		switch f.Sel.Name {
		case "Query":
			if len(call.Args) == 0 { // of a url.URL; queries of databases have arguments
				return true
			}
		case "FormValue", "PostFormValue", "ParseForm", "ParseMultipartForm", "FormFile":
			return true
		case "ParseQuery", "Param":
			if of, ok := f.X.(*ast.Ident); ok && (of.Name == "url" || of.Name == "request") {
				return true
			}
		}
	} else if f, ok := call.Fun.(*ast.Ident); ok && f.Name == "len" {
		return false
	}
	for _, arg := range call.Args {
		if s, ok := arg.(*ast.SelectorExpr); ok && s.Sel.Name == "RawQuery" {
			return true
		}
	}
	return false
}

// TestQueryParsersAreFound checks that the search finds what it is for.
func TestQueryParsersAreFound(t *testing.T) {
	for call, want := range map[string]int{
		`r.URL.Query().Get("a")`: 1, `url.ParseQuery(s)`: 1, `request.ParseQuery(s)`: 1, `request.Param(s, "a")`: 1, `p.Param("a")`: 0, `r.FormValue("a")`: 1, `r.ParseForm()`: 1,
		`strings.Cut(r.URL.RawQuery, "&")`: 1, `len(u.RawQuery)`: 0, `db.Query("select")`: 0, `usage.ParseQuery(v)`: 0, `request.QueryOf(r)`: 0,
	} {
		found, err := parsesQuery("f.go", []byte("package p\nfunc f() { "+call+" }"))
		if err != nil || len(found) != want {
			t.Errorf("%s: found %v, %v; want %d", call, found, err, want)
		}
	}
}
