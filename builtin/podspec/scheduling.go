package podspec

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
)

func checkAffinity(e *rules.Errors, a *corev1.Affinity, p *field.Path, allow *Allowances) {
	if a == nil {
		return
	}
	if n := a.NodeAffinity; n != nil {
		np := childOf(p, "nodeAffinity")
		if n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			CheckNodeSelector(e, n.RequiredDuringSchedulingIgnoredDuringExecution,
				childOf(np, "requiredDuringSchedulingIgnoredDuringExecution"), allow.nodeAffinityValues)
		}
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			t, tp := &n.PreferredDuringSchedulingIgnoredDuringExecution[i], itemOf(childOf(np, "preferredDuringSchedulingIgnoredDuringExecution"), i)
			checkWeight(e, t.Weight, tp)
			checkNodeSelectorTerm(e, &t.Preference, childOf(tp, "preference"), true)
		}
	}
	if t := a.PodAffinity; t != nil {
		checkPodAffinity(e, t.RequiredDuringSchedulingIgnoredDuringExecution, t.PreferredDuringSchedulingIgnoredDuringExecution, childOf(p, "podAffinity"), allow)
	}
	if t := a.PodAntiAffinity; t != nil {
		checkPodAffinity(e, t.RequiredDuringSchedulingIgnoredDuringExecution, t.PreferredDuringSchedulingIgnoredDuringExecution, childOf(p, "podAntiAffinity"), allow)
	}
}

func checkWeight(e *rules.Errors, weight int32, p *field.Path) {
	if weight < 1 || weight > 100 {
		e.Invalid(childOf(p, "weight"), weight, "must be in the range 1-100")
	}
}

// ValidateNodeSelector returns everything that is wrong with a node selector.
// With anyValue, values need not be valid label values.
func ValidateNodeSelector(s *corev1.NodeSelector, p *field.Path, anyValue bool) field.ErrorList {
	var e rules.Errors
	CheckNodeSelector(&e, s, p, anyValue)
	return field.ErrorList(e)
}

// CheckNodeSelector is ValidateNodeSelector for callers that collect errors.
func CheckNodeSelector(e *rules.Errors, s *corev1.NodeSelector, p *field.Path, anyValue bool) {
	tp := childOf(p, "nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		e.Required(tp, "must have at least one node selector term")
	}
	for i := range s.NodeSelectorTerms {
		checkNodeSelectorTerm(e, &s.NodeSelectorTerms[i], itemOf(tp, i), anyValue)
	}
}

func checkNodeSelectorTerm(e *rules.Errors, t *corev1.NodeSelectorTerm, p *field.Path, anyValue bool) {
	for i := range t.MatchExpressions {
		checkNodeExpression(e, &t.MatchExpressions[i], itemOf(childOf(p, "matchExpressions"), i), anyValue)
	}
	for i := range t.MatchFields {
		checkNodeField(e, &t.MatchFields[i], itemOf(childOf(p, "matchFields"), i))
	}
}

func checkNodeExpression(e *rules.Errors, r *corev1.NodeSelectorRequirement, p *field.Path, anyValue bool) {
	vp := childOf(p, "values")
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			e.Required(vp, "must be specified when `operator` is 'In' or 'NotIn'")
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			e.Forbidden(vp, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			e.Required(vp, "must be specified single value when `operator` is 'Lt' or 'Gt'")
		}
	default:
		e.Invalid(childOf(p, "operator"), r.Operator, "not a valid selector operator")
	}
	e.Add(metavalidation.ValidateLabelName(r.Key, childOf(p, "key"))...)
	if anyValue {
		return
	}
	for i, v := range r.Values {
		e.InvalidEach(itemOf(vp, i), v, validation.IsValidLabelValue(v))
	}
}

// checkNodeField validates a field selector of nodes; metadata.name is the only
// field.
func checkNodeField(e *rules.Errors, r *corev1.NodeSelectorRequirement, p *field.Path) {
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			e.Required(childOf(p, "values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
		}
	default:
		e.Invalid(childOf(p, "operator"), r.Operator, "not a valid selector operator")
	}
	if r.Key != metav1.ObjectNameField {
		e.Invalid(childOf(p, "key"), r.Key, "not a valid field selector key")
		return
	}
	for i, v := range r.Values {
		e.DNSSubdomain(itemOf(childOf(p, "values"), i), v)
	}
}

func checkPodAffinity(e *rules.Errors, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, p *field.Path, allow *Allowances) {
	for i := range required {
		checkPodAffinityTerm(e, &required[i], itemOf(childOf(p, "requiredDuringSchedulingIgnoredDuringExecution"), i), allow)
	}
	for i := range preferred {
		tp := itemOf(childOf(p, "preferredDuringSchedulingIgnoredDuringExecution"), i)
		checkWeight(e, preferred[i].Weight, tp)
		checkPodAffinityTerm(e, &preferred[i].PodAffinityTerm, childOf(tp, "podAffinityTerm"), allow)
	}
}

