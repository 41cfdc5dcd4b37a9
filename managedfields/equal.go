package managedfields

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// equal compares two values that are neither absent nor null, by an untyped plan.
func equal(p *plan, l, r reflect.Value) bool {
	switch p.kind {
	case planString:
		return l.String() == r.String()
	case planInt:
		return l.Int() == r.Int()
	case planUint:
		return l.Uint() == r.Uint()
	case planFloat:
		return l.Float() == r.Float()
	case planBool:
		return l.Bool() == r.Bool()
	case planBytes:
		return string(l.Bytes()) == string(r.Bytes())
	case planStringMap:
		lm, rm := l.Interface().(map[string]string), r.Interface().(map[string]string)
		if len(lm) != len(rm) {
			return false
		}
		for k, v := range lm {
			if other, ok := rm[k]; !ok || other != v {
				return false
			}
		}
		return true
	case planStruct:
		for _, field := range p.fields {
			if !equalOperands(field.of(p), operand{v: field.get(l)}, operand{v: field.get(r)}) {
				return false
			}
		}
		return true
	case planList:
		// Compared as Go values, not as JSON: equality decides about ownership of atomic
		// lists, and a quantity that is spelled differently makes a different list.
		return reflect.DeepEqual(l.Interface(), r.Interface())
	case planMap:
		if l.Len() != r.Len() {
			return false
		}
		elem := p.element()
		for it := l.MapRange(); it.Next(); {
			other := r.MapIndex(it.Key())
			if !other.IsValid() || !equalOperands(elem, operand{v: it.Value()}, operand{v: other}) {
				return false
			}
		}
		return true
	default:
		if same(l, r) {
			return true
		}
		lu, err := p.unstructured(l)
		if err != nil {
			return false
		}
		ru, err := p.unstructured(r)
		return err == nil && equalAny(lu, ru)
	}
}

func equalOperands(p *plan, l, r operand) bool {
	for p.kind == planPointer {
		l, r = deref(l), deref(r)
		p = p.element()
	}
	l, r = nulled(p, l), nulled(p, r)
	if l.set() && r.set() {
		return equal(p, l.v, r.v)
	}
	return l.null == r.null && l.absent() == r.absent()
}

// same reports whether two values of common types with their own JSON encoding are surely
// equal. False is always a correct answer.
func same(l, r reflect.Value) bool {
	if l.Kind() != reflect.Pointer {
		if !l.CanAddr() || !r.CanAddr() {
			return false
		}
		l, r = l.Addr(), r.Addr()
	}
	if l.IsNil() || r.IsNil() {
		return l.IsNil() && r.IsNil()
	}
	switch a := l.Interface().(type) {
	case *metav1.Time:
		return a.Equal(r.Interface().(*metav1.Time))
	case *metav1.MicroTime:
		return a.Equal(r.Interface().(*metav1.MicroTime))
	case *resource.Quantity:
		return *a == *r.Interface().(*resource.Quantity)
	case *intstr.IntOrString:
		return *a == *r.Interface().(*intstr.IntOrString)
	}
	return false
}
