package managedfields

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/apikeel/kelson/internal/randomtest"
)

// TestCreatedLikeWalk: the set of a new object is what walk finds, for random objects.
func TestCreatedLikeWalk(t *testing.T) {
	scopes := []Scope{{}, {Except: []string{"status"}}, {Except: []string{"spec", "metadata.labels", "data"}}}
	for _, kind := range []schema.GroupVersionKind{podKind, deploymentKind, configMapKind,
		{Version: "v1", Kind: "Node"}, {Version: "v1", Kind: "Service"}, {Version: "v1", Kind: "Secret"},
		{Group: "batch", Version: "v1", Kind: "CronJob"}, {Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
		{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}} {
		t.Run(kind.Kind, func(t *testing.T) {
			known, runs := 0, 0
			for seed := range randomtest.Seeds(t, scale(100)) {
				opts := goOptions(kind)
				opts.Scope = scopes[seed%uint64(len(scopes))]
				m, err := New(opts)
				if err != nil {
					t.Fatal(err)
				}
				obj := opts.New()
				filler{randomtest.Rand(seed, 7)}.fill(reflect.ValueOf(obj).Elem(), 1+int(seed%9))
				obj.GetObjectKind().SetGroupVersionKind(kind)
				runs++
				set := m.createdSet(obj)
				if set == nil {
					continue
				}
				known++
				changes, err := (&comparisons{m: m, new: obj}).in(m.version)
				if err != nil {
					t.Fatalf("seed %d: walk says %v, but it was not asked\n%s", seed, err, text(obj))
				}
				if want := string(changes.members().minus(m.strip, member).encode(nil)); set.canonical != want || string(set.tree().encode(nil)) != want {
					t.Fatalf("seed %d: got\n%s\nwant\n%s\nof %s", seed, set.canonical, want, text(obj))
				}
			}
			// Random objects have more of what is left to walk than others.
			if known*5 < runs {
				t.Errorf("%d of %d sets are left to walk", runs-known, runs)
			}
		})
	}
}

// TestCreatedLeavesToWalk: what walk refuses, or writes with escapes, is left to it.
func TestCreatedLeavesToWalk(t *testing.T) {
	m, err := New(goOptions(podKind))
	if err != nil {
		t.Fatal(err)
	}
	probe := func(port intstr.IntOrString) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: port}}}
	}
	for name, c := range map[string]struct {
		container corev1.Container
		decided   bool
	}{
		"usual":        {corev1.Container{Name: "a", LivenessProbe: probe(intstr.FromInt32(80))}, true},
		"no such port": {corev1.Container{Name: "a", LivenessProbe: probe(intstr.IntOrString{Type: 5})}, false},
		"no UTF-8":     {corev1.Container{Name: "\xff"}, false},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c.container}}}
		if got := m.createdSet(pod) != nil; got != c.decided {
			t.Errorf("%s: decided is %v", name, got)
		}
	}
}
