package core

//lint:file-ignore SA1019 nodes may still have fields that nothing uses

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

const (
	taintsAnnotation    = "scheduler.alpha.kubernetes.io/taints"
	avoidPodsAnnotation = corev1.PreferAvoidPodsAnnotationKey
)

// nodeFeature matches declared features: MyFeature or MyFeature/mySubFeature.
var nodeFeature = regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*$`)

// validateNode validates a new node. Errors of swap and taints have paths below metadata, as
// in kube-apiserver.
func validateNode(ctx context.Context, n *corev1.Node) field.ErrorList {
	errs := validateNodeAlways(n)
	if swap := n.Status.NodeInfo.Swap; swap != nil && swap.Capacity != nil && *swap.Capacity <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "nodeSwapStatus", "capacity"), *swap.Capacity, "must be greater than zero"))
	}

	path := field.NewPath("spec", "podCIDRs")
	for i, cidr := range n.Spec.PodCIDRs {
		errs = append(errs, validation.IsValidCIDRForLegacyField(path.Index(i), cidr, rules.StrictIPs(ctx), nil)...)
	}
	if len(n.Spec.PodCIDRs) > 1 {
		dual, err := utilnet.IsDualStackCIDRStrings(n.Spec.PodCIDRs)
		if err != nil {
			errs = append(errs, field.InternalError(path, fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:%v", err)))
		}
		if !dual || len(n.Spec.PodCIDRs) > 2 {
			errs = append(errs, field.Invalid(path, n.Spec.PodCIDRs, "may specify no more than one CIDR for each IP family"))
		}
	}
	return errs
}

// validateNodeUpdate validates an update of the node or its status, in addition to
// validateNode.
func validateNodeUpdate(n, old *corev1.Node) field.ErrorList {
	var errs field.ErrorList
	spec, status := field.NewPath("spec"), field.NewPath("status")
	var addresses rules.Seen[corev1.NodeAddress]
	for i, a := range n.Status.Addresses {
		if addresses.Again(a) {
			errs = append(errs, field.Duplicate(status.Child("addresses").Index(i), rules.GoForm(a)))
		}
	}

	cidrs := field.Forbidden(spec.Child("podCIDRs"), `node updates may not change podCIDR except from "" to valid`)
	switch {
	case len(old.Spec.PodCIDRs) == 0:
	case len(old.Spec.PodCIDRs) != len(n.Spec.PodCIDRs):
		errs = append(errs, cidrs)
	default:
		for i, cidr := range old.Spec.PodCIDRs {
			if cidr != n.Spec.PodCIDRs[i] {
				errs = append(errs, cidrs)
			}
		}
	}

	if had, has := old.Spec.ProviderID, n.Spec.ProviderID; had != "" && has == "" {
		errs = append(errs, field.Invalid(spec.Child("providerID"), nil, "field cannot be cleared once set"))
	} else if had != "" && had != has {
		errs = append(errs, field.Invalid(spec.Child("providerID"), nil, "field cannot be modified once set"))
	}

	errs = append(errs, validateConfigSource(n.Spec.ConfigSource, false, spec.Child("configSource"))...)
	if c := n.Status.Config; c != nil {
		path := status.Child("config")
		errs = append(errs, validateConfigSource(c.Assigned, true, path.Child("assigned"))...)
		errs = append(errs, validateConfigSource(c.Active, true, path.Child("active"))...)
		errs = append(errs, validateConfigSource(c.LastKnownGood, true, path.Child("lastKnownGood"))...)
	}
	if n.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		errs = append(errs, field.Forbidden(spec.Child("externalID"), "may not be updated"))
	}
	return errs
}

// validateNodeAlways has the checks of every write.
func validateNodeAlways(n *corev1.Node) field.ErrorList {
	meta, status := field.NewPath("metadata"), field.NewPath("status")
	errs := validateNodeAnnotations(n.Annotations, meta.Child("annotations"))
	errs = append(errs, validateTaints(n.Spec.Taints, meta.Child("taints"))...)
	var amounts rules.Errors
	for name := range n.Status.Capacity {
		rules.CheckQuantity(&amounts, name, n.Status.Capacity[name], status.Child("capacity", string(name)))
	}
	for name := range n.Status.Allocatable {
		rules.CheckQuantity(&amounts, name, n.Status.Allocatable[name], status.Child("allocatable", string(name)))
	}
	errs = append(errs, amounts...)

	path := status.Child("declaredFeatures")
	for i, f := range n.Status.DeclaredFeatures {
		if len(f) > validation.DNS1123SubdomainMaxLength {
			errs = append(errs, field.Invalid(path.Index(i), f,
				fmt.Sprintf("invalid feature name %q: must be no more than %d characters", f, validation.DNS1123SubdomainMaxLength)))
		} else if !nodeFeature.MatchString(f) {
			errs = append(errs, field.Invalid(path.Index(i), f, fmt.Sprintf("invalid feature name %q: must start with an UpperCamelCase segment, "+
				"with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes", f)))
		}
		if i+1 == len(n.Status.DeclaredFeatures) {
			break
		}
		if next := n.Status.DeclaredFeatures[i+1]; next == f {
			errs = append(errs, field.Duplicate(path.Index(i+1), next))
		} else if next < f {
			errs = append(errs, field.Invalid(path.Index(i+1), next, "list must be sorted alphabetically"))
		}
	}
	return errs
}

func validateNodeAnnotations(annotations map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if text := annotations[taintsAnnotation]; text != "" {
		var taints []corev1.Taint
		if err := json.Unmarshal([]byte(text), &taints); err != nil {
			errs = append(errs, field.Invalid(path, taintsAnnotation, err.Error()))
		} else {
			errs = append(errs, validateTaints(taints, path.Child(taintsAnnotation))...)
		}
	}
	if text := annotations[avoidPodsAnnotation]; text != "" {
		var avoid corev1.AvoidPods
		if err := json.Unmarshal([]byte(text), &avoid); err != nil {
			errs = append(errs, field.Invalid(path.Child("AvoidPods"), avoidPodsAnnotation, err.Error()))
		}
		for i, entry := range avoid.PreferAvoidPods {
			signature := path.Child(avoidPodsAnnotation).Index(i).Child("PodSignature")
			if owner := entry.PodSignature.PodController; owner == nil {
				errs = append(errs, field.Required(signature, ""))
			} else if owner.Controller == nil || !*owner.Controller {
				errs = append(errs, field.Invalid(signature.Child("PodController", "Controller"), false, "must point to a controller"))
			}
		}
	}
	return errs
}

func validateTaints(taints []corev1.Taint, path *field.Path) field.ErrorList {
	type identity struct {
		key    string
		effect corev1.TaintEffect
	}
	var errs field.ErrorList
	seen := map[identity]bool{}
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	for i, t := range taints {
		at := path.Index(i)
		errs = append(errs, metavalidation.ValidateLabelName(t.Key, at.Child("key"))...)
		if messages := validation.IsValidLabelValue(t.Value); len(messages) > 0 {
			errs = append(errs, field.Invalid(at.Child("value"), t.Value, strings.Join(messages, ";")))
		}
		if t.Effect == "" {
			errs = append(errs, field.Required(at.Child("effect"), ""))
		} else if !slices.Contains(effects, t.Effect) {
			errs = append(errs, field.NotSupported(at.Child("effect"), t.Effect, effects))
		}
		id := identity{t.Key, t.Effect}
		if seen[id] {
			err := field.Duplicate(at, rules.GoForm(t))
			err.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, err)
		}
		seen[id] = true
	}
	return errs
}

// validateConfigSource validates a reference to a kubelet configuration, which only nodes
// from the time of dynamic kubelet configuration have. In a status it names one revision of
// the ConfigMap, in a spec it does not.
func validateConfigSource(source *corev1.NodeConfigSource, status bool, path *field.Path) field.ErrorList {
	if source == nil {
		return nil
	}
	if source.ConfigMap == nil {
		return field.ErrorList{field.Invalid(path, rules.GoForm(source), "exactly one reference subfield must be non-nil")}
	}
	var errs field.ErrorList
	cm := source.ConfigMap
	path = path.Child("configMap")
	for _, f := range []struct{ name, value string }{{"uid", string(cm.UID)}, {"resourceVersion", cm.ResourceVersion}} {
		if status && f.value == "" {
			errs = append(errs, field.Required(path.Child(f.name), ""))
		} else if !status && f.value != "" {
			errs = append(errs, field.Forbidden(path.Child(f.name), f.name+" must not be set in spec"))
		}
	}
	check := func(name, value string, messages func(string) []string) {
		if value == "" {
			errs = append(errs, field.Required(path.Child(name), ""))
		} else {
			errs = append(errs, rules.Invalid(path.Child(name), value, messages(value))...)
		}
	}
	check("namespace", cm.Namespace, func(s string) []string { return apivalidation.ValidateNamespaceName(s, false) })
	check("name", cm.Name, func(s string) []string { return apivalidation.NameIsDNSSubdomain(s, false) })
	check("kubeletConfigKey", cm.KubeletConfigKey, validation.IsConfigMapKey)
	return errs
}

// maxDisabled bounds the resources for which a node can disable preemption.
const maxDisabled = 20

// validateNodePreemption validates spec.podPreemptionPolicy if it has changed.
func validateNodePreemption(ctx context.Context, n *corev1.Node, old *corev1.NodePodPreemptionPolicy) field.ErrorList {
	p, path := n.Spec.PodPreemptionPolicy, field.NewPath("spec", "podPreemptionPolicy")
	if p == nil || equality.Semantic.DeepEqual(p, old) {
		return nil
	}
	if !features.From(ctx).Enabled(nodePreemption) {
		return resource.Declared(field.Forbidden(path, ""))
	}
	var was []string
	if old != nil {
		was = old.DisableResizePreemption
	}
	path = path.Child("disableResizePreemption")
	if len(p.DisableResizePreemption) > maxDisabled {
		return resource.Declared(field.TooMany(path, len(p.DisableResizePreemption), maxDisabled))
	}
	var errs, names field.ErrorList
	for i, name := range p.DisableResizePreemption {
		if slices.Contains(p.DisableResizePreemption[:i], name) {
			errs = append(errs, field.Duplicate(path.Index(i), name))
		}
		if !slices.Contains(was, name) {
			names = append(names, validate.LabelKey(ctx, operation.Operation{}, path.Index(i), &name, nil)...)
		}
	}
	return resource.Declared(append(names, errs...)...)
}
