package openapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/openapi"
	"github.com/apikeel/kelson/resource"
)

// databases returns a custom resource with a schema of a realistic size.
func databases(i int, description string) *resource.Definition {
	group := fmt.Sprintf("g%d.example.com", i/10)
	kind := fmt.Sprintf("Database%d", i)
	part := `{"type":"object","description":"What this part of the specification is for, in a sentence or two as documentation has it.",` +
		`"required":["name"],"properties":{"name":{"type":"string","maxLength":63,"pattern":"^[a-z]+$","description":"The name of it."},` +
		`"replicas":{"type":"integer","format":"int32","default":1},"mode":{"type":"string","enum":["A","B","C"]}}}`
	parts := make([]string, 20)
	for n := range parts {
		parts[n] = fmt.Sprintf(`"part%d":%s`, n, part)
	}
	text := []byte(`{"type":"object","description":"` + description + `","properties":{"spec":{"type":"object","properties":{` + strings.Join(parts, ",") + `},` +
		`"x-kubernetes-validations":[{"rule":"self.part1.name != self.part2.name"}]},` +
		`"metadata":{"allOf":[{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]}}}`)
	return &resource.Definition{
		Group: group, Resource: strings.ToLower(kind) + "s", Kind: kind, Namespaced: true,
		Subresources: []resource.Subresource{{Name: "status", Part: &resource.Strategy{}}},
		Versions: []resource.Version{{
			Name: "v1",
			Schema: func() *spec.Schema {
				var s spec.Schema
				if err := json.Unmarshal(text, &s); err != nil {
					panic(err)
				}
				return &s
			},
			New:     func() resource.Object { return &unstructured.Unstructured{} },
			NewList: func() kruntime.Object { return &unstructured.UnstructuredList{} },
		}},
	}
}

// thousand returns a handler for a thousand custom resources, and what changes
// one of them.
func thousand(t testing.TB) (*openapi.Handler, func()) {
	catalog := newCatalog(t)
	all := make([]*resource.Definition, 1000)
	for i := range all {
		all[i] = databases(i, "A database.")
	}
	catalog, err := catalog.Change(all, nil)
	if err != nil {
		t.Fatal(err)
	}
	changes := 0
	return openapi.New(func() *resource.Catalog { return catalog }, openapi.Config{}), func() {
		changes++
		if catalog, err = catalog.Change([]*resource.Definition{databases(500, fmt.Sprint("Change ", changes))}, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkThousand is the first read with a thousand custom resources, much of which
// is reading their schemas.
func BenchmarkThousand(b *testing.B) {
	for _, c := range []struct{ name, path, encoding string }{{"v3", "/openapi/v3", ""}, {"v2", "/openapi/v2", ""}, {"v2-gzip", "/openapi/v2", "gzip"}} {
		b.Run(c.name, func(b *testing.B) {
			benchmarkReads(b, c.path, "", c.encoding, func() *openapi.Handler { h, _ := thousand(b); return h })
		})
	}
}

func BenchmarkAfterChange(b *testing.B) {
	h, change := thousand(b)
	for _, c := range []struct{ name, path, accept, encoding string }{
		{"v2-gzip", "/openapi/v2", "", "gzip"},
		{"v2", "/openapi/v2", "", ""},
		{"v2-protobuf-gzip", "/openapi/v2", protoV2, "gzip"},
		{"v2-protobuf", "/openapi/v2", protoV2, ""},
		{"v3", "/openapi/v3", "", ""},
	} {
		get(b, h, c.path, "Accept", c.accept, "Accept-Encoding", c.encoding)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				change()
				get(b, h, c.path, "Accept", c.accept, "Accept-Encoding", c.encoding)
			}
		})
	}
}

// TestScale bounds what a change of one custom resource of a thousand costs. The
// bounds are generous: other work on the machine makes the same work dearer.
func TestScale(t *testing.T) {
	if !testsize.Long() {
		t.Skip("KELSON_LONG is not set")
	}
	h, change := thousand(t)
	for _, c := range [][3]string{{"/openapi/v2", "", "gzip"}, {"/openapi/v2", "", ""}, {"/openapi/v2", protoV2, "gzip"}, {"/openapi/v2", protoV2, ""}, {"/openapi/v3", "", ""}} {
		read := func() time.Duration {
			before := cpuTime(t)
			get(t, h, c[0], "Accept", c[1], "Accept-Encoding", c[2])
			return cpuTime(t) - before
		}
		first, least := read(), time.Hour
		for range 5 {
			change()
			least = min(least, read())
		}
		t.Logf("%q: first %v, after a change %v, again %v", c, first, least, read())
		if least > 300*time.Millisecond {
			t.Errorf("%q: a change costs %v", c, least)
		}
	}
}

func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
