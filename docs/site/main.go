// The program site makes a static site from the documents of this repository: README.md,
// ARCHITECTURE.md, CHANGELOG.md and the others beside them, and the folder docs. It needs
// nothing at run time but a server of files; its search runs in the browser.
//
//	cd docs/site && go run . -out /tmp/site
package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

//go:embed page.html style.css search.js
var assets embed.FS

func main() {
	root := flag.String("root", "../..", "`folder` of the repository")
	out := flag.String("out", "", "`folder` to write, which must not be there yet")
	source := flag.String("source", "", "`address` that links to source files begin with, such as https://example.com/kelson/blob/main; without it they are text")
	flag.Parse()
	if err := build(*root, *out, *source); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

// page is a document on its way to HTML.
type page struct {
	from  string // its path in the repository
	to    string // its path in the site
	title string
	doc   ast.Node
	text  []byte
	words []section
}

// section is a part of a page that a search can find.
type section struct {
	Page    string `json:"page"`
	Anchor  string `json:"anchor,omitempty"`
	Title   string `json:"title"`
	Heading string `json:"heading,omitempty"`
	Text    string `json:"text"`
}

type site struct {
	root, out, source string
	markdown          goldmark.Markdown
	pages             map[string]*page // by their paths in the repository
	problems          []error
}

func build(root, out, source string) error {
	if out == "" {
		return errors.New("give -out, a folder to write")
	}
	if _, err := os.Stat(out); err == nil {
		return fmt.Errorf("%s is there already", out)
	}
	s := &site{root: root, out: out, source: strings.TrimSuffix(source, "/"), pages: map[string]*page{}}
	s.markdown = goldmark.New(goldmark.WithExtensions(extension.Table, extension.Strikethrough), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	if err := s.read(); err != nil {
		return err
	}
	for _, p := range s.pages {
		s.resolve(p)
	}
	if err := errors.Join(s.problems...); err != nil {
		return err
	}
	return s.write()
}

// read parses all documents.
func (s *site) read() error {
	var files []string
	top, err := filepath.Glob(filepath.Join(s.root, "*.md"))
	if err != nil {
		return err
	}
	files = append(files, top...)
	err = filepath.WalkDir(filepath.Join(s.root, "docs"), func(file string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(file, ".md") {
			files = append(files, file)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, file := range files {
		from, err := filepath.Rel(s.root, file)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		s.add(filepath.ToSlash(from), content)
	}
	s.addIndexes()
	return nil
}

// addIndexes gives folders of documents that have no README a list of them.
func (s *site) addIndexes() {
	lists := map[string]string{}
	for _, from := range slices.Sorted(maps.Keys(s.pages)) {
		dir, name := path.Split(from)
		if s.pages[dir+"README.md"] != nil {
			continue
		}
		if lists[dir] == "" {
			lists[dir] = "# " + strings.ToUpper(path.Base(dir)[:1]) + path.Base(dir)[1:] + "\n\n"
		}
		lists[dir] += fmt.Sprintf("- [%s](%s)\n", s.pages[from].title, name)
	}
	for dir, list := range lists {
		s.add(dir+"README.md", []byte(list))
	}
}

// add parses a document.
func (s *site) add(from string, content []byte) {
	p := &page{from: from, text: content}
	p.to = strings.TrimPrefix(strings.TrimSuffix(p.from, ".md")+".html", "docs/")
	switch p.from {
	case "README.md":
		p.to = "index.html"
	case "docs/README.md":
		p.to = "book.html"
	}
	p.doc = s.markdown.Parser().Parse(text.NewReader(content))
	s.gather(p)
	s.pages[p.from] = p
}

// gather finds the title of a page and the words of its sections.
func (s *site) gather(p *page) {
	p.title = path.Base(p.from)
	current := -1
	for n := p.doc.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok {
			heading := plain(n, p.text)
			anchor := ""
			if h.Level == 1 {
				p.title = heading
			} else if id, ok := h.AttributeString("id"); ok {
				anchor = string(id.([]byte))
			}
			p.words = append(p.words, section{Page: p.to, Anchor: anchor, Title: p.title, Heading: heading})
			current = len(p.words) - 1
			continue
		}
		if current >= 0 {
			p.words[current].Text += plain(n, p.text) + " "
		}
	}
}

// plain is the text of a node, without marks.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Segment.Value(source))
			b.WriteByte(' ')
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			lines := n.Lines()
			for i := range lines.Len() {
				line := lines.At(i)
				b.Write(line.Value(source))
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(b.String()), " ")
}

// resolve turns links to documents into links to pages. A link that leads nowhere is a
// problem.
func (s *site) resolve(p *page) {
	var source []*ast.Link // to files that are not part of the site
	_ = ast.Walk(p.doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		var destination *[]byte
		switch n := n.(type) {
		case *ast.Link:
			destination = &n.Destination
		case *ast.Image:
			destination = &n.Destination
		default:
			return ast.WalkContinue, nil
		}
		if !entering {
			return ast.WalkContinue, nil
		}
		u, err := url.Parse(string(*destination))
		if err != nil || u.Scheme != "" || u.Path == "" {
			return ast.WalkContinue, nil
		}
		target := path.Join(path.Dir(p.from), u.Path)
		if to := s.pages[target]; to != nil {
			*destination = []byte(relative(p.to, to.to) + fragment(u))
			return ast.WalkContinue, nil
		}
		if strings.HasPrefix(target, "docs/images/") {
			*destination = []byte(relative(p.to, strings.TrimPrefix(target, "docs/")))
			return ast.WalkContinue, nil
		}
		if _, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(target))); err != nil {
			s.problems = append(s.problems, fmt.Errorf("%s links to %s, which is not there", p.from, u.Path))
		} else if index := s.pages[target+"/README.md"]; index != nil {
			*destination = []byte(relative(p.to, index.to))
		} else if s.source != "" {
			*destination = []byte(s.source + "/" + target + fragment(u))
		} else if link, ok := n.(*ast.Link); ok {
			source = append(source, link)
		}
		return ast.WalkContinue, nil
	})
	for _, link := range source {
		for child := link.FirstChild(); child != nil; {
			next := child.NextSibling()
			link.Parent().InsertBefore(link.Parent(), link, child)
			child = next
		}
		link.Parent().RemoveChild(link.Parent(), link)
	}
}

