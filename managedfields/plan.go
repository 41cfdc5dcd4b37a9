package managedfields

import (
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"

	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// plan is how values of a Go type are walked as values of a schema type. Plans are made on
// first use.
type plan struct {
	owner *plans
	kind  planKind
	rt    reflect.Type
	// t is nil inside of atomic values, which are only compared for equality.
	t *typ
	// fields of a struct, sorted by name.
	fields []*planField
	// keys of the items of a list, nil for a set.
	keys []planListKey
	// convert is set for types that have their own JSON encoding.
	convert *value.TypeReflectCacheEntry

	elem atomic.Pointer[plan] // of the elements of a pointer, list or map
	bare atomic.Pointer[plan] // the same plan without a schema type
}

type planKind uint8

const (
	planGeneric planKind = iota // walked as an unstructured value
	planStruct
	planMap
	planStringMap // map[string]string
	planList
	planString
	planInt
	planUint
	planFloat
	planBool
	planBytes
	planPointer
)

type planField struct {
	*value.FieldCacheEntry
	step  step
	key   string // step as the key of a JSON object, and a colon
	index []int  // of reflect; nil if the field is in an embedded pointer
	rt    reflect.Type
	omit  omission
	// omitsZero says that JSON omits the zero value.
	omitsZero bool
	zero      zeroTest
	at        uintptr // where the zero test looks, from the beginning of the struct
	plan      atomic.Pointer[plan]
}

// zeroTest is what says that a field is omitted, without reflection: most fields of most
// objects are.
type zeroTest uint8

const (
	zeroUnknown zeroTest = iota
	zeroByte
	zeroHalf // four bytes
	zeroWord
)

// zeroTestOf returns the test for a field of a struct type, and where it looks.
func zeroTestOf(rt reflect.Type, index []int, field reflect.Type, omit omission) (zeroTest, uintptr) {
	if index == nil || omit == omitNever || omit == omitAsk {
		return zeroUnknown, 0
	}
	at := rt.FieldByIndex(index[:1]).Offset
	for i := range index[1:] {
		rt = rt.Field(index[i]).Type
		at += rt.Field(index[i+1]).Offset
	}
	const word = unsafe.Sizeof(uintptr(0))
	switch field.Kind() {
	case reflect.String, reflect.Slice:
		return zeroWord, at + word // its length
	case reflect.Pointer, reflect.Map:
		return zeroWord, at
	}
	switch size := field.Size(); {
	case size == 1:
		return zeroByte, at
	case size == 4:
		return zeroHalf, at
	case size == word:
		return zeroWord, at
	}
	return zeroUnknown, 0
}

// unset reports whether the field of a struct is sure to be omitted.
func (f *planField) unset(object unsafe.Pointer) bool {
	at := unsafe.Add(object, f.at)
	switch f.zero {
	case zeroByte:
		return *(*uint8)(at) == 0
	case zeroHalf:
		return *(*uint32)(at) == 0
	case zeroWord:
		return *(*uintptr)(at) == 0
	}
	return false
}

// omission is the condition under which JSON omits a field.
type omission uint8

const (
	omitAsk   omission = iota // call structured-merge-diff's CanOmit
	omitNever                 // never
	omitNil                   // if it is nil
	omitEmpty                 // if it has no length
	omitZero                  // if it is zero
)

// omissionOf derives the condition by calling CanOmit with a zero and an empty value.
func omissionOf(f *value.FieldCacheEntry, rt reflect.Type) omission {
	zero := f.CanOmit(reflect.Zero(rt))
	switch rt.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64:
		if zero {
			return omitZero
		}
		return omitNever
	case reflect.String:
		if zero {
			return omitEmpty
		}
		return omitNever
	case reflect.Slice, reflect.Map:
		empty := reflect.New(rt).Elem()
		if rt.Kind() == reflect.Slice {
			empty.Set(reflect.MakeSlice(rt, 0, 0))
		} else {
			empty.Set(reflect.MakeMap(rt))
		}
		switch {
		case zero && f.CanOmit(empty):
			return omitEmpty
		case !zero && !f.CanOmit(empty):
			return omitNever
		}
	case reflect.Pointer:
		if !zero {
			return omitNever
		}
		// A named type may define its own zero.
		if !f.CanOmit(reflect.New(rt.Elem())) {
			return omitNil
		}
	}
	return omitAsk
}

