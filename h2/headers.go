package h2

import (
	"encoding/binary"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// headerFields collects the fields of a header block as they are decoded. A
// connection has one, which is used again for each block.
type headerFields struct {
	method, path, scheme, authority string
	regular                         []hpack.HeaderField

	pseudo uint8 // which pseudo header fields there are, a bit each
	// malformed says that the fields break a rule of HTTP/2, and tooLarge that there
	// are more than the server accepts. What comes after either is not collected.
	malformed, tooLarge bool

	size, count        int // of all fields, as they are bounded
	maxSize, maxFields int
	decoder            *hpack.Decoder
}

// begin prepares for the next block.
func (f *headerFields) begin(s *Server, decoder *hpack.Decoder) {
	regular := f.regular[:0]
	clear(f.regular) // so that what is idle keeps no strings
	if cap(regular) > 64 {
		regular = nil
	}
	*f = headerFields{regular: regular, maxSize: s.MaxHeaderBytes, maxFields: s.MaxHeaderFields, decoder: decoder}
	decoder.SetEmitEnabled(true)
}

// add is called by the decoder for each field.
func (f *headerFields) add(field hpack.HeaderField) {
	f.size += int(field.Size())
	f.count++
	if field.Name == "trailer" { // each name in it becomes an entry of a map
		f.count += strings.Count(field.Value, ",")
	}
	switch {
	case f.size > f.maxSize || f.count > f.maxFields:
		f.tooLarge = true
	case !validValue(field.Value):
		f.malformed = true
	case strings.HasPrefix(field.Name, ":"):
		f.addPseudo(field)
	case !validName(field.Name):
		f.malformed = true
	default:
		f.regular = append(f.regular, field)
	}
	if f.malformed || f.tooLarge {
		f.decoder.SetEmitEnabled(false)
	}
}

// addPseudo adds a pseudo header field. They come before all others, once each.
func (f *headerFields) addPseudo(field hpack.HeaderField) {
	bit := uint8(0)
	switch field.Name {
	case ":method":
		f.method, bit = field.Value, 1
	case ":path":
		f.path, bit = field.Value, 2
	case ":scheme":
		f.scheme, bit = field.Value, 4
	case ":authority":
		f.authority, bit = field.Value, 8
	}
	if bit == 0 || f.pseudo&bit != 0 || len(f.regular) > 0 {
		f.malformed = true
	}
	f.pseudo |= bit
}

// validValue reports whether a value may be sent in HTTP/2: without control characters, and
// without blanks around it. A value that is nothing but blanks passes, as with kube-apiserver: some
// clients send such a User-Agent, and nobody can take it for another value.
func validValue(value string) bool {
	trimmed := strings.Trim(value, " \t")
	return httpguts.ValidHeaderFieldValue(value) && (trimmed == value || trimmed == "")
}

// validName reports whether a name may be sent in HTTP/2: a token in lower case.
func validName(name string) bool {
	for i := range len(name) {
		if 'A' <= name[i] && name[i] <= 'Z' {
			return false
		}
	}
	return httpguts.ValidHeaderFieldName(name)
}

// readHeaders reads a header block: a HEADERS frame and the CONTINUATION frames after
// it. It begins a stream, or ends the body of one with trailers.
func (c *conn) readHeaders(h frameHeader) error {
	if h.stream == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	pad, size, err := c.padding(h, h.length)
	if err != nil {
		return err
	}
	dependency := uint32(0)
	if h.flags.Has(http2.FlagHeadersPriority) {
		if size < 5 {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		p, err := c.in.Peek(5)
		if err != nil {
			return err
		}
		dependency = binary.BigEndian.Uint32(p) & maxWindow
		_, _ = c.in.Discard(5)
		size -= 5
	}
	// What start has not taken.
	defer func() {
		c.srv.leave(c.entered)
		c.entered = 0
	}()
	if err := c.decodeHeaders(h, size, pad); err != nil {
		return err
	}
	// The decoder has seen the block also if the stream is not served: it must see
	// all of them.
	return c.handle(func() error {
		if c.leaving && h.stream > c.last {
			return nil // sent before the client knew that the stream is not served
		}
		return c.headers(h, dependency)
	})
}

// decodeHeaders reads a header block of which size bytes, and then pad bytes of
// padding, are in its first frame. The block is decoded when all of it is there:
// the decoder would parse a long string from its beginning with every piece of it.
func (c *conn) decodeHeaders(h frameHeader, size, pad int) error {
	c.fields.begin(c.srv, c.decoder)
	if h.flags.Has(http2.FlagHeadersEndHeaders) && size <= c.in.Buffered() {
		block, _ := c.in.Peek(size)
		err := c.decode(h, block)
		_, _ = c.in.Discard(size)
		if err != nil {
			return err
		}
		return c.skip(pad)
	}
	if size > c.srv.MaxHeaderBytes {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	defer c.headerDeadline()()
	block := smallBuffers.Get().(*[]byte)
	defer recycle(block)
	var held int
	defer func() {
		if held > 0 {
			c.srv.HeaderBlocks.Return(held)
		}
	}()
	if err := c.readFragment(block, size, pad, &held); err != nil {
		return err
	}
	for frames, ended := 0, h.flags.Has(http2.FlagHeadersEndHeaders); !ended; frames++ {
		head, err := c.in.Peek(frameHeaderLen)
		if err != nil {
			return err
		}
		next := parseFrameHeader(head)
		switch {
		case next.length > c.srv.MaxFrame:
			return http2.ConnectionError(http2.ErrCodeFrameSize)
		case next.kind != http2.FrameContinuation || next.stream != h.stream:
			return http2.ConnectionError(http2.ErrCodeProtocol)
		case frames == maxContinuations || len(*block)+next.length > c.srv.MaxHeaderBytes:
			return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
		}
		_, _ = c.in.Discard(frameHeaderLen)
		if err := c.readFragment(block, next.length, 0, &held); err != nil {
			return err
		}
		ended = next.flags.Has(http2.FlagContinuationEndHeaders)
	}
	return c.decode(h, *block)
}

// readFragment appends size bytes to a block, as they come, and skips the padding. It adds to
// held what it takes of Server.HeaderBlocks.
func (c *conn) readFragment(block *[]byte, size, pad int, held *int) error {
	for size > 0 {
		if n := len(*block); n == cap(*block) {
			*block = append(*block, 0)[:n]
			if more := cap(*block) - max(n, ordinaryBlock); more > 0 && c.srv.HeaderBlocks != nil {
				if !c.srv.HeaderBlocks.Take(more) {
					return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
				}
				*held += more
			}
		}
		free := (*block)[len(*block):cap(*block)]
		n, err := c.in.Read(free[:min(size, len(free))])
		if err != nil {
			return err
		}
		*block = (*block)[:len(*block)+n]
		size -= n
	}
	return c.skip(pad)
}

// decode decodes a header block when it is its turn: decoded it may take far more memory.
func (c *conn) decode(h frameHeader, block []byte) error {
	if isNew := h.stream > c.last; isNew && c.srv.MaxArriving > 0 && !c.aheadOfOthers.Load() {
		c.entered = c.srv.arrivals.enter(c.ctx.Done())
	}
	if _, err := c.decoder.Write(block); err != nil {
		return http2.ConnectionError(http2.ErrCodeCompression)
	}
	if err := c.decoder.Close(); err != nil {
		return http2.ConnectionError(http2.ErrCodeCompression)
	}
	return nil
}
