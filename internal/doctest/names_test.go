package doctest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"
)

// Links and names in documents.
var (
	fence    = regexp.MustCompile("(?ms)^```.*?^```$")
	link     = regexp.MustCompile(`\[([^\[\]]*)\]\(([^()\s]+)\)`)
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
	goName   = regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\(\))?$`)
	filePath = regexp.MustCompile(`^[\w./-]+\.(go|md|txt)$`)
	heading  = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	// The list of stages, in the code and in a table.
	stageCall = regexp.MustCompile(`(?m)^\t\ts\.(\w+)\(\),`)
	stageRow  = regexp.MustCompile("(?m)^\\| \\[`(\\w+)`\\]")
	// In files of tests, which are not parsed.
	inPackage = regexp.MustCompile(`(?m)^package (\w+?)(?:_test)?$`)
	testName  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
)

// TestLinksLeadSomewhere: every file that a document links to exists, and so does the
// heading if the link names one.
func TestLinksLeadSomewhere(t *testing.T) {
	found := 0
	for _, document := range documents(t, "*.md", "docs/*.md", "docs/*/*.md") {
		for _, m := range link.FindAllStringSubmatch(prose(t, document), -1) {
			target, anchor, _ := strings.Cut(m[2], "#")
			if strings.Contains(target, ":") {
				continue // elsewhere in the world
			}
			found++
			file := document
			if target != "" {
				file = filepath.Join(filepath.Dir(document), target)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s links to %s: got %v, want a file", document, m[2], err)
			} else if anchor != "" && !slices.Contains(anchors(t, file), anchor) {
				t.Errorf("%s links to %s: got no heading #%s, want one", document, m[2], anchor)
			}
		}
	}
	if found < 100 {
		t.Errorf("got %d links, want some hundred: the expression that finds them is wrong", found)
	}
}

// TestNamedCodeExists: the documents about the inside of the server name only what the
// code has. Names are in code font:
//
//	[`scope.insert`](../rest/create.go)   is declared in that file
//	`store.Resource.Create`               is declared in a package of that name
//	`Version.Default`                     is a field or method of a type of that name
//	`insert()`, `maxRunBytes`             are declared somewhere
//	`rest/runs.go`                        is a file
//
// The first form is the best one: it is checked most closely, and leads there.
func TestNamedCodeExists(t *testing.T) {
	code := parseModule(t)
	found := 0
	for _, document := range documents(t, "ARCHITECTURE.md", "docs/request.md", "docs/performance.md", "docs/design/*.md") {
		text := prose(t, document)
		text = link.ReplaceAllStringFunc(text, func(s string) string {
			m := link.FindStringSubmatch(s)
			name := strings.TrimSuffix(strings.Trim(m[1], "`"), "()")
			if m[1] == name || !goName.MatchString(name) || !strings.HasSuffix(m[2], ".go") {
				return s
			}
			found++
			if file := filepath.Join(filepath.Dir(document), m[2]); !code.inFile(file, name) {
				t.Errorf("%s: got no %s in %s, want it declared there%s", document, name, file, code.hint(name))
			}
			return ""
		})
		for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
			if known, ok := code.has(m[1]); ok {
				found++
				if !known {
					t.Errorf("%s: got nothing that is called %s, want it in the code%s", document, m[1], code.hint(m[1]))
				}
			}
		}
	}
	if found < 200 {
		t.Errorf("got %d names, want some hundred: the expressions that find them are wrong", found)
	}
}

// TestStagesAreListed: the table of stages in docs/request.md is the list in pipeline.go.
func TestStagesAreListed(t *testing.T) {
	code := read(t, "pipeline.go")
	_, code, _ = strings.Cut(code, "func (s *Server) pipeline()")
	code, _, _ = strings.Cut(code, "\n}\n")
	_, text, _ := strings.Cut(read(t, "docs/request.md"), "| stage | begins | ends |\n")
	text, _, _ = strings.Cut(text, "\n\n")
	got, want := captures(stageRow, text), captures(stageCall, code)
	if !slices.Equal(got, want) || len(want) < 10 {
		t.Errorf("docs/request.md: got the stages %q, want those of pipeline.go, %q", got, want)
	}
}

