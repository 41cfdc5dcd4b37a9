package openapi

import (
	"fmt"
	"slices"
	"strings"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
)

// QuickDefinitions and QuickPaths return a message as it is made quickly, and by
// the models; plain is false if it cannot be made quickly.
func QuickDefinitions(text []byte) (quick, models []byte, plain bool, err error) {
	q := newQuick()
	quick, plain = q.encode(q.definitions, text)
	models, err = message(text, openapiv2.NewDefinitions)
	return quick, models, plain, err
}

func QuickPaths(text []byte) (quick, models []byte, plain bool, err error) {
	q := newQuick()
	quick, plain = q.encode(q.paths, text)
	models, err = message(text, openapiv2.NewPaths)
	return quick, models, plain, err
}

// BuildAhead returns the content of data/hashes and of data/documents.s2 for what a
// handler serves, and the names of the documents that are not in them now.
func (h *Handler) BuildAhead() (lines, texts string, missing []string, err error) {
	type made struct {
		line string
		text []byte
	}
	var all []made
	s, l := h.state(), h.newLibrary()
	for _, name := range s.names() {
		d := s.documents[name]
		if d.part.custom() {
			continue
		}
		if h.findBuilt(&d.part) < 0 {
			missing = append(missing, name)
		}
		b, err := h.buildJSON3(d, nil, func() *library { return l })
		if err != nil {
			return "", "", nil, err
		}
		text, err := b.whole()
		if err != nil {
			return "", "", nil, err
		}
		all = append(all, made{h.fingerprint(&d.part) + " " + b.hash, appendBlocks(nil, *text)})
	}
	slices.SortFunc(all, func(a, b made) int { return strings.Compare(a.line, b.line) })
	for _, m := range all {
		texts += string(m.text)
		lines += fmt.Sprintf("%s %0*x\n", m.line, endSize, len(texts))
	}
	return lines, texts, missing, nil
}
