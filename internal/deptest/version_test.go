package deptest

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/apikeel/kelson/features"
)

// TestKubernetesVersionIsWrittenOnce wants code to take the version of Kubernetes from
// package features: no other number or string is this version. Tests may name it, and
// so may texts, comments, and modules of their own, which build and measure other servers.
func TestKubernetesVersionIsWrittenOnce(t *testing.T) {
	version := versionLiteral()
	root := filepath.Join("..", "..")
	files := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || entry.Name() == ".git" || path != root && isModule(path)):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, line := range literals(path, text, version) {
			if filepath.ToSlash(path) != "../../features/version.go" {
				t.Errorf("%s: this is the version of Kubernetes: take it from package features", line)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("got %d files, want all of the module", files)
	}
}

// TestVersionLiterals checks that the test above can find something.
func TestVersionLiterals(t *testing.T) {
	minor := features.KubernetesMinor
	text := fmt.Sprintf("package p\nconst (\n\ta = %d\n\tb = \"%d\"\n\tc = \"v1.%d\"\n\td = `1.%d.0` // 1.%d\n\te = \"since 1.%d\"\n)\n", minor, minor, minor, minor, minor, minor)
	if got := literals("p.go", []byte(text), versionLiteral()); len(got) != 4 {
		t.Errorf("got %q, want lines 3 to 6", got)
	}
}

// versionLiteral matches a literal that is the version.
func versionLiteral() *regexp.Regexp {
	return regexp.MustCompile(fmt.Sprintf("^[\"`]?(v?%d\\.)?%d(\\.[0-9]+)?[\"`]?$", features.KubernetesMajor, features.KubernetesMinor))
}

// literals returns where a file of Go has literals that match.
func literals(path string, text []byte, match *regexp.Regexp) (found []string) {
	files := token.NewFileSet()
	var s scanner.Scanner
	s.Init(files.AddFile(path, -1, len(text)), text, nil, 0)
	for {
		pos, tok, literal := s.Scan()
		switch {
		case tok == token.EOF:
			return found
		case tok.IsLiteral() && tok != token.IDENT && match.MatchString(literal):
			found = append(found, fmt.Sprintf("%s: %s", files.Position(pos), literal))
		}
	}
}

// isModule reports whether a folder is a Go module.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}
