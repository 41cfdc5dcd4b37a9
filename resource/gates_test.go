package resource_test

import (
	"cmp"
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// gates returns gates of a table of their own: Fast is on if it is said.
func gates(t *testing.T, fast bool) features.Gates {
	t.Helper()
	table, err := features.ParseTable("Fast 1.0=ALPHA,off does=here")
	if err != nil {
		t.Fatal(err)
	}
	g, err := features.New(features.Config{Table: table, Set: map[string]bool{"Fast": fast}})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// pods is a kind with fields behind the gate Fast, and a status.
func pods(paths ...string) []resource.Group {
	d := resource.Definition{
		Resource: "pods", Kind: "Pod", Gate: "Fast",
		Versions: []resource.Version{{Name: "v1", New: func() resource.Object { return &corev1.Pod{} }}},
		Strategy: resource.Strategy{PrepareCreate: func(ctx context.Context, obj resource.Object) {
			if features.From(ctx).Enabled("Fast") {
				obj.SetName("fast")
			}
		}},
		Subresources: []resource.Subresource{{Name: "status", Part: &resource.Strategy{}}},
	}
	for _, path := range paths {
		d.GatedFields = append(d.GatedFields, resource.GatedField{Path: path, Gate: "Fast"})
	}
	return []resource.Group{{Resources: []resource.Definition{d}}}
}

func priorityPod(class string, image string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{
		PriorityClassName: class, SecurityContext: &corev1.PodSecurityContext{FSGroup: new(int64(1))},
		Containers: []corev1.Container{{Image: image}, {Image: ""}},
	}}
}

// TestGatedFieldsAreDroppedUnlessStored has fields, in structs, behind pointers and in
// lists, go while their gate is disabled, but for those that the stored object has.
func TestGatedFieldsAreDroppedUnlessStored(t *testing.T) {
	paths := []string{"spec.priorityClassName", "spec.securityContext.fsGroup", "spec.containers[].image"}
	for _, c := range []struct {
		name         string
		fast         bool
		old          *corev1.Pod
		class        string
		image        string
		keepsFSGroup bool
	}{
		{"created, disabled", false, nil, "", "", false},
		{"created, enabled", true, nil, "high", "new", true},
		{"updated, disabled", false, &corev1.Pod{}, "", "", false},
		{"updated, disabled, one stored", false, priorityPod("", "old"), "", "new", true},
		{"updated, enabled", true, &corev1.Pod{}, "high", "new", true},
	} {
		groups, err := resource.WithGates(pods(paths...), gates(t, c.fast))
		if err != nil {
			t.Fatal(err)
		}
		d := groups[0].Resources[0]
		for where, s := range map[string]*resource.Strategy{"object": &d.Strategy, "status": d.Subresources[0].Part} {
			pod := priorityPod("high", "new")
			if c.old == nil {
				if s.PrepareCreate != nil {
					s.PrepareCreate(t.Context(), pod)
				}
			} else if s.PrepareUpdate != nil {
				s.PrepareUpdate(t.Context(), pod, c.old)
			}
			spec := pod.Spec
			if spec.PriorityClassName != c.class || spec.Containers[0].Image != c.image || (spec.SecurityContext.FSGroup != nil) != c.keepsFSGroup {
				t.Errorf("%s, %s: got %q, %q, %v, want %q, %q, %v", c.name, where,
					spec.PriorityClassName, spec.Containers[0].Image, spec.SecurityContext.FSGroup != nil, c.class, c.image, c.keepsFSGroup)
			}
		}
	}
}

// TestStrategiesFindGatesInTheirContext has the functions of a kind know the gates.
// TestGatedFieldsHaveNoDefaults has the defaults of a field apply only while its gate is
// enabled; what a client has set stays.
func TestGatedFieldsHaveNoDefaults(t *testing.T) {
	for _, c := range []struct {
		name, sent, want string
		fast             bool
	}{
		{"enabled", "", "standard", true},
		{"disabled", "", "", false},
		{"disabled and set", "high", "high", false},
	} {
		groups := pods("spec.priorityClassName")
		groups[0].Resources[0].Versions[0].Default = func(obj resource.Object) {
			pod := obj.(*corev1.Pod)
			pod.Spec.PriorityClassName = cmp.Or(pod.Spec.PriorityClassName, "standard")
			pod.Spec.NodeName = "n"
		}
		obeying, err := resource.WithGates(groups, gates(t, c.fast))
		if err != nil {
			t.Fatal(err)
		}
		pod := priorityPod(c.sent, "")
		obeying[0].Resources[0].Versions[0].Default(pod)
		if got := pod.Spec.PriorityClassName; got != c.want {
			t.Errorf("%s: got the priority class %q, want %q", c.name, got, c.want)
		}
		if pod.Spec.NodeName != "n" {
			t.Errorf("%s: got the node %q, want the default n", c.name, pod.Spec.NodeName)
		}
	}
}

func TestStrategiesFindGatesInTheirContext(t *testing.T) {
	before := pods()
	for fast, want := range map[bool]string{true: "fast", false: ""} {
		groups, err := resource.WithGates(before, gates(t, fast))
		if err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{}
		groups[0].Resources[0].Strategy.PrepareCreate(t.Context(), pod)
		if pod.Name != want {
			t.Errorf("Fast=%v: got %q, want %q", fast, pod.Name, want)
		}
		if got := len(resource.ServedWith(groups, gates(t, fast))[0].Resources); got != len(want)/len("fast") {
			t.Errorf("Fast=%v: got %d kinds", fast, got)
		}
	}
	if len(before[0].Resources) != 1 {
		t.Error("the groups that were given have changed")
	}
}

// TestOtherTypesAreLeftAlone has a subresource whose objects are of another type.
func TestOtherTypesAreLeftAlone(t *testing.T) {
	groups, err := resource.WithGates(pods("spec.priorityClassName"), gates(t, false))
	if err != nil {
		t.Fatal(err)
	}
	binding := &corev1.Binding{Target: corev1.ObjectReference{Name: "n"}}
	groups[0].Resources[0].Subresources[0].Part.PrepareCreate(t.Context(), binding)
	if binding.Target.Name != "n" {
		t.Errorf("got %v, want it unchanged", binding)
	}
}

// TestUnknownGatedFieldsAreRefused has a path that leads nowhere.
func TestUnknownGatedFieldsAreRefused(t *testing.T) {
	for path, want := range map[string]string{
		"spec.unheard":          "pods: gated field spec.unheard: v1.PodSpec has no field unheard",
		"spec.nodeName.length":  "string is not a struct",
		"spec.nodeName[]":       "nodeName is not a list",
		"spec.containers.image": "[]v1.Container is not a struct",
	} {
		if _, err := resource.WithGates(pods(path), features.Gates{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
}
