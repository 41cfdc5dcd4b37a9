package core

//lint:file-ignore SA1019 nodes may still have fields that nothing uses

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

const (
	nodeRolePrefix = "node-role.kubernetes.io/"
	nodeRoleLabel  = "kubernetes.io/role"
)

// nodePreemption is the feature gate of spec.podPreemptionPolicy.
const nodePreemption = "InPlacePodVerticalScalingSchedulerPreemption"

// Nodes defines nodes. Unlike most kinds they can be created with a status.
func Nodes() resource.Definition {
	return resource.Definition{
		Resource:   "nodes",
		Kind:       "Node",
		ShortNames: []string{"no"},
		StorageKey: "minions",
		GatedFields: []resource.GatedField{
			{Path: "spec.podPreemptionPolicy", Gate: nodePreemption},
			{Path: "status.declaredFeatures", Gate: "NodeDeclaredFeatures"},
			{Path: "status.nodeInfo.runningInUserNamespace", Gate: "KubeletInUserNamespace"},
		},
		Versions: []resource.Version{resource.VersionOf[corev1.Node, corev1.NodeList]("v1", defaultNode)},
		Strategy: resource.Rules[*corev1.Node]{
			NameOnUpdate: true,
			PrepareCreate: func(_ context.Context, n *corev1.Node) {
				n.Spec.ConfigSource = nil
				n.Status.Config = nil
			},
			PrepareUpdate: func(_ context.Context, n, old *corev1.Node) {
				n.Status = old.Status
				if old.Spec.ConfigSource == nil {
					n.Spec.ConfigSource = nil
				}
			},
			Validate: func(ctx context.Context, n *corev1.Node) field.ErrorList {
				return append(validateNode(ctx, n), validateNodePreemption(ctx, n, nil)...)
			},
			ValidateUpdate: func(ctx context.Context, n, old *corev1.Node) field.ErrorList {
				return slices.Concat(validateNode(ctx, n), validateNodeUpdate(n, old), validateNodePreemption(ctx, n, old.Spec.PodPreemptionPolicy))
			},
			Warnings: func(_ context.Context, n, _ *corev1.Node) []string { return nodeWarnings(n) },
		}.Strategy(),
		Subresources: []resource.Subresource{{
			Name: "status",
			Part: new(resource.Rules[*corev1.Node]{
				PrepareUpdate: func(_ context.Context, n, old *corev1.Node) {
					n.Spec = old.Spec
					if old.Status.Config == nil {
						n.Status.Config = nil
					}
				},
				ValidateUpdate: func(_ context.Context, n, old *corev1.Node) field.ErrorList {
					return append(validateNodeAlways(n), validateNodeUpdate(n, old)...)
				},
			}.Strategy()),
		}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Status", Type: "string", Description: "The status of the node"},
			{Name: "Roles", Type: "string", Description: "The roles of the node"},
			rules.AgeColumn(),
			{Name: "Version", Type: "string", Description: corev1.NodeSystemInfo{}.SwaggerDoc()["kubeletVersion"]},
			{Name: "Internal-IP", Type: "string", Priority: 1, Description: corev1.NodeStatus{}.SwaggerDoc()["addresses"]},
			{Name: "External-IP", Type: "string", Priority: 1, Description: corev1.NodeStatus{}.SwaggerDoc()["addresses"]},
			{Name: "OS-Image", Type: "string", Priority: 1, Description: corev1.NodeSystemInfo{}.SwaggerDoc()["osImage"]},
			{Name: "Kernel-Version", Type: "string", Priority: 1, Description: corev1.NodeSystemInfo{}.SwaggerDoc()["kernelVersion"]},
			{Name: "Container-Runtime", Type: "string", Priority: 1, Description: corev1.NodeSystemInfo{}.SwaggerDoc()["containerRuntimeVersion"]},
		},
		Cells: resource.CellsFunc(nodeCells),
		Fields: []resource.Field{
			resource.FieldFunc("spec.unschedulable", func(n *corev1.Node) string { return fmt.Sprint(n.Spec.Unschedulable) }),
		},
	}
}

// defaultNode sets defaults. If podCIDR differs from the first of podCIDRs, podCIDR wins:
// a client that does not know podCIDRs has written it.
func defaultNode(n *corev1.Node) {
	spec, status := &n.Spec, &n.Status
	if spec.PodCIDR != "" && (len(spec.PodCIDRs) == 0 || spec.PodCIDRs[0] != spec.PodCIDR) {
		spec.PodCIDRs = []string{spec.PodCIDR}
	}
	if len(spec.PodCIDRs) > 0 {
		spec.PodCIDR = spec.PodCIDRs[0]
	}
	if status.Allocatable == nil && status.Capacity != nil {
		status.Allocatable = maps.Clone(status.Capacity)
	}
	rules.RoundUp(status.Capacity)
	rules.RoundUp(status.Allocatable)
}

func nodeWarnings(n *corev1.Node) []string {
	var warnings []string
	if n.Spec.ConfigSource != nil {
		warnings = append(warnings, "spec.configSource: the feature is removed")
	}
	if n.Spec.DoNotUseExternalID != "" {
		warnings = append(warnings, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, cidr := range n.Spec.PodCIDRs {
		warnings = append(warnings, validation.GetWarningsForCIDR(field.NewPath("spec", "podCIDRs").Index(i), cidr)...)
	}
	return warnings
}

func nodeCells(n *corev1.Node) []any {
	status := []string{"Unknown"}
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if status[0] = "NotReady"; c.Status == corev1.ConditionTrue {
			status[0] = "Ready"
		}
	}
	if n.Spec.Unschedulable {
		status = append(status, "SchedulingDisabled")
	}

	roles := map[string]bool{}
	for key, value := range n.Labels {
		if role, ok := strings.CutPrefix(key, nodeRolePrefix); ok && role != "" {
			roles[role] = true
		} else if key == nodeRoleLabel && value != "" {
			roles[value] = true
		}
	}
	address := func(t corev1.NodeAddressType) string {
		for _, a := range n.Status.Addresses {
			if a.Type == t {
				return a.Address
			}
		}
		return "<none>"
	}
	info := n.Status.NodeInfo
	kernel := orElse(info.KernelVersion, "<unknown>")
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	return []any{
		n.Name, strings.Join(status, ","), orElse(strings.Join(slices.Sorted(maps.Keys(roles)), ","), "<none>"),
		resource.Since(n.CreationTimestamp.Time), info.KubeletVersion,
		address(corev1.NodeInternalIP), address(corev1.NodeExternalIP),
		orElse(info.OSImage, "<unknown>"), kernel, orElse(info.ContainerRuntimeVersion, "<unknown>"),
	}
}

func orElse(s, empty string) string {
	if s == "" {
		return empty
	}
	return s
}
