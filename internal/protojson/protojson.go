// Package protojson writes the JSON of an API object from its protobuf, without the
// object between: what encoding/json makes of the struct that the protobuf is decoded
// into, byte for byte, in a half to a third of the CPU time and with a tenth of the
// allocations.
//
// It knows protobuf as Kubernetes' generated code writes it: fields once, entries of maps
// in the order of their keys. Of anything else Append returns false, and the caller decodes
// and encodes. Start at Append.
package protojson

import (
	"encoding/binary"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/apikeel/kelson/internal/jsonvalue"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Append appends the JSON of a message of a struct type. If it returns false, dst is
// returned as it was.
func Append(dst []byte, t reflect.Type, message []byte) ([]byte, bool) {
	write := writerOf(t)
	if write == nil {
		return dst, false
	}
	st := stacks.Get().(*stack)
	defer stacks.Put(st)
	st.spans = st.spans[:0]
	out, ok := write(st, dst, value{bytes: message, wire: wireBytes})
	if !ok {
		return dst, false
	}
	return out, true
}

// stack has the spans of the messages that are being written.
type stack struct{ spans []span }

var stacks = sync.Pool{New: func() any { return new(stack) }}

// The wire types of protobuf.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
)

// value is the value of a field on the wire.
type value struct {
	bytes  []byte // wireBytes
	number uint64 // wireVarint, wireFixed64
	wire   uint8
}

// writeFunc appends the JSON of a value.
type writeFunc func(st *stack, dst []byte, v value) ([]byte, bool)

// writers are the functions of the structs that were seen, nil for those that are not
// known. They depend on nothing but the type.
var writers sync.Map // reflect.Type → writeFunc

func writerOf(t reflect.Type) writeFunc {
	if w, ok := writers.Load(t); ok {
		return w.(writeFunc)
	}
	c := compiler{root: t, types: map[reflect.Type]*writeFunc{}}
	w := c.message(t)
	if c.unknown {
		w = nil
	}
	writers.Store(t, w)
	return w
}

// compiler makes the function of a type and of those in it. unknown is set if there is
// one among them that is not known.
type compiler struct {
	root    reflect.Type
	types   map[reflect.Type]*writeFunc // also those under way
	unknown bool
}

var (
	marshaler = reflect.TypeFor[json.Marshaler]()
	decodable = reflect.TypeFor[interface{ Unmarshal([]byte) error }]()
)

// compile returns the function of a single value.
func (c *compiler) compile(t reflect.Type) writeFunc {
	switch t {
	case reflect.TypeFor[metav1.Time]():
		return appendTime
	case reflect.TypeFor[intstr.IntOrString]():
		return appendIntOrString
	case reflect.TypeFor[metav1.FieldsV1]():
		return appendFields
	case reflect.TypeFor[resource.Quantity]():
		return appendQuantity
	}
	isMessage := reflect.PointerTo(t).Implements(decodable)
	switch {
	case isMessage && (t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler) || t.Kind() != reflect.Struct):
		return throughObject(t)
	case isMessage:
		return c.message(t)
	case t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler):
		c.unknown = true
		return nil
	}
	switch t.Kind() {
	case reflect.String:
		return appendString
	case reflect.Bool:
		return appendBool
	case reflect.Int32:
		return appendInt32
	case reflect.Int64:
		return appendInt64
	case reflect.Float64:
		return appendFloat64
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return appendBytes
		}
	}
	c.unknown = true
	return nil
}

// The ways in which a field is written.
const (
	single   = iota
	repeated // a list
	entries  // a map
	inline   // the fields of a message are those of the one that it is in
)

// field is a field of a message.
type field struct {
	key  string // its name in JSON, quoted, and a colon
	slot int    // its place among the values of the message
	how  int
	// write writes the value, an item of a list or the value of an entry.
	write writeFunc
	// below are the fields of an inline message.
	below *message
	// omitEmpty and omitZero are the options in the tag; pointer says that an empty
	// value is not the same as none.
	omitEmpty, omitZero, pointer bool
	absent                       string // what is written if there is none; a message has to be written
	isMessage                    bool
	ofBytes                      bool // a map whose values are bytes
	isOptional                   bool // nothing is written if there is none
}

// message is the fields of a struct in the order of its JSON.
type message struct {
	fields []field
	count  int    // of slots
	slots  []int8 // by number of the field: its slot, -1 for none
}

const (
	maxSlots  = 64
	maxNumber = 1024
)

