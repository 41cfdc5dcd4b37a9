package openapi

import (
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

// Hashes returns the content of data/hashes for what a handler serves, and the
// names of the documents that would come from another one.
func (h *Handler) Hashes() (content string, unknown []string, err error) {
	var lines []string
	s, l := h.state(), h.newLibrary()
	for _, name := range s.names() {
		d := s.documents[name]
		if d.part.custom() {
			continue
		}
		if h.knownHash(&d.part) == "" {
			unknown = append(unknown, name)
		}
		b, err := h.json3(d, func() *library { return l })
		if err != nil {
			return "", nil, err
		}
		hash, err := b.textHash()
		if err != nil {
			return "", nil, err
		}
		lines = append(lines, h.fingerprint(&d.part)+" "+hash+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, ""), unknown, nil
}
