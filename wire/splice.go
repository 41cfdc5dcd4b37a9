package wire

import (
	"bytes"
	"encoding/binary"

	"github.com/apikeel/kelson/internal/jsonvalue"
)

// The functions in this file change and cut encoded objects without decoding
// them. They work on what the encoders of this package, or kube-apiserver's,
// have written: JSON without white space, and protobuf with the fields in
// order. On anything else they do no harm: they return the input as it is, or
// nothing.

// spliceJSON returns an object's JSON with metadata.resourceVersion set, at the
// place where the encoder would have put it: after uid in objects that come
// from structs, in alphabetical order in others.
func spliceJSON(body []byte, rv string) []byte {
	from, to, ok := findVersionJSON(body)
	if !ok {
		return body
	}
	return replaceVersionJSON(make([]byte, 0, len(body)+len(rv)+len(versionKeyJSON)+3), body, rv, from, to)
}

// appendSpliceJSON is spliceJSON that appends to a buffer.
func appendSpliceJSON(dst, body []byte, rv string) []byte {
	from, to, ok := findVersionJSON(body)
	if !ok {
		return append(dst, body...)
	}
	return replaceVersionJSON(dst, body, rv, from, to)
}

const versionKeyJSON = `"resourceVersion":`

// replaceVersionJSON puts the resourceVersion in the place of body[from:to].
func replaceVersionJSON(dst, body []byte, rv string, from, to int) []byte {
	dst = append(dst, body[:from]...)
	if rv == "" {
		// Whatever follows, there is one comma too many if there is a member
		// on this side of the gap.
		if from < to && body[from-1] == ',' && body[to] == '}' {
			dst = dst[:len(dst)-1]
		} else if from < to && body[to] == ',' {
			to++
		}
		return append(dst, body[to:]...)
	}
	if body[from-1] != '{' && body[from-1] != ',' {
		dst = append(dst, ',')
	}
	dst = append(dst, versionKeyJSON...)
	dst = jsonvalue.AppendString(dst, rv)
	if body[to] != '}' && body[to] != ',' {
		dst = append(dst, ',')
	}
	return append(dst, body[to:]...)
}

// findVersionJSON finds where the resourceVersion of an object is: the member
// with key and value is body[from:to], an empty range if there is none yet. It
// is followed by at least the end of the metadata.
func findVersionJSON(body []byte) (from, to int, ok bool) {
	i, end := findMetadataJSON(body), len(body)
	if i < 0 || i >= end || body[i] != '{' {
		return 0, 0, false
	}
	sorted := !bytes.HasPrefix(body, []byte(`{"metadata":`)) && !bytes.HasPrefix(body, []byte(`{"kind":`))
	for i++; i < end && body[i] == '"'; {
		colon := skipString(body, i)
		if colon < 0 || colon >= end || body[colon] != ':' {
			return 0, 0, false
		}
		key := body[i+1 : colon-1]
		var before bool
		if sorted {
			before = string(key) < "resourceVersion"
		} else {
			switch string(key) {
			case "name", "generateName", "namespace", "selfLink", "uid":
				before = true
			}
		}
		if !before && string(key) != "resourceVersion" {
			return i, i, true
		}
		next := skipValue(body, colon+1)
		if next < 0 || next >= end {
			return 0, 0, false
		}
		switch {
		case !before:
			return i, next, true
		case body[next] == '}':
			return next, next, true
		case body[next] != ',':
			return 0, 0, false
		}
		i = next + 1
	}
	if i >= end || body[i] != '}' {
		return 0, 0, false
	}
	return i, i, true
}

// MetadataJSON returns the value of "metadata" in an object's JSON, as it
// stands there: not in the order of ObjectMeta if the object is a map.
func MetadataJSON(body []byte) ([]byte, bool) {
	from := findMetadataJSON(body)
	if from < 0 {
		return nil, false
	}
	to := skipValue(body, from)
	if to < 0 {
		return nil, false
	}
	return body[from:to:to], true
}

// findMetadataJSON returns where the value of "metadata" begins, -1 if there is
// none.
func findMetadataJSON(body []byte) int {
	if len(body) < 2 || body[0] != '{' {
		return -1
	}
	for i := 1; i < len(body) && body[i] == '"'; {
		colon := skipString(body, i)
		if colon < 0 || colon >= len(body) || body[colon] != ':' {
			return -1
		}
		if string(body[i:colon]) == `"metadata"` {
			return colon + 1
		}
		next := skipValue(body, colon+1)
		if next < 0 || next >= len(body) || body[next] != ',' {
			return -1
		}
		i = next + 1
	}
	return -1
}