func fragment(u *url.URL) string {
	if u.Fragment == "" {
		return ""
	}
	return "#" + u.EscapedFragment()
}

// relative is the address of a page as seen from another.
func relative(from, to string) string { return strings.Repeat("../", strings.Count(from, "/")) + to }

// chapter is an entry of the navigation.
type chapter struct {
	Title, Link string
	Current     bool
	Part        bool // a heading
}

// chapters is the navigation as docs/README.md has it: its headings, and each first link
// to a document.
func (s *site) chapters(from *page) (all []chapter) {
	all = append(all, chapter{Title: "Kelson", Link: relative(from.to, "index.html"), Current: from.to == "index.html"})
	index := s.pages["docs/README.md"]
	_ = ast.Walk(index.doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			if n.Level == 2 {
				all = append(all, chapter{Title: plain(n, index.text), Part: true})
			}
		case *ast.Link:
			to, _, _ := strings.Cut(string(n.Destination), "#")
			if strings.HasSuffix(to, ".html") {
				title := plain(n, index.text)
				all = append(all, chapter{Title: strings.ToUpper(title[:1]) + title[1:], Link: relative(from.to, to), Current: from.to == to})
			}
		}
		return ast.WalkContinue, nil
	})
	return all
}

// write writes the site.
func (s *site) write() error {
	layout, err := template.ParseFS(assets, "page.html")
	if err != nil {
		return err
	}
	var index []section
	for _, from := range slices.Sorted(maps.Keys(s.pages)) {
		p := s.pages[from]
		index = append(index, p.words...)
		var body bytes.Buffer
		if err := s.markdown.Renderer().Render(&body, p.text, p.doc); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		var html bytes.Buffer
		err := layout.Execute(&html, map[string]any{
			"Title": p.title, "Body": template.HTML(body.String()), "Up": strings.Repeat("../", strings.Count(p.to, "/")), "Chapters": s.chapters(p),
		})
		if err != nil {
			return err
		}
		if err := s.put(p.to, html.Bytes()); err != nil {
			return err
		}
	}
	words, err := json.Marshal(index)
	if err != nil {
		return err
	}
	if err := s.put("search.json", words); err != nil {
		return err
	}
	for _, name := range []string{"style.css", "search.js"} {
		content, err := assets.ReadFile(name)
		if err != nil {
			return err
		}
		if err := s.put(name, content); err != nil {
			return err
		}
	}
	images, err := filepath.Glob(filepath.Join(s.root, "docs", "images", "*"))
	if err != nil {
		return err
	}
	for _, image := range images {
		content, err := os.ReadFile(image)
		if err != nil {
			return err
		}
		if err := s.put("images/"+filepath.Base(image), content); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) put(name string, content []byte) error {
	file := filepath.Join(s.out, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}
