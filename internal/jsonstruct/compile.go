package jsonstruct

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
	"unsafe"
)

// This file makes the functions that decode a type.

// decodeFunc reads the next value into the variable at ptr.
type decodeFunc func(p *parser, ptr unsafe.Pointer) bool

// decoders are the functions of the types that were seen, nil for types that are left
// to the other decoder. They depend on nothing but the type.
var decoders sync.Map // reflect.Type → decodeFunc

func decoderOf(t reflect.Type) decodeFunc {
	if d, ok := decoders.Load(t); ok {
		return d.(decodeFunc)
	}
	c := compiler{}
	d := c.compile(t)
	if c.unknown {
		d = nil
	}
	decoders.Store(t, d)
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
