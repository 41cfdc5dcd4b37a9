package rest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	corev1 "k8s.io/api/core/v1"
)

// TestDryRun: what only the store takes away, a dry run shows.
func TestDryRun(t *testing.T) {
	h, _ := serve(t, func(d *resource.Definition) {
		d.Versions[0].Default = resource.DefaultFunc(func(m *corev1.ConfigMap) {
			if m.Data == nil {
				m.Data = map[string]string{"default": ""}
			}
		})
	})
	for _, version := range []string{"", "0", "7", "x"} {
		a := do(t, h, "POST", configMaps+"?dryRun=All", `{"metadata":{"name":"a","selfLink":"/x","resourceVersion":"`+version+`"}}`)
		got, _ := a.meta("resourceVersion").(string)
		if a.code != http.StatusCreated || got != version || a.meta("selfLink") != nil || a.object["data"] == nil {
			t.Errorf("create with the version %q: %d %s", version, a.code, a.body)
		}
	}
	do(t, h, "POST", configMaps, `{"metadata":{"name":"a"}}`)
	const patch = `{"metadata":{"selfLink":"/y"},"data":{"k":"v"}}`
	for _, as := range []string{"", ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io", ";as=Table;v=v1;g=meta.k8s.io"} {
		a := do(t, h, "PATCH", configMaps+"/a?dryRun=All", patch, "Content-Type", "application/merge-patch+json", "Accept", "application/json"+as)
		if a.code != http.StatusOK || !strings.Contains(a.body, `"selfLink":"/y"`) || !strings.Contains(a.body, `"resourceVersion":"`) {
			t.Errorf("patch%s: %d %s", as, a.code, a.body)
		}
	}
	a := do(t, h, "PATCH", configMaps+"/a", patch, "Content-Type", "application/merge-patch+json")
	if a.code != http.StatusOK || a.meta("selfLink") != nil {
		t.Errorf("a patch that is stored: %d %s", a.code, a.body)
	}
}

// TestDryRunDelete: what would need finalizers to be taken away first is answered
// with nothing but the kind.
func TestDryRunDelete(t *testing.T) {
	h, _ := serve(t, nil)
	for _, c := range []struct{ finalizer, want string }{
		{"", `"status":"Success"`},
		{"orphan", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{}}`},
		{"x.io/stays", `"deletionGracePeriodSeconds":0`},
	} {
		name := "a" + strings.NewReplacer("/", "", ".", "").Replace(c.finalizer)
		finalizers := `[]`
		if c.finalizer != "" {
			finalizers = `["` + c.finalizer + `"]`
		}
		do(t, h, "POST", configMaps, `{"metadata":{"name":"`+name+`","finalizers":`+finalizers+`}}`)
		a := do(t, h, "DELETE", configMaps+"/"+name+"?dryRun=All&propagationPolicy=Background", "")
		if a.code != http.StatusOK || !strings.Contains(a.body, c.want) {
			t.Errorf("finalizer %q: %d %s", c.finalizer, a.code, a.body)
		}
	}
}

// TestReadDefaults: what readers see in every form, selectors see too.
func TestReadDefaults(t *testing.T) {
	h, _ := serve(t, func(d *resource.Definition) {
		d.ReadDefaults = true
		d.Versions[0].Default = resource.DefaultFunc(func(m *corev1.ConfigMap) {
			if m.Data["late"] != "" && m.Labels == nil {
				m.Labels = map[string]string{"late": "yes"}
			}
		})
		d.Strategy.PrepareCreate = func(_ context.Context, obj resource.Object) {
			obj.(*corev1.ConfigMap).Data = map[string]string{"late": "1"}
		}
	})
	do(t, h, "POST", configMaps, `{"metadata":{"name":"a"}}`)
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"} {
		if a := do(t, h, "GET", configMaps+"?labelSelector=late%3Dyes", "", "Accept", accept); !strings.Contains(a.body, "yes") {
			t.Errorf("%s: %s", accept, a.body)
		}
	}
}

// BenchmarkDryRun is what a patch costs that is not stored.
func BenchmarkDryRun(b *testing.B) {
	h, _ := serve(b, nil)
	data := strings.Repeat("x", 100)
	body := `{"metadata":{"name":"a","labels":{"a":"b"}},"data":{"a":"` + data + `"`
	for _, k := range strings.Split("bcdefghijklmnopqrstuvwxyz", "") {
		body += `,"` + k + `":"` + data + `"`
	}
	if a := do(b, h, "POST", configMaps, body+"}}"); a.code != http.StatusCreated {
		b.Fatal(a)
	}
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest("PATCH", configMaps+"/a?dryRun=All", strings.NewReader(`{"data":{"a":"z"}}`))
		r.Header.Set("Content-Type", "application/merge-patch+json")
		info, err := request.Parse(r)
		if err != nil {
			b.Fatal(err)
		}
		h.Route(silent{http.Header{}}, r.WithContext(request.With(r.Context(), &request.Request{Info: info})))
	}
}