func checkPodAffinityTerm(e *rules.Errors, t *corev1.PodAffinityTerm, p *field.Path, allow *Allowances) {
	checkAffinitySelectors(e, t, p, allow.selectorValues)
	for _, ns := range t.Namespaces {
		e.InvalidEach(childOf(p, "namespace"), ns, apivalidation.ValidateNamespaceName(ns, false))
	}
	checkLabelKeys(e, t.MatchLabelKeys, t.MismatchLabelKeys, t.LabelSelector, p)
	if t.TopologyKey == "" {
		e.Required(childOf(p, "topologyKey"), "can not be empty")
	}
	e.Add(metavalidation.ValidateLabelName(t.TopologyKey, childOf(p, "topologyKey"))...)
}

func checkAffinitySelectors(e *rules.Errors, t *corev1.PodAffinityTerm, p *field.Path, anyValue bool) {
	opts := metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: anyValue}
	e.Add(metavalidation.ValidateLabelSelector(t.LabelSelector, opts, childOf(p, "labelSelector"))...)
	e.Add(metavalidation.ValidateLabelSelector(t.NamespaceSelector, opts, childOf(p, "namespaceSelector"))...)
}

// checkLabelKeys validates matchLabelKeys and mismatchLabelKeys. MergeLabelKeys
// has already added them to the selector, so a key that is in the selector
// before its merged expression was written by the client in both places.
func checkLabelKeys(e *rules.Errors, match, mismatch []string, selector *metav1.LabelSelector, p *field.Path) {
	keys := func(keys []string, p *field.Path) {
		if len(keys) > 0 && selector == nil {
			e.Forbidden(p, "must not be specified when labelSelector is not set")
			return
		}
		for i, key := range keys {
			e.Add(metavalidation.ValidateLabelName(key, itemOf(p, i))...)
		}
	}
	keys(match, childOf(p, "matchLabelKeys"))
	keys(mismatch, childOf(p, "mismatchLabelKeys"))
	if selector != nil && len(match) > 0 {
		seen, last := sets.KeySet(selector.MatchLabels), map[string]int{}
		for i, key := range match {
			last[key] = i
		}
		for _, x := range selector.MatchExpressions {
			if i, ok := last[x.Key]; ok && seen.Has(x.Key) {
				e.Invalid(itemOf(p, i), x.Key, "exists in both matchLabelKeys and labelSelector")
			}
			seen.Insert(x.Key)
		}
	}
	others := sets.New(mismatch...)
	for i, key := range match {
		if others.Has(key) {
			e.Invalid(itemOf(childOf(p, "matchLabelKeys"), i), key, "exists in both matchLabelKeys and mismatchLabelKeys")
		}
	}
}

// checkOldLabelKeys validates the keys of a spread constraint that was stored
// before keys were merged into the selector.
func checkOldLabelKeys(e *rules.Errors, c *corev1.TopologySpreadConstraint, p *field.Path) {
	if len(c.MatchLabelKeys) == 0 {
		return
	}
	selected := sets.New[string]()
	if c.LabelSelector == nil {
		e.Forbidden(p, "must not be specified when labelSelector is not set")
	} else {
		selected = sets.KeySet(c.LabelSelector.MatchLabels)
		for _, x := range c.LabelSelector.MatchExpressions {
			selected.Insert(x.Key)
		}
	}
	for i, key := range c.MatchLabelKeys {
		e.Add(metavalidation.ValidateLabelName(key, itemOf(p, i))...)
		if selected.Has(key) {
			e.Invalid(itemOf(p, i), key, "exists in both matchLabelKeys and labelSelector")
		}
	}
}