// message returns the function of a struct.
func (c *compiler) message(t reflect.Type) writeFunc {
	if w := c.types[t]; w != nil {
		return func(st *stack, dst []byte, v value) ([]byte, bool) { return (*w)(st, dst, v) }
	}
	w := new(writeFunc)
	c.types[t] = w
	m := c.fields(t)
	*w = func(st *stack, dst []byte, v value) ([]byte, bool) {
		if v.wire != wireBytes {
			return nil, false
		}
		dst = append(dst, '{')
		start := len(dst)
		dst, ok := m.write(st, dst, v.bytes)
		if len(dst) > start { // without the comma of the last field
			dst = dst[:len(dst)-1]
		}
		return append(dst, '}'), ok
	}
	return *w
}

func (c *compiler) fields(t reflect.Type) *message {
	m := &message{}
	if t.Kind() != reflect.Struct || !reflect.PointerTo(t).Implements(decodable) {
		c.unknown = true
		return m
	}
	slots := 0
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		tag := strings.Split(f.Tag.Get("protobuf"), ",")
		switch {
		case f.Type == reflect.TypeFor[metav1.TypeMeta]() && t == c.root:
			// Neither in the protobuf of an object nor in the JSON of its body. The kind of
			// an object in another one is in the JSON, so that is not known here.
			continue
		case !f.IsExported() || name == "-" || len(tag) < 2 || name == "" && !f.Anonymous:
			c.unknown = true
			return m
		}
		number, err := strconv.Atoi(tag[1])
		if err != nil || number <= 0 || number > maxNumber || slots == maxSlots {
			c.unknown = true
			return m
		}
		for len(m.slots) <= number {
			m.slots = append(m.slots, -1)
		}
		m.slots[number] = int8(slots)
		out := field{
			key: string(jsonvalue.AppendString(nil, name)) + ":", slot: slots,
			omitEmpty: strings.Contains(options, "omitempty"), omitZero: strings.Contains(options, "omitzero"),
		}
		slots++
		c.kind(&out, f, name)
		m.fields = append(m.fields, out)
	}
	m.count = slots
	return m
}

// kind finds out how a field is written.
func (c *compiler) kind(out *field, f reflect.StructField, name string) {
	t := f.Type
	isMessage := reflect.PointerTo(t).Implements(decodable)
	switch {
	case f.Anonymous && name == "":
		if t.Kind() != reflect.Struct {
			c.unknown = true
			return
		}
		out.how, out.below = inline, c.fields(t)
		return
	case t.Kind() == reflect.Pointer:
		out.pointer, out.absent = true, "null"
		out.write = c.compile(t.Elem())
	case t.Kind() == reflect.Map && !isMessage && t.Key().Kind() == reflect.String:
		out.how, out.absent = entries, "null"
		out.ofBytes = t.Elem().Kind() == reflect.Slice && t.Elem().Elem().Kind() == reflect.Uint8
		out.write = c.compile(t.Elem())
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 && !isMessage:
		out.how, out.absent = repeated, "null"
		if t.Elem().Kind() == reflect.Pointer {
			c.unknown = true
			return
		}
		out.write = c.compile(t.Elem())
	default:
		out.write, out.isMessage = c.compile(t), isMessage
		if isMessage && t.Kind() != reflect.Struct { // empty ones are left out
			c.unknown = true
		}
		switch t.Kind() {
		case reflect.String:
			out.absent = `""`
		case reflect.Bool:
			out.absent = "false"
		case reflect.Slice:
			out.absent = "null"
		case reflect.Struct:
		default:
			out.absent = "0"
		}
	}
	// Time is the one type that is left out when it is zero.
	if out.omitZero && t != reflect.TypeFor[metav1.Time]() {
		c.unknown = true
	}
	out.isOptional = out.how != inline && !out.isMessage && out.omitEmpty
}

// span is where the values of a field are in a message.
type span struct{ from, to, n int32 }

