package rest

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// podBody is a pod as a running cluster has it, in JSON.
func podBody(t testing.TB) []byte {
	t.Helper()
	data, err := os.ReadFile("../wire/testdata/pod.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(data, pod); err != nil {
		t.Fatal(err)
	}
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	body, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// decodePod decodes a body as a create of a pod does.
func decodePod(s *scope, body []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, s.decodeInto(pod, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, body, wire.JSON)
}

func decodingScope(validation fieldValidation) *scope {
	catalog, err := resource.NewCatalog()
	if err != nil {
		panic(err)
	}
	return &scope{
		h: &Handler{Catalog: func() *resource.Catalog { return catalog }}, req: &request.Request{}, validation: validation,
		served: &resource.Served{}, def: &resource.Definition{Kind: "Pod"},
	}
}

// TestDecodeFindsTheKind: what a body says of its kind is the same whether unknown fields
// are looked for, which finds it while the object is decoded, or not.
func TestDecodeFindsTheKind(t *testing.T) {
	for _, body := range []string{
		string(podBody(t)),
		`{"metadata":{"name":"a"}}`,
		`{"kind":"Pod","metadata":{"name":"a"}}`,
		`{"kind":null,"apiVersion":"v1","metadata":{"name":"a"}}`,
		`{"kind":"Pod","apiVersion":"v2","metadata":{"name":"a"}}`,
		`{"kind":"Pod","apiVersion":"a/b/c"}`,
		`{"kind":"Node","apiVersion":"v1","spec":{"podCIDR":"x"}}`,
		`{"kind":"Pod","KIND":"Node","apiVersion":"v1"}`,
		`{"KIND":"Node","apiVersion":"v1"}`,
		`{"kind":5,"apiVersion":"v1"}`,
		`{"kind":"Pod","apiVersion":"v1","spec":5}`,
		`{"kind":"Pod","apiVersion":"v1"}x`,
		`[]`, `{`, ``, `null`,
	} {
		want, wantErr := decodePod(decodingScope(metav1.FieldValidationIgnore), []byte(body))
		got, gotErr := decodePod(decodingScope(metav1.FieldValidationWarn), []byte(body))
		if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
			t.Errorf("%.80s:\n got error %v\nwant error %v", body, gotErr, wantErr)
		}
		if gotErr == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%.80s:\n got %+v\nwant %+v", body, got, want)
		}
	}
}

// BenchmarkDecodeBody is the body of a write of a pod.
func BenchmarkDecodeBody(b *testing.B) {
	body, s := podBody(b), decodingScope(metav1.FieldValidationWarn)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := decodePod(s, body); err != nil {
			b.Fatal(err)
		}
	}
}
