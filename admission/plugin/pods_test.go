package plugin

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/resource"
)

func class(name string, value int32, global bool) *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, GlobalDefault: global, PreemptionPolicy: new(corev1.PreemptNever)}
}

func TestPriority(t *testing.T) {
	const classes = "priorityclasses.scheduling.k8s.io"
	withClass := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.PriorityClassName = name }
	}
	for _, c := range []struct {
		name    string
		classes []*schedulingv1.PriorityClass
		write   write
		err     string
		want    int32
	}{
		{name: "none", write: write{op: admission.Create, resource: "pods", obj: newPod()}},
		{name: "named", classes: []*schedulingv1.PriorityClass{class("a", 7, false)}, write: write{op: admission.Create, resource: "pods", obj: newPod(withClass("a"))}, want: 7},
		{name: "lowest default", classes: []*schedulingv1.PriorityClass{class("a", 7, true), class("b", 5, true)}, write: write{op: admission.Create, resource: "pods", obj: newPod()}, want: 5},
		{name: "missing", write: write{op: admission.Create, resource: "pods", obj: newPod(withClass("a"))}, err: "no PriorityClass with name a was found"},
		{name: "number", write: write{op: admission.Create, resource: "pods", obj: newPod(func(p *corev1.Pod) { p.Spec.Priority = new(int32(3)) })},
			err: "the integer value of priority (3) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name"},
		{name: "policy", write: write{op: admission.Create, resource: "pods", obj: newPod(func(p *corev1.Pod) { p.Spec.PreemptionPolicy = new(corev1.PreemptNever) })},
			err: "the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission controller computed PreemptLowerPriority"},
		{name: "kept", write: write{op: admission.Update, resource: "pods", obj: newPod(), old: newPod(func(p *corev1.Pod) { p.Spec.Priority = new(int32(9)) })}, want: 9},
		{name: "second default", classes: []*schedulingv1.PriorityClass{class("a", 7, true)}, write: write{op: admission.Create, resource: classes, obj: class("b", 1, true)},
			err: `priorityclasses.scheduling.k8s.io "b" is forbidden: PriorityClass a is already marked as default. Only one default can exist`},
		{name: "same default", classes: []*schedulingv1.PriorityClass{class("a", 7, true)}, write: write{op: admission.Update, resource: classes, obj: class("a", 7, true), old: class("a", 7, true)}},
		{name: "delete one of the system", write: write{op: admission.Delete, resource: classes, old: class("system-node-critical", 1, false)}}, // which the kind itself refuses
	} {
		t.Run(c.name, func(t *testing.T) {
			objects := stored{}
			for _, class := range c.classes {
				_ = objects.Create(t.Context(), schedulingGroup, "priorityclasses", class)
			}
			a, err := try(t, only(t, "Priority", Config{}, Deps{Objects: objects}), c.write)
			refuses(t, err, c.err)
			if pod, ok := a.Object.(*corev1.Pod); ok && c.err == "" && *pod.Spec.Priority != c.want {
				t.Errorf("the priority is %d", *pod.Spec.Priority)
			}
		})
	}
}

func TestRuntimeClass(t *testing.T) {
	runtime := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Overhead: &nodev1.Overhead{PodFixed: amount("cpu", "1")}, Scheduling: &nodev1.Scheduling{
		NodeSelector: map[string]string{"kind": "special"}, Tolerations: []corev1.Toleration{{Key: "special", Operator: corev1.TolerationOpExists}},
	}}
	named := func(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.RuntimeClassName = &name } }
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		err  string
	}{
		{"completes", newPod(named("r")), ""},
		{"missing", newPod(named("x")), `pod rejected: RuntimeClass "x" not found`},
		{"no name", newPod(named("")), "resource name may not be empty"},
		{"not a name", newPod(named("a/b")), `invalid resource name "a/b": [may not contain '/']`},
		{"other overhead", newPod(named("r"), func(p *corev1.Pod) { p.Spec.Overhead = amount("cpu", "2") }), "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"},
		{"overhead alone", newPod(func(p *corev1.Pod) { p.Spec.Overhead = amount("cpu", "2") }), "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"},
		{"other node", newPod(named("r"), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kind": "usual"} }),
			"conflict: runtimeClass.scheduling.nodeSelector[kind] = special; pod.spec.nodeSelector[kind] = usual"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := try(t, only(t, "RuntimeClass", Config{}, Deps{Objects: store("runtimeclasses.node.k8s.io", runtime)}), write{op: admission.Create, resource: "pods", obj: c.pod})
			refuses(t, err, c.err)
			if s := &c.pod.Spec; c.name == "completes" && (s.NodeSelector["kind"] != "special" || len(s.Tolerations) != 1 || s.Overhead.Cpu().Value() != 1) {
				t.Errorf("the pod is %+v", s)
			}
		})
	}
}

