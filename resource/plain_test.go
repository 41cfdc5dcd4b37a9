package resource_test

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/apikeel/kelson/resource"
)

type gadget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Size     *int32                          `json:"size,omitempty"`
	Needed   string                          `json:"needed" doc:"It must be there."`
	Parts    []part                          `json:"parts,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	Amounts  map[string]apiresource.Quantity `json:"amounts,omitempty"`
	Template corev1.PodSpec                  `json:"template,omitempty"`
	Anything any                             `json:"anything,omitempty"`
	hidden   *int
}

type part struct {
	Name  string   `json:"name"`
	Tags  []string `json:"tags,omitempty"`
	Inner *part    `json:"inner,omitempty"`
}

func (g *gadget) DeepCopyObject() runtime.Object { return resource.Copy(g) }

func TestCopy(t *testing.T) {
	size, shared := int32(3), 1
	g := &gadget{
		ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"a": "b"}, CreationTimestamp: metav1.Now()},
		Size:       &size, Parts: []part{{Name: "p", Tags: []string{"t"}, Inner: &part{Name: "q"}}},
		Amounts:  map[string]apiresource.Quantity{"cpu": apiresource.MustParse("1")},
		Anything: map[string]any{"k": []any{"v"}}, hidden: &shared,
	}
	c := g.DeepCopyObject().(*gadget)
	if !reflect.DeepEqual(g, c) {
		t.Fatalf("%+v is not %+v", c, g)
	}
	*c.Size, c.Labels["a"], c.Parts[0].Tags[0], c.Parts[0].Inner.Name = 4, "c", "u", "r"
	c.Anything.(map[string]any)["k"].([]any)[0] = "w"
	if *g.Size != 3 || g.Labels["a"] != "b" || g.Parts[0].Tags[0] != "t" || g.Parts[0].Inner.Name != "q" ||
		g.Anything.(map[string]any)["k"].([]any)[0] != "v" {
		t.Errorf("the copy shares memory: %+v", g)
	}
	if resource.Copy[gadget](nil) != nil {
		t.Error("a copy of nothing")
	}
}

func TestSchemaOf(t *testing.T) {
	s := resource.SchemaOf[gadget]()
	if !reflect.DeepEqual(s.Required, []string{"needed"}) || s.Properties["needed"].Description != "It must be there." {
		t.Errorf("required %q, needed %+v", s.Required, s.Properties["needed"])
	}
	meta := s.Properties["metadata"]
	if len(meta.AllOf) != 1 || meta.AllOf[0].Ref.String() != "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta" {
		t.Errorf("metadata: %+v", meta)
	}
	parts := s.Properties["parts"]
	if parts.Extensions["x-kubernetes-list-type"] != "map" || parts.Items.Schema.Properties["tags"].Extensions["x-kubernetes-list-type"] != "atomic" {
		t.Errorf("parts: %+v", parts)
	}
	if inner := parts.Items.Schema.Properties["inner"]; inner.Extensions["x-kubernetes-preserve-unknown-fields"] != true {
		t.Errorf("a part within a part: %+v", inner)
	}
	if _, ok := s.Properties["hidden"]; ok || s.Properties["apiVersion"].Description == "" || !s.Properties["size"].Type.Contains("integer") {
		t.Errorf("properties: %+v", s.Properties)
	}
}

func TestPlain(t *testing.T) {
	v := resource.Plain("v1", func(g *gadget) { g.Needed = "default" })
	obj := v.New()
	v.Default(obj)
	if obj.(*gadget).Needed != "default" {
		t.Errorf("%+v", obj)
	}
	if _, ok := v.NewList().(*resource.List[gadget]); !ok || v.Schema == nil {
		t.Errorf("%+v", v)
	}
}
