package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/apikeel/kelson/internal/jsonscan"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// EncodableCheck finds values in objects that some codec takes and another cannot write, or
// writes as what nobody can read: one of them would make lists invalid for everybody. Its
// zero value is ready. What there is to look at in a type is found once, so that a check
// costs a few microseconds.
type EncodableCheck struct{ plans sync.Map } // reflect.Type → *encodablePlan

// encodablePlan is what there is to look at in a type.
type encodablePlan struct {
	check  func(reflect.Value) error // of a leaf
	fields []encodableField          // of a struct
	elem   *encodablePlan            // of a pointer, list or map
	needed bool
}

type encodableField struct {
	index int
	name  string
	plan  *encodablePlan
}

// Check returns an error that names the field whose value cannot be encoded.
func (c *EncodableCheck) Check(obj any) error {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return checkMapTimes(u.Object)
	}
	v := reflect.ValueOf(obj)
	known, ok := c.plans.Load(v.Type())
	if !ok {
		known, _ = c.plans.LoadOrStore(v.Type(), planEncodable(v.Type(), map[reflect.Type]*encodablePlan{}))
	}
	return known.(*encodablePlan).run(v)
}

// checkMapTimes checks the times in the metadata of an object that is a map: decoding has
// given those the form in which they are written.
func checkMapTimes(object map[string]any) error {
	metadata, _ := object["metadata"].(map[string]any)
	entries, _ := metadata["managedFields"].([]any)
	for i, entry := range entries {
		fields, _ := entry.(map[string]any)
		if text, ok := fields["time"].(string); ok {
			if _, err := time.Parse(time.RFC3339, text); err != nil {
				return fmt.Errorf("metadata.managedFields[%d].time: %w", i, errNoTime)
			}
		}
	}
	return nil
}

func (p *encodablePlan) run(v reflect.Value) error {
	switch {
	case p.check != nil:
		return p.check(v)
	case v.Kind() == reflect.Pointer:
		if v.IsNil() || !p.elem.needed {
			return nil
		}
		return p.elem.run(v.Elem())
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			if err := p.elem.run(v.Index(i)); err != nil {
				return fmt.Errorf("[%d]%w", i, err)
			}
		}
	case v.Kind() == reflect.Map:
		item := reflect.New(v.Type().Elem()).Elem() // which leaves can take the address of
		for it := v.MapRange(); it.Next(); {
			item.Set(it.Value())
			if err := p.elem.run(item); err != nil {
				return fmt.Errorf("[%v]%w", it.Key(), err)
			}
		}
	}
	for i := range p.fields {
		f := &p.fields[i]
		if err := f.plan.run(v.Field(f.index)); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// planEncodable makes the plan of a type. A type that contains itself is always looked at.
func planEncodable(t reflect.Type, known map[reflect.Type]*encodablePlan) *encodablePlan {
	if p := known[t]; p != nil {
		return p
	}
	p := &encodablePlan{check: leafCheck(t), needed: true} // while it is made, for a type that contains itself
	known[t] = p
	if p.check != nil {
		return p
	}
	p.needed = false
	cyclic := func(below *encodablePlan) bool { return below == p }
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		p.needed = true
		p.elem = planEncodable(t.Elem(), known)
		p.needed = p.elem.needed || cyclic(p.elem)
	case reflect.Struct:
		p.needed = true
		needed := false
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() {
				continue
			}
			below := planEncodable(f.Type, known)
			if !below.needed {
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" {
				name = f.Name
			}
			needed = true
			p.fields = append(p.fields, encodableField{i, name, below})
		}
		p.needed = needed
	}
	return p
}

var errNoTime = errors.New("the time is not between the years 0 and 9999")

// leafCheck returns how values of a type are checked, nil if they are not leaves.
func leafCheck(t reflect.Type) func(reflect.Value) error {
	switch t {
	case reflect.TypeFor[metav1.Time]():
		return func(v reflect.Value) error { return checkTime(v.Addr().Interface().(*metav1.Time).Time) }
	case reflect.TypeFor[metav1.MicroTime]():
		return func(v reflect.Value) error { return checkTime(v.Addr().Interface().(*metav1.MicroTime).Time) }
	case reflect.TypeFor[runtime.RawExtension]():
		return func(v reflect.Value) error { return checkRawJSON(v.Addr().Interface().(*runtime.RawExtension).Raw) }
	case reflect.TypeFor[metav1.FieldsV1]():
		return func(v reflect.Value) error {
			return checkRawJSON(v.Addr().Interface().(*metav1.FieldsV1).GetRawBytes())
		}
	case reflect.TypeFor[apiextensions.JSON]():
		return func(v reflect.Value) error {
			raw := v.Addr().Interface().(*apiextensions.JSON).Raw
			if len(raw) == 0 {
				return nil // written as null
			}
			return checkRawJSON(raw)
		}
	case reflect.TypeFor[intstr.IntOrString]():
		return func(v reflect.Value) error {
			if kind := v.FieldByName("Type").Int(); kind != int64(intstr.Int) && kind != int64(intstr.String) {
				return fmt.Errorf("it is neither a number nor a string: type %d", kind)
			}
			return nil
		}
	}
	if t.Kind() == reflect.Float64 || t.Kind() == reflect.Float32 {
		return func(v reflect.Value) error {
			if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
				return fmt.Errorf("%v is not a number", f)
			}
			return nil
		}
	}
	return nil
}

func checkTime(t time.Time) error {
	if year := t.UTC().Year(); year < 0 || year > 9999 {
		return errNoTime
	}
	return nil
}

// checkRawJSON checks JSON that is kept as it is. There may be none, which is nil: no bytes
// are not JSON, and are what encoders write then.
func checkRawJSON(raw []byte) error {
	switch {
	case raw == nil:
		return nil
	case !utf8.Valid(raw):
		return errors.New("the raw JSON is not UTF-8")
	case !json.Valid(raw):
		return errors.New("it is not JSON")
	case len(raw) > MaxDepth && jsonscan.Depth(raw) > MaxDepth:
		return fmt.Errorf("it is nested deeper than %d levels", MaxDepth)
	}
	return nil
}