func checkTopologySpread(e *rules.Errors, constraints []corev1.TopologySpreadConstraint, p *field.Path, allow *Allowances) {
	type spread struct {
		key  string
		when corev1.UnsatisfiableConstraintAction
	}
	last := map[spread]int{}
	for i := range constraints {
		last[spread{constraints[i].TopologyKey, constraints[i].WhenUnsatisfiable}] = i
	}
	for i := range constraints {
		c, cp := &constraints[i], itemOf(p, i)
		e.Positive(childOf(cp, "maxSkew"), int64(c.MaxSkew))
		if c.TopologyKey == "" {
			e.Required(childOf(cp, "topologyKey"), "can not be empty")
		}
		rules.OneOf(e, childOf(cp, "whenUnsatisfiable"), c.WhenUnsatisfiable, corev1.DoNotSchedule, corev1.ScheduleAnyway)
		if last[spread{c.TopologyKey, c.WhenUnsatisfiable}] > i {
			e.Duplicate(childOf(cp, "{topologyKey, whenUnsatisfiable}"), fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable))
		}
		if c.MinDomains != nil {
			e.Positive(childOf(cp, "minDomains"), int64(*c.MinDomains))
			if c.WhenUnsatisfiable != corev1.DoNotSchedule {
				e.Invalid(childOf(cp, "minDomains"), c.MinDomains,
					fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule, c.WhenUnsatisfiable))
			}
		}
		rules.OneOfPointer(e, childOf(cp, "nodeAffinityPolicy"), c.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
		rules.OneOfPointer(e, childOf(cp, "nodeTaintsPolicy"), c.NodeTaintsPolicy, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
		if allow.unmergedLabelKeys {
			checkOldLabelKeys(e, c, childOf(cp, "matchLabelKeys"))
		} else {
			checkLabelKeys(e, c.MatchLabelKeys, nil, c.LabelSelector, cp)
		}
		if !allow.spreadSelectors {
			e.Add(metavalidation.ValidateLabelSelector(c.LabelSelector, metavalidation.LabelSelectorValidationOptions{}, childOf(cp, "labelSelector"))...)
		}
	}
}

// ValidateTolerations returns everything that is wrong with tolerations.
func ValidateTolerations(tolerations []corev1.Toleration, p *field.Path) field.ErrorList {
	var e rules.Errors
	CheckTolerations(&e, tolerations, p, &Allowances{})
	return field.ErrorList(e)
}

// CheckTolerations validates the tolerations of a pod.
func CheckTolerations(e *rules.Errors, tolerations []corev1.Toleration, p *field.Path, allow *Allowances) {
	for i := range tolerations {
		t, tp := &tolerations[i], itemOf(p, i)
		op := childOf(tp, "operator")
		if t.Key != "" {
			e.LabelKey(childOf(tp, "key"), t.Key)
		} else if t.Operator != corev1.TolerationOpExists {
			e.Invalid(op, t.Operator, "operator must be Exists when `key` is empty, which means \"match all values and all keys\"")
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			e.Invalid(childOf(tp, "effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
		}
		switch t.Operator {
		case corev1.TolerationOpEqual, "":
			if messages := validation.IsValidLabelValue(t.Value); len(messages) > 0 {
				e.Invalid(op, t.Value, strings.Join(messages, ";"))
			}
		case corev1.TolerationOpExists:
			if t.Value != "" {
				e.Invalid(op, t.Value, "value must be empty when `operator` is 'Exists'")
			}
		case corev1.TolerationOpLt, corev1.TolerationOpGt:
			if !allow.numericTolerations {
				e.Add(field.NotSupported(op, t.Operator, []corev1.TolerationOperator{
					corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpLt, corev1.TolerationOpGt,
				}))
				break
			}
			e.InvalidEach(childOf(tp, "value"), t.Value, content.IsDecimalInteger(t.Value))
			if _, err := strconv.ParseInt(t.Value, 10, 64); err != nil {
				e.Invalid(childOf(tp, "value"), t.Value, err.Error())
			}
		default:
			rules.OneOf(e, op, t.Operator, corev1.TolerationOpEqual, corev1.TolerationOpExists)
		}
		if t.Effect != "" {
			rules.OneOf(e, childOf(tp, "effect"), t.Effect,
				corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
		}
	}
}

// eachAffinityTerm calls f for every term of pod affinity and anti-affinity.
func eachAffinityTerm(a *corev1.Affinity, f func(t *corev1.PodAffinityTerm)) {
	each := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for i := range preferred {
			f(&preferred[i].PodAffinityTerm)
		}
		for i := range required {
			f(&required[i])
		}
	}
	if a != nil && a.PodAffinity != nil {
		each(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a != nil && a.PodAntiAffinity != nil {
		each(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

// MergeLabelKeys adds to the selectors of affinity terms and spread constraints
// a requirement for each key of matchLabelKeys and mismatchLabelKeys, with the
// value that the label has in the pod itself.
func MergeLabelKeys(ctx context.Context, pod *corev1.Pod) {
	merge := func(selector *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator) {
		for _, key := range keys {
			if value, ok := pod.Labels[key]; ok && selector != nil {
				selector.MatchExpressions = append(selector.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}})
			}
		}
	}
	eachAffinityTerm(pod.Spec.Affinity, func(t *corev1.PodAffinityTerm) {
		merge(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
		merge(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	})
	if !mergesSpreadKeys(features.From(ctx)) {
		return
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		merge(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}
