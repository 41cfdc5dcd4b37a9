package openapi

import (
	"crypto/sha256"
	"crypto/sha512"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"reflect"
	"sort"
	"strings"

	"github.com/apikeel/kelson/openapi/internal/pack"
	"github.com/apikeel/kelson/resource"
)

// The hashes of documents of built-in kinds are computed ahead of time, so that the
// index need not build the documents: one line for each, the fingerprint of its input
// and the hash, sorted. TestHashes keeps them right.
//
//go:embed data/hashes
var hashes string

// hash3 returns the hash of a document of version 3.
func (h *Handler) hash3(d *document, open func() *library) (string, error) {
	if hash := h.knownHash(&d.part); hash != "" {
		return hash, nil
	}
	b, err := h.json3(d, open)
	if err != nil {
		return "", err
	}
	return b.hash, nil
}

// knownHash returns the precomputed hash of a document, "" if there is none.
func (h *Handler) knownHash(p *part) string {
	if p.custom() || h.config.NoEnums {
		return ""
	}
	want := h.fingerprint(p)
	n, found := sort.Find(len(hashes)/hashLine, func(i int) int { return strings.Compare(want, hashes[i*hashLine:][:fingerprintSize]) })
	if !found {
		return ""
	}
	return hashes[n*hashLine+fingerprintSize+1 : (n+1)*hashLine-1]
}

// A line has a fingerprint, a space, a hash, and its end.
const (
	fingerprintSize = 2 * 16
	hashLine        = fingerprintSize + 1 + 2*sha512.Size + 1
)

// fingerprint identifies everything that the document of a part is made from
// but the program: what it describes, and the generated definitions.
func (h *Handler) fingerprint(p *part) string {
	d := describer(make([]byte, 0, 4096))
	d.texts(p.name, h.config.Title, h.config.Version, pack.Sum(packed))
	if h.config.CBOR {
		d.texts(mediaCBOR)
	}
	if r := p.route; r != nil {
		d.texts(r.Path, r.Operation, r.Description, r.Tag, r.Definition)
		d.list(r.Consumes)
		d.list(r.Produces)
	} else {
		for _, s := range p.version.Resources {
			d.resource(s)
		}
	}
	sum := sha256.Sum256(d)
	return hex.EncodeToString(sum[:fingerprintSize/2])
}

// describer writes all that paths and definitions are made from, so that no two things
// look the same.
type describer []byte

func (d *describer) texts(texts ...string) {
	for _, text := range texts {
		*d = append(binary.AppendUvarint(*d, uint64(len(text))), text...)
	}
}

func (d *describer) list(texts []string) {
	*d = binary.AppendUvarint(*d, uint64(len(texts)))
	d.texts(texts...)
}

func (d *describer) flags(flags ...bool) {
	for _, flag := range flags {
		*d = append(*d, '0')
		if flag {
			(*d)[len(*d)-1] = '1'
		}
	}
}

func (d *describer) resource(s *resource.Served) {
	of := s.Definition
	d.texts(of.Resource, of.Kind, of.ListKind, objectName(s), listName(s))
	d.flags(of.Namespaced, of.Strategy.ReturnDeleted || s.Version.ReturnDeleted, of.Strategy.BeforeDelete == nil, s.Version.Schema == nil)
	d.list(of.Verbs)
	for sub := range s.Subresources() {
		d.texts(sub.Name, sub.Kind.Group, sub.Kind.Version, sub.Kind.Kind)
		d.list(sub.ServedVerbs())
		if c := sub.Connect; c != nil {
			d.list(c.Methods)
			d.flags(c.Path, c.Text)
			d.texts(reflect.TypeOf(c.Options()).String())
		} else if sub.Kind.Kind != "" {
			d.texts(definitionName(sub.New(), sub.Kind))
		}
	}
	d.texts("") // a resource ends
}