// planListKey is how a key is read from an item.
type planListKey struct {
	listKey
	field *planField
}

// plans holds the plans of one kind.
type plans struct {
	mu   sync.Mutex
	made map[planID]*plan
}

type planID struct {
	rt reflect.Type
	t  *typ
}

// get returns the plan for a Go type and a type of a schema.
func (ps *plans) get(rt reflect.Type, t *typ) *plan {
	id := planID{rt, t}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, ok := ps.made[id]
	if !ok {
		p = ps.make(rt, t)
		if ps.made == nil {
			ps.made = map[planID]*plan{}
		}
		ps.made[id] = p
	}
	return p
}

func (ps *plans) make(rt reflect.Type, t *typ) *plan {
	p := &plan{owner: ps, rt: rt, t: t}
	entry := value.TypeReflectEntryOf(rt)
	if entry.CanConvertToUnstructured() {
		p.convert = entry
		return p
	}
	switch rt.Kind() {
	case reflect.Pointer:
		p.kind = planPointer
		return p
	case reflect.Struct:
		p.kind = planStruct
		fields := planFields(rt)
		for _, f := range entry.OrderedFields() {
			p.fields = append(p.fields, fields[f.JsonName])
		}
	case reflect.Map:
		if rt.Key().Kind() == reflect.String {
			p.kind = planMap
			if rt == reflect.TypeFor[map[string]string]() {
				p.kind = planStringMap
			}
		}
	case reflect.Slice:
		p.kind = planList
		if rt.Elem().Kind() == reflect.Uint8 {
			p.kind = planBytes
		}
	case reflect.String:
		p.kind = planString
	case reflect.Bool:
		p.kind = planBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		p.kind = planInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		p.kind = planUint
	case reflect.Float32, reflect.Float64:
		p.kind = planFloat
	}
	if t != nil && !p.fits() {
		p.kind = planGeneric
	}
	return p
}

// planFields returns the fields of a struct by their JSON names.
func planFields(rt reflect.Type) map[string]*planField {
	entries := value.TypeReflectEntryOf(rt).Fields()
	probe := reflect.New(rt).Elem()
	type place struct {
		offset uintptr
		rt     reflect.Type
	}
	places := map[place][]int{}
	for _, sf := range reflect.VisibleFields(rt) {
		if at, err := probe.FieldByIndexErr(sf.Index); err == nil && sf.IsExported() {
			places[place{at.Addr().Pointer(), sf.Type}] = sf.Index
		}
	}
	out := make(map[string]*planField, len(entries))
	for name, entry := range entries {
		at := entry.GetFrom(probe)
		step := fieldStep(name)
		f := &planField{FieldCacheEntry: entry, step: step, key: string(step.encode(nil)) + ":", rt: at.Type(), omit: omissionOf(entry, at.Type()), omitsZero: entry.CanOmit(reflect.Zero(at.Type()))}
		if at.CanAddr() {
			f.index = places[place{at.Addr().Pointer(), at.Type()}]
		}
		f.zero, f.at = zeroTestOf(rt, f.index, f.rt, f.omit)
		out[name] = f
	}
	return out
}

// fits reports whether the schema type allows exactly one form, and the Go type has that
// form.
func (p *plan) fits() bool {
	t := p.t
	switch p.kind {
	case planStruct, planMap, planStringMap:
		return t.fields != nil && t.scalar == nil && t.list == nil
	case planList:
		if t.list == nil || t.scalar != nil || t.fields != nil {
			return false
		}
		return t.list.atomic || p.planItems()
	default:
		return t.scalar != nil && t.list == nil && t.fields == nil
	}
}

