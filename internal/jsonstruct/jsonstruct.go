// Package jsonstruct decodes JSON into the Go structs of API objects, and applies merge
// patches to them. It does what sigs.k8s.io/json does, at a third of the cost: the
// fields of a type are looked up once, and the text is read once, without a validating
// pass before.
//
// It only knows the good case. Whatever is unusual (an unknown or repeated field, a value
// of the wrong type, text that is not JSON) makes it return false, and the caller
// decodes again with sigs.k8s.io/json, which has the error. Start at Decode and Merge.
package jsonstruct

import (
	"reflect"

	"github.com/apikeel/kelson/internal/jsonscan"
)

// Decode decodes a JSON object into the struct that into points to, which must be zero.
// If it returns false, the struct is undefined. Strings in the struct share memory, of
// maxShared bytes at most: one that is kept for long should be cloned.
func Decode(data []byte, into any) bool { return decode(data, into, modeNew) }

// Merge applies a JSON merge patch (RFC 7386) to the struct that into points to. It
// returns false, and leaves the struct undefined, also if null is somewhere in a list,
// or if there is an object or a list for a value with its own JSON methods.
func Merge(patch []byte, into any) bool { return decode(patch, into, modeMerge) }

// MergeStrategic is Merge for a strategic merge patch. It returns false also if there is
// a list in the patch, or a directive: their meaning depends on the field.
func MergeStrategic(patch []byte, into any) bool { return decode(patch, into, modeStrategic) }

func decode(data []byte, into any, m mode) bool {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return false
	}
	d := decoderOf(v.Type().Elem())
	p := parser{Scanner: jsonscan.Scanner{Text: string(data), Clone: len(data) > maxShared}, mode: m}
	return d != nil && p.Space() == '{' && d(&p, v.UnsafePointer()) && p.End()
}

// mode is what a value that is already there means to the one that is read.
type mode uint8

const (
	modeNew       mode = iota // nothing is there
	modeMerge                 // objects are merged, null deletes
	modeStrategic             // as modeMerge, and lists are not known
)

// maxShared is the length of a text up to which strings share its memory. One of them
// that somebody keeps then keeps no more than that.
const maxShared = 8 << 10