// write appends the fields of a message, each with a comma behind it.
func (m *message) write(st *stack, dst, b []byte) ([]byte, bool) {
	base := len(st.spans)
	st.spans = slices.Grow(st.spans, m.count)[:base+m.count]
	spans := st.spans[base:]
	clear(spans)
	defer func() { st.spans = st.spans[:base] }()
	for at := 0; at < len(b); {
		number, _, n, ok := next(b[at:])
		if !ok || number >= uint64(len(m.slots)) || m.slots[number] < 0 {
			return dst, false
		}
		s := &spans[m.slots[number]]
		if s.n == 0 {
			s.from = int32(at)
		} else if s.to != int32(at) {
			return dst, false
		}
		at += n
		s.to = int32(at)
		s.n++
	}
	for i := range m.fields {
		var ok bool
		s := spans[m.fields[i].slot]
		if s.n == 0 && m.fields[i].isOptional {
			continue
		}
		if dst, ok = m.fields[i].append(st, dst, b[s.from:s.to], int(s.n)); !ok {
			return dst, false
		}
	}
	return dst, true
}

// append appends a field whose n values are in b.
func (f *field) append(st *stack, dst, b []byte, n int) (_ []byte, ok bool) {
	switch {
	case f.how == inline:
		var v value
		if n > 1 {
			return dst, false
		}
		if n == 1 {
			if _, v, _, ok = next(b); !ok || v.wire != wireBytes {
				return dst, false
			}
		}
		return f.below.write(st, dst, v.bytes)
	case f.isOptional && n == 0:
		return dst, true
	case n == 0 && f.isMessage: // as if it were there, without fields
	case n == 0:
		return append(append(append(dst, f.key...), f.absent...), ','), true
	case f.how == repeated:
		dst = append(append(dst, f.key...), '[')
		for len(b) > 0 {
			_, v, size, _ := next(b)
			if dst, ok = f.write(st, dst, v); !ok {
				return dst, false
			}
			dst = append(dst, ',')
			b = b[size:]
		}
		dst[len(dst)-1] = ']'
		return append(dst, ','), true
	case f.how == entries:
		return f.appendEntries(st, dst, b)
	case n > 1:
		return dst, false
	}
	v := value{wire: wireBytes}
	if n == 1 {
		_, v, _, _ = next(b)
	}
	if f.omitEmpty && !f.pointer && !f.isMessage && v.number == 0 && len(v.bytes) == 0 {
		return dst, true
	}
	start := len(dst)
	dst = append(dst, f.key...)
	from := len(dst)
	if dst, ok = f.write(st, dst, v); !ok {
		return dst, false
	}
	if f.omitZero && string(dst[from:]) == "null" { // a time
		return dst[:start], true
	}
	return append(dst, ','), true
}

func (f *field) appendEntries(st *stack, dst, b []byte) (_ []byte, ok bool) {
	dst = append(append(dst, f.key...), '{')
	for before, first := "", true; len(b) > 0; first = false {
		_, entry, size, _ := next(b)
		b = b[size:]
		keyNumber, key, n, ok := next(entry.bytes)
		if !ok || entry.wire != wireBytes || keyNumber != 1 || key.wire != wireBytes {
			return dst, false
		}
		v := value{wire: wireBytes} // nil bytes are not written
		if n < len(entry.bytes) || !f.ofBytes {
			var number uint64
			if number, v, size, ok = next(entry.bytes[n:]); !ok || number != 2 || n+size != len(entry.bytes) {
				return dst, false
			}
		}
		name := text(key.bytes)
		if !first && before >= name {
			return dst, false
		}
		before = name
		dst = append(jsonvalue.AppendString(dst, name), ':')
		if dst, ok = f.write(st, dst, v); !ok {
			return dst, false
		}
		dst = append(dst, ',')
	}
	dst[len(dst)-1] = '}'
	return append(dst, ','), true
}

// next returns the number and the value of the first field of b, and the length of both.
func next(b []byte) (number uint64, v value, size int, ok bool) {
	tag, n := varint(b)
	if n <= 0 || tag>>3 == 0 {
		return 0, v, 0, false
	}
	v.wire = uint8(tag & 7)
	switch v.wire {
	case wireVarint:
		x, m := varint(b[n:])
		v.number = x
		return tag >> 3, v, n + m, m > 0
	case wireFixed64:
		if len(b)-n < 8 {
			return 0, v, 0, false
		}
		v.number = binary.LittleEndian.Uint64(b[n:])
		return tag >> 3, v, n + 8, true
	case wireBytes:
		x, m := varint(b[n:])
		if m <= 0 || x > uint64(len(b)-n-m) {
			return 0, v, 0, false
		}
		n += m
		v.bytes = b[n : n+int(x)]
		return tag >> 3, v, n + int(x), true
	}
	return 0, v, 0, false
}

func varint(b []byte) (uint64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	return binary.Uvarint(b)
}

// text returns bytes as a string without copying them. Nobody keeps it.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
