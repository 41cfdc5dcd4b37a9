package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// listed is a package as 'go list' describes it.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string // what is imported, if it is another package than the path says
	Module          *struct {
		Main      bool
		GoVersion string
	}
	Error *struct{ Err string }
}

// TestOtherPlatforms checks the types of every package of this module, and of its tests, on
// the platforms of a release that these tests do not run on: a function or a constant that only some platforms
// have is found here, and not when a release is built. Nothing is compiled; of packages of
// other modules, declarations are read and bodies of functions are not.
func TestOtherPlatforms(t *testing.T) {
	if os.Getenv("KELSON_LONG") == "" {
		t.Skip("reads all packages once for each platform; KELSON_LONG=1 runs it")
	}
	for _, platform := range targets() {
		if platform.os == "linux" && platform.arch == "amd64" {
			continue // The other tests have compiled it.
		}
		t.Run(platform.os+"-"+platform.arch, func(t *testing.T) {
			checkTypes(t, platform)
		})
	}
}

// checkTypes reports what does not compile on a platform.
func checkTypes(t *testing.T, platform target) {
	// The tests use system calls of Unix: on Windows they are left out.
	tests := fmt.Sprintf("-test=%t", platform.os != "windows")
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", tests, "-json=ImportPath,Dir,GoFiles,ImportMap,Module,Error", "github.com/apikeel/kelson/...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+platform.os, "GOARCH="+platform.arch, "GOFLAGS=")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var (
		fset  = token.NewFileSet()
		known = map[string]*types.Package{"unsafe": types.Unsafe}
		own   int
	)
	// Packages are listed after those that they import.
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") {
			continue // The second are generated: they call the tests.
		}
		ours := p.Module != nil && p.Module.Main
		if len(p.GoFiles) == 0 {
			continue // Tests only, or nothing for this platform.
		}
		if p.Error != nil {
			t.Errorf("%s: %s", p.ImportPath, p.Error.Err)
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		config := types.Config{
			Sizes: types.SizesFor("gc", platform.arch), IgnoreFuncBodies: !ours,
			Importer: importFunc(func(path string) (*types.Package, error) {
				if mapped, ok := p.ImportMap[path]; ok {
					path = mapped
				}
				if known[path] == nil {
					return nil, errors.New("no package " + path)
				}
				return known[path], nil
			}),
			// The errors of others are those of this check: cgo, and imports that only bodies use.
			Error: func(err error) {
				if ours {
					t.Error(err)
				}
			},
		}
		if p.Module != nil && p.Module.GoVersion != "" {
			config.GoVersion = "go" + p.Module.GoVersion
		}
		path, _, _ := strings.Cut(p.ImportPath, " ") // such as "storage [storage.test]"
		known[p.ImportPath], _ = config.Check(path, fset, files, nil)
		if ours {
			own++
		}
	}
	if own < 50 {
		t.Errorf("got %d packages of this module, want all", own)
	}
}

// importFunc is a types.Importer.
type importFunc func(path string) (*types.Package, error)

func (f importFunc) Import(path string) (*types.Package, error) { return f(path) }