// planItems prepares reading the keys of the items of a list; false if it cannot.
func (p *plan) planItems() bool {
	rt := p.rt.Elem()
	if len(p.t.list.keys) == 0 {
		return rt.Kind() == reflect.String && !value.TypeReflectEntryOf(rt).CanConvertToUnstructured()
	}
	if rt.Kind() != reflect.Struct || value.TypeReflectEntryOf(rt).CanConvertToUnstructured() {
		return false
	}
	fields := planFields(rt)
	for _, key := range p.t.list.keys {
		f := fields[key.name]
		if f == nil {
			return false
		}
		p.keys = append(p.keys, planListKey{key, f})
	}
	return true
}

// of returns the plan of a field of p.
func (f *planField) of(p *plan) *plan {
	if child := f.plan.Load(); child != nil {
		return child
	}
	var t *typ
	if p.t != nil && p.t.fields != nil {
		t = p.t.field(f.JsonName)
	}
	child := p.owner.get(f.rt, t)
	if p.t != nil && t == nil {
		child = nil
	}
	if child != nil {
		f.plan.Store(child)
	}
	return child
}

// get returns the field's value in a struct, invalid if JSON would omit it.
func (f *planField) get(v reflect.Value) reflect.Value {
	if f.index == nil {
		v = f.GetFrom(v)
	} else if len(f.index) == 1 {
		v = v.Field(f.index[0])
	} else {
		v = v.FieldByIndex(f.index)
	}
	var omit bool
	switch f.omit {
	case omitNever:
	case omitNil:
		omit = v.IsNil()
	case omitEmpty:
		omit = v.Len() == 0
	case omitZero:
		omit = v.IsZero()
	default:
		omit = f.CanOmit(v)
	}
	if omit {
		return reflect.Value{}
	}
	return v
}

// element returns the plan of what a pointer points to, or of the items of a list or map;
// nil if the schema has no type for them.
func (p *plan) element() *plan {
	if e := p.elem.Load(); e != nil {
		return e
	}
	t := p.t
	if t != nil {
		switch p.kind {
		case planList:
			t = nil
			if !p.t.list.atomic {
				t = p.t.item()
			}
		case planMap, planStringMap:
			t = nil
			if !p.t.fields.atomic {
				t = p.t.elem()
			}
		}
	}
	e := p.owner.get(p.rt.Elem(), t)
	p.elem.CompareAndSwap(nil, e)
	return e
}

// entry returns the plan of an entry of a map; nil if the schema has no type for it.
func (p *plan) entry(name string) *plan {
	switch {
	case p.t.named(name):
		return p.owner.get(p.rt.Elem(), p.t.field(name))
	case p.t.elem() == nil:
		return nil
	}
	return p.element()
}

// untyped returns the plan for the same Go type that only compares for equality.
func (p *plan) untyped() *plan {
	if p.t == nil {
		return p
	}
	if bare := p.bare.Load(); bare != nil {
		return bare
	}
	bare := p.owner.get(p.rt, nil)
	p.bare.Store(bare)
	return bare
}

var typeIntOrString = reflect.TypeFor[intstr.IntOrString]()

// unstructured returns a value in its JSON form.
func (p *plan) unstructured(v reflect.Value) (any, error) {
	if v.IsValid() && v.Type() == typeIntOrString {
		// The only usual type whose JSON would be written and parsed for that.
		switch is := v.Interface().(intstr.IntOrString); is.Type {
		case intstr.Int:
			return int64(is.IntVal), nil
		case intstr.String:
			return is.StrVal, nil
		}
	}
	if p.convert != nil {
		return p.convert.ToUnstructured(v)
	}
	if v.Kind() == reflect.Interface {
		if v.IsNil() {
			return nil, nil
		}
		v = v.Elem()
	}
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, nil
	}
	box := reflect.New(v.Type())
	box.Elem().Set(v)
	whole, err := value.NewValueReflect(box.Interface())
	if err != nil {
		return nil, err
	}
	return whole.Unstructured(), nil
}
