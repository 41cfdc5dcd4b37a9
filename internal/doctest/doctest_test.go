// Package doctest holds no code, only the tests that keep documents true: what they
// link to and what they name, files, functions, constants, tests and flags, exists.
package doctest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the folder of the module.
const root = "../.."

// What the documents name.
var (
	namedTest     = regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)\\w+)`")
	namedConstant = regexp.MustCompile("\\[`[a-z0-9]+\\.(\\w+)`\\]\\(([^)]+)\\)")
	namedFlag     = regexp.MustCompile(`--([a-z][a-z0-9-]+[a-z0-9])`)
	kubectlCall   = regexp.MustCompile("`kubectl [^`]*`")
	namedFile     = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
)

// TestNamedThingsExist: every test, constant, flag and file that the documents on
// security name is in the tree.
func TestNamedThingsExist(t *testing.T) {
	flags := contents(t, "cmd/kelson/*.go") + contents(t, "serverflags/*.go") + contents(t, "serverflags/stores/*.go")
	for _, document := range []string{"SECURITY.md", "docs/security.md"} {
		text := read(t, document)
		folder := filepath.Dir(document)
		found := map[string]int{}
		for _, m := range namedTest.FindAllStringSubmatch(text, -1) {
			found["tests"]++
			in := m[1]
			if in == "kelson" {
				in = "."
			}
			if !strings.Contains(contents(t, in+"/*_test.go"), "func "+m[2]+"(") {
				t.Errorf("%s: folder %s has no %s", document, in, m[2])
			}
		}
		for _, m := range namedConstant.FindAllStringSubmatch(text, -1) {
			found["constants"]++
			word := regexp.MustCompile(`\b` + m[1] + `\b`)
			if !word.MatchString(read(t, filepath.Join(folder, m[2]))) {
				t.Errorf("%s: %s is not in %s", document, m[1], m[2])
			}
		}
		for _, m := range namedFlag.FindAllStringSubmatch(text, -1) {
			found["flags"]++
			if !hasFlag(flags, m[1]) {
				t.Errorf("%s: there is no flag --%s", document, m[1])
			}
		}
		for _, m := range namedFile.FindAllStringSubmatch(text, -1) {
			found["files"]++
			if _, err := os.Stat(filepath.Join(root, folder, m[1])); err != nil {
				t.Errorf("%s: %v", document, err)
			}
		}
		want := []string{"flags", "files"}
		if document == "docs/security.md" {
			want = append(want, "tests", "constants")
		}
		for _, kind := range want {
			if found[kind] == 0 {
				t.Errorf("%s: found no %s, want some", document, kind)
			}
		}
	}
}

// TestNamedFlagsExist: the documents about the inside of the server name only flags that
// there are. Those of kubectl are not ours.
func TestNamedFlagsExist(t *testing.T) {
	flags := contents(t, "cmd/kelson/*.go") + contents(t, "serverflags/*.go") + contents(t, "serverflags/stores/*.go")
	found := 0
	for _, document := range documents(t, "ARCHITECTURE.md", "docs/request.md", "docs/design/*.md") {
		for _, m := range namedFlag.FindAllStringSubmatch(kubectlCall.ReplaceAllString(prose(t, document), ""), -1) {
			if found++; !hasFlag(flags, m[1]) {
				t.Errorf("%s: got the flag --%s, want one that kelson has", document, m[1])
			}
		}
	}
	if found == 0 {
		t.Error("got no flags, want some: the expression that finds them is wrong")
	}
}

// hasFlag reports whether source code binds a flag: by its name, or by what follows
// the prefix that the flags of a backend of the audit share.
func hasFlag(source, name string) bool {
	if strings.Contains(source, `"`+name+`"`) {
		return true
	}
	return slices.ContainsFunc([]string{"audit-log-", "audit-webhook-"}, func(prefix string) bool {
		rest, ok := strings.CutPrefix(name, prefix)
		return ok && strings.Contains(source, `prefix+"`+rest+`"`)
	})
}

// contents returns the text of all files of the module that match a pattern.
func contents(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") == strings.HasSuffix(pattern, "_test.go") {
			all.WriteString(read(t, strings.TrimPrefix(file, root+"/")))
		}
	}
	return all.String()
}

// read returns the text of a file of the module.
func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
