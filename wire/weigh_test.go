package wire

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

// TestWeigh: what is decoded from a text takes less than its weight, with room for two more
// states of it, and what clients send is light.
func TestWeigh(t *testing.T) {
	empty := make([]corev1.Container, 20_000)
	message, err := (&corev1.Pod{Spec: corev1.PodSpec{Containers: empty}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	decode := func(text string, into any) func() any {
		return func() any {
			if err := json.Unmarshal([]byte(text), into); err != nil {
				t.Fatal(err)
			}
			return into
		}
	}
	chain := strings.Repeat(`{"":`, 500) + "0" + strings.Repeat("}", 500)
	custom := func(text string) (string, func() any) { return text, decode(text, new(map[string]any)) }
	for name, c := range map[string]func() (string, func() any){
		"containers": func() (string, func() any) {
			text := `{"spec":{"containers":[` + strings.Repeat("{},", 20_000) + `{}]}}`
			return text, decode(text, new(corev1.Pod))
		},
		"containers in protobuf": func() (string, func() any) {
			text := protoPrefix + "\x12" // the raw bytes of an envelope
			for n := len(message); ; n >>= 7 {
				if n < 0x80 {
					text += string(rune(n))
					break
				}
				text += string([]byte{byte(n) | 0x80})
			}
			return text + string(message), func() any {
				pod := new(corev1.Pod)
				if err := pod.Unmarshal(message); err != nil {
					t.Fatal(err)
				}
				return pod
			}
		},
		"maps":            func() (string, func() any) { return custom(`{"a":[` + strings.Repeat(`{"":0},`, 20_000) + `0]}`) },
		"empty":           func() (string, func() any) { return custom(`{"a":[` + strings.Repeat(`{},`, 20_000) + `0]}`) },
		"lists":           func() (string, func() any) { return custom(`{"a":[` + strings.Repeat(`[[]],`, 20_000) + `0]}`) },
		"chains":          func() (string, func() any) { return custom(`{"a":[` + strings.Repeat(chain+",", 40) + `0]}`) },
		"numbers in CBOR": func() (string, func() any) { return inCBOR(t, []any{many(500, many(500, int64(0)))}) },
		"maps in CBOR": func() (string, func() any) {
			return inCBOR(t, []any{many(100, many(500, map[string]any{"": int64(0)}))})
		},
		"lists in CBOR": func() (string, func() any) { return inCBOR(t, []any{many(100, many(500, []any{}))}) },
		"numbers":       func() (string, func() any) { return custom(`{"a":[` + strings.Repeat(`0,`, 100_000) + `0]}`) },
	} {
		// What other tests have left behind may go meanwhile: then it is measured again.
		for try := 1; ; try++ {
			text, decoded := c()
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			obj := decoded()
			runtime.GC()
			runtime.ReadMemStats(&after)
			runtime.KeepAlive(obj)
			took, weight := int64(after.HeapAlloc)-int64(before.HeapAlloc), Weigh([]byte(text))
			if weight >= took*2 && weight <= 25*took {
				break
			}
			if try == 3 {
				t.Errorf("%s: %d bytes of text take %d when they are decoded, and weigh %d", name, len(text), took, weight)
				break
			}
		}
	}
	// A fault at the end comes after all else was decoded.
	broken := protoPrefix + "\x12\xc1\x84\x3d" + strings.Repeat("\x12\x00", 500_000) + "\x07"
	if weight := Weigh([]byte(broken)); weight < 500_000*objectWeight {
		t.Errorf("%d bytes of messages with a fault at the end weigh %d", len(broken), weight)
	}
	s := pods(t)
	stored, err := EncodeStored(s.Definition, testPod(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"pod": marshal(t, testPod(t)), "stored pod": stored,
		"one text": []byte(`{"data":{"a":"` + strings.Repeat(`{[,:\"`, 200_000) + `"}}`),
	} {
		if weight := Weigh(text); weight > roughWeight {
			t.Errorf("%s: %d bytes weigh %d", name, len(text), weight)
		}
	}
}

// many is a list that has a value n times.
func many(n int, value any) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = value
	}
	return list
}

// inCBOR returns a list in CBOR, with its tag, and a function that decodes it.
func inCBOR(t *testing.T, list []any) (string, func() any) {
	text, err := direct.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return string(cborMagic) + string(text), func() any {
		var got []any
		if err := direct.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
}

// TestWeighCBOR: a text in CBOR weighs the same without its tag, a cut one no more.
func TestWeighCBOR(t *testing.T) {
	text, _ := inCBOR(t, []any{many(100, map[string]any{"name": strings.Repeat("x", 300), "n": int64(1) << 40, "f": 1.5})})
	whole := WeighCBOR([]byte(text))
	if plain := WeighCBOR([]byte(text[len(cborMagic):])); plain < whole-fieldWeight || plain > whole || plain < 100*objectWeight {
		t.Errorf("with a tag it weighs %d, without one %d", whole, plain)
	}
	for i := range text {
		if part := WeighCBOR([]byte(text[:i])); part > whole {
			t.Fatalf("the first %d bytes weigh %d, all %d", i, part, whole)
		}
	}
}

// BenchmarkWeigh is what weighing costs of an ordinary write.
func BenchmarkWeigh(b *testing.B) {
	s := pods(b)
	stored, err := EncodeStored(s.Definition, testPod(b))
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string][]byte{"json": marshal(b, testPod(b)), "protobuf": stored} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				Weigh(text)
			}
		})
	}
}

// FuzzWeigh: any text has a weight, no more than if every byte began an object.
func FuzzWeigh(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":"\""}]}`))
	f.Add([]byte("k8s\x00\n\x04\n\x00\x12\x00\x12\x04\n\x02\n\x00"))
	f.Add([]byte{0xd9, 0xd9, 0xf7, 0xa1, 0x61, 'a', 0x80})
	f.Fuzz(func(t *testing.T, text []byte) {
		text = bytes.Repeat(text, lightText/(len(text)+1)+1) // short ones are not weighed
		if w := Weigh(text); w < 0 || w > objectWeight*int64(len(text)) {
			t.Errorf("got %d for %d bytes", w, len(text))
		}
		if w := WeighCBOR(text); w < 0 || w > objectWeight*int64(len(text)) {
			t.Errorf("got %d for %d bytes of CBOR", w, len(text))
		}
	})
}
