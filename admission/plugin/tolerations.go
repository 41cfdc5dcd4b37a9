package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/quota"
)

// tolerationSeconds is DefaultTolerationSeconds: it adds tolerations for the taints not-ready
// and unreachable.
type tolerationSeconds struct {
	base
	notReady, unreachable int64
}

// defaultSeconds is the default of their tolerationSeconds.
const defaultSeconds = 300

func newTolerationSeconds(b *builder) admission.Plugin {
	p := &tolerationSeconds{base{"DefaultTolerationSeconds", on("", "pods", admission.Create, admission.Update)}, defaultSeconds, defaultSeconds}
	if b.NotReadySeconds != nil {
		p.notReady = *b.NotReadySeconds
	}
	if b.UnreachableSeconds != nil {
		p.unreachable = *b.UnreachableSeconds
	}
	return p
}

// Admit implements admission.Mutator.
func (p *tolerationSeconds) Admit(_ context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	given := pod.Spec.Tolerations
	add := func(taint string, seconds int64) {
		for i := range given {
			if t := &given[i]; (t.Key == taint || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
				return
			}
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
		})
	}
	add(corev1.TaintNodeNotReady, p.notReady)
	add(corev1.TaintNodeUnreachable, p.unreachable)
	return nil
}

// extendedResources is ExtendedResourceToleration: it adds tolerations for taints named
// after the extended resources that a pod requests.
type extendedResources struct{ base }

func newExtendedResources(*builder) admission.Plugin {
	return extendedResources{base{"ExtendedResourceToleration", on("", "pods", admission.Create, admission.Update)}}
}

