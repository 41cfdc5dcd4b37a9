package plugin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/quota"
)

// nodeTaint is TaintNodesByCondition: it adds the taint not-ready to new nodes.
type nodeTaint struct{ base }

func newNodeTaint(*builder) admission.Plugin {
	return nodeTaint{base{"TaintNodesByCondition", on("", "nodes", admission.Create)}}
}

// Admit implements admission.Mutator.
func (nodeTaint) Admit(_ context.Context, a *admission.Attributes) error {
	node, ok := a.Object.(*corev1.Node)
	if !ok {
		return nil
	}
	notReady := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&notReady) }) {
		node.Spec.Taints = append(node.Spec.Taints, notReady)
	}
	return nil
}

// topologyLabels is PodTopologyLabels: it copies zone and region labels of the node to pods.
type topologyLabels struct {
	base
	objects admission.Objects
}

func newTopologyLabels(b *builder) admission.Plugin {
	off := b.Gates != nil && !b.Gates("PodTopologyLabelsAdmission")
	return &topologyLabels{base{"PodTopologyLabels", func(t admission.Target) bool {
		return !off && t.Operation == admission.Create && t.Group == "" && t.Resource == "pods" && (t.Subresource == "" || t.Subresource == "binding")
	}}, b.Objects}
}

// Admit implements admission.Mutator.
func (p *topologyLabels) Admit(ctx context.Context, a *admission.Attributes) error {
	node := ""
	switch obj := a.Object.(type) {
	case *corev1.Pod:
		node = obj.Spec.NodeName
	case *corev1.Binding:
		if obj.Target.Kind == "Node" {
			node = obj.Target.Name
		}
	}
	if node == "" {
		return nil
	}
	n, err := get[*corev1.Node](ctx, p.objects, "", "nodes", "", node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	obj := a.Object.(metav1.Object)
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if value, ok := n.Labels[key]; ok {
			labels := obj.GetLabels()
			if labels == nil {
				labels = map[string]string{}
			}
			labels[key] = value
			obj.SetLabels(labels)
		}
	}
	return nil
}

// changedOn returns the pods of an update that changes the generation, and a function that
// reads the node. The pods are nil if there is no node or no such change.
func changedOn(ctx context.Context, objects admission.Objects, a *admission.Attributes) (pod, old *corev1.Pod, node func() (*corev1.Node, error)) {
	pod, ok := a.Object.(*corev1.Pod)
	old, was := a.Old.(*corev1.Pod)
	if !ok || !was || pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil, nil, nil
	}
	return pod, old, func() (*corev1.Node, error) {
		n, err := get[*corev1.Node](ctx, objects, "", "nodes", "", pod.Spec.NodeName)
		if apierrors.IsNotFound(err) {
			return nil, a.Forbidden(fmt.Errorf("node %q not found", pod.Spec.NodeName))
		}
		if err != nil {
			return nil, a.Forbidden(fmt.Errorf("failed to get node %q: %w", pod.Spec.NodeName, err))
		}
		return n, nil
	}
}

// declaredFeatures is NodeDeclaredFeatureValidator: it refuses updates of pods, and devices,
// that need a feature which the node does not declare.
type declaredFeatures struct {
	base
	objects admission.Objects
}

// nodeAllocatable is the feature gate of devices that provide or need resources of a node,
// and the feature that their nodes must declare.
const nodeAllocatable = "DRANodeAllocatableResources"

func newDeclaredFeatures(b *builder) admission.Plugin {
	devices := b.Gates != nil && b.Gates(nodeAllocatable)
	off := b.Gates != nil && !b.Gates("NodeDeclaredFeatures")
	return &declaredFeatures{base{"NodeDeclaredFeatureValidator", func(t admission.Target) bool {
		switch {
		case off:
		case t.Group == "":
			return t.Operation == admission.Update && t.Resource == "pods" && (t.Subresource == "" || t.Subresource == "resize")
		case t.Group == "resource.k8s.io":
			return devices && t.Resource == "resourceslices" && (t.Operation == admission.Create || t.Operation == admission.Update)
		}
		return false
	}}, b.Objects}
}

// Validate implements admission.Validator.
func (p *declaredFeatures) Validate(ctx context.Context, a *admission.Attributes) error {
	if slice, ok := a.Object.(*resourcev1.ResourceSlice); ok {
		return p.validateDevices(ctx, slice, a)
	}
	pod, old, node := changedOn(ctx, p.objects, a)
	if pod == nil {
		return nil
	}
	needed := neededFeatures(&pod.Spec, &old.Spec)
	if len(needed) == 0 {
		return nil
	}
	n, err := node()
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(needed, func(f string) bool { return slices.Contains(n.Status.DeclaredFeatures, f) })
	if len(missing) > 0 {
		return a.Forbidden(fmt.Errorf("pod update requires features %s which are not available on node %q", strings.Join(missing, ", "), n.Name))
	}
	return nil
}

// validateDevices checks that the nodes of devices with node resources declare the feature.
func (p *declaredFeatures) validateDevices(ctx context.Context, slice *resourcev1.ResourceSlice, a *admission.Attributes) error {
	perDevice := slice.Spec.PerDeviceNodeSelection != nil && *slice.Spec.PerDeviceNodeSelection
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		if len(d.NodeAllocatableResources) == 0 {
			continue
		}
		name, selector, all := slice.Spec.NodeName, slice.Spec.NodeSelector, slice.Spec.AllNodes
		if perDevice {
			name, selector, all = d.NodeName, d.NodeSelector, d.AllNodes
		}
		nodes, err := p.nodesOf(ctx, d.Name, name, selector, all != nil && *all)
		if err != nil {
			return a.Forbidden(err)
		}
		for _, n := range nodes {
			if !slices.Contains(n.Status.DeclaredFeatures, nodeAllocatable) {
				return a.Forbidden(fmt.Errorf("node %q does not support %s feature", n.Name, nodeAllocatable))
			}
		}
	}
	return nil
}

