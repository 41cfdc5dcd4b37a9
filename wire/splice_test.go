package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/apikeel/kelson/resource"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// testPod is a pod as a running cluster has it, without a resourceVersion.
func testPod(t testing.TB) *corev1.Pod {
	t.Helper()
	pod, err := readPod()
	if err != nil {
		t.Fatal(err)
	}
	return pod.DeepCopy()
}

var readPod = sync.OnceValues(func() (*corev1.Pod, error) {
	data, err := os.ReadFile("testdata/pod.yaml")
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	return pod, yaml.UnmarshalStrict(data, pod)
})

// spliceProto returns an object's protobuf with metadata.resourceVersion set.
func spliceProto(raw []byte, rv string) []byte {
	p := newProtoSplice(raw, len(rv))
	return p.append(make([]byte, 0, p.size), raw, []byte(rv))
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestSpliceJSON(t *testing.T) {
	for _, test := range []struct{ body, rv, want string }{
		{`{"metadata":{}}`, "7", `{"metadata":{"resourceVersion":"7"}}`},
		{`{"metadata":{"name":"a"}}`, "7", `{"metadata":{"name":"a","resourceVersion":"7"}}`},
		{`{"metadata":{"name":"a","uid":"u","generation":1},"spec":{}}`, "7", `{"metadata":{"name":"a","uid":"u","resourceVersion":"7","generation":1},"spec":{}}`},
		{`{"metadata":{"labels":{"uid":"x"}}}`, "7", `{"metadata":{"resourceVersion":"7","labels":{"uid":"x"}}}`},
		{`{"metadata":{"name":"a","resourceVersion":"123","generation":1}}`, "7", `{"metadata":{"name":"a","resourceVersion":"7","generation":1}}`},
		{`{"metadata":{"name":"a","resourceVersion":"123"}}`, "", `{"metadata":{"name":"a"}}`},
		{`{"metadata":{"resourceVersion":"123"}}`, "", `{"metadata":{}}`},
		{`{"metadata":{"resourceVersion":"123","generation":1}}`, "", `{"metadata":{"generation":1}}`},
		{`{"metadata":{"name":"a","resourceVersion":"123","generation":1}}`, "", `{"metadata":{"name":"a","generation":1}}`},
		{`{"metadata":{"name":"a"}}`, "", `{"metadata":{"name":"a"}}`},
		{`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u"}}`, "7", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u","resourceVersion":"7"}}`},
		{`{"apiVersion":"e/v1","kind":"W","metadata":{"name":"a","uid":"u"}}`, "7", `{"apiVersion":"e/v1","kind":"W","metadata":{"name":"a","resourceVersion":"7","uid":"u"}}`},
		{`{"apiVersion":"e/v1","data":{"metadata":{"x":"}\"{"}},"kind":"W","metadata":{"labels":{"z":"y"}}}`, "7",
			`{"apiVersion":"e/v1","data":{"metadata":{"x":"}\"{"}},"kind":"W","metadata":{"labels":{"z":"y"},"resourceVersion":"7"}}`},
		{`{"metadata":{}}`, "a\"<b", `{"metadata":{"resourceVersion":"a\"\u003cb"}}`},
		{`{"spec":{}}`, "7", `{"spec":{}}`},
		{`[]`, "7", `[]`},
		{``, "7", ``},
	} {
		if got := string(spliceJSON([]byte(test.body), test.rv)); got != test.want {
			t.Errorf("%s with %q:\n got %s\nwant %s", test.body, test.rv, got, test.want)
		}
		if got := string(appendSpliceJSON([]byte("x"), []byte(test.body), test.rv)); got != "x"+test.want {
			t.Errorf("%s with %q appended: %s", test.body, test.rv, got)
		}
	}
}

func TestSpliceKeepsInput(t *testing.T) {
	body := []byte(`{"metadata":{"name":"a","uid":"u"}}`)
	was := bytes.Clone(body)
	spliceJSON(body, "12345")
	raw, _ := testPod(t).Marshal()
	rawWas := bytes.Clone(raw)
	spliceProto(raw, "12345")
	if !bytes.Equal(body, was) || !bytes.Equal(raw, rawWas) {
		t.Error("the input has changed")
	}
}

func TestMetadata(t *testing.T) {
	pod := testPod(t)
	got, ok := MetadataJSON(marshal(t, pod))
	if want := marshal(t, &pod.ObjectMeta); !ok || !bytes.Equal(got, want) {
		t.Errorf("metadata %s, want %s", got, want)
	}
	raw, _ := pod.Marshal()
	got, ok = MetadataProto(raw)
	if want, _ := pod.ObjectMeta.Marshal(); !ok || !bytes.Equal(got, want) {
		t.Errorf("metadata in protobuf differs")
	}
	for _, bad := range []string{``, `{`, `{}`, `{"metadata"`, `{"metadata":`, `{"metadata":{`, `{"a":1`, `{"a":"\"`, `{"a" 1}`} {
		if got, ok := MetadataJSON([]byte(bad)); ok {
			t.Errorf("metadata of %s: %s", bad, got)
		}
		if got, ok := MetadataProto([]byte(bad)); ok {
			t.Errorf("metadata of %s: %s", bad, got)
		}
	}
}

// FuzzSpliceStruct compares splices with setting the field and encoding anew.
func FuzzSpliceStruct(f *testing.F) {
	f.Add([]byte(`{"name":"a","uid":"u","generation":3,"labels":{"a":"b"}}`), "42")
	f.Add([]byte(`{"generateName":"a<\u2028\"-","resourceVersion":"9","finalizers":["x"]}`), "")
	f.Add(marshal(f, &testPod(f).ObjectMeta), "123456789")
	f.Fuzz(func(t *testing.T, metadata []byte, rv string) {
		pod := &corev1.Pod{}
		if json.Unmarshal(metadata, &pod.ObjectMeta) != nil {
			return
		}
		// Only strings that JSON can express come back the same.
		pod.ResourceVersion = string(bytes.ToValidUTF8([]byte(pod.ResourceVersion), nil))
		body, err := json.Marshal(pod)
		if err != nil {
			return
		}
		raw, err := pod.Marshal()
		if err != nil {
			return
		}
		pod.ResourceVersion = rv
		if got, want := spliceJSON(body, rv), marshal(t, pod); !bytes.Equal(got, want) {
			t.Errorf("json:\n got %s\nwant %s", got, want)
		}
		want, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if rv == "" {
			want = raw // nothing to set
		}
		if got := spliceProto(raw, rv); !bytes.Equal(got, want) {
			t.Errorf("protobuf:\n got %x\nwant %x", got, want)
		}
	})
}

// FuzzSpliceMap does the same for objects that are maps.
func FuzzSpliceMap(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"metadata":{}}],"apiVersion":"e/v1","kind":"W","metadata":{"name":"a","uid":"u"},"z":null}`), "42")
	f.Add([]byte(`{"apiVersion":"e/v1","kind":"W","metadata":{"annotations":{"\\\"":"}"},"resourceVersion":"1"}}`), "")
	f.Fuzz(func(t *testing.T, data []byte, rv string) {
		u := &unstructured.Unstructured{}
		if json.Unmarshal(data, &u.Object) != nil || u.GetKind() == "" || u.GetAPIVersion() == "" {
			return
		}
		metadata, ok := u.Object["metadata"].(map[string]any)
		if !ok {
			return
		}
		body := marshal(t, u.Object)
		if delete(metadata, "resourceVersion"); rv != "" {
			metadata["resourceVersion"] = rv
		}
		if got, want := spliceJSON(body, rv), marshal(t, u.Object); !bytes.Equal(got, want) {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
	})
}

// FuzzSpliceAnything looks for input that makes the splices fail.
func FuzzSpliceAnything(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a"}}`), "1")
	raw, _ := (&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}).Marshal()
	f.Add(raw, "1")
	f.Fuzz(func(t *testing.T, data []byte, rv string) {
		if got := spliceJSON(data, rv); json.Valid(data) && !json.Valid(got) {
			t.Errorf("valid %s became %s", data, got)
		}
		MetadataJSON(data)
		MetadataProto(data)
		got := spliceProto(data, rv)
		before, after := &corev1.Pod{}, &corev1.Pod{}
		if before.Unmarshal(data) == nil && after.Unmarshal(got) != nil {
			t.Errorf("valid %x became %x", data, got)
		}
	})
}

