package patch

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
)

// TestLongLists applies random patches to random pods, by the library and by the way for
// long lists: both give the same, also the same errors.
func TestLongLists(t *testing.T) {
	r := rand.New(rand.NewPCG(randomtest.Seed(t, 1), 2))
	outcomes := map[string]int{}
	rounds := testsize.Pick(500, 3000, 50_000)
	for range rounds {
		pod, patch := randomPod(r), randomPatch(r)
		other, err2 := tried(func() (map[string]any, error) {
			return mergeLong(fieldsOf(t, pod), parsed(t, patch), &corev1.Pod{})
		})
		// Of several errors the library returns one or another.
		var one map[string]any
		var err1 error
		same := false
		for range 50 {
			one, err1 = tried(func() (map[string]any, error) {
				return strategicpatch.StrategicMergeMapPatch(fieldsOf(t, pod), parsed(t, patch), &corev1.Pod{})
			})
			same = fmt.Sprint(err1) == fmt.Sprint(err2) && (err1 != nil || reflect.DeepEqual(one, other))
			if same || err1 == nil {
				break
			}
		}
		if !same {
			before, _ := json.Marshal(pod)
			want, _ := json.Marshal(one)
			got, _ := json.Marshal(other)
			t.Fatalf("%s patched with %s is\n%s, %v, want\n%s, %v", before, patch, got, err2, want, err1)
		}
		if err1 != nil {
			outcomes["refused"]++
		} else {
			outcomes["patched"]++
		}
	}
	if outcomes["refused"] < rounds/50 || outcomes["patched"] < rounds/4 {
		t.Errorf("the patches are one-sided: %v", outcomes)
	}
}

func tried(f func() (map[string]any, error)) (_ map[string]any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return f()
}

func fieldsOf(t *testing.T, pod *corev1.Pod) map[string]any {
	t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		t.Fatal(err)
	}
	return fields
}

func parsed(t *testing.T, text string) (fields map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return fields
}

// names returns a few names in an order of their own, each once.
func names(r *rand.Rand, prefix string) (names []string) {
	for _, i := range r.Perm(6)[:r.IntN(6)] {
		names = append(names, fmt.Sprint(prefix, i))
	}
	return names
}

func randomPod(r *rand.Rand) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Finalizers: names(r, "f")}}
	for _, name := range names(r, "c") {
		c := corev1.Container{Name: name, Image: "i"}
		for _, name := range names(r, "e") {
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: "old"})
		}
		if r.IntN(10) == 0 && len(c.Env) > 0 {
			c.Env = append(c.Env, c.Env[0])
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	for _, name := range names(r, "v") {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	return pod
}

func randomPatch(r *rand.Rand) string {
	var parts []string
	add := func(chance int, form string, args ...any) {
		if r.IntN(chance) == 0 {
			parts = append(parts, fmt.Sprintf(form, args...))
		}
	}
	object := func() string {
		defer func() { parts = nil }()
		return "{" + strings.Join(parts, ",") + "}"
	}
	list := func(prefix string, more func() string) string {
		var items []string
		for _, name := range names(r, prefix) {
			items = append(items, fmt.Sprintf(`{"name":%q%s}`, name, more()))
		}
		switch r.IntN(40) {
		case 0:
			items = append(items, `{"$patch":"replace"}`)
		case 1:
			items = append(items, `{"value":"no name"}`)
		case 2:
			items = append(items, `"text"`)
		case 3:
			items = append(items, `{"name":null}`, `{"name":null,"a":1}`)
		case 4:
			items = append(items, items...)
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	nothing := func() string { return "" }
	env := func() string {
		return []string{``, `,"value":"new"`, `,"$patch":"delete"`, `,"value":null`, `,"valueFrom":{"fieldRef":{"fieldPath":"a"}}`}[r.IntN(5)]
	}
	container := func() string {
		text := []string{``, `,"image":"j"`, `,"$patch":"delete"`}[r.IntN(3)]
		if r.IntN(2) == 0 {
			text += `,"env":` + list("e", env)
		}
		if r.IntN(3) == 0 {
			text += `,"$setElementOrder/env":` + list("e", nothing)
		}
		return text
	}
	texts := func() string {
		all, _ := json.Marshal(append(names(r, "f"), names(r, "f")...))
		return string(all)
	}
	add(2, `"containers":%s`, list("c", container))
	add(3, `"$setElementOrder/containers":%s`, list("c", nothing))
	add(3, `"volumes":%s`, list("v", func() string {
		return []string{``, `,"emptyDir":null,"hostPath":{"path":"/"}`, `,"$retainKeys":["name","hostPath"],"hostPath":{"path":"/"}`, `,"$patch":"delete"`}[r.IntN(4)]
	}))
	add(4, `"tolerations":[{"key":"a"}]`)
	add(20, `"nodeSelector":{"a":null,"$patch":"replace"}`)
	spec := object()
	// Without an order, it is chance which of a list and its deletions comes first.
	switch list := strings.ReplaceAll(texts(), "null", "[]"); r.IntN(4) {
	case 0:
		add(1, `"finalizers":%s`, list)
	case 1:
		add(1, `"$deleteFromPrimitiveList/finalizers":%s`, list)
	case 2:
		add(1, `"$setElementOrder/finalizers":%s`, list)
		add(2, `"finalizers":%s`, list)
		add(2, `"$deleteFromPrimitiveList/finalizers":["f1","f2"]`)
	}
	add(5, `"labels":{"a":"b","c":null}`)
	meta := object()
	return fmt.Sprintf(`{"metadata":%s,"spec":%s}`, meta, spec)
}

// TestLongGrowth orders and deletes thousands of items: no item is looked for among all.
func TestLongGrowth(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
	env := &pod.Spec.Containers[0].Env
	var order, deletions []string
	n := testsize.Part(50_000, 5)
	for i := range n {
		*env = append(*env, corev1.EnvVar{Name: fmt.Sprint("n", i)})
		order = append(order, fmt.Sprintf(`{"name":"n%d"}`, n-1-i))
		deletions = append(deletions, fmt.Sprintf(`{"name":"n%d","$patch":"delete"}`, 2*i))
	}
	patched := func(lists string) []corev1.EnvVar {
		var into corev1.Pod
		patch := fmt.Sprintf(`{"spec":{"containers":[{"name":"a",%s}]}}`, lists)
		begin := time.Now()
		if _, _, err := Strategic(pod, &into, []byte(patch), false); err != nil {
			t.Fatal(err)
		}
		// The library would need an hour.
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("a patch of %d bytes takes %v", len(patch), took)
		}
		return into.Spec.Containers[0].Env
	}
	if got := patched(`"$setElementOrder/env":[` + strings.Join(order, ",") + `]`); len(got) != n || got[0].Name != fmt.Sprint("n", n-1) {
		t.Errorf("%d items in another order are %d, the first %v", n, len(got), got[0])
	}
	if got := patched(`"env":[` + strings.Join(deletions, ",") + `]`); len(got) != n/2 || got[0].Name != "n1" {
		t.Errorf("without each second of %d items there are %d, the first %v", n, len(got), got[0])
	}
}
