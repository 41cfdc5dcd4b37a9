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
	"encoding"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
	"unsafe"
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
	p := parser{text: string(data), mode: m, clone: len(data) > maxShared}
	return d != nil && p.space() == '{' && d(&p, v.UnsafePointer()) && p.space() == 0 && p.at == len(p.text)
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

// maxDepth limits the recursion.
const maxDepth = 200

// decodeFunc reads the next value into the variable at ptr.
type decodeFunc func(p *parser, ptr unsafe.Pointer) bool

type parser struct {
	text  string
	at    int
	depth int
	mode  mode
	list  bool // below a list, where nothing is there to be merged with
	clone bool // strings are copied
}

// decoders are the functions of the types that were seen, nil for types that are left
// to the other decoder. They depend on nothing but the type.
var decoders = sync.OnceValue(func() *sync.Map { return new(sync.Map) }) // reflect.Type → decodeFunc

func decoderOf(t reflect.Type) decodeFunc {
	if d, ok := decoders().Load(t); ok {
		return d.(decodeFunc)
	}
	c := compiler{}
	d := c.compile(t)
	if c.unknown {
		d = nil
	}
	decoders().Store(t, d)
	return d
}

// compiler makes the function of a type and of those in it. unknown is set if there is
// a type among them that only the other decoder knows.
type compiler struct {
	types   map[reflect.Type]*decodeFunc // also those under way, for types that contain themselves
	unknown bool
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func (c *compiler) compile(t reflect.Type) decodeFunc {
	if d := c.types[t]; d != nil {
		return func(p *parser, ptr unsafe.Pointer) bool { return (*d)(p, ptr) }
	}
	d := new(decodeFunc)
	if c.types == nil {
		c.types = map[reflect.Type]*decodeFunc{}
	}
	c.types[t] = d
	*d = c.make(t)
	return *d
}

func (c *compiler) make(t reflect.Type) decodeFunc {
	switch {
	case reflect.PointerTo(t).Implements(unmarshaler):
		return custom(t)
	case reflect.PointerTo(t).Implements(textUnmarshaler):
		c.unknown = true
		return nil
	}
	switch t.Kind() {
	case reflect.String:
		return decodeString
	case reflect.Bool:
		return decodeBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return integer(t)
	case reflect.Float32, reflect.Float64:
		return float(t)
	case reflect.Pointer:
		return c.pointer(t)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return decodeBytes
		}
		return c.slice(t)
	case reflect.Map:
		if t.Key().Kind() == reflect.String && !reflect.PointerTo(t.Key()).Implements(textUnmarshaler) {
			return c.mapOf(t)
		}
	case reflect.Struct:
		return c.structOf(t)
	}
	c.unknown = true
	return nil
}

// field is a field of a struct, with those of embedded structs.
type field struct {
	index  int
	offset uintptr
	decode decodeFunc
}

// maxFields is how many fields a struct may have: one bit says of each whether it was there.
const maxFields = 128

func (c *compiler) structOf(t reflect.Type) decodeFunc {
	fields := map[string]*field{}
	c.addFields(t, 0, fields)
	if len(fields) > maxFields {
		c.unknown = true
	}
	return func(p *parser, ptr unsafe.Pointer) bool {
		if p.null() {
			if p.merges() {
				reflect.NewAt(t, ptr).Elem().SetZero()
			}
			return true
		}
		var seen [maxFields / 64]uint64
		return p.object(func(name string) bool {
			f := fields[name]
			if f == nil || seen[f.index/64]&(1<<(f.index%64)) != 0 {
				return false
			}
			seen[f.index/64] |= 1 << (f.index % 64)
			return f.decode(p, unsafe.Add(ptr, f.offset))
		})
	}
}

