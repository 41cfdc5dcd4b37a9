package main

import (
	"encoding/json"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	linkText = regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	idText   = regexp.MustCompile(`id="([^"]*)"`)
)

// TestSite builds the site from the documents of this repository: every link leads
// somewhere, every page can be reached, and searches find what is there.
func TestSite(t *testing.T) {
	out := filepath.Join(t.TempDir(), "site")
	if err := build("../..", out, ""); err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	err := filepath.WalkDir(out, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(out, file)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(file)
		pages[filepath.ToSlash(name)] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	reached := map[string]bool{"index.html": true}
	for name, content := range pages {
		if !strings.HasSuffix(name, ".html") {
			continue
		}
		for _, found := range linkText.FindAllStringSubmatch(content, -1) {
			u, err := url.Parse(strings.ReplaceAll(found[1], "&amp;", "&"))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if u.Scheme != "" {
				continue
			}
			target := name
			if u.Path != "" {
				target = path.Join(path.Dir(name), u.Path)
			}
			to, ok := pages[target]
			switch {
			case !ok:
				t.Errorf("%s: the link %s leads nowhere", name, found[1])
			case u.Fragment != "" && !hasAnchor(to, u.Fragment):
				t.Errorf("%s: %s has no part %s", name, target, u.Fragment)
			}
			reached[target] = true
		}
	}
	for name := range pages {
		if strings.HasSuffix(name, ".html") && !reached[name] {
			t.Errorf("no page links to %s", name)
		}
	}
	var sections []section
	if err := json.Unmarshal([]byte(pages["search.json"]), &sections); err != nil || len(sections) < 100 {
		t.Fatalf("got %d sections and error %v, want those of all documents", len(sections), err)
	}
	for _, s := range sections {
		if to, ok := pages[s.Page]; !ok || s.Anchor != "" && !hasAnchor(to, s.Anchor) {
			t.Errorf("a search leads to %s#%s, which is not there", s.Page, s.Anchor)
		}
	}
}

func hasAnchor(content, anchor string) bool {
	for _, id := range idText.FindAllStringSubmatch(content, -1) {
		if id[1] == anchor {
			return true
		}
	}
	return false
}

// TestRefuses: what would make a bad site makes none.
func TestRefuses(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{"README.md": "# A\n\n[gone](docs/gone.md)\n", "docs/README.md": "# Book\n"} {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(root, "site")
	if err := build(root, out, ""); err == nil || !strings.Contains(err.Error(), "README.md links to docs/gone.md, which is not there") {
		t.Errorf("got error %v, want the link that leads nowhere", err)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("it has written a site all the same")
	}
	if err := build(root, root, ""); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("got error %v, want that the folder is there", err)
	}
}
