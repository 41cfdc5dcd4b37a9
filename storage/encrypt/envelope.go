package encrypt

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds in bytes of what a KMS plugin adds to a value.
const (
	maxKeyID       = 1 << 10
	maxSource      = 1 << 10
	maxAnnotations = 32 << 10
)

// How the key of a value is derived from what the plugin has encrypted.
const (
	sourceKey  = 0 // it is the key
	sourceSeed = 1 // keys are derived from it
)

// source identifies the key of a value: a seed or key, encrypted by a KMS plugin.
type source struct {
	keyID       string // of the plugin's key
	ciphertext  []byte
	annotations map[string][]byte
	kind        uint64
}

// Field numbers of the protobuf message that is stored, kmsv2's EncryptedObject.
const (
	fieldData        = 1
	fieldKeyID       = 2
	fieldSource      = 3
	fieldAnnotations = 4
	fieldKind        = 5
)

// envelope encodes an encrypted value and the source of its key as the stored message.
func (s *source) envelope(data []byte) []byte {
	b := make([]byte, 0, len(data)+len(s.keyID)+len(s.ciphertext)+32)
	b = protowire.AppendBytes(protowire.AppendTag(b, fieldData, protowire.BytesType), data)
	b = protowire.AppendString(protowire.AppendTag(b, fieldKeyID, protowire.BytesType), s.keyID)
	b = protowire.AppendBytes(protowire.AppendTag(b, fieldSource, protowire.BytesType), s.ciphertext)
	for _, k := range slices.Sorted(maps.Keys(s.annotations)) {
		var entry []byte
		entry = protowire.AppendString(protowire.AppendTag(entry, 1, protowire.BytesType), k)
		entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), s.annotations[k])
		b = protowire.AppendBytes(protowire.AppendTag(b, fieldAnnotations, protowire.BytesType), entry)
	}
	if s.kind != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, fieldKind, protowire.VarintType), s.kind)
	}
	return b
}

// openEnvelope decodes the stored message.
func openEnvelope(b []byte) (s source, data []byte, err error) {
	err = fields(b, func(number protowire.Number, value []byte, varint uint64) error {
		switch number {
		case fieldData:
			data = value
		case fieldKeyID:
			s.keyID = string(value)
		case fieldSource:
			s.ciphertext = value
		case fieldKind:
			s.kind = varint
		case fieldAnnotations:
			var k, v []byte
			if err := fields(value, func(number protowire.Number, value []byte, _ uint64) error {
				switch number {
				case 1:
					k = value
				case 2:
					v = value
				}
				return nil
			}); err != nil {
				return err
			}
			if s.annotations == nil {
				s.annotations = map[string][]byte{}
			}
			s.annotations[string(k)] = v
		}
		return nil
	})
	if err == nil && s.kind > sourceSeed {
		err = fmt.Errorf("unknown encryptedDEKSourceType: %d", s.kind)
	}
	if err == nil && len(data) == 0 {
		err = errors.New("encrypted data is empty")
	}
	if err == nil {
		err = s.validate()
	}
	return s, data, err
}

// fields calls f for every field of a protobuf message.
func fields(b []byte, f func(number protowire.Number, value []byte, varint uint64) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var value []byte
		var varint uint64
		switch kind {
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			varint, n = protowire.ConsumeVarint(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := f(number, value, varint); err != nil {
			return err
		}
	}
	return nil
}

func (s *source) validate() error {
	switch n := len(s.ciphertext); {
	case n == 0:
		return errors.New("failed to validate encrypted DEK source: encrypted DEK source is empty")
	case n > maxSource:
		return fmt.Errorf("failed to validate encrypted DEK source: encrypted DEK source is %d bytes, which exceeds the max size of %d", n, maxSource)
	}
	if err := validKeyID(s.keyID); err != nil {
		return fmt.Errorf("failed to validate key id: %w", err)
	}
	var errs []error
	size := 0
	for _, k := range slices.Sorted(maps.Keys(s.annotations)) {
		if err := validation.IsFullyQualifiedDomainName(field.NewPath("annotations"), k); err != nil {
			errs = append(errs, err.ToAggregate())
		}
		size += len(k) + len(s.annotations[k])
	}
	if size > maxAnnotations {
		errs = append(errs, fmt.Errorf("total size of annotations is %d, which exceeds the max size of %d", size, maxAnnotations))
	}
	if len(errs) > 0 {
		return fmt.Errorf("failed to validate annotations: %w", aggregate(errs))
	}
	return nil
}

func validKeyID(id string) error {
	switch n := len(id); {
	case n == 0:
		return errors.New("keyID is empty")
	case n > maxKeyID:
		return fmt.Errorf("keyID is %d bytes, which exceeds the max size of %d", n, maxKeyID)
	}
	return nil
}

// id returns a string that is different for different sources; the cache uses it as
// key.
func (s *source) id() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %q %q", s.kind, s.ciphertext, s.keyID)
	for _, k := range slices.Sorted(maps.Keys(s.annotations)) {
		fmt.Fprintf(&b, " %q=%q", k, s.annotations[k])
	}
	return b.String()
}
