package controlplane

import "encoding/binary"

// protoField takes the first field from a protobuf message. value is set for
// fields of bytes.
func protoField(b []byte) (field uint64, kind byte, value, rest []byte, ok bool) {
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
	case 2:
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
