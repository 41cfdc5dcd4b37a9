package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// protoPrefix begins every envelope.
const protoPrefix = "k8s\x00"

// The fields of the envelope: what it is, the message, and two that are always
// empty and always there: content encoding and content type.
const (
	envelopeTypeTag = 1<<3 | 2
	envelopeRawTag  = 2<<3 | 2
	apiVersionTag   = 1<<3 | 2
	kindTag         = 2<<3 | 2
)

// AppendEnvelope appends a protobuf message in the envelope that says what it
// is.
func AppendEnvelope(dst []byte, apiVersion, kind string, raw []byte) []byte {
	dst = appendEnvelopeHead(dst, apiVersion, kind, len(raw))
	dst = append(dst, raw...)
	return append(dst, envelopeTail...)
}

// appendEnvelopeHead appends what comes before a message of a size, for who
// writes it in pieces. envelopeTail comes after it.
func appendEnvelopeHead(dst []byte, apiVersion, kind string, size int) []byte {
	dst = append(dst, protoPrefix...)
	dst = append(dst, envelopeTypeTag)
	dst = binary.AppendUvarint(dst, uint64(typeSize(apiVersion, kind)))
	dst = append(dst, apiVersionTag)
	dst = binary.AppendUvarint(dst, uint64(len(apiVersion)))
	dst = append(dst, apiVersion...)
	dst = append(dst, kindTag)
	dst = binary.AppendUvarint(dst, uint64(len(kind)))
	dst = append(dst, kind...)
	dst = append(dst, envelopeRawTag)
	return binary.AppendUvarint(dst, uint64(size))
}

// envelopeTail is what comes after the message in an envelope: the two empty
// fields.
const envelopeTail = "\x1a\x00\x22\x00"

func typeSize(apiVersion, kind string) int {
	return 2 + uvarintSize(len(apiVersion)) + len(apiVersion) + uvarintSize(len(kind)) + len(kind)
}

// envelopeSize returns how long a message of the size is with its envelope.
func envelopeSize(apiVersion, kind string, size int) int {
	n := typeSize(apiVersion, kind)
	return len(protoPrefix) + 1 + uvarintSize(n) + n + 1 + uvarintSize(size) + size + len(envelopeTail)
}

func encodeEnvelope(apiVersion, kind string, m message) ([]byte, error) {
	size := m.Size()
	data := make([]byte, 0, envelopeSize(apiVersion, kind, size))
	data = appendEnvelopeHead(data, apiVersion, kind, size)
	at := len(data)
	data = data[:at+size]
	n, err := m.MarshalToSizedBuffer(data[at:])
	if err != nil {
		return nil, err
	}
	if n != size {
		return nil, fmt.Errorf("%T: encoded into %d bytes instead of %d", m, n, size)
	}
	return append(data, envelopeTail...), nil
}

type envelope struct {
	apiVersion, kind, raw []byte
}

// OpenEnvelope returns what is in a protobuf envelope. The message shares
// memory with the data.
func OpenEnvelope(data []byte) (apiVersion, kind string, raw []byte, ok bool) {
	env, ok := openEnvelope(data)
	return string(env.apiVersion), string(env.kind), env.raw, ok
}

func openEnvelope(data []byte) (env envelope, ok bool) {
	data, ok = bytes.CutPrefix(data, []byte(protoPrefix))
	if !ok {
		return env, false
	}
	var types []byte
	if !eachField(data, func(field uint64, value []byte) {
		switch field {
		case 1:
			types = value
		case 2:
			env.raw = value
		}
	}) {
		return env, false
	}
	return env, eachField(types, func(field uint64, value []byte) {
		switch field {
		case 1:
			env.apiVersion = value
		case 2:
			env.kind = value
		}
	})
}

// eachField calls f with every field of a protobuf message that consists of
// strings and messages only, and reports whether it is one.
func eachField(data []byte, f func(field uint64, value []byte)) bool {
	for len(data) > 0 {
		tag, n := binary.Uvarint(data)
		if n <= 0 || tag&7 != 2 {
			return false
		}
		size, m := binary.Uvarint(data[n:])
		if m <= 0 || size > uint64(len(data)-n-m) {
			return false
		}
		end := n + m + int(size)
		f(tag>>3, data[n+m:end:end])
		data = data[end:]
	}
	return true
}

// ProtoBytes is the kind of fields of strings, bytes and messages in protobuf.
const ProtoBytes = 2

// ProtoField takes the first field from a protobuf message. value is set for fields of
// ProtoBytes.
func ProtoField(b []byte) (field uint64, kind byte, value, rest []byte, ok bool) {
	tag, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, 0, nil, nil, false
	}
	b = b[n:]
	field, kind = tag>>3, byte(tag&7)
	size := 0
	switch kind {
	case 0:
		if _, size = binary.Uvarint(b); size <= 0 {
			return 0, 0, nil, nil, false
		}
	case 1:
		size = 8
	case 5:
		size = 4
	case ProtoBytes:
		length, n := binary.Uvarint(b)
		if n <= 0 || length > uint64(len(b)-n) {
			return 0, 0, nil, nil, false
		}
		return field, kind, b[n : n+int(length)], b[n+int(length):], true
	default:
		return 0, 0, nil, nil, false
	}
	if size > len(b) {
		return 0, 0, nil, nil, false
	}
	return field, kind, nil, b[size:], true
}

// uvarintSize returns how many bytes a length takes.
func uvarintSize(n int) int { return (bits.Len64(uint64(n)|1) + 6) / 7 }
