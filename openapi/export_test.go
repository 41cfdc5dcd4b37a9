package openapi

// Hashes returns the content of data/hashes for what a handler serves, and the
// names of the documents that would come from another one.
func (h *Handler) Hashes() (content string, unknown []string, err error) {
	s, l := h.state(), newLibrary()
	for _, name := range s.names() {
		d := s.documents[name]
		if d.part.custom() {
			continue
		}
		if h.knownHash(&d.part) == "" {
			unknown = append(unknown, name)
		}
		b, err := h.json3(d, l)
		if err != nil {
			return "", nil, err
		}
		hash, err := b.textHash()
		if err != nil {
			return "", nil, err
		}
		content += h.fingerprint(&d.part) + " " + hash + "\n"
	}
	return content, unknown, nil
}
