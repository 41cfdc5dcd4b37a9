package wire

import (
	"bytes"
	"encoding/binary"

	"github.com/apikeel/kelson/internal/jsonscan"
)

// What a text takes in memory has little to do with its length: three bytes can become a struct
// of 400. So texts are weighed before they are decoded.
const (
	// objectWeight is for an object of a text, in all the states that a write has of it at a
	// time: as it was sent, with defaults, as it is stored, and its owners. An empty one may
	// become a struct of 400 bytes. fieldWeight is for a field or a list, itemWeight for
	// what is between two commas.
	objectWeight, fieldWeight, itemWeight = 1200, 200, 48
	// lightText is how long a text is that is not worth being weighed.
	lightText = 1 << 10
	// roughWeight is up to which weight it does not matter whether braces are in strings.
	roughWeight = 512 << 10
	// maxWeighed is how deep messages are weighed. What is deeper is taken for as many as it
	// has room for.
	maxWeighed = 100
)

// Weigh returns about how many bytes a write of a text takes beside the text: JSON, YAML,
// protobuf or CBOR, as clients send it or as it is stored.
func Weigh(text []byte) int64 {
	switch {
	case len(text) < lightText:
		return 0
	case bytes.HasPrefix(text, []byte(protoPrefix)):
		weight, _ := weighMessage(text[len(protoPrefix):], 0)
		return weight
	case bytes.HasPrefix(text, cborMagic):
		return WeighCBOR(text)
	}
	count := func(c string) int64 { return int64(bytes.Count(text, []byte(c))) }
	if rough := objectWeight*count("{") + fieldWeight*(count("[")+count(":")) + itemWeight*count(","); rough <= roughWeight {
		return rough
	}
	return weighJSON(text)
}

var cborMagic = []byte{0xd9, 0xd9, 0xf7}

func weighJSON(text []byte) (weight int64) {
	for c := range jsonscan.Marks(text) {
		switch c {
		case '{':
			weight += objectWeight
		case '[', ':':
			weight += fieldWeight
		case ',':
			weight += itemWeight
		}
	}
	return weight
}

// WeighCBOR is Weigh for a text that is known to be CBOR, also if it does not say so.
//
// The values of CBOR come one after the other, those in a map or an array behind its head, so
// nothing needs to be remembered. What is not valid has the weight up to there.
func WeighCBOR(text []byte) (weight int64) {
	for at := 0; at < len(text); {
		kind, argument := text[at]&0xe0, uint64(text[at]&0x1f)
		at++
		switch {
		case argument >= 28: // the length is not known: an end will be marked
			argument = 0
		case argument >= 24: // it is in the next bytes: 1, 2, 4 or 8
			size := 1 << (argument - 24)
			if size > len(text)-at {
				return weight
			}
			argument = 0
			for _, c := range text[at : at+size] {
				argument = argument<<8 | uint64(c)
			}
			at += size
		}
		switch kind {
		case cborMap:
			weight += objectWeight
		case cborArray:
			weight += fieldWeight
		case cborBytes, cborText:
			if argument > uint64(len(text)-at) {
				return weight
			}
			at += int(argument)
			fallthrough
		default:
			weight += fieldWeight / 2 // a field has a key and a value
		}
	}
	return weight
}

// weighMessage weighs the fields of a message. Whether one of them is a message, too, is not
// known without its type: it is taken for one if it could be. ok is false for what is none, with
// the weight up to there: a decoder that finds a fault has decoded what is before it.
func weighMessage(b []byte, depth int) (weight int64, ok bool) {
	if depth > maxWeighed {
		return objectWeight * int64(len(b)) / 2, true
	}
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 || tag>>3 == 0 {
			return weight, false
		}
		b = b[n:]
		switch tag & 7 {
		case 0:
			_, n = binary.Uvarint(b)
		case 1:
			n = 8
		case 2:
			size, head := binary.Uvarint(b)
			if head <= 0 || size > uint64(len(b)-head) {
				return weight, false
			}
			n = head + int(size)
			below, ok := weighMessage(b[head:n], depth+1)
			if weight += below; ok {
				weight += objectWeight
			}
		case 5:
			n = 4
		default:
			return weight, false
		}
		if n <= 0 || n > len(b) {
			return weight, false
		}
		b = b[n:]
		weight += fieldWeight
	}
	return weight, true
}
