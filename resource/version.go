package resource

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/features"
)

// Convert makes Version.ToHub or FromHub from a function on Go types.
func Convert[From, To Object](f func(From) (To, error)) func(Object) (Object, error) {
	return func(obj Object) (Object, error) {
		to, err := f(obj.(From))
		if err != nil {
			return nil, err
		}
		return to, nil
	}
}

// AlikeVersion makes a version that converts by copying fields of the same name: T
// is the type of its objects, L of its lists, H of the hub. Most beta versions are
// of this sort. defaults is the defaulting of this version, run on an object of the
// hub type. toHub and fromHub convert the fields that differ, after all others have
// been copied; they must not change memory that both objects share, such as maps in
// the metadata. Any of the three may be nil. Alpha and beta versions are Off.
func AlikeVersion[T, L, H any, P interface {
	*T
	Object
}, PL interface {
	*L
	runtime.Object
}, PH interface {
	*H
	Object
}](kind schema.GroupVersionKind, defaults func(PH), toHub func(P, PH), fromHub func(PH, P)) Version {
	v := VersionOf[T, L, P, PL](kind.Version, nil)
	v.Group = kind.Group
	v.Off = strings.Contains(kind.Version, "alpha") || strings.Contains(kind.Version, "beta")
	v.Deprecation = Deprecation(P(new(T)), kind)
	to := func(obj P) PH {
		hub := PH(new(H))
		copyAlike(reflect.ValueOf(hub).Elem(), reflect.ValueOf(obj).Elem())
		if toHub != nil {
			toHub(obj, hub)
		}
		return hub
	}
	from := func(hub PH) P {
		obj := P(new(T))
		copyAlike(reflect.ValueOf(obj).Elem(), reflect.ValueOf(hub).Elem())
		if fromHub != nil {
			fromHub(hub, obj)
		}
		return obj
	}
	v.ToHub = func(obj Object) (Object, error) { return to(obj.(P)), nil }
	v.FromHub = func(obj Object) (Object, error) { return from(obj.(PH)), nil }
	if defaults != nil {
		v.Default = func(obj Object) {
			hub := to(obj.(P))
			defaults(hub)
			*obj.(P) = *from(hub)
		}
	}
	return v
}

// OldVersion makes a version for Definition.Old that converts like AlikeVersion. defaults
// is the defaulting of the version, run on the object of the hub type, after toHub. Both
// may be nil.
func OldVersion[T, H any, P interface {
	*T
	Object
}, PH interface {
	*H
	Object
}](version schema.GroupVersion, defaults func(PH), toHub func(P, PH)) Version {
	return Version{
		Name: version.Version, Group: version.Group,
		New: func() Object { return P(new(T)) },
		ToHub: func(obj Object) (Object, error) {
			hub := PH(new(H))
			copyAlike(reflect.ValueOf(hub).Elem(), reflect.ValueOf(obj).Elem())
			if toHub != nil {
				toHub(obj.(P), hub)
			}
			if defaults != nil {
				defaults(hub)
			}
			return hub, nil
		},
	}
}

// CopyAlike copies the fields of a struct into those of another struct that have the
// same names, as AlikeVersion does. Other fields of to keep their values.
func CopyAlike[To, From any](to *To, from *From) {
	copyAlike(reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem())
}

// copyAlike copies a value into one of another type with the same structure, except
// that either may be a pointer to it. Fields that to does not have are dropped.
func copyAlike(to, from reflect.Value) {
	switch {
	case to.Type() == from.Type():
		to.Set(from)
	case from.Kind() == reflect.Pointer:
		if from.IsNil() {
			return
		}
		if to.Kind() == reflect.Pointer {
			to.Set(reflect.New(to.Type().Elem()))
			to = to.Elem()
		}
		copyAlike(to, from.Elem())
	case to.Kind() == reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		copyAlike(to.Elem(), from)
	case from.Kind() == reflect.Slice:
		if from.IsNil() {
			return
		}
		to.Set(reflect.MakeSlice(to.Type(), from.Len(), from.Len()))
		for i := range from.Len() {
			copyAlike(to.Index(i), from.Index(i))
		}
	case from.Kind() == reflect.Map:
		if from.IsNil() {
			return
		}
		to.Set(reflect.MakeMapWithSize(to.Type(), from.Len()))
		for entries := from.MapRange(); entries.Next(); {
			key, value := reflect.New(to.Type().Key()).Elem(), reflect.New(to.Type().Elem()).Elem()
			copyAlike(key, entries.Key())
			copyAlike(value, entries.Value())
			to.SetMapIndex(key, value)
		}
	case from.Kind() == reflect.Struct:
		for i := range to.NumField() {
			if f := from.FieldByName(to.Type().Field(i).Name); f.IsValid() {
				copyAlike(to.Field(i), f)
			}
		}
	default:
		to.Set(from.Convert(to.Type()))
	}
}

// Deprecation returns the deprecation warning of a type with the method
// APILifecycleDeprecated. It returns "" for other types, and for a deprecation in a
// later release than the one that is served.
func Deprecation(obj any, kind schema.GroupVersionKind) string {
	since, ok := obj.(interface{ APILifecycleDeprecated() (major, minor int) })
	if !ok {
		return ""
	}
	major, minor := since.APILifecycleDeprecated()
	if major == 0 && minor == 0 || major > features.KubernetesMajor || major == features.KubernetesMajor && minor > features.KubernetesMinor {
		return ""
	}
	text := fmt.Sprintf("%s %s is deprecated in v%d.%d+", kind.GroupVersion(), kind.Kind, major, minor)
	if r, ok := obj.(interface{ APILifecycleRemoved() (major, minor int) }); ok {
		if major, minor := r.APILifecycleRemoved(); major != 0 || minor != 0 {
			text += fmt.Sprintf(", unavailable in v%d.%d+", major, minor)
		}
	}
	if r, ok := obj.(interface {
		APILifecycleReplacement() schema.GroupVersionKind
	}); ok {
		if by := r.APILifecycleReplacement(); !by.Empty() {
			text += fmt.Sprintf("; use %s %s", by.GroupVersion(), by.Kind)
		}
	}
	return text
}
