// Package apicheck holds no code, only the test that keeps the promises of this
// module as a library: names that were there stay, with the signatures that they
// had, every name is explained, and no signature needs a module that we may want
// to replace.
//
//	go test ./internal/apicheck -update   # a release: the names of now are promised
package apicheck

import (
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the names of now to the golden file")

const (
	module = "github.com/apikeel/kelson"
	root   = "../.."
	golden = "testdata/api.txt"
)

// public are the packages that make the library. Others can be imported too, but
// may change.
func public() []string {
	return []string{
		".", "admission", "authn/delegated", "authz", "authz/delegated", "kelsontest", "pki", "request", "resource",
		"serverflags", "serverflags/stores", "storage", "storage/engine", "storage/etcd",
	}
}

// allowed are modules whose types may be in signatures, with a reason each.
func allowed() map[string]string {
	return map[string]string{
		"k8s.io/api":                              "the types of the API",
		"k8s.io/apimachinery":                     "what all of them have in common",
		"k8s.io/client-go/rest":                   "how clients are configured, everywhere",
		"k8s.io/kube-openapi/pkg/validation/spec": "what a schema is to all who work with the API",
		"github.com/spf13/pflag":                  "the flags of Kubernetes programs",
		module:                                    "our own",
	}
}

// surface is what a package shows.
type surface struct {
	lines   []string // of names with their signatures
	silent  []string // names that nobody explains
	foreign []string // signatures that need other modules
}

func TestCompatible(t *testing.T) {
	now := map[string]bool{}
	var all []string
	for _, dir := range public() {
		s := look(t, dir)
		for _, line := range s.lines {
			now[line] = true
		}
		all = append(all, s.lines...)
		for _, name := range s.silent {
			t.Errorf("%s is not explained: it needs a comment", name)
		}
		for _, text := range s.foreign {
			t.Errorf("%s: say why in allowed(), or do without", text)
		}
	}
	if *update {
		if err := os.WriteFile(golden, []byte(strings.Join(all, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	promised := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		promised[strings.TrimSuffix(line, "\n")] = true
	}
	for _, line := range slices.Sorted(keys(promised)) {
		if !now[line] {
			t.Errorf("gone, or not as it was: %s", line)
		}
	}
	for _, line := range all {
		// More is no harm, except to those who implement an interface.
		if owner, _, ok := strings.Cut(line, " has "); ok && promised[owner] && !promised[line] {
			t.Errorf("new, and those who implement the interface lack it: %s", line)
		}
	}
}

func keys(m map[string]bool) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// look reads a package.
func look(t *testing.T, dir string) *surface {
	t.Helper()
	folder := filepath.Join(root, dir)
	found, err := build.ImportDir(folder, 0)
	if err != nil {
		t.Fatal(err)
	}
	v := &view{fset: token.NewFileSet(), name: path.Join(module, dir), imports: map[string]string{}, surface: &surface{}}
	var files []*ast.File
	for _, name := range found.GoFiles {
		file, err := parser.ParseFile(v.fset, filepath.Join(folder, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			v.remember(spec)
		}
		files = append(files, file)
	}
	p, err := doc.NewFromFiles(v.fset, files, v.name)
	if err != nil {
		t.Fatal(err)
	}
	if p.Doc == "" {
		v.silent = append(v.silent, v.name)
	}
	v.values(p.Consts)
	v.values(p.Vars)
	v.funcs("", p.Funcs)
	for _, typ := range p.Types {
		v.typ(typ)
	}
	slices.Sort(v.lines)
	return v.surface
}

// view collects the surface of a package.
type view struct {
	fset    *token.FileSet
	name    string
	imports map[string]string // paths by the name that files use
	*surface
}

func (v *view) remember(spec *ast.ImportSpec) {
	at, _ := strconv.Unquote(spec.Path.Value)
	name := path.Base(at)
	if spec.Name != nil {
		name = spec.Name.Name
	}
	v.imports[name] = at
}

func (v *view) add(name, explained, format string, args ...any) {
	v.lines = append(v.lines, v.name+": "+fmt.Sprintf(format, args...))
	if strings.TrimSpace(explained) == "" {
		v.silent = append(v.silent, v.name+"."+name)
	}
}

// text returns a piece of source on one line, and looks at the modules it needs.
func (v *view) text(node any) string {
	if n, ok := node.(ast.Node); ok {
		ast.Inspect(n, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok {
					v.check(x.Name, s.Sel.Name)
				}
			}
			return true
		})
	}
	var b strings.Builder
	_ = (&printer.Config{}).Fprint(&b, v.fset, node)
	return strings.Join(strings.Fields(b.String()), " ")
}

func (v *view) check(pkg, name string) {
	at, ok := v.imports[pkg]
	if !ok || !strings.Contains(strings.SplitN(at, "/", 2)[0], ".") {
		return
	}
	for prefix := range allowed() {
		if at == prefix || strings.HasPrefix(at, prefix+"/") {
			return
		}
	}
	v.foreign = append(v.foreign, fmt.Sprintf("%s shows %s.%s of %s", v.name, pkg, name, at))
}

func (v *view) values(all []*doc.Value) {
	for _, value := range all {
		explained := value.Doc
		for _, spec := range value.Decl.Specs {
			s := spec.(*ast.ValueSpec)
			// One comment can be about several that follow each other.
			explained += s.Doc.Text() + s.Comment.Text()
			for _, name := range s.Names {
				if !name.IsExported() {
					continue
				}
				typ := ""
				if s.Type != nil {
					typ = " " + v.text(s.Type)
				}
				v.add(name.Name, explained, "%s %s%s", value.Decl.Tok, name.Name, typ)
			}
		}
	}
}

func (v *view) funcs(of string, all []*doc.Func) {
	for _, f := range all {
		decl := *f.Decl
		decl.Doc, decl.Body = nil, nil
		name := f.Name
		if of != "" {
			name = of + "." + name
		}
		// Methods that are there for an interface are explained by it.
		explained := f.Doc
		if f.Name == "String" || f.Name == "Error" {
			explained = "standard"
		}
		v.add(name, explained, "%s", v.text(&decl))
	}
}

func (v *view) typ(t *doc.Type) {
	spec := t.Decl.Specs[0].(*ast.TypeSpec)
	explained := t.Doc + spec.Doc.Text()
	generic := ""
	if spec.TypeParams != nil {
		for _, field := range spec.TypeParams.List {
			generic += " " + v.text(field.Type)
		}
	}
	switch typ := spec.Type.(type) {
	case *ast.StructType:
		v.add(t.Name, explained, "type %s struct%s", t.Name, generic)
		for _, field := range typ.Fields.List {
			for _, name := range field.Names {
				if name.IsExported() {
					v.add(t.Name, explained, "field %s.%s %s", t.Name, name.Name, v.text(field.Type))
				}
			}
			if len(field.Names) == 0 {
				v.add(t.Name, explained, "field %s embeds %s", t.Name, v.text(field.Type))
			}
		}
	case *ast.InterfaceType:
		v.add(t.Name, explained, "type %s interface%s", t.Name, generic)
		for _, method := range typ.Methods.List {
			name := ""
			if len(method.Names) > 0 {
				name = method.Names[0].Name
			}
			v.add(t.Name, explained, "type %s interface%s has %s%s", t.Name, generic, name, strings.TrimPrefix(v.text(method.Type), "func"))
		}
	default:
		v.add(t.Name, explained, "type %s%s %s", t.Name, generic, v.text(spec.Type))
	}
	for _, values := range [][]*doc.Value{t.Consts, t.Vars} {
		for _, value := range values {
			value.Doc += explained // it is about them too
		}
		v.values(values)
	}
	v.funcs("", t.Funcs)
	v.funcs(t.Name, t.Methods)
}