// Admit implements admission.Mutator.
func (extendedResources) Admit(_ context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	asked := map[string]bool{}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			for name := range containers[i].Resources.Requests {
				if quota.IsExtended(name) {
					asked[string(name)] = true
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		setToleration(&pod.Spec, corev1.Toleration{Key: name, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	return nil
}

// setToleration adds a toleration, or replaces those with the same key, operator, value and
// effect.
func setToleration(spec *corev1.PodSpec, toleration corev1.Toleration) {
	var next []corev1.Toleration
	found := false
	for i := range spec.Tolerations {
		if toleration.MatchToleration(&spec.Tolerations[i]) {
			next, found = append(next, toleration), true
			continue
		}
		next = append(next, spec.Tolerations[i])
	}
	if !found {
		next = append(next, toleration)
	}
	spec.Tolerations = next
}

// tolerationRestriction is PodTolerationRestriction: it adds the default tolerations of the
// namespace to pods, and refuses those outside of its whitelist.
type tolerationRestriction struct {
	base
	objects admission.Objects
	tolerationConfig
}

type tolerationConfig struct {
	APIVersion string              `json:"apiVersion"`
	Kind       string              `json:"kind"`
	Default    []corev1.Toleration `json:"default"`
	Whitelist  []corev1.Toleration `json:"whitelist"`
}

const (
	namespaceTolerations = "scheduler.alpha.kubernetes.io/defaultTolerations"
	allowedTolerations   = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

func newTolerationRestriction(b *builder) (admission.Plugin, error) {
	p := &tolerationRestriction{base: base{"PodTolerationRestriction", on("", "pods", admission.Create, admission.Update)}, objects: b.Objects}
	if b.configuration != nil {
		if err := decode(b.configuration, &p.tolerationConfig, "Configuration", "podtolerationrestriction.admission.k8s.io/v1alpha1"); err != nil {
			return nil, err
		}
	}
	for _, list := range []struct {
		name        string
		tolerations []corev1.Toleration
	}{{"default", p.Default}, {"whitelist", p.Whitelist}} {
		for i := range list.tolerations {
			if problem := tolerationProblem(&list.tolerations[i]); problem != "" {
				return nil, fmt.Errorf("invalid config: podtolerationrestriction.%s[%d].%s", list.name, i, problem)
			}
		}
	}
	return p, nil
}

// tolerationProblem returns the error of an invalid toleration, "" if it is valid.
func tolerationProblem(t *corev1.Toleration) string {
	if t.Key != "" {
		if msgs := validation.IsQualifiedName(t.Key); len(msgs) > 0 {
			return fmt.Sprintf("key: Invalid value: %q: %s", t.Key, strings.Join(msgs, "; "))
		}
	}
	switch t.Operator {
	case corev1.TolerationOpEqual, "":
		if t.Key == "" {
			return `operator: Invalid value: "": operator must be Exists when ` + "`key`" + ` is empty, which means "match all values and all keys"`
		}
		if msgs := validation.IsValidLabelValue(t.Value); len(msgs) > 0 {
			return fmt.Sprintf("operator: Invalid value: %q: %s", t.Value, strings.Join(msgs, "; "))
		}
	case corev1.TolerationOpExists:
		if t.Value != "" {
			return fmt.Sprintf("operator: Invalid value: %q: value must be empty when `operator` is 'Exists'", t.Operator)
		}
	default:
		return fmt.Sprintf("operator: Unsupported value: %q", t.Operator)
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		return fmt.Sprintf("effect: Invalid value: %q: effect must be 'NoExecute' when `tolerationSeconds` is set", t.Effect)
	}
	return ""
}

// Admit implements admission.Mutator.
func (p *tolerationRestriction) Admit(ctx context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	var more []corev1.Toleration
	if a.Operation == admission.Create {
		own, err := p.ofNamespace(ctx, a.Namespace, namespaceTolerations)
		if err != nil {
			return err
		}
		if own == nil {
			own = p.Default
		}
		more = slices.Clone(own)
	}
	if !quota.IsBestEffort(pod) {
		more = append(more, corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	if len(more) > 0 {
		pod.Spec.Tolerations = mergeTolerations(pod.Spec.Tolerations, more)
	}
	return p.Validate(ctx, a)
}

// Validate implements admission.Validator.
func (p *tolerationRestriction) Validate(ctx context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || len(pod.Spec.Tolerations) == 0 {
		return nil
	}
	allowed, err := p.ofNamespace(ctx, a.Namespace, allowedTolerations)
	if err != nil {
		return err
	}
	scope := "namespace"
	if allowed == nil {
		allowed, scope = p.Whitelist, "cluster"
	}
	if len(allowed) == 0 {
		return nil
	}
	for _, t := range pod.Spec.Tolerations {
		if !slices.ContainsFunc(allowed, func(w corev1.Toleration) bool { return covers(w, t) }) {
			return fmt.Errorf("pod tolerations (possibly merged with namespace default tolerations) conflict with its %s whitelist", scope)
		}
	}
	return nil
}

// ofNamespace reads the tolerations in an annotation of a namespace, nil if it has none.
func (p *tolerationRestriction) ofNamespace(ctx context.Context, name, key string) ([]corev1.Toleration, error) {
	ns, err := namespace(ctx, p.objects, name)
	if err != nil {
		return nil, err
	}
	text, ok := ns.Annotations[key]
	if !ok {
		return nil, nil
	}
	tolerations := []corev1.Toleration{}
	if text != "" {
		err = json.Unmarshal([]byte(text), &tolerations)
	}
	return tolerations, err
}

// mergeTolerations concatenates tolerations without those that others cover.
func mergeTolerations(first, second []corev1.Toleration) (merged []corev1.Toleration) {
	all := slices.Concat(first, second)
	for i, t := range all {
		redundant := slices.ContainsFunc(merged, func(m corev1.Toleration) bool { return covers(m, t) }) ||
			slices.ContainsFunc(all[i+1:], func(m corev1.Toleration) bool {
				return !equality.Semantic.DeepEqual(&t, &m) && covers(m, t)
			})
		if !redundant {
			merged = append(merged, t)
		}
	}
	return merged
}

// covers reports whether a toleration tolerates everything that another does.
func covers(wide, t corev1.Toleration) bool {
	switch {
	case equality.Semantic.DeepEqual(&wide, &t):
		return true
	case t.Key != wide.Key && (wide.Key != "" || wide.Operator != corev1.TolerationOpExists):
		return false
	case t.Effect != wide.Effect && wide.Effect != "":
		return false
	}
	if wide.Effect == corev1.TaintEffectNoExecute && wide.TolerationSeconds != nil {
		if t.TolerationSeconds == nil || *t.TolerationSeconds > *wide.TolerationSeconds {
			return false
		}
	}
	switch wide.Operator {
	case corev1.TolerationOpEqual, "":
		return t.Operator == corev1.TolerationOpEqual && t.Value == wide.Value
	case corev1.TolerationOpExists:
		return true
	}
	return false
}
