package resource

import (
	"reflect"

	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/util"
)

// Kinds from plain Go structs, without generated code: a type needs one line,
//
//	func (f *Flunder) DeepCopyObject() runtime.Object { return resource.Copy(f) }
//
// and its list type and OpenAPI schema are derived from the struct by reflection. Methods
// that the type has itself, such as a generated DeepCopyObject, are used instead.

// List is the list type of a kind that has none of its own.
type List[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []T `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *List[T]) DeepCopyObject() runtime.Object { return Copy(l) }

// OpenAPIModelName returns the model name of the kind with the suffix List.
func (l *List[T]) OpenAPIModelName() string { return modelName(new(T)) + "List" }

// modelName returns the name of a type in OpenAPI documents.
func modelName(obj any) string {
	if named, ok := obj.(util.OpenAPIModelNamer); ok {
		return named.OpenAPIModelName()
	}
	return util.ToRESTFriendlyName(util.GetCanonicalTypeName(obj))
}

// Plain makes a version from the type of an object. defaults may be nil.
func Plain[T any, P interface {
	*T
	Object
}](name string, defaults func(P)) Version {
	v := VersionOf[T, List[T], P, *List[T]](name, defaults)
	v.Schema = SchemaOf[T]
	return v
}

// Copy returns a deep copy of a value through its exported fields. Memory behind
// unexported fields is shared with the original, which is safe for immutable values
// such as times.
func Copy[T any](in *T) *T {
	if in == nil {
		return nil
	}
	out := new(T)
	copyValue(reflect.ValueOf(out).Elem(), reflect.ValueOf(in).Elem())
	return out
}

func copyValue(to, from reflect.Value) {
	switch from.Kind() {
	case reflect.Pointer:
		if !from.IsNil() {
			to.Set(reflect.New(from.Type().Elem()))
			copyValue(to.Elem(), from.Elem())
		}
	case reflect.Slice:
		if !from.IsNil() {
			to.Set(reflect.MakeSlice(from.Type(), from.Len(), from.Len()))
			for i := range from.Len() {
				copyValue(to.Index(i), from.Index(i))
			}
		}
	case reflect.Array:
		for i := range from.Len() {
			copyValue(to.Index(i), from.Index(i))
		}
	case reflect.Map:
		copyMap(to, from)
	case reflect.Interface:
		if !from.IsNil() {
			value := reflect.New(from.Elem().Type()).Elem()
			copyValue(value, from.Elem())
			to.Set(value)
		}
	case reflect.Struct:
		copyStruct(to, from)
	default:
		to.Set(from)
	}
}

func copyMap(to, from reflect.Value) {
	if from.IsNil() {
		return
	}
	to.Set(reflect.MakeMapWithSize(from.Type(), from.Len()))
	for entries := from.MapRange(); entries.Next(); {
		value := reflect.New(from.Type().Elem()).Elem()
		copyValue(value, entries.Value())
		to.SetMapIndex(entries.Key(), value)
	}
}

func copyStruct(to, from reflect.Value) {
	to.Set(from)
	if from.CanAddr() {
		switch in := from.Addr().Interface().(type) {
		case *metav1.ObjectMeta:
			in.DeepCopyInto(to.Addr().Interface().(*metav1.ObjectMeta))
			return
		case *apiresource.Quantity: // has pointers in unexported fields
			to.Set(reflect.ValueOf(in.DeepCopy()))
			return
		}
	}
	for i := range from.NumField() {
		if from.Type().Field(i).IsExported() {
			copyValue(to.Field(i), from.Field(i))
		}
	}
}
