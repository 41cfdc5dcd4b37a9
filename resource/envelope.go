package resource

// EnvelopeParts returns what comes before and after a message of a size, for
// who writes it in pieces.
func EnvelopeParts(apiVersion, kind string, size int) (head, tail []byte) {
	return appendEnvelopeHead(nil, apiVersion, kind, size), []byte(envelopeTail)
}
