package wire

import (
	"bytes"
	"errors"
	"math/rand"
	"strings"
	"testing"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/resource"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// plain is a struct without protobuf methods, as a user of the library writes
// one.
type plain struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Size              int `json:"size"`
}

func (p *plain) DeepCopyObject() runtime.Object {
	c := *p
	p.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

func plainDefinition() *resource.Definition {
	return &resource.Definition{Group: "example.com", Resource: "plains", Kind: "Plain", Hub: "v1", Versions: []resource.Version{{
		Name: "v1", New: func() resource.Object { return &plain{} },
	}, {
		Name: "v0", New: func() resource.Object { return &plain{} },
		ToHub:   func(obj resource.Object) (resource.Object, error) { obj.(*plain).Size *= 10; return obj, nil },
		FromHub: func(obj resource.Object) (resource.Object, error) { p := *obj.(*plain); p.Size /= 10; return &p, nil },
	}}}
}

func pods(t testing.TB) *resource.Served {
	t.Helper()
	s, ok := mustCatalog(t, resource.Group{Resources: []resource.Definition{podDefinition()}}).Lookup("", "v1", "pods")
	if !ok {
		t.Fatal("no pods")
	}
	return s
}

// TestStoredLikeKubernetes compares with the encoder of apimachinery that
// kube-apiserver stores with.
func TestStoredLikeKubernetes(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s := pods(t)
	pod := testPod(t)
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	var want bytes.Buffer
	if err := protobuf.NewSerializer(scheme, scheme).Encode(pod, &want); err != nil {
		t.Fatal(err)
	}
	pod.SetResourceVersion("77")
	pod.SetSelfLink("/link")
	pod.TypeMeta = metav1.TypeMeta{}
	before := pod.DeepCopy()
	stored, err := EncodeStored(s.Definition, pod)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(stored, want.Bytes()) {
		t.Error("stored bytes differ from Kubernetes'")
	}
	if !apiequality.Semantic.DeepEqual(before, pod) {
		t.Error("encoding has changed the object")
	}
	raw, ok := storedProtoBody(s.Definition, s.Version, stored)
	if !ok {
		t.Fatal("no protobuf in the stored bytes")
	}
	if got := AppendEnvelope(nil, s.APIVersion, s.Definition.Kind, raw); !bytes.Equal(got, stored) {
		t.Error("the body in its envelope differs from the stored bytes")
	}
	if n := envelopeSize("v1", "Pod", len(raw)); n != len(stored) {
		t.Errorf("envelope size %d, want %d", n, len(stored))
	}
	apiVersion, kind, inner, ok := OpenEnvelope(stored)
	if !ok || apiVersion != "v1" || kind != "Pod" || !bytes.Equal(inner, raw) {
		t.Errorf("envelope %v %s %s", ok, apiVersion, kind)
	}
	if body, err := protoBody(s.Definition, s.Version, before); err != nil || bytes.Equal(body, raw) || !bytes.Equal(body, must(before.Marshal())) {
		t.Errorf("protobuf body: %v", err)
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestStoredAsJSON(t *testing.T) {
	def := plainDefinition()
	obj := &plain{Size: 3, ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "5"}}
	stored, err := EncodeStored(def, obj)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"kind":"Plain","apiVersion":"example.com/v1","metadata":{"name":"a"},"size":3}` + "\n"; string(stored) != want {
		t.Errorf("stored %s, want %s", stored, want)
	}
	if obj.Kind != "" || obj.ResourceVersion != "5" {
		t.Errorf("encoding has changed the object: %+v", obj)
	}
	back, err := DecodeStored(def, stored)
	if err != nil || back.(*plain).Size != 3 || back.(*plain).Kind != "" {
		t.Errorf("decoded %+v, %v", back, err)
	}
	older, err := DecodeStored(def, []byte(`{"apiVersion":"example.com/v0","kind":"Plain","size":3}`))
	if err != nil || older.(*plain).Size != 30 {
		t.Errorf("decoded an older version as %+v, %v", older, err)
	}
	if obj, err := DecodeStored(def, []byte(`{"apiVersion":"example.com/v0","kind":"Plain","size":"3"}`)); err == nil {
		t.Errorf("decoded a wrong type as %+v", obj)
	}
	body, err := JSONBody(def, &def.Versions[1], &plain{Size: 50, TypeMeta: metav1.TypeMeta{Kind: "Plain"}})
	if want := `{"metadata":{},"size":5}`; err != nil || string(body) != want {
		t.Errorf("body %s, %v", body, err)
	}
	if _, err := protoBody(def, &def.Versions[0], obj); !errors.Is(err, ErrNotEncodable) {
		t.Errorf("protobuf of a plain struct: %v", err)
	}
}

// TestStoredInAnotherVersionThanTheHub has objects of the hub version before and after, and
// another version in the store.
func TestStoredInAnotherVersionThanTheHub(t *testing.T) {
	def := plainDefinition()
	def.StoreAs = "v0"
	obj := &plain{Size: 30, ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "5"}}
	stored, err := EncodeStored(def, obj)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"kind":"Plain","apiVersion":"example.com/v0","metadata":{"name":"a"},"size":3}` + "\n"; string(stored) != want {
		t.Errorf("stored %s, want %s", stored, want)
	}
	if obj.Size != 30 || obj.ResourceVersion != "5" {
		t.Errorf("encoding has changed the object: got %+v, want size 30 and version 5", obj)
	}
	if back, err := DecodeStored(def, stored); err != nil || back.(*plain).Size != 30 {
		t.Errorf("decoded %+v, %v, want size 30", back, err)
	}
}

func TestStoreJSON(t *testing.T) {
	def := podDefinition()
	def.StoreJSON = true
	pod := testPod(t)
	pod.TypeMeta = metav1.TypeMeta{}
	stored, err := EncodeStored(&def, pod)
	if err != nil || !bytes.HasPrefix(stored, []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{`)) {
		t.Fatalf("stored %.60s, %v", stored, err)
	}
	back, err := DecodeStored(&def, stored)
	if err != nil || !apiequality.Semantic.DeepEqual(pod, back) {
		t.Errorf("came back different, %v", err)
	}
}

func TestStoredMaps(t *testing.T) {
	c := mustCatalog(t, resource.Group{Name: "example.com", Resources: []resource.Definition{widgetDefinition("v1", "v2")}})
	v2, _ := c.Lookup("example.com", "v2", "widgets")
	def := v2.Definition
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "spec": map[string]any{"size": int64(3), "ratio": 0.5},
		"metadata": map[string]any{"name": "a", "resourceVersion": "5", "selfLink": "/x", "uid": "u"},
	}}
	before := u.DeepCopy()
	stored, err := EncodeStored(def, u)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","uid":"u"},"spec":{"ratio":0.5,"size":3}}` + "\n"; string(stored) != want {
		t.Errorf("stored %s", stored)
	}
	if !apiequality.Semantic.DeepEqual(before, u) {
		t.Error("encoding has changed the object")
	}
	back, err := DecodeStored(def, bytes.Replace(stored, []byte("/v1"), []byte("/v2"), 1))
	if err != nil {
		t.Fatal(err)
	}
	unstructured.RemoveNestedField(before.Object, "metadata", "resourceVersion")
	unstructured.RemoveNestedField(before.Object, "metadata", "selfLink")
	if !apiequality.Semantic.DeepEqual(before, back) {
		t.Errorf("decoded %v, want %v", back, before)
	}
	body, err := JSONBody(def, v2.Version, back)
	if err != nil || !strings.HasPrefix(string(body), `{"apiVersion":"example.com/v2","kind":"Widget",`) {
		t.Errorf("body %s, %v", body, err)
	}
	if got := AppendWithKind(nil, v2, body); !bytes.Equal(got, body) {
		t.Errorf("on the wire %s", got)
	}
}

func TestWireJSON(t *testing.T) {
	s := pods(t)
	pod := testPod(t)
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	want := marshal(t, pod)
	body, err := JSONBody(s.Definition, s.Version, pod)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(body, []byte(`{"metadata":{"name":`)) {
		t.Errorf("body %.60s", body)
	}
	if got := AppendWithKind(nil, s, body); !bytes.Equal(got, want) {
		t.Errorf("on the wire\n got %s\nwant %s", got, want)
	}
	if pod.Kind != "Pod" {
		t.Error("encoding has changed the object")
	}
}

func TestDecodeStoredDefaults(t *testing.T) {
	d := podDefinition()
	d.Versions[0].Default = resource.DefaultFunc(func(p *corev1.Pod) {
		if p.Spec.DNSPolicy == "" {
			p.Spec.DNSPolicy = corev1.DNSClusterFirst
		}
	})
	stored, err := EncodeStored(&d, &corev1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	obj, err := DecodeStored(&d, stored)
	if err != nil || obj.(*corev1.Pod).Spec.DNSPolicy != corev1.DNSClusterFirst {
		t.Errorf("decoded %v, %v", obj, err)
	}
}

func TestDecodeStoredRefuses(t *testing.T) {
	s := pods(t)
	for name, data := range map[string]string{
		"empty":         "",
		"not JSON":      "hello",
		"other kind":    `{"kind":"Node","apiVersion":"v1"}`,
		"other version": `{"kind":"Pod","apiVersion":"v9"}`,
		"other group":   `{"kind":"Pod","apiVersion":"apps/v1"}`,
		"cut envelope":  "k8s\x00\x0a\x05",
		"other message": string(AppendEnvelope(nil, "v1", "Node", nil)),
		"bad message":   string(AppendEnvelope(nil, "v1", "Pod", []byte{0xff})),
	} {
		if obj, err := DecodeStored(s.Definition, []byte(data)); err == nil {
			t.Errorf("%s: decoded %+v", name, obj)
		}
	}
	if _, err := DecodeStored(plainDefinition(), AppendEnvelope(nil, "example.com/v1", "Plain", nil)); !errors.Is(err, ErrNotEncodable) {
		t.Errorf("protobuf of a plain struct: %v", err)
	}
}

// TestRoundTrip stores objects full of random values.
func TestRoundTrip(t *testing.T) {
	scheme := runtime.NewScheme()
	random := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(int64(randomtest.Seed(t, 1))), serializer.NewCodecFactory(scheme))
	for kind, gvk := range map[resource.Object]schema.GroupVersionKind{
		&corev1.Pod{}:           {Version: "v1", Kind: "Pod"},
		&corev1.Service{}:       {Version: "v1", Kind: "Service"},
		&corev1.Secret{}:        {Version: "v1", Kind: "Secret"},
		&corev1.Node{}:          {Version: "v1", Kind: "Node"},
		&appsv1.Deployment{}:    {Group: "apps", Version: "v1", Kind: "Deployment"},
		&coordinationv1.Lease{}: {Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"},
	} {
		def := &resource.Definition{Group: gvk.Group, Kind: gvk.Kind, Versions: []resource.Version{{
			Name: gvk.Version, New: func() resource.Object { return kind.DeepCopyObject().(resource.Object) },
		}}}
		for range 20 {
			obj := kind.DeepCopyObject().(resource.Object)
			random.Fill(obj)
			obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			obj.SetResourceVersion("")
			obj.SetSelfLink("")
			stored, err := EncodeStored(def, obj)
			if err != nil {
				t.Fatal(err)
			}
			back, err := DecodeStored(def, stored)
			if err != nil {
				t.Fatal(err)
			}
			if !apiequality.Semantic.DeepEqual(obj, back) {
				t.Errorf("%s came back different:\n%s\n%s", gvk.Kind, marshal(t, obj), marshal(t, back))
			}
			inJSON, err := JSONBody(def, def.HubVersion(), obj)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := DecodeStored(def, inJSON); err != nil {
				t.Errorf("%s stored as JSON: %v", gvk.Kind, err)
			}
		}
	}
}

func FuzzDecodeStored(f *testing.F) {
	typed := pods(f).Definition
	stored, err := EncodeStored(typed, testPod(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(stored)
	f.Add([]byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`))
	f.Add([]byte(`{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"a"}}`))
	f.Add([]byte(`{"apiVersion":"example.com/v0","kind":"Plain","size":1}`))
	f.Add([]byte(`null`))
	widgets, _ := mustCatalog(f, resource.Group{Name: "example.com", Resources: []resource.Definition{widgetDefinition("v1", "v2")}}).Definition("example.com", "widgets")
	defs := []*resource.Definition{typed, widgets, plainDefinition()}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, def := range defs {
			obj, err := DecodeStored(def, data)
			if err != nil {
				continue
			}
			again, err := EncodeStored(def, obj)
			if err != nil {
				// JSON numbers that are no numbers of Go and the like.
				continue
			}
			if _, err := DecodeStored(def, again); err != nil {
				t.Errorf("%s: what was decoded and encoded is refused: %v", def.Kind, err)
			}
		}
	})
}

func BenchmarkEncodeStored(b *testing.B) {
	def, pod := pods(b).Definition, testPod(b)
	pod.ResourceVersion = "123456"
	b.ReportAllocs()
	for b.Loop() {
		if _, err := EncodeStored(def, pod); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeStored(b *testing.B) {
	def := pods(b).Definition
	stored, err := EncodeStored(def, testPod(b))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeStored(def, stored); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkJSONBody(b *testing.B) {
	s, pod := pods(b), testPod(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := JSONBody(s.Definition, s.Version, pod); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendWithKind(b *testing.B) {
	s := pods(b)
	body, err := JSONBody(s.Definition, s.Version, testPod(b))
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 0, 2*len(body))
	b.ReportAllocs()
	for b.Loop() {
		AppendWithKind(buf, s, body)
	}
}

func BenchmarkAppendEnvelope(b *testing.B) {
	s := pods(b)
	stored, err := EncodeStored(s.Definition, testPod(b))
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 0, 2*len(stored))
	b.ReportAllocs()
	for b.Loop() {
		raw, _ := storedProtoBody(s.Definition, s.Version, stored)
		AppendEnvelope(buf, s.APIVersion, s.Definition.Kind, raw)
	}
}

// TestStoredIsBody: where the stored JSON is what a body stands for, it can be
// taken instead of the body.
func TestStoredIsBody(t *testing.T) {
	pods := podDefinition()
	pods.StoreJSON = true
	c := mustCatalog(t, resource.Group{Resources: []resource.Definition{pods}}, resource.Group{Name: "example.com", Resources: []resource.Definition{widgetDefinition("v1")}})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", Labels: map[string]string{"a": "b"}}}
	widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "a"}}}
	for _, test := range []struct {
		group, resource string
		obj             resource.Object
	}{{"", "pods", pod}, {"example.com", "widgets", widget}} {
		s, ok := c.Lookup(test.group, "v1", test.resource)
		if !ok {
			t.Fatal(test.resource)
		}
		data, err := EncodeStored(s.Definition, test.obj)
		if err != nil {
			t.Fatal(err)
		}
		body, err := JSONBody(s.Definition, s.Version, test.obj)
		if err != nil {
			t.Fatal(err)
		}
		if !storedIsBody(s, data, body) {
			t.Fatalf("%s is not what %s stands for", data, body)
		}
		want := spliceJSON(body, "7")
		if got := appendStored([]byte("x"), s, data, "7", true); string(got) != "x"+string(want) {
			t.Errorf("item %s, want %s", got, want)
		}
		if got, want := appendStored(nil, s, data, "7", false), AppendWithKind(nil, s, want); string(got) != string(want) {
			t.Errorf("object %s, want %s", got, want)
		}
		for _, other := range []string{`{}`, `{"metadata":{}}`, ``} {
			if storedIsBody(s, data, []byte(other)) {
				t.Errorf("%s stands for %s", other, data)
			}
		}
	}
}

// TestUIDOfRecords reads UIDs in every form in which objects are stored.
func TestUIDOfRecords(t *testing.T) {
	d := podDefinition()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "1-2-3", Labels: map[string]string{"uid": "no"}}}
	proto, err := EncodeStored(&d, pod)
	if err != nil {
		t.Fatal(err)
	}
	for name, stored := range map[string]string{
		"protobuf": string(proto),
		"struct":   `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","uid":"1-2-3","labels":{"uid":"no"}}}`,
		"map":      `{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"uid":"no"},"name":"p","uid":"1-2-3"}}`,
		"spaces":   `{ "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "1-2-3"} }`,
	} {
		if uid, err := UID(&d, NewRecord(Record{}, []byte(stored), nil, nil, nil, nil)); uid != "1-2-3" || err != nil {
			t.Errorf("%s: got %q, %v, want 1-2-3", name, uid, err)
		}
	}
	for _, stored := range []string{"", "k8s\x00\x0a\x05", `{"metadata":{"uid":5}}`} {
		if uid, err := UID(&d, NewRecord(Record{}, []byte(stored), nil, nil, nil, nil)); err == nil {
			t.Errorf("%q: got %q and no error", stored, uid)
		}
	}
}