func TestTolerations(t *testing.T) {
	objects := store("namespaces", newNamespace())
	withNotes := newNamespace()
	withNotes.Annotations = map[string]string{
		namespaceTolerations: `[{"key":"a","operator":"Exists"}]`, allowedTolerations: `[{"key":"a","operator":"Exists"},{"key":"node.kubernetes.io/memory-pressure","operator":"Exists"}]`,
	}
	tolerates := func(ts ...corev1.Toleration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Tolerations = ts }
	}
	all := corev1.Toleration{Operator: corev1.TolerationOpExists}
	for _, c := range []struct {
		plugin, name string
		objects      stored
		pod          *corev1.Pod
		err          string
		want         int
	}{
		{"DefaultTolerationSeconds", "usual", objects, newPod(), "", 2},
		{"DefaultTolerationSeconds", "tolerates all", objects, newPod(tolerates(all)), "", 1},
		{"DefaultTolerationSeconds", "one of them", objects, newPod(tolerates(corev1.Toleration{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists})), "", 2},
		{"ExtendedResourceToleration", "usual", objects, newPod(needs(amount("cpu", "1"), nil)), "", 0},
		{"ExtendedResourceToleration", "asks", objects, newPod(needs(amount("example.com/gpu", "1"), nil)), "", 1},
		{"ExtendedResourceToleration", "native", objects, newPod(needs(amount("kubernetes.io/x", "1"), nil)), "", 0},
		{"PodTolerationRestriction", "usual", objects, newPod(), "", 0},
		{"PodTolerationRestriction", "not best effort", objects, newPod(needs(amount("cpu", "1"), nil)), "", 1},
		{"PodTolerationRestriction", "of the namespace", store("namespaces", withNotes), newPod(), "", 1},
		{"PodTolerationRestriction", "not allowed", store("namespaces", withNotes), newPod(tolerates(corev1.Toleration{Key: "b", Operator: corev1.TolerationOpExists})),
			"pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist", 2},
	} {
		t.Run(c.plugin+"/"+c.name, func(t *testing.T) {
			_, err := try(t, only(t, c.plugin, Config{}, Deps{Objects: c.objects}), write{op: admission.Create, resource: "pods", obj: c.pod})
			refuses(t, err, c.err)
			if got := c.pod.Spec.Tolerations; len(got) != c.want {
				t.Errorf("the tolerations are %v", got)
			}
		})
	}
}

func TestMergeTolerations(t *testing.T) {
	key := func(k string, effect corev1.TaintEffect) corev1.Toleration {
		return corev1.Toleration{Key: k, Operator: corev1.TolerationOpExists, Effect: effect}
	}
	equal := corev1.Toleration{Key: "a", Operator: corev1.TolerationOpEqual, Value: "v"}
	for _, c := range []struct {
		name          string
		first, second []corev1.Toleration
		want          int
	}{
		{"same", []corev1.Toleration{key("a", "")}, []corev1.Toleration{key("a", "")}, 1},
		{"different", []corev1.Toleration{key("a", "")}, []corev1.Toleration{key("b", "")}, 2},
		{"wider later", []corev1.Toleration{equal}, []corev1.Toleration{key("a", "")}, 1},
		{"wider first", []corev1.Toleration{key("a", "")}, []corev1.Toleration{equal}, 1},
		{"all", []corev1.Toleration{key("a", "NoSchedule"), key("b", "")}, []corev1.Toleration{key("", "")}, 1},
		{"for longer", []corev1.Toleration{{Key: "a", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(5))}}, []corev1.Toleration{key("a", "NoExecute")}, 1},
		{"for shorter", []corev1.Toleration{key("a", "NoExecute")}, []corev1.Toleration{{Key: "a", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(5))}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := mergeTolerations(c.first, c.second); len(got) != c.want {
				t.Errorf("merged: %v", got)
			}
		})
	}
}

