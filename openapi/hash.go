package openapi

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/apikeel/kelson/resource"
)

// The hashes of documents of built-in kinds are known ahead of time, so that
// the index need not make the documents: a line for each, the fingerprint of
// what it is made from and the hash. TestHashes keeps them right.
//
//go:embed data/hashes
var hashes string

// hash3 returns the hash of a document of version 3.
func (h *Handler) hash3(d *document, l *library) (string, error) {
	if hash := h.knownHash(&d.part); hash != "" {
		return hash, nil
	}
	b, err := h.json3(d, l)
	if err != nil {
		return "", err
	}
	return b.hash, nil
}

// knownHash returns the hash of the document of a part, "" if it is not known.
func (h *Handler) knownHash(p *part) string {
	if p.custom() {
		return ""
	}
	_, after, ok := strings.Cut(hashes, h.fingerprint(p)+" ")
	if !ok {
		return ""
	}
	hash, _, _ := strings.Cut(after, "\n")
	return hash
}

// fingerprint identifies everything that the document of a part is made from
// but the program: what it describes, and the generated definitions.
func (h *Handler) fingerprint(p *part) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q %q %x\n", p.name, h.config.Title, h.config.Version, h.packed)
	if p.route != nil {
		fmt.Fprintf(&b, "%q\n", *p.route)
	} else {
		for _, s := range p.version.Resources {
			describe(&b, s)
		}
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:16])
}

// describe writes all that paths and definitions are made from.
func describe(b *strings.Builder, s *resource.Served) {
	d := s.Definition
	fmt.Fprintf(b, "%q %q %q %t %q %q %t %t %t\n", d.Resource, d.Kind, d.ListKind, d.Namespaced, objectName(s), listName(s),
		d.Strategy.ReturnDeleted, d.Strategy.BeforeDelete == nil, s.Version.Schema == nil)
	fmt.Fprintln(b, d.Verbs)
	for sub := range s.Subresources() {
		fmt.Fprintf(b, "%q %q %q\n", sub.Name, sub.Kind, sub.ServedVerbs())
		if c := sub.Connect; c != nil {
			fmt.Fprintf(b, "%q %t %t %T\n", c.Methods, c.Path, c.Text, c.Options())
		} else if sub.Kind.Kind != "" {
			fmt.Fprintln(b, definitionName(sub.New(), sub.Kind))
		}
	}
}

// packsSum identifies the generated definitions: what their files end with, the
// checksum and the size of the content.
func packsSum() []byte {
	sum := sha256.New()
	files, err := packs.ReadDir("data")
	if err != nil {
		panic(err) // they are part of the program
	}
	for _, file := range files {
		f, err := packs.Open("data/" + file.Name())
		if err != nil {
			panic(err)
		}
		info, err := f.Stat()
		if err != nil {
			panic(err)
		}
		var end [8]byte
		if _, err := f.(io.ReaderAt).ReadAt(end[:], info.Size()-int64(len(end))); err != nil {
			panic(err)
		}
		fmt.Fprintf(sum, "%s %x\n", file.Name(), end)
	}
	return sum.Sum(nil)[:16]
}