// nodesOf returns the nodes that a device is on.
func (p *declaredFeatures) nodesOf(ctx context.Context, device string, name *string, selector *corev1.NodeSelector, all bool) ([]*corev1.Node, error) {
	switch {
	case name != nil && *name != "":
		n, err := get[*corev1.Node](ctx, p.objects, "", "nodes", "", *name)
		switch {
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("node %q not found for device %q", *name, device)
		case err != nil:
			return nil, fmt.Errorf("failed to get node %q for device %q: %w", *name, device, err)
		}
		return []*corev1.Node{n}, nil
	case selector == nil && !all:
		return nil, fmt.Errorf("device %q in ResourceSlice has NodeAllocatableResources but does not map to any nodes", device)
	}
	nodes, err := list[*corev1.Node](ctx, p.objects, "", "nodes", "")
	if err != nil {
		return nil, fmt.Errorf("failed to list nodes for device %q: %w", device, err)
	}
	if selector != nil {
		nodes = slices.DeleteFunc(nodes, func(n *corev1.Node) bool { return !selectsNode(selector, n) })
	}
	return nodes, nil
}

// selectsNode reports whether one of the terms of a selector matches a node. A term that
// is empty or not valid matches none.
func selectsNode(s *corev1.NodeSelector, n *corev1.Node) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn, corev1.NodeSelectorOpExists: selection.Exists,
		corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist, corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	label := func(r corev1.NodeSelectorRequirement) bool {
		parsed, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		return err == nil && parsed.Matches(labels.Set(n.Labels))
	}
	name := func(r corev1.NodeSelectorRequirement) bool { // the only field is the name
		return slices.Contains(r.Values, n.Name) == (r.Operator == corev1.NodeSelectorOpIn)
	}
	all := func(list []corev1.NodeSelectorRequirement, matches func(corev1.NodeSelectorRequirement) bool) bool {
		return !slices.ContainsFunc(list, func(r corev1.NodeSelectorRequirement) bool { return !matches(r) })
	}
	return slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchExpressions)+len(t.MatchFields) > 0 &&
			all(t.MatchExpressions, label) && all(t.MatchFields, name)
	})
}

// neededFeatures returns the node features that an update needs, sorted.
func neededFeatures(spec, old *corev1.PodSpec) (features []string) {
	if (spec.Resources != nil || old.Resources != nil) && !equality.Semantic.DeepEqual(spec.Resources, old.Resources) {
		features = append(features, "InPlacePodLevelResourcesVerticalScaling")
	}
	for i := range min(len(spec.InitContainers), len(old.InitContainers)) {
		c := &old.InitContainers[i]
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		if !sidecar && !reflect.DeepEqual(c.Resources, spec.InitContainers[i].Resources) {
			features = append(features, "InPlacePodVerticalScalingInitContainers")
			break
		}
	}
	for i := range spec.Volumes {
		if len(spec.Volumes) != len(old.Volumes) || spec.Volumes[i].Name != old.Volumes[i].Name {
			continue
		}
		now, before := spec.Volumes[i].EmptyDir, old.Volumes[i].EmptyDir
		if now != nil && before != nil && now.Medium == corev1.StorageMediumMemory && now.SizeLimit != nil && before.SizeLimit != nil &&
			now.SizeLimit.Cmp(*before.SizeLimit) != 0 {
			features = append(features, "InPlacePodVerticalScalingMemoryBackedVolumes")
			break
		}
	}
	return features
}

// podResize is PodResizeValidator: it refuses resizes beyond the node's allocatable.
type podResize struct {
	base
	objects admission.Objects
}

func newPodResize(b *builder) admission.Plugin {
	return &podResize{base{"PodResizeValidator", func(t admission.Target) bool {
		return t.Operation == admission.Update && t.Group == "" && t.Resource == "pods" && t.Subresource == "resize"
	}}, b.Objects}
}

// Validate implements admission.Validator.
func (p *podResize) Validate(ctx context.Context, a *admission.Attributes) error {
	pod, _, node := changedOn(ctx, p.objects, a)
	if pod == nil {
		return nil
	}
	n, err := node()
	if err != nil {
		return err
	}
	if system, ok := n.Labels[corev1.LabelOSStable]; ok && system != "linux" {
		return resizeError(a, "UnsupportedPlatform", fmt.Errorf("pod resize is only supported on linux nodes, node %q is %q", n.Name, system))
	}
	requests := quota.Requests(pod, false)
	cpu, memory := requests[corev1.ResourceCPU], requests[corev1.ResourceMemory]
	var lacking []string
	if has := n.Status.Allocatable.Cpu(); cpu.Cmp(*has) > 0 {
		lacking = append(lacking, fmt.Sprintf("cpu, requested: %d, allocatable: %d", cpu.MilliValue(), has.MilliValue()))
	}
	if has := n.Status.Allocatable.Memory(); memory.Cmp(*has) > 0 {
		lacking = append(lacking, fmt.Sprintf("memory, requested: %d, allocatable: %d", memory.Value(), has.Value()))
	}
	if len(lacking) > 0 {
		return resizeError(a, "NodeCapacity", fmt.Errorf("node didn't have enough allocatable resources: %s", strings.Join(lacking, "; ")))
	}
	return nil
}

func resizeError(a *admission.Attributes, cause metav1.CauseType, err error) error {
	err = a.Forbidden(err)
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	}
	return err
}
