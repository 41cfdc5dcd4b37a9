package builtin_test

import (
	"bytes"
	"encoding/json"
	"math/rand"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/randfill"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/internal/jsonstruct"
	"github.com/apikeel/kelson/internal/protojson"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
)

// TestRoundTrip fills every version of every kind with random values: JSON that
// is stored, if the version is, and sent as protobuf comes back as the same
// JSON.
func TestRoundTrip(t *testing.T) {
	const rounds = 10
	catalog, err := resource.NewCatalog(builtin.Groups(builtin.Config{})...)
	if err != nil {
		t.Fatal(err)
	}
	for _, def := range catalog.Definitions() {
		plain := *def
		plain.Versions = append([]resource.Version{}, def.Versions...)
		for i := range plain.Versions {
			// What it does to a value is not about encodings.
			plain.Versions[i].Default = nil
		}
		for i := range plain.Versions {
			v := &plain.Versions[i]
			t.Run(def.Group+"/"+v.Name+"/"+def.Kind, func(t *testing.T) {
				fill := filler(int64(randomtest.Seed(t, uint64(i)+1)))
				for range rounds {
					random := v.New()
					fill.Fill(random)
					dropEmpty(reflect.ValueOf(random))
					roundTrip(t, &plain, v, random)
				}
			})
		}
	}
}

// filler fills objects with what JSON and protobuf can both hold.
func filler(seed int64) *randfill.Filler {
	codecs := serializer.NewCodecFactory(runtime.NewScheme())
	return fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(seed), codecs).Funcs(
		func(raw *runtime.RawExtension, c randfill.Continue) {
			text, err := json.Marshal(map[string]any{"a": c.String(0)})
			if err != nil {
				panic(err)
			}
			*raw = runtime.RawExtension{Raw: text}
		},
	)
}

// dropEmpty makes empty lists and maps nil: protobuf does not tell them apart.
func dropEmpty(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			dropEmpty(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				dropEmpty(f)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			dropEmpty(v.Index(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(k))
			dropEmpty(e)
			if e.Kind() == reflect.Slice && e.Len() == 0 {
				e = reflect.Value{} // it goes
			}
			v.SetMapIndex(k, e)
		}
	}
	if k := v.Kind(); (k == reflect.Slice || k == reflect.Map) && v.Len() == 0 && v.CanSet() {
		v.SetZero()
	}
}

func roundTrip(t *testing.T, def *resource.Definition, v *resource.Version, random resource.Object) {
	t.Helper()
	random.SetResourceVersion("")
	random.SetSelfLink("")
	random.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	sent := toJSON(t, random)
	obj := v.New()
	if err := kjson.UnmarshalCaseSensitivePreserveInts(sent, obj); err != nil {
		t.Fatal(err)
	}
	if v == def.HubVersion() && !def.Virtual() {
		stored, err := wire.EncodeStored(def, obj)
		if err != nil {
			t.Fatal(err)
		}
		if obj, err = wire.DecodeStored(def, stored); err != nil {
			t.Fatal(err)
		}
	}
	type message interface {
		Marshal() ([]byte, error)
		Unmarshal([]byte) error
	}
	body, err := obj.(message).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	received := v.New()
	if err := received.(message).Unmarshal(body); err != nil {
		t.Fatal(err)
	}
	if back := toJSON(t, received); !bytes.Equal(sent, back) {
		t.Errorf("sent\n%s\nreceived\n%s", sent, back)
	}
}

func toJSON(t *testing.T, obj any) []byte {
	t.Helper()
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// eachVersion calls f in a test of its own for every version of every kind, with what
// fills objects with random values.
func eachVersion(t *testing.T, f func(t *testing.T, def *resource.Definition, v *resource.Version, fill *randfill.Filler)) {
	catalog, err := resource.NewCatalog(builtin.Groups(builtin.Config{})...)
	if err != nil {
		t.Fatal(err)
	}
	for _, def := range catalog.Definitions() {
		for i := range def.Versions {
			v := &def.Versions[i]
			t.Run(def.Group+"/"+v.Name+"/"+def.Kind, func(t *testing.T) {
				f(t, def, v, filler(int64(randomtest.Seed(t, uint64(i)+1))))
			})
		}
	}
}

// TestQuickDecoding decodes the JSON of every version of every kind with
// internal/jsonstruct, filled with random values, and compares with sigs.k8s.io/json. A
// type that is left to the library is an error too: it would be slow.
func TestQuickDecoding(t *testing.T) {
	eachVersion(t, func(t *testing.T, def *resource.Definition, v *resource.Version, fill *randfill.Filler) {
		for range 5 {
			random := v.New()
			fill.Fill(random)
			text, err := json.Marshal(random)
			if err != nil {
				t.Fatal(err)
			}
			want, got := v.New(), v.New()
			if problems, err := kjson.UnmarshalStrict(text, want); err != nil || len(problems) > 0 {
				t.Fatalf("%v %v in %s", err, problems, text)
			}
			if !jsonstruct.Decode(text, got) {
				t.Fatalf("not decoded: %s", text)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("got  %+v\nwant %+v", got, want)
			}
		}
	})
}

// TestJSONOfProtobuf compares the JSON that internal/protojson makes of every version of
// every kind that has protobuf with that of the object, filled with random values. A type
// that it does not know is an error too: it would be slow.
func TestJSONOfProtobuf(t *testing.T) {
	eachVersion(t, func(t *testing.T, def *resource.Definition, v *resource.Version, fill *randfill.Filler) {
		for round := range 10 {
			random := v.New()
			if round > 0 {
				fill.Fill(random)
			}
			random.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			message, ok := random.(interface {
				Marshal() ([]byte, error)
				Unmarshal([]byte) error
			})
			if !ok {
				return // it is stored as JSON
			}
			raw, err := message.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			back := v.New()
			if err := back.(interface{ Unmarshal([]byte) error }).Unmarshal(raw); err != nil {
				t.Fatal(err)
			}
			if v.DefaultsSentOnly {
				v.Default(back) // changes nothing in what was stored
			}
			want, err := json.Marshal(back)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := protojson.Append(nil, reflect.TypeOf(random).Elem(), raw)
			if def.Kind == "StatefulSet" && !ok {
				return // its claims say their kind, which is not in the protobuf
			}
			if !ok {
				t.Fatalf("not known: %s", want)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("got  %s\nwant %s", got, want)
			}
		}
	})
}
