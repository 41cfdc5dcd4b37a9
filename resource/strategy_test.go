package resource

import (
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStrategyCarriesEveryRule sets each field of Rules by itself: a field that is
// added to Rules and forgotten in Rules.Strategy would be lost without a word.
func TestStrategyCarriesEveryRule(t *testing.T) {
	type rules = Rules[*metav1.PartialObjectMetadata]
	for f := range reflect.TypeFor[rules]().Fields() {
		var r rules
		v := reflect.ValueOf(&r).Elem().FieldByIndex(f.Index)
		switch f.Type.Kind() {
		case reflect.Func:
			v.Set(reflect.MakeFunc(f.Type, func([]reflect.Value) []reflect.Value { return nil }))
		case reflect.Bool:
			v.SetBool(true)
		case reflect.String:
			v.SetString("x")
		case reflect.Slice:
			v.Set(reflect.MakeSlice(f.Type, 1, 1))
		default:
			t.Fatalf("field %s has the kind %s, which this test cannot set", f.Name, f.Type.Kind())
		}
		s := r.Strategy()
		for g := range reflect.TypeFor[Strategy]().Fields() {
			set := !reflect.ValueOf(s).FieldByIndex(g.Index).IsZero()
			if want := g.Name == f.Name; set != want {
				t.Errorf("Rules with only %s set: %s of the Strategy is set: got %v, want %v", f.Name, g.Name, set, want)
			}
		}
	}
}
