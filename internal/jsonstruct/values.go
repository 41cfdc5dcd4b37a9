package jsonstruct

import (
	"encoding/base64"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"unsafe"
)

// This file reads single values, and maps of strings.

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
		start := p.Space()
		from := p.At
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
		return u.UnmarshalJSON([]byte(p.Text[from:p.At])) == nil
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
	s, ok := p.String()
	*(*string)(ptr) = s
	return ok
}

func decodeBool(p *parser, ptr unsafe.Pointer) bool {
	switch p.Space() {
	case 't':
		*(*bool)(ptr) = true
		return p.Word("true")
	case 'f':
		*(*bool)(ptr) = false
		return p.Word("false")
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
			text, whole, ok := p.Number()
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
			text, _, ok := p.Number()
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
	s, ok := p.String()
	if !ok {
		return false
	}
	var err error
	*to, err = base64.StdEncoding.DecodeString(s)
	return err == nil
}
