// Package pack is the file format of generated definitions. A pack holds the
// definitions of one Go package, each in the four forms in which the server
// hands them out, so that building a document copies bytes and parses nothing.
//
// A pack is a gzip stream of records in the order of their names. A record is
// its fields, each a length (uvarint) and that many bytes. The forms of a
// definition say nearly the same and stand next to each other, which costs
// almost nothing once compressed.
package pack

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// Definition is the schema of one type. Its byte slices must not be changed.
type Definition struct {
	// Name: io.k8s.api.core.v1.Pod.
	Name string
	// Refs are the names of the definitions that this one refers to.
	Refs []string
	// V3 and V2 are the schema in JSON, for OpenAPI 3.0 and 2.0.
	V3, V2 []byte
	// V3Proto and V2Proto are the messages NamedSchemaOrReference of OpenAPI
	// 3.0 and NamedSchema of 2.0.
	V3Proto, V2Proto []byte
}

// maxRatio is how much smaller than its content a gzip stream can be.
const maxRatio = 1032

// Of returns the name of the pack that holds a definition.
func Of(definition string) string {
	return definition[:max(strings.LastIndexByte(definition, '.'), 0)]
}

// Everywhere reports whether a definition is of a kind that every group and
// version has. Its V3 leaves out the groups and versions, which depend on the
// document, and its V3Proto is of no use.
func Everywhere(definition string) bool {
	return definition == "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions" ||
		definition == "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent"
}

// Write returns a pack of definitions that are sorted by name.
func Write(definitions []Definition) ([]byte, error) {
	var buf bytes.Buffer
	w, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	for _, d := range definitions {
		for _, field := range [][]byte{
			[]byte(d.Name), []byte(strings.Join(d.Refs, " ")), d.V3, d.V2, d.V3Proto, d.V2Proto,
		} {
			if _, err := w.Write(binary.AppendUvarint(nil, uint64(len(field)))); err != nil {
				return nil, err
			}
			if _, err := w.Write(field); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// Read returns the definitions of a pack. They share one piece of memory.
func Read(packed []byte) ([]Definition, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	// The stream ends with the size of its content.
	size := binary.LittleEndian.Uint32(packed[len(packed)-4:])
	if int(size) > maxRatio*len(packed) {
		return nil, fmt.Errorf("pack: %d bytes cannot hold %d", len(packed), size)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	// Reading on finds the end and compares the checksum.
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return nil, fmt.Errorf("pack: after %d bytes: %w", len(data), err)
	}
	var definitions []Definition
	for len(data) > 0 {
		var fields [6][]byte
		for i := range fields {
			size, n := binary.Uvarint(data)
			if n <= 0 || size > uint64(len(data)-n) {
				return nil, fmt.Errorf("pack: record %d is cut short", len(definitions))
			}
			end := n + int(size)
			fields[i], data = data[n:end:end], data[end:]
		}
		definitions = append(definitions, Definition{
			Name: string(fields[0]), Refs: strings.Fields(string(fields[1])),
			V3: fields[2], V2: fields[3], V3Proto: fields[4], V2Proto: fields[5],
		})
	}
	return definitions, nil
}