// addFields adds the fields of a struct by their names in JSON.
func (c *compiler) addFields(t reflect.Type, offset uintptr, fields map[string]*field) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		embedded := f.Anonymous && name == ""
		switch {
		case tag == "-" || !f.IsExported() && !embedded:
			continue
		case embedded && f.Type.Kind() == reflect.Struct && !reflect.PointerTo(f.Type).Implements(unmarshaler):
			c.addFields(f.Type, offset+f.Offset, fields)
			continue
		case embedded || !tagged || strings.Contains(options, "string"):
			c.unknown = true
			return
		case name == "":
			name = f.Name
		}
		if fields[name] != nil { // which of them it is, depends on more
			c.unknown = true
			return
		}
		decode := c.compile(f.Type)
		if below := decode; strings.Contains(f.Tag.Get("patchStrategy"), "replace") {
			decode = func(p *parser, ptr unsafe.Pointer) bool { return p.mode != modeStrategic && below(p, ptr) }
		}
		fields[name] = &field{len(fields), offset + f.Offset, decode}
	}
}

func (c *compiler) pointer(t reflect.Type) decodeFunc {
	elem, below := t.Elem(), c.compile(t.Elem())
	return func(p *parser, ptr unsafe.Pointer) bool {
		to := (*unsafe.Pointer)(ptr)
		if p.null() {
			*to = nil
			return true
		}
		if *to == nil {
			*to = reflect.New(elem).UnsafePointer()
		}
		return below(p, *to)
	}
}

func (c *compiler) slice(t reflect.Type) decodeFunc {
	below := c.compile(t.Elem())
	first := min(4, max(1, 256/int(max(t.Elem().Size(), 1)))) // so that short lists of small items do not grow from one
	return func(p *parser, ptr unsafe.Pointer) bool {
		if p.mode == modeStrategic {
			return p.null() && zero(t, ptr)
		}
		v := reflect.NewAt(t, ptr).Elem()
		v.SetZero()
		if p.null() {
			return true
		}
		defer func(list bool) { p.list = list }(p.list)
		p.list = true
		n := 0
		ok := p.array(func() bool {
			if n == v.Cap() {
				if n == 0 {
					v.Grow(first)
				} else {
					v.Grow(1)
				}
			}
			v.SetLen(n + 1)
			n++
			return below(p, v.Index(n-1).Addr().UnsafePointer())
		})
		if ok && n == 0 {
			v.Set(reflect.MakeSlice(t, 0, 0))
		}
		return ok
	}
}

func (c *compiler) mapOf(t reflect.Type) decodeFunc {
	below := c.compile(t.Elem())
	if t.Elem().Kind() == reflect.String && !reflect.PointerTo(t.Elem()).Implements(unmarshaler) {
		return decodeStrings // whatever the names of the types are
	}
	return func(p *parser, ptr unsafe.Pointer) bool {
		v := reflect.NewAt(t, ptr).Elem()
		if p.null() {
			v.SetZero()
			return true
		}
		if v.IsNil() {
			v.Set(reflect.MakeMap(t))
		}
		var seen names
		return p.object(func(name string) bool {
			if !seen.add(name) || p.mode == modeStrategic && strings.HasPrefix(name, "$") {
				return false
			}
			key := reflect.ValueOf(name).Convert(t.Key())
			if p.merges() && p.null() {
				v.SetMapIndex(key, reflect.Value{})
				return true
			}
			item := reflect.New(t.Elem())
			if was := v.MapIndex(key); was.IsValid() {
				item.Elem().Set(was)
			}
			if !below(p, item.UnsafePointer()) {
				return false
			}
			v.SetMapIndex(key, item.Elem())
			return true
		})
	}
}

// decodeStrings reads a map of strings to strings.
func decodeStrings(p *parser, ptr unsafe.Pointer) bool {
	m := (*map[string]string)(ptr)
	if p.null() {
		*m = nil
		return true
	}
	if *m == nil {
		*m = map[string]string{}
	}
	var seen names
	return p.object(func(name string) bool {
		if p.mode == modeNew {
			before := len(*m)
			var value string
			if !decodeString(p, unsafe.Pointer(&value)) {
				return false
			}
			(*m)[name] = value
			return len(*m) > before
		}
		if !seen.add(name) || p.mode == modeStrategic && strings.HasPrefix(name, "$") {
			return false
		}
		if p.merges() && p.null() {
			delete(*m, name)
			return true
		}
		var value string
		if !decodeString(p, unsafe.Pointer(&value)) {
			return false
		}
		(*m)[name] = value
		return true
	})
}