func TestPodRules(t *testing.T) {
	selecting := newNamespace()
	selecting.Annotations = map[string]string{namespaceSelector: "zone=a"}
	selects := func(k, v string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{k: v} }
	}
	apart := func(key string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: key}}}}
		}
	}
	image := func(i string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Containers[0].Image = i } }
	selectors := configFile(t, "PodNodeSelector", "    podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: \"region=x\", ns: \"zone=a,region=x\"}\n")
	for _, c := range []struct {
		plugin, name string
		cfg          Config
		objects      stored
		write        write
		err          string
		check        func(*corev1.PodSpec) bool
	}{
		{plugin: "AlwaysPullImages", name: "create", write: write{op: admission.Create, resource: "pods", obj: newPod()},
			check: func(s *corev1.PodSpec) bool { return s.Containers[0].ImagePullPolicy == corev1.PullAlways }},
		{plugin: "AlwaysPullImages", name: "same image", write: write{op: admission.Update, resource: "pods", obj: newPod(), old: newPod()},
			check: func(s *corev1.PodSpec) bool { return s.Containers[0].ImagePullPolicy == "" }},
		{plugin: "AlwaysPullImages", name: "new image", write: write{op: admission.Update, resource: "pods", obj: newPod(image("new")), old: newPod()},
			check: func(s *corev1.PodSpec) bool { return s.Containers[0].ImagePullPolicy == corev1.PullAlways }},
		{plugin: "LimitPodHardAntiAffinityTopology", name: "node", write: write{op: admission.Create, resource: "pods", obj: newPod(apart(corev1.LabelHostname))}},
		{plugin: "LimitPodHardAntiAffinityTopology", name: "zone", write: write{op: admission.Create, resource: "pods", obj: newPod(apart("zone"))},
			err: "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname is allowed"},
		{plugin: "PodNodeSelector", name: "of the namespace", objects: store("namespaces", selecting), write: write{op: admission.Create, resource: "pods", obj: newPod()},
			check: func(s *corev1.PodSpec) bool { return s.NodeSelector["zone"] == "a" }},
		{plugin: "PodNodeSelector", name: "another", objects: store("namespaces", selecting), write: write{op: admission.Create, resource: "pods", obj: newPod(selects("zone", "b"))},
			err: "pod node label selector conflicts with its namespace node label selector"},
		{plugin: "PodNodeSelector", name: "of the cluster", cfg: Config{File: selectors}, objects: store("namespaces", newNamespace()), write: write{op: admission.Create, resource: "pods", obj: newPod()},
			check: func(s *corev1.PodSpec) bool { return s.NodeSelector["region"] == "x" }},
		{plugin: "PodNodeSelector", name: "not allowed", cfg: Config{File: selectors}, objects: store("namespaces", newNamespace()), write: write{op: admission.Create, resource: "pods", obj: newPod(selects("disk", "ssd"))},
			err: "pod node label selector labels conflict with its namespace whitelist"},
	} {
		t.Run(c.plugin+"/"+c.name, func(t *testing.T) {
			if c.objects == nil {
				c.objects = stored{}
			}
			a, err := try(t, only(t, c.plugin, c.cfg, Deps{Objects: c.objects}), c.write)
			refuses(t, err, c.err)
			if c.check != nil && !c.check(&a.Object.(*corev1.Pod).Spec) {
				t.Errorf("the pod is %+v", a.Object)
			}
		})
	}
}

