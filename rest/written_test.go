package rest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/resource"
)

// TestNoRetryAfterAWrite: a request that lacks memory for a conversion is answered with 429 and Retry-After
// if it has written nothing, and never after it has, whichever of its conversions it is.
func TestNoRetryAfterAWrite(t *testing.T) {
	const plenty = 1000
	var memory atomic.Int64 // conversions for which there is memory
	convert := func(obj resource.Object) (resource.Object, error) {
		if memory.Add(-1) < 0 {
			return nil, fmt.Errorf("the webhook: %w", budget.ErrBusy)
		}
		return obj.DeepCopyObject().(resource.Object), nil
	}
	h, _ := serve(t, func(def *resource.Definition) {
		*def = orderedKind(&steps{})
		def.Strategy = resource.Strategy{}
		def.Between = func(obj resource.Object, _ string) (resource.Object, error) { return convert(obj) }
		old := &def.Versions[1]
		old.ToHub, old.FromHub = convert, convert
		old.FromHubAll = func(objs []resource.Object) (out []resource.Object, err error) {
			for _, obj := range objs {
				if obj, err = convert(obj); err != nil {
					return nil, err
				}
				out = append(out, obj)
			}
			return out, nil
		}
		def.Subresources = []resource.Subresource{{
			Name: "scale", Kind: autoscalingv1.SchemeGroupVersion.WithKind("Scale"), New: func() resource.Object { return new(autoscalingv1.Scale) },
			Projection: &resource.Projection{
				Get: func(obj resource.Object) (resource.Object, error) {
					scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: obj.GetName(), Namespace: obj.GetNamespace(), ResourceVersion: obj.GetResourceVersion()}}
					_, _ = fmt.Sscan(obj.(*corev1.ConfigMap).Data["replicas"], &scale.Spec.Replicas)
					return scale, nil
				},
				Set: func(_ context.Context, obj, scale resource.Object) error {
					obj.(*corev1.ConfigMap).Data = map[string]string{"replicas": fmt.Sprint(scale.(*autoscalingv1.Scale).Spec.Replicas)}
					return nil
				},
			},
		}}
	})
	const mergePatch = "application/merge-patch+json"
	old := strings.Replace(configMaps, "v1", "v1beta1", 1)
	for _, c := range []struct {
		name, method, path, body, contentType string
		existing                              bool   // there are two such objects before
		finalizers                            string // which they have
		deleting                              bool   // they are marked for deletion
	}{
		{name: "create", method: "POST", path: old, body: `{"metadata":{"name":"NAME"}}`},
		{name: "update", method: "PUT", path: old + "/NAME", body: `{"metadata":{"name":"NAME"},"data":{"x":"y"}}`, existing: true},
		{name: "patch", method: "PATCH", path: old + "/NAME", body: `{"data":{"x":"y"}}`, contentType: mergePatch, existing: true},
		{name: "scale", method: "PUT", path: old + "/NAME/scale", body: `{"metadata":{"name":"NAME"},"spec":{"replicas":7}}`, existing: true},
		{name: "patch of scale", method: "PATCH", path: old + "/NAME/scale", body: `{"spec":{"replicas":7}}`, contentType: mergePatch, existing: true},
		{name: "last finalizer", method: "PATCH", path: old + "/NAME", body: `{"metadata":{"finalizers":null}}`, contentType: mergePatch, existing: true, finalizers: `"a.io/b"`, deleting: true},
		{name: "delete", method: "DELETE", path: old + "/NAME", existing: true},
		{name: "delete with a finalizer", method: "DELETE", path: old + "/NAME", existing: true, finalizers: `"a.io/b"`},
		{name: "delete of a collection", method: "DELETE", path: old + "?labelSelector=name%3DNAME", existing: true},
		{name: "delete of a collection with finalizers", method: "DELETE", path: old + "?labelSelector=name%3DNAME", existing: true, finalizers: `"a.io/b"`},
	} {
		refused := 0
		for n := int64(0); ; n++ {
			name := fmt.Sprintf("%s-%d", strings.ReplaceAll(c.name, " ", "-"), n)
			fill := func(text string) string { return strings.ReplaceAll(text, "NAME", name) }
			memory.Store(plenty)
			if c.existing {
				for _, suffix := range []string{"", "-2"} {
					object := fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"name":%q},"finalizers":[%s]}}`, name+suffix, name, c.finalizers)
					if a := do(t, h, "POST", configMaps, object); a.code != http.StatusCreated {
						t.Fatalf("%s: got %d %s, want 201", c.name, a.code, a.body)
					}
				}
			}
			if c.deleting {
				do(t, h, "DELETE", configMaps+"/"+name, "")
			}
			before := do(t, h, "GET", configMaps, "").body
			memory.Store(n)
			a := do(t, h, c.method, fill(c.path), fill(c.body), "Content-Type", c.contentType)
			written := do(t, h, "GET", configMaps, "").body != before
			if a.code < 300 {
				if !written {
					t.Errorf("%s with memory for %d conversions: got %d %s, and nothing is written", c.name, n, a.code, a.body)
				}
				break
			}
			want := http.StatusTooManyRequests
			if refused++; written {
				want = http.StatusGatewayTimeout
			}
			if retry := a.header.Get("Retry-After") != ""; a.code != want || retry == written {
				t.Errorf("%s with memory for %d conversions, written %t: got %d, Retry-After %t, %s, want %d", c.name, n, written, a.code, retry, a.body, want)
			}
		}
		if refused == 0 {
			t.Errorf("%s: no conversion was refused", c.name)
		}
	}
}