// names are the keys of a map that were read.
type names struct {
	few  [8]string
	n    int
	many map[string]struct{}
}

// add adds a name, and returns false if it is there already.
func (s *names) add(name string) bool {
	for _, was := range s.few[:min(s.n, len(s.few))] {
		if was == name {
			return false
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = name
		s.n++
		return true
	}
	if s.many == nil {
		s.many = map[string]struct{}{}
	}
	_, twice := s.many[name]
	s.many[name] = struct{}{}
	return !twice
}

// custom reads a value with its own JSON methods.
func custom(t reflect.Type) decodeFunc {
	return func(p *parser, ptr unsafe.Pointer) bool {
		start := p.space()
		from := p.at
		switch {
		case p.mode == modeNew:
		case start == 'n':
			return p.null() && zero(t, ptr)
		case start == '{' || start == '[':
			return false // merged with what is there, without what is null or there twice
		default:
			zero(t, ptr)
		}
		if !p.skip() {
			return false
		}
		u := reflect.NewAt(t, ptr).Interface().(json.Unmarshaler)
		return u.UnmarshalJSON([]byte(p.text[from:p.at])) == nil
	}
}

// zero sets the variable at ptr to its zero value, and returns true.
func zero(t reflect.Type, ptr unsafe.Pointer) bool {
	reflect.NewAt(t, ptr).Elem().SetZero()
	return true
}

func decodeString(p *parser, ptr unsafe.Pointer) bool {
	if p.null() {
		if p.merges() {
			*(*string)(ptr) = ""
		}
		return true
	}
	s, ok := p.string()
	*(*string)(ptr) = s
	return ok
}

func decodeBool(p *parser, ptr unsafe.Pointer) bool {
	switch p.space() {
	case 't':
		*(*bool)(ptr) = true
		return p.word("true")
	case 'f':
		*(*bool)(ptr) = false
		return p.word("false")
	}
	if p.merges() {
		*(*bool)(ptr) = false
	}
	return p.null()
}

func integer(t reflect.Type) decodeFunc {
	bits := t.Bits()
	return func(p *parser, ptr unsafe.Pointer) bool {
		var n int64
		if p.null() {
			if !p.merges() {
				return true
			}
		} else {
			text, whole, ok := p.number()
			var err error
			if n, err = strconv.ParseInt(text, 10, bits); !ok || !whole || err != nil {
				return false
			}
		}
		switch bits {
		case 8:
			*(*int8)(ptr) = int8(n)
		case 16:
			*(*int16)(ptr) = int16(n)
		case 32:
			*(*int32)(ptr) = int32(n)
		default:
			*(*int64)(ptr) = n
		}
		return true
	}
}

func float(t reflect.Type) decodeFunc {
	bits := t.Bits()
	return func(p *parser, ptr unsafe.Pointer) bool {
		var n float64
		if p.null() {
			if !p.merges() {
				return true
			}
		} else {
			text, _, ok := p.number()
			var err error
			if n, err = strconv.ParseFloat(text, bits); !ok || err != nil {
				return false
			}
		}
		if bits == 32 {
			*(*float32)(ptr) = float32(n)
		} else {
			*(*float64)(ptr) = n
		}
		return true
	}
}

// decodeBytes reads a list of bytes, which is a string in base64.
func decodeBytes(p *parser, ptr unsafe.Pointer) bool {
	to := (*[]byte)(ptr)
	if p.null() {
		*to = nil
		return true
	}
	s, ok := p.string()
	if !ok {
		return false
	}
	var err error
	*to, err = base64.StdEncoding.DecodeString(s)
	return err == nil
}

// merges reports whether values that are there are merged with.
func (p *parser) merges() bool { return p.mode != modeNew && !p.list }

// space skips white space and returns the next byte, 0 at the end.
func (p *parser) space() byte {
	for ; p.at < len(p.text); p.at++ {
		if c := p.text[p.at]; c > ' ' || c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c
		}
	}
	return 0
}