// skipString returns the index after the string that begins at i, -1 if it
// has no end.
func skipString(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; ; i++ {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		escapes := 0
		for k := i + n - 1; k >= i && b[k] == '\\'; k-- {
			escapes++
		}
		i += n
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

// skipValue returns the index after the value that begins at i, -1 if it has
// no end.
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			if i = skipString(b, i); i < 0 {
				return -1
			}
			if depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth <= 0 {
				if depth == 0 {
					i++
				}
				return i
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return -1
}

// Tags of the protobuf fields that matter here: a message's first field, which
// is the metadata of every API object, and the sixth of ObjectMeta.
const (
	metadataTag = 1<<3 | 2
	versionTag  = 6<<3 | 2
)

// protoSplice is how to set the resourceVersion in an object's protobuf: it takes
// the place of raw[from:to] in the metadata, which is raw[start:end] and gets a
// new length.
type protoSplice struct {
	// size of the result.
	size int
	// metadata is the size of the metadata in it, 0 if there is none.
	metadata int

	start, from, to, end int
}

// newProtoSplice finds out how to set a resourceVersion of a length; with none the object
// stays as it is.
func newProtoSplice(raw []byte, rv int) protoSplice {
	p, ok := findVersionProto(raw, rv)
	if !ok {
		return protoSplice{size: len(raw)}
	}
	return p
}

// protoLayout is where the metadata is in stored bytes, in a word: who keeps it
// need not look for it again. 0 is none.
type protoLayout uint64

// layout returns the layout of stored bytes that are of a version, by its index,
// and have raw in them, which p is a plan for that has a resourceVersion.
func (p *protoSplice) layout(index int, stored, raw []byte) protoLayout {
	// An empty resourceVersion has a tag and a length.
	head, size, old := len(stored)-len(raw)-len(envelopeTail), p.end-p.start, p.to-p.from
	if p.metadata == 0 || old != 0 && old != 2 || p.start != 1+uvarintSize(size) || size > 1<<23-1 ||
		index >= 0xff || head < 0 || head > 0xff || &stored[head] != &raw[0] {
		return 0
	}
	return protoLayout(index+1)<<56 | protoLayout(head)<<48 | protoLayout(old/2)<<47 | protoLayout(size)<<24 | protoLayout(p.from-p.start)
}

// splice is newProtoSplice for what is in stored bytes of a size, from head to the tail of
// the envelope, if they are of a version.
func (l protoLayout) splice(index, stored, rv int) (p protoSplice, head int, ok bool) {
	if int(l>>56) != index+1 {
		return p, 0, false
	}
	head = int(l >> 48 & 0xff)
	size := int(l >> 24 & (1<<23 - 1))
	p.start = 1 + uvarintSize(size)
	p.end = p.start + size
	p.from = p.start + int(l&(1<<24-1))
	p.to = p.from + int(l>>47&1)*2
	p.measure(stored-head-len(envelopeTail), rv)
	return p, head, true
}

// append appends the object with the resourceVersion.
func (p *protoSplice) append(dst, raw, rv []byte) []byte {
	if p.metadata == 0 {
		return append(dst, raw...)
	}
	dst = append(dst, metadataTag)
	dst = binary.AppendUvarint(dst, uint64(p.metadata))
	dst = p.appendMetadata(dst, raw, rv)
	return append(dst, raw[p.end:]...)
}

// appendMetadata appends the encoded ObjectMeta alone.
func (p *protoSplice) appendMetadata(dst, raw, rv []byte) []byte {
	dst = append(dst, raw[p.start:p.from]...)
	if len(rv) > 0 {
		dst = append(dst, versionTag)
		dst = binary.AppendUvarint(dst, uint64(len(rv)))
		dst = append(dst, rv...)
	}
	return append(dst, raw[p.to:p.end]...)
}

func findVersionProto(raw []byte, rv int) (p protoSplice, ok bool) {
	p.start, p.end, ok = findMetadataProto(raw)
	if !ok {
		return p, false
	}
	p.from, p.to = p.end, p.end
	for i := p.start; i < p.end; {
		tag, n := binary.Uvarint(raw[i:p.end])
		if n <= 0 {
			return p, false
		}
		if tag>>3 > versionTag>>3 {
			p.from, p.to = i, i
			break
		}
		if tag&7 != 2 {
			return p, false
		}
		length, m := binary.Uvarint(raw[i+n : p.end])
		if m <= 0 || length > uint64(p.end-i-n-m) {
			return p, false
		}
		next := i + n + m + int(length)
		if tag == versionTag {
			p.from, p.to = i, next
			break
		}
		i = next
	}
	p.measure(len(raw), rv)
	return p, true
}

// measure finds out the sizes of the result, from that of the object.
func (p *protoSplice) measure(raw, rv int) {
	if rv == 0 {
		p.from, p.to = p.end, p.end
		p.size, p.metadata = raw, p.end-p.start
		return
	}
	p.metadata = p.end - p.start - (p.to - p.from) + 1 + uvarintSize(rv) + rv
	p.size = 1 + uvarintSize(p.metadata) + p.metadata + raw - p.end
}

// MetadataProto returns the encoded ObjectMeta in an object's protobuf, without
// envelope.
func MetadataProto(raw []byte) ([]byte, bool) {
	from, to, ok := findMetadataProto(raw)
	if !ok {
		return nil, false
	}
	return raw[from:to:to], true
}

func findMetadataProto(raw []byte) (from, to int, ok bool) {
	if len(raw) == 0 || raw[0] != metadataTag {
		return 0, 0, false
	}
	length, n := binary.Uvarint(raw[1:])
	if n <= 0 || length > uint64(len(raw)-1-n) {
		return 0, 0, false
	}
	return 1 + n, 1 + n + int(length), true
}

// uidTag is the tag of uid in an encoded ObjectMeta.
const uidTag = 5<<3 | 2

// findUIDProto returns the uid in an encoded ObjectMeta.
func findUIDProto(meta []byte) (uid []byte, ok bool) {
	for len(meta) > 0 {
		tag, n := binary.Uvarint(meta)
		if n <= 0 || tag&7 != 2 || tag > uidTag {
			return nil, false
		}
		length, m := binary.Uvarint(meta[n:])
		if m <= 0 || length > uint64(len(meta)-n-m) {
			return nil, false
		}
		value := meta[n+m : n+m+int(length)]
		if tag == uidTag {
			return value, true
		}
		meta = meta[n+m+int(length):]
	}
	return nil, false
}
