package wire

import (
	"bytes"
	"encoding/json"

	"github.com/apikeel/kelson/internal/yamltext"
)

// MediaType is a media type of bodies.
type MediaType uint8

// The media types.
const (
	JSON MediaType = iota
	YAML
	Protobuf
	CBOR
)

// The media types, as headers spell them.
const (
	TypeJSON     = "application/json"
	TypeYAML     = "application/yaml"
	TypeProtobuf = "application/vnd.kubernetes.protobuf"
	TypeCBOR     = "application/cbor"
	// TypeCBORSequence is the media type of watches in CBOR.
	TypeCBORSequence = "application/cbor-seq"
)

// String returns the media type as headers spell it.
func (m MediaType) String() string {
	switch m {
	case YAML:
		return TypeYAML
	case Protobuf:
		return TypeProtobuf
	case CBOR:
		return TypeCBOR
	}
	return TypeJSON
}

// Shape is what a client sees of an object.
type Shape uint8

// The shapes: the object itself, a Table, or PartialObjectMetadata.
const (
	ShapeObject Shape = iota
	ShapeTable
	ShapeMetadata
)

// Format is what content negotiation decides: how an answer is written. The zero value
// is an object in JSON.
type Format struct {
	Media MediaType
	Shape Shape
	// List says that PartialObjectMetadataList was asked for, not PartialObjectMetadata.
	List bool
	// Beta says that tables and partial metadata are of meta.k8s.io/v1beta1, not v1.
	Beta bool
	// Stream says that the answer is a sequence of watch events.
	Stream bool
	// Pretty says that JSON is indented.
	Pretty bool
}

// ContentType is the value of the Content-Type header.
func (f Format) ContentType() string {
	switch {
	case f.Stream && f.Media == Protobuf:
		return TypeProtobuf + ";stream=watch"
	case f.Stream && f.Media == CBOR:
		return TypeCBORSequence
	}
	return f.Media.String()
}

// MetaVersion is the apiVersion of tables and partial metadata.
func (f Format) MetaVersion() string {
	if f.Beta {
		return "meta.k8s.io/v1beta1"
	}
	return "meta.k8s.io/v1"
}

// IsRendered reports whether what is sent is made from the JSON that an Encoder makes: by
// Render, or for a long list by a NewRenderer.
func (f Format) IsRendered() bool { return f.Media == YAML || f.Media == JSON && f.Pretty }

// Render turns a body that an Encoder has made, into what is sent: JSON is
// indented or ends in a newline, YAML is made from it; protobuf and CBOR stay as they are.
func (f Format) Render(body []byte) ([]byte, error) {
	switch f.Media {
	case YAML:
		return yamltext.FromJSON(body)
	case JSON:
		if f.Pretty {
			var b bytes.Buffer
			if json.Indent(&b, body, "", "  ") == nil {
				return b.Bytes(), nil
			}
			return body, nil
		}
		return append(body, '\n'), nil
	}
	return body, nil
}