func BenchmarkSpliceJSON(b *testing.B) {
	body := marshal(b, testPod(b))
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		spliceJSON(body, "123456")
	}
}

func BenchmarkSpliceProto(b *testing.B) {
	raw, _ := testPod(b).Marshal()
	b.ReportAllocs()
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		spliceProto(raw, "123456")
	}
}

func BenchmarkMetadataJSON(b *testing.B) {
	body := marshal(b, testPod(b))
	b.ReportAllocs()
	for b.Loop() {
		MetadataJSON(body)
	}
}

// storedLabels is StoredLabels as a map.
func storedLabels(def *resource.Definition, stored []byte) (map[string]string, bool) {
	pairs, ok := StoredLabels(def, stored)
	labels := map[string]string{}
	for pair := range slices.Chunk(pairs, 2) {
		labels[pair[0]] = pair[1]
	}
	return labels, ok
}

func TestStoredLabels(t *testing.T) {
	def := &resource.Definition{Group: "example.com", Kind: "Thing", Hub: "v1", StoreJSON: true, Versions: []resource.Version{{Name: "v1"}, {Name: "v2"}}}
	head := `{"kind":"Thing","apiVersion":"example.com/v1","metadata":`
	for text, want := range map[string]string{
		head + `{"name":"a","labels":{"b":"c"}},"spec":{"labels":{"x":"y"}}}`: "map[b:c]",
		head + `{"name":"a"}}`: "map[]",
		`{"kind":"Thing","apiVersion":"example.com/v2","metadata":{"name":"a"}}`: "",
		head + `{"labels":{"b":null}}}`:                                          "",
		head + `{"labels":{"b":1}}}`:                                             "",
		head + `{"labels":{}},"spec":}`:                                          "",
		head + `{"labels":[]}}`:                                                  "",
		"k8s\x00":                                                                "",
	} {
		labels, ok := storedLabels(def, []byte(text))
		if got := fmt.Sprint(labels); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %s, %v", text, got, ok)
		}
	}
}

