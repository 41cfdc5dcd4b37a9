package protojson

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/apikeel/kelson/internal/jsonvalue"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// How values are written whose types are no messages, or have a JSON of their own: scalars,
// times, quantities, sets of fields.

func appendString(_ *stack, dst []byte, v value) ([]byte, bool) {
	return jsonvalue.AppendString(dst, text(v.bytes)), v.wire == wireBytes
}

func appendBool(_ *stack, dst []byte, v value) ([]byte, bool) {
	return strconv.AppendBool(dst, v.number != 0), v.wire == wireVarint
}

func appendInt32(_ *stack, dst []byte, v value) ([]byte, bool) {
	return strconv.AppendInt(dst, int64(int32(v.number)), 10), v.wire == wireVarint
}

func appendInt64(_ *stack, dst []byte, v value) ([]byte, bool) {
	return strconv.AppendInt(dst, int64(v.number), 10), v.wire == wireVarint
}

func appendFloat64(_ *stack, dst []byte, v value) ([]byte, bool) {
	encoded, err := json.Marshal(math.Float64frombits(v.number))
	return append(dst, encoded...), err == nil && v.wire == wireFixed64
}

func appendBytes(_ *stack, dst []byte, v value) ([]byte, bool) {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, v.bytes)
	return append(dst, '"'), v.wire == wireBytes
}

// appendTime appends a metav1.Time, which has no nanoseconds in JSON.
func appendTime(_ *stack, dst []byte, v value) ([]byte, bool) {
	seconds, ok := numbers(v)
	switch t := time.Unix(int64(seconds[1]), 0).UTC(); {
	case !ok || seconds[0] != 0 || t.Year() < 0 || t.Year() > 9999:
		return dst, false
	case len(v.bytes) == 0 || t.IsZero():
		return append(dst, "null"...), true
	default:
		dst = append(dst, '"')
		return append(t.AppendFormat(dst, time.RFC3339), '"'), true
	}
}

// numbers returns the varints of a message with the fields 1 to 3; the first says whether
// there is another.
func numbers(v value) (n [4]uint64, ok bool) {
	for b := v.bytes; len(b) > 0; {
		number, v, size, ok := next(b)
		if !ok {
			return n, false
		}
		if number > 3 || v.wire != wireVarint {
			number = 0
			v.number = 1
		}
		n[number] = v.number
		b = b[size:]
	}
	return n, v.wire == wireBytes
}

func appendIntOrString(_ *stack, dst []byte, v value) ([]byte, bool) {
	var is intstr.IntOrString
	if v.wire != wireBytes || is.Unmarshal(v.bytes) != nil {
		return dst, false
	}
	switch is.Type {
	case intstr.Int:
		return strconv.AppendInt(dst, int64(is.IntVal), 10), true
	case intstr.String:
		return jsonvalue.AppendString(dst, is.StrVal), true
	}
	return dst, false
}

// appendFields appends a FieldsV1, which is JSON already.
func appendFields(_ *stack, dst []byte, v value) ([]byte, bool) {
	number, raw, size, ok := next(v.bytes)
	if !ok || v.wire != wireBytes || number != 1 || raw.wire != wireBytes || size != len(v.bytes) || !isFieldSet(raw.bytes) {
		return throughObject(reflect.TypeFor[metav1.FieldsV1]())(nil, dst, v)
	}
	return append(dst, raw.bytes...), true
}

// maxFieldDepth is how deep the objects of a field set are nested at most.
const maxFieldDepth = 1000

// isFieldSet reports whether bytes are a set of fields as ownership writes it, which
// json.Compact and HTML escaping leave as it is: objects in objects, down to empty ones. It
// may say no although they are.
func isFieldSet(b []byte) bool {
	for depth := 1; depth <= maxFieldDepth; depth++ {
		if len(b) < 2 || b[0] != '{' {
			return false
		}
		if b = b[1:]; b[0] == '}' {
			for len(b) > 0 && b[0] == '}' {
				if b, depth = b[1:], depth-1; depth == 0 {
					return len(b) == 0
				}
			}
			if len(b) == 0 || b[0] != ',' {
				return false
			}
			b = b[1:]
		}
		key := fieldKey(b)
		if key == 0 {
			return false
		}
		b = b[key:]
	}
	return false
}

// fieldKey returns the length of a key and its colon, 0 if there is none that is written
// as ownership writes it.
func fieldKey(b []byte) int {
	if len(b) == 0 || b[0] != '"' {
		return 0
	}
	for i := 1; i+1 < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			if b[i+1] == ':' {
				return i + 2
			}
			return 0
		case c == '\\':
			if i++; b[i] != '"' && b[i] != '\\' {
				return 0
			}
		case c < ' ' || c == '<' || c == '>' || c == '&' || c == 0xe2:
			return 0
		}
	}
	return 0
}

// appendQuantity appends a quantity, which is nearly always stored as it is written.
func appendQuantity(st *stack, dst []byte, v value) ([]byte, bool) {
	number, raw, size, ok := next(v.bytes)
	if !ok || v.wire != wireBytes || number != 1 || raw.wire != wireBytes || size != len(v.bytes) || !isPlainQuantity(raw.bytes) {
		return throughObject(reflect.TypeFor[resource.Quantity]())(st, dst, v)
	}
	dst = append(dst, '"')
	dst = append(dst, raw.bytes...)
	return append(dst, '"'), true
}

// isPlainQuantity reports whether bytes are a quantity in its canonical form. It may say no
// although they are.
func isPlainQuantity(b []byte) bool {
	digits, n := 0, int64(0)
	for digits < len(b) && '0' <= b[digits] && b[digits] <= '9' {
		if n = n*10 + int64(b[digits]-'0'); n > 1e6 {
			return false
		}
		digits++
	}
	if digits == 0 || b[0] == '0' {
		return string(b) == "0"
	}
	switch string(b[digits:]) {
	case "", "m", "k", "M", "G", "T":
		return n%1000 != 0
	case "Ki", "Mi", "Gi", "Ti":
		return n%1024 != 0
	}
	return false
}

// throughObject decodes a value that has its own methods, and encodes it.
func throughObject(t reflect.Type) writeFunc {
	return func(_ *stack, dst []byte, v value) ([]byte, bool) {
		obj := reflect.New(t)
		if t.Kind() == reflect.Slice { // never nil as a value in a map
			obj.Elem().Set(reflect.MakeSlice(t, 0, 0))
		}
		if v.wire != wireBytes || obj.Interface().(interface{ Unmarshal([]byte) error }).Unmarshal(v.bytes) != nil {
			return dst, false
		}
		encoded, err := json.Marshal(obj.Interface())
		return append(dst, encoded...), err == nil
	}
}