// captures returns what the first group of an expression matches.
func captures(e *regexp.Regexp, text string) (all []string) {
	for _, m := range e.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// TestNamesAreLookedFor: the check above is able to fail.
func TestNamesAreLookedFor(t *testing.T) {
	code := parseModule(t)
	for name, want := range map[string]bool{
		"store.Resource.Create": true, "store.Resource.Creates": false, "store.Resources.Create": false,
		"Version.Default": true, "Version.Defaults": false, "insert()": true, "inserts()": false,
		"maxChunkBytes": true, "maxChunkkBytes": false, "rest/create.go": true, "rest/creates.go": false, "create.go": true,
	} {
		if got, named := code.has(name); got != want || !named {
			t.Errorf("%s: got %v, %v; want %v, true", name, got, named, want)
		}
	}
	for _, word := range []string{"kubectl", "http.Server", "resourceVersion", "GET /api/v1", "status", "v1"} {
		if known, named := code.has(word); named && !known {
			t.Errorf("%s: got a name that is missing, want a word that is none", word)
		}
	}
	if !code.inFile("rest/create.go", "scope.insert") || code.inFile("rest/create.go", "scope.update") {
		t.Errorf("rest/create.go: got update %v, want insert and no update", code.inFile("rest/create.go", "scope.update"))
	}
}

// documents returns the files that match patterns, as paths below the root.
func documents(t *testing.T, patterns ...string) (all []string) {
	t.Helper()
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: got %d files, %v; want some", pattern, len(files), err)
		}
		for _, file := range files {
			all = append(all, strings.TrimPrefix(file, root+"/"))
		}
	}
	return all
}

// prose returns the text of a document without its blocks of code.
func prose(t *testing.T, document string) string {
	t.Helper()
	return fence.ReplaceAllString(read(t, document), "")
}

// anchors returns what links can name in a document: its headings, as GitHub writes
// them.
func anchors(t *testing.T, document string) (all []string) {
	t.Helper()
	for _, m := range heading.FindAllStringSubmatch(prose(t, document), -1) {
		all = append(all, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1]))
	}
	return all
}

// module is what the code of the module declares. Names are those of the top level, and
// methods and fields with their types: Resource.Create.
type module struct {
	files    map[string]map[string]bool // by path below the root
	packages map[string]map[string]bool // by the name of the package; those of one name together
	all      map[string]bool
	// members are the last parts of all names, words what else the code says: in strings,
	// as names of fields in JSON, and names of libraries that it uses.
	members, words map[string]bool
	aliases        map[string]string // Strategy is Rules
}

// parsed is all code, which is read once. Of tests it has nothing but the names.
var parsed = sync.OnceValues(func() (*module, error) {
	m := &module{
		files: map[string]map[string]bool{}, packages: map[string]map[string]bool{},
		all: map[string]bool{}, members: map[string]bool{}, words: map[string]bool{}, aliases: map[string]string{},
	}
	var paths []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") && path != root):
			return fs.SkipDir
		case filePath.MatchString(entry.Name()):
			paths = append(paths, path)
		}
		return nil
	})
	var mu sync.Mutex
	var wait sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wait.Go(func() {
			for n := i; n < len(paths); n += len(errs) {
				if err := m.add(paths[n], &mu); err != nil {
					errs[i] = err
				}
			}
		})
	}
	wait.Wait()
	for _, e := range errs {
		if err == nil {
			err = e
		}
	}
	return m, err
})

