package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/admission"
)

const schedulingGroup = "scheduling.k8s.io"

// priority is Priority: it sets spec.priority from the PriorityClass.
type priority struct {
	base
	objects admission.Objects
	// policies: pod groups have a preemption policy.
	policies bool
}

func newPriority(b *builder) admission.Plugin {
	pods := on("", "pods", admission.Create, admission.Update)
	classes := on(schedulingGroup, "priorityclasses", admission.Create, admission.Update)
	groups := on(schedulingGroup, "podgroups", admission.Create)
	composite := on(schedulingGroup, "compositepodgroups", admission.Create)
	return &priority{base{"Priority", func(t admission.Target) bool { return pods(t) || classes(t) || groups(t) || composite(t) }},
		b.Objects, b.Gates != nil && b.Gates("PodGroupPreemptionPolicy")}
}

// Admit implements admission.Mutator.
func (p *priority) Admit(ctx context.Context, a *admission.Attributes) error {
	switch group := a.Object.(type) {
	case *schedulingv1beta1.PodGroup:
		s := &group.Spec
		return admitGroup(ctx, p, a, "pod group", &s.PriorityClassName, &s.Priority, &s.PreemptionPolicy)
	case *schedulingv1alpha3.CompositePodGroup:
		s := &group.Spec
		return admitGroup(ctx, p, a, "composite pod group", &s.PriorityClassName, &s.Priority, &s.PreemptionPolicy)
	}
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	spec := &pod.Spec
	if old, ok := a.Old.(*corev1.Pod); ok {
		if spec.Priority == nil {
			spec.Priority = old.Spec.Priority
		}
		if spec.PreemptionPolicy == nil {
			spec.PreemptionPolicy = old.Spec.PreemptionPolicy
		}
		return nil
	}
	class, err := p.class(ctx, a, spec.PriorityClassName)
	if err != nil {
		return err
	}
	spec.PriorityClassName = class.Name
	if spec.Priority != nil && *spec.Priority != class.Value {
		return a.Forbidden(fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *spec.Priority, class.Value))
	}
	spec.Priority = new(class.Value)
	if policy := class.PreemptionPolicy; policy != nil {
		if spec.PreemptionPolicy != nil && *spec.PreemptionPolicy != *policy {
			return a.Forbidden(fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *spec.PreemptionPolicy, *policy))
		}
		spec.PreemptionPolicy = new(*policy)
	}
	return nil
}

// admitGroup is Admit for PodGroup and CompositePodGroup.
func admitGroup[T ~string](ctx context.Context, p *priority, a *admission.Attributes, what string, name *string, value **int32, policy **T) error {
	class, err := p.class(ctx, a, *name)
	if err != nil {
		return err
	}
	if *value != nil && **value != class.Value {
		return a.Forbidden(fmt.Errorf("priority set in the %s (%d) must match the priority computed (%d) based on the priority class set in the spec", what, **value, class.Value))
	}
	*value, *name = new(class.Value), class.Name
	if !p.policies || class.PreemptionPolicy == nil {
		return nil
	}
	computed := T(*class.PreemptionPolicy)
	if *policy != nil && **policy != computed {
		return a.Forbidden(fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in %s spec; priority admission controller computed %s from the given PriorityClass name", **policy, what, computed))
	}
	*policy = &computed
	return nil
}

// Validate implements admission.Validator.
func (p *priority) Validate(ctx context.Context, a *admission.Attributes) error {
	class, ok := a.Object.(*schedulingv1.PriorityClass)
	if !ok || !class.GlobalDefault {
		return nil
	}
	global, err := p.global(ctx)
	if err != nil {
		return fmt.Errorf("failed to get default priority class: %w", err)
	}
	if global != nil && (a.Operation == admission.Create || global.Name != class.Name) {
		return a.Forbidden(fmt.Errorf("PriorityClass %v is already marked as default. Only one default can exist", global.Name))
	}
	return nil
}

// class returns the PriorityClass of a name. For "" it is the global default, or a class of
// priority 0 without a name.
func (p *priority) class(ctx context.Context, a *admission.Attributes, name string) (*schedulingv1.PriorityClass, error) {
	if name == "" {
		class, err := p.global(ctx)
		if err != nil {
			return nil, fmt.Errorf("error occurred while retrieving default priority class: %w", err)
		}
		if class == nil {
			class = &schedulingv1.PriorityClass{PreemptionPolicy: new(corev1.PreemptLowerPriority)}
		}
		return class, nil
	}
	class, err := get[*schedulingv1.PriorityClass](ctx, p.objects, schedulingGroup, "priorityclasses", "", name)
	if apierrors.IsNotFound(err) {
		return nil, a.Forbidden(fmt.Errorf("no PriorityClass with name %v was found", name))
	}
	if err != nil {
		return nil, fmt.Errorf("failed to resolve PriorityClass with name %s: %w", name, err)
	}
	return class, nil
}

// global returns the class with globalDefault, the lowest if there are several, nil if there
// is none.
func (p *priority) global(ctx context.Context) (*schedulingv1.PriorityClass, error) {
	classes, err := p.objects.List(ctx, schedulingGroup, "priorityclasses", "")
	var global *schedulingv1.PriorityClass
	for _, obj := range classes {
		if class, ok := obj.(*schedulingv1.PriorityClass); ok && class.GlobalDefault && (global == nil || class.Value < global.Value) {
			global = class
		}
	}
	return global, err
}