// TestStoredLabelsOfProtobuf changes each byte of a stored object: labels that are read
// without decoding it are those that it has when it is decoded.
func TestStoredLabelsOfProtobuf(t *testing.T) {
	def := &resource.Definition{Resource: "configmaps", Kind: "ConfigMap", Hub: "v1", Namespaced: true, Versions: []resource.Version{resource.VersionOf[corev1.ConfigMap, corev1.ConfigMapList]("v1", nil)}}
	cm := &corev1.ConfigMap{Data: map[string]string{"k": "v"}, Immutable: new(true)}
	cm.Name, cm.Generation, cm.Labels, cm.Annotations = "a", 300, map[string]string{"app": "web", "empty": ""}, map[string]string{"note": "x"}
	stored, err := EncodeStored(def, cm)
	if err != nil {
		t.Fatal(err)
	}
	labels, ok := storedLabels(def, stored)
	if !ok || !maps.Equal(labels, cm.Labels) {
		t.Fatalf("got %v, %v, want %v", labels, ok, cm.Labels)
	}
	read, same := 0, 0
	for i := range stored {
		for bit := range 8 {
			changed := slices.Clone(stored)
			changed[i] ^= 1 << bit
			labels, ok := storedLabels(def, changed)
			obj, err := DecodeStored(def, changed)
			if !ok || err != nil {
				continue
			}
			read++
			if want := obj.GetLabels(); !maps.Equal(labels, want) {
				t.Errorf("byte %d, bit %d: got %q, want %q", i, bit, labels, want)
			}
			if maps.Equal(labels, cm.Labels) {
				same++
			}
		}
	}
	if read == 0 || same == 0 || same == read {
		t.Errorf("of %d changes that can be read, %d left the labels as they are: want some of each", read, same)
	}
}