// null reads null, if that is next. In a list of a patch it is not known.
func (p *parser) null() bool {
	return p.space() == 'n' && (p.mode == modeNew || !p.list) && p.word("null")
}

func (p *parser) word(w string) bool {
	if !strings.HasPrefix(p.text[p.at:], w) {
		return false
	}
	p.at += len(w)
	return true
}

// object reads an object. member reads the value of a field.
func (p *parser) object(member func(name string) bool) bool {
	if p.depth++; p.space() != '{' || p.depth > maxDepth {
		return false
	}
	p.at++
	if p.space() == '}' {
		p.at++
		p.depth--
		return true
	}
	for {
		if p.space() != '"' {
			return false
		}
		name, ok := p.string()
		if !ok || p.space() != ':' {
			return false
		}
		p.at++
		if !member(name) {
			return false
		}
		c := p.space()
		p.at++
		if c == '}' {
			p.depth--
			return true
		}
		if c != ',' {
			return false
		}
	}
}

// array reads a list. item reads an item.
func (p *parser) array(item func() bool) bool {
	if p.depth++; p.space() != '[' || p.depth > maxDepth {
		return false
	}
	p.at++
	if p.space() == ']' {
		p.at++
		p.depth--
		return true
	}
	for {
		if !item() {
			return false
		}
		c := p.space()
		p.at++
		if c == ']' {
			p.depth--
			return true
		}
		if c != ',' {
			return false
		}
	}
}

// string reads a string.
func (p *parser) string() (string, bool) {
	if p.space() != '"' {
		return "", false
	}
	start, escaped, ascii := p.at, false, true
	for p.at++; p.at < len(p.text); p.at++ {
		switch c := p.text[p.at]; {
		case c == '"':
			p.at++
			raw := p.text[start:p.at]
			if !escaped && (ascii || utf8.ValidString(raw)) {
				if raw = raw[1 : len(raw)-1]; p.clone {
					raw = strings.Clone(raw)
				}
				return raw, true
			}
			var s string
			err := json.Unmarshal([]byte(raw), &s)
			return s, err == nil
		case c == '\\':
			escaped = true
			p.at++
		case c < ' ':
			return "", false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return "", false
}

// number reads a number, which is whole if it has neither a fraction nor an exponent.
func (p *parser) number() (text string, whole, ok bool) {
	c := p.space()
	start := p.at
	if c == '-' {
		p.at++
	}
	first := p.at
	n := p.digits()
	if n == 0 || n > 1 && p.text[first] == '0' {
		return "", false, false
	}
	whole = true
	if p.at < len(p.text) && p.text[p.at] == '.' {
		p.at++
		whole = false
		if p.digits() == 0 {
			return "", false, false
		}
	}
	if p.at < len(p.text) && p.text[p.at]|0x20 == 'e' {
		p.at++
		whole = false
		if p.at < len(p.text) && (p.text[p.at] == '+' || p.text[p.at] == '-') {
			p.at++
		}
		if p.digits() == 0 {
			return "", false, false
		}
	}
	return p.text[start:p.at], whole, true
}

func (p *parser) digits() int {
	start := p.at
	for p.at < len(p.text) && '0' <= p.text[p.at] && p.text[p.at] <= '9' {
		p.at++
	}
	return p.at - start
}

// skip reads a value of any kind.
func (p *parser) skip() bool {
	switch c := p.space(); c {
	case '{':
		return p.object(func(string) bool { return p.skip() })
	case '[':
		return p.array(p.skip)
	case '"':
		_, ok := p.string()
		return ok
	case 't':
		return p.word("true")
	case 'f':
		return p.word("false")
	case 'n':
		return p.word("null")
	default:
		_, _, ok := p.number()
		return ok
	}
}

// IsCompact reports whether a text is JSON that json.Compact and HTML escaping would leave
// as it is. It may say no although it is.
func IsCompact(text string) bool {
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c == '<' || c == '>' || c == '&' || c == 0xe2 {
			return false
		}
	}
	p := parser{text: text}
	return p.skip() && p.at == len(text)
}