func TestNodes(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{
		corev1.LabelTopologyZone: "z", corev1.LabelOSStable: "linux", "other": "x"}}, Status: corev1.NodeStatus{Allocatable: amount("cpu", "2", "memory", "1Gi")}}
	windows := node.DeepCopy()
	windows.Labels[corev1.LabelOSStable] = "windows"
	onNode := func(generation int64, more ...func(*corev1.Pod)) *corev1.Pod {
		return newPod(append(more, func(p *corev1.Pod) { p.Spec.NodeName, p.Generation = "n", generation })...)
	}
	whole := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Resources = &corev1.ResourceRequirements{Requests: amount("cpu", cpu)} }
	}
	for _, c := range []struct {
		plugin, name string
		node         *corev1.Node
		write        write
		err          string
		check        func(resource.Object) bool
	}{
		{"TaintNodesByCondition", "new", nil, write{op: admission.Create, resource: "nodes", obj: &corev1.Node{}}, "",
			func(o resource.Object) bool { return len(o.(*corev1.Node).Spec.Taints) == 1 }},
		{"TaintNodesByCondition", "has it", nil, write{op: admission.Create, resource: "nodes", obj: &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}}}}, "", func(o resource.Object) bool { return len(o.(*corev1.Node).Spec.Taints) == 1 }},
		{"PodTopologyLabels", "pod", node, write{op: admission.Create, resource: "pods", obj: onNode(1)}, "",
			func(o resource.Object) bool {
				return o.GetLabels()[corev1.LabelTopologyZone] == "z" && len(o.GetLabels()) == 1
			}},
		{"PodTopologyLabels", "binding", node, write{op: admission.Create, resource: "pods/binding", obj: &corev1.Binding{ObjectMeta: meta("p"), Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}}, "",
			func(o resource.Object) bool { return o.GetLabels()[corev1.LabelTopologyZone] == "z" }},
		{"PodTopologyLabels", "no node", nil, write{op: admission.Create, resource: "pods", obj: onNode(1)}, "", nil},
		{"PodResizeValidator", "fits", node, write{op: admission.Update, resource: "pods/resize", obj: onNode(2, needs(amount("cpu", "2"), nil)), old: onNode(1)}, "", nil},
		{"PodResizeValidator", "too large", node, write{op: admission.Update, resource: "pods/resize", obj: onNode(2, needs(amount("cpu", "3"), nil)), old: onNode(1)},
			"node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000", nil},
		{"PodResizeValidator", "unchanged", node, write{op: admission.Update, resource: "pods/resize", obj: onNode(1, needs(amount("cpu", "3"), nil)), old: onNode(1)}, "", nil},
		{"PodResizeValidator", "windows", windows, write{op: admission.Update, resource: "pods/resize", obj: onNode(2), old: onNode(1)},
			`pod resize is only supported on linux nodes, node "n" is "windows"`, nil},
		{"PodResizeValidator", "no node", nil, write{op: admission.Update, resource: "pods/resize", obj: onNode(2), old: onNode(1)}, `node "n" not found`, nil},
		{"NodeDeclaredFeatureValidator", "no feature", node, write{op: admission.Update, resource: "pods/resize", obj: onNode(2, whole("2")), old: onNode(1, whole("1"))},
			`pod update requires features InPlacePodLevelResourcesVerticalScaling which are not available on node "n"`, nil},
		{"NodeDeclaredFeatureValidator", "needs none", node, write{op: admission.Update, resource: "pods/resize", obj: onNode(2, needs(amount("cpu", "2"), nil)), old: onNode(1)}, "", nil},
	} {
		t.Run(c.plugin+"/"+c.name, func(t *testing.T) {
			objects := stored{}
			if c.node != nil {
				objects = store("nodes", c.node)
			}
			_, err := try(t, only(t, c.plugin, Config{}, Deps{Objects: objects}), c.write)
			refuses(t, err, c.err)
			if c.check != nil && !c.check(c.write.obj) {
				t.Errorf("the object is %+v", c.write.obj)
			}
		})
	}
}

// TestDevicesNeedNodesWithTheirFeature has devices with resources of a node on nodes that
// declare the feature and on others.
func TestDevicesNeedNodesWithTheirFeature(t *testing.T) {
	node := func(name string, features ...string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}, Status: corev1.NodeStatus{DeclaredFeatures: features}}
	}
	selector := func(terms ...corev1.NodeSelectorTerm) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: terms}
	}
	is := func(key, value string) []corev1.NodeSelectorRequirement {
		return []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}
	}
	device := resourcev1.Device{Name: "d", NodeAllocatableResources: map[corev1.ResourceName]resourcev1.NodeAllocatableResource{"cpu": {}}}
	for _, c := range []struct {
		name string
		spec resourcev1.ResourceSliceSpec
		err  string
	}{
		{"node", resourcev1.ResourceSliceSpec{NodeName: new("new")}, ""},
		{"old node", resourcev1.ResourceSliceSpec{NodeName: new("old")}, `node "old" does not support DRANodeAllocatableResources feature`},
		{"no such node", resourcev1.ResourceSliceSpec{NodeName: new("gone")}, `node "gone" not found for device "d"`},
		{"all", resourcev1.ResourceSliceSpec{AllNodes: new(true)}, `node "old" does not support`},
		{"none", resourcev1.ResourceSliceSpec{}, `device "d" in ResourceSlice has NodeAllocatableResources but does not map to any nodes`},
		{"by label", resourcev1.ResourceSliceSpec{NodeSelector: selector(corev1.NodeSelectorTerm{MatchExpressions: is("name", "new")}, corev1.NodeSelectorTerm{})}, ""},
		{"by name", resourcev1.ResourceSliceSpec{NodeSelector: selector(corev1.NodeSelectorTerm{MatchFields: is("metadata.name", "old")})}, `node "old" does not support`},
		{"of the device", resourcev1.ResourceSliceSpec{PerDeviceNodeSelection: new(true), NodeName: new("new")}, "does not map to any nodes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.spec.Devices = []resourcev1.Device{{Name: "other"}, device}
			create := write{op: admission.Create, resource: "resourceslices.resource.k8s.io", obj: &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: c.spec}}
			deps := Deps{Objects: store("nodes", node("new", nodeAllocatable), "nodes", node("old"))}
			_, err := try(t, only(t, "NodeDeclaredFeatureValidator", Config{}, deps), create)
			refuses(t, err, "")
			deps.Gates = func(name string) bool { return name == nodeAllocatable || name == "NodeDeclaredFeatures" }
			_, err = try(t, only(t, "NodeDeclaredFeatureValidator", Config{}, deps), create)
			refuses(t, err, c.err)
		})
	}
}