func parseModule(t *testing.T) *module {
	t.Helper()
	m, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// add adds a file; of one that is not code only that it is there.
func (m *module) add(path string, mu *sync.Mutex) error {
	names, words, aliases := map[string]bool{}, map[string]bool{}, map[string]string{}
	pkg := ""
	switch {
	case strings.HasSuffix(path, "_test.go"):
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if found := inPackage.FindSubmatch(text); found != nil {
			pkg = string(found[1])
		}
		for _, found := range testName.FindAllSubmatch(text, -1) {
			names[string(found[1])] = true
		}
	case strings.HasSuffix(path, ".go"):
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg = file.Name.Name
		declared(file, names, words, aliases)
	}
	mu.Lock()
	defer mu.Unlock()
	m.files[strings.TrimPrefix(path, root+"/")] = names
	if pkg == "" {
		return nil
	}
	if m.packages[pkg] == nil {
		m.packages[pkg] = map[string]bool{}
	}
	for name := range names {
		m.packages[pkg][name], m.all[name] = true, true
		m.members[name[strings.LastIndexByte(name, '.')+1:]] = true
	}
	maps.Copy(m.words, words)
	maps.Copy(m.aliases, aliases)
	return nil
}

// declared collects what a file declares, the words in its strings, and which names of
// types are others' too.
func declared(file *ast.File, names, words map[string]bool, aliases map[string]string) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil && len(d.Recv.List) == 1 {
				name = typeName(d.Recv.List[0].Type) + "." + name
			}
			names[name] = true
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range s.Names {
						names[name.Name] = true
					}
				case *ast.TypeSpec:
					names[s.Name.Name] = true
					members(s.Name.Name, s.Type, names)
					if s.Assign.IsValid() {
						aliases[s.Name.Name] = typeName(s.Type)
					}
				}
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				for word := range strings.FieldsFuncSeq(n.Value, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
					words[word] = true
				}
			}
		case *ast.SelectorExpr: // names of libraries
			words[n.Sel.Name] = true
		case *ast.ValueSpec: // constants of functions
			for _, name := range n.Names {
				words[name.Name] = true
			}
		}
		return true
	})
}

// members adds the fields of a struct and the methods of an interface.
func members(of string, in ast.Expr, names map[string]bool) {
	var list *ast.FieldList
	switch t := in.(type) {
	case *ast.StructType:
		list = t.Fields
	case *ast.InterfaceType:
		list = t.Methods
	default:
		return
	}
	for _, field := range list.List {
		for _, name := range field.Names {
			names[of+"."+name.Name] = true
		}
		if len(field.Names) == 0 {
			names[of+"."+typeName(field.Type)] = true
		}
	}
}

// typeName returns the name of the type of a receiver, or of an embedded field.
func typeName(e ast.Expr) string {
	switch t := e.(type) {
	case *ast.StarExpr:
		return typeName(t.X)
	case *ast.IndexExpr:
		return typeName(t.X)
	case *ast.IndexListExpr:
		return typeName(t.X)
	case *ast.SelectorExpr:
		return t.Sel.Name
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// inFile reports whether a file declares a name, which may begin with its package, and
// that of a method may leave out the type.
func (m *module) inFile(file, name string) bool {
	names := m.files[file]
	_, rest, dotted := strings.Cut(name, ".")
	if names[name] || dotted {
		return names[name] || names[rest]
	}
	for n := range names {
		if strings.HasSuffix(n, "."+name) {
			return true
		}
	}
	return false
}

// has reports whether what stands in code font is in the code; ok is false for what is
// not the name of something there.
func (m *module) has(text string) (known, ok bool) {
	if filePath.MatchString(text) {
		for file := range m.files {
			if file == text || strings.HasSuffix(file, "/"+text) {
				return true, true
			}
		}
		return false, true
	}
	if !goName.MatchString(text) {
		return false, false
	}
	name, call := strings.CutSuffix(text, "()")
	first, rest, dotted := strings.Cut(name, ".")
	switch {
	case dotted && m.packages[first] != nil:
		return m.packages[first][m.unaliased(rest)], true
	case dotted && unicode.IsUpper(rune(first[0])):
		return m.all[m.unaliased(name)], true
	case dotted:
		return false, false // of a library, or a field of an object
	case call:
		return m.members[name], true
	case strings.ContainsFunc(name[1:], unicode.IsUpper):
		return m.members[name] || m.words[name], true
	}
	return false, false
}

// unaliased returns a name of a member with the type that declares it.
func (m *module) unaliased(name string) string {
	of, member, ok := strings.Cut(name, ".")
	if target, alias := m.aliases[of]; ok && alias {
		return target + "." + member
	}
	return name
}

// hint says where else the last part of a name is declared.
func (m *module) hint(name string) string {
	name = strings.TrimSuffix(name, "()")
	last := name[strings.LastIndexByte(name, '.')+1:]
	var found []string
	for file, names := range m.files {
		for n := range names {
			if n == last || strings.HasSuffix(n, "."+last) {
				found = append(found, file+" has "+n)
			}
		}
	}
	slices.Sort(found)
	if len(found) == 0 {
		return ""
	}
	return " (" + strings.Join(found[:min(len(found), 5)], ", ") + ")"
}
