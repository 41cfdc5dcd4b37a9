package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// LimitRanges defines limitranges.
func LimitRanges() resource.Definition {
	return resource.Definition{
		Resource:   "limitranges",
		Kind:       "LimitRange",
		ShortNames: []string{"limits"},
		Namespaced: true,
		Versions: []resource.Version{resource.VersionOf[corev1.LimitRange, corev1.LimitRangeList]("v1", func(l *corev1.LimitRange) {
			for i := range l.Spec.Limits {
				defaultLimit(&l.Spec.Limits[i])
			}
		})},
		Strategy: resource.Rules[*corev1.LimitRange]{
			NameOnUpdate:   true,
			CreateOnUpdate: true,
			PrepareCreate: func(_ context.Context, l *corev1.LimitRange) {
				if l.Name == "" {
					l.Name = string(uuid.NewUUID())
				}
			},
			Validate: func(_ context.Context, l *corev1.LimitRange) field.ErrorList { return validateLimitRange(l) },
		}.Strategy(),
	}
}

// defaultLimit sets defaults of container limits: default from max, and defaultRequest from
// default or else from min.
func defaultLimit(l *corev1.LimitRangeItem) {
	if l.Type == corev1.LimitTypeContainer {
		if l.Default == nil {
			l.Default = corev1.ResourceList{}
		}
		if l.DefaultRequest == nil {
			l.DefaultRequest = corev1.ResourceList{}
		}
		fill := func(to, from corev1.ResourceList) {
			for name, q := range from {
				if _, ok := to[name]; !ok {
					to[name] = q.DeepCopy()
				}
			}
		}
		fill(l.Default, l.Max)
		fill(l.DefaultRequest, l.Default)
		fill(l.DefaultRequest, l.Min)
	}
	for _, list := range []corev1.ResourceList{l.Max, l.Min, l.Default, l.DefaultRequest, l.MaxLimitRequestRatio} {
		rules.RoundUp(list)
	}
}

func validateLimitRange(l *corev1.LimitRange) field.ErrorList {
	var e rules.Errors
	seen := map[corev1.LimitType]bool{}
	for i := range l.Spec.Limits {
		item, p := &l.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		checkLimitType(&e, item.Type, p.Child("type"))
		if seen[item.Type] {
			e.Duplicate(p.Child("type"), item.Type)
		}
		seen[item.Type] = true
		checkLimit(&e, item, p)
	}
	return field.ErrorList(e)
}

func checkLimitType(e *rules.Errors, t corev1.LimitType, p *field.Path) {
	if messages := validation.IsQualifiedName(string(t)); len(messages) > 0 {
		e.InvalidEach(p, t, messages)
		return
	}
	known := []corev1.LimitType{corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim}
	if !strings.Contains(string(t), "/") && !slices.Contains(known, t) {
		e.Invalid(p, t, "must be a standard limit type or fully qualified")
	}
}

func checkLimit(e *rules.Errors, l *corev1.LimitRangeItem, p *field.Path) {
	names := map[corev1.ResourceName]bool{}
	list := func(list corev1.ResourceList, p *field.Path) {
		for _, name := range rules.SortedResourceNames(list) {
			if l.Type == corev1.LimitTypePod || l.Type == corev1.LimitTypeContainer {
				rules.CheckContainerResourceName(e, name, p.Key(string(name)))
			} else {
				rules.CheckResourceName(e, name, p.Key(string(name)))
			}
			names[name] = true
		}
	}
	list(l.Max, p.Child("max"))
	list(l.Min, p.Child("min"))
	defaults, requests := l.Default, l.DefaultRequest
	if l.Type == corev1.LimitTypePod {
		if len(defaults) > 0 {
			e.Forbidden(p.Child("default"), "may not be specified when `type` is 'Pod'")
		}
		if len(requests) > 0 {
			e.Forbidden(p.Child("defaultRequest"), "may not be specified when `type` is 'Pod'")
		}
		defaults, requests = nil, nil
	}
	list(defaults, p.Child("default"))
	list(requests, p.Child("defaultRequest"))
	if l.Type == corev1.LimitTypePersistentVolumeClaim {
		_, least := l.Min[corev1.ResourceStorage]
		_, most := l.Max[corev1.ResourceStorage]
		if !least && !most {
			e.Required(p.Child("limits"), "either minimum or maximum storage value is required, but neither was provided")
		}
	}
	list(l.MaxLimitRequestRatio, p.Child("maxLimitRequestRatio"))

	for _, name := range slices.Sorted(maps.Keys(names)) {
		// Each comparison applies only if both limits are set. As in kube-apiserver, the
		// value in the error is not always that of the field.
		for _, order := range []struct {
			small, large corev1.ResourceList
			field        string
			shown        corev1.ResourceList
			text         string
		}{
			{l.Min, l.Max, "min", l.Min, "min value %s is greater than max value %s"},
			{l.Min, requests, "defaultRequest", requests, "min value %s is greater than default request value %s"},
			{requests, l.Max, "defaultRequest", requests, "default request value %s is greater than max value %s"},
			{requests, defaults, "defaultRequest", requests, "default request value %s is greater than default limit value %s"},
			{l.Min, defaults, "default", l.Min, "min value %s is greater than default value %s"},
			{defaults, l.Max, "default", l.Max, "default value %s is greater than max value %s"},
		} {
			small, ok := order.small[name]
			large, both := order.large[name]
			if ok && both && small.Cmp(large) > 0 {
				e.Invalid(p.Child(order.field).Key(string(name)), order.shown[name], fmt.Sprintf(order.text, small.String(), large.String()))
			}
		}
		checkRatio(e, l, name, p.Child("maxLimitRequestRatio").Key(string(name)))
		limit, ok := defaults[name]
		request, both := requests[name]
		if ok && both && !rules.CanOvercommit(name) && limit.Cmp(request) != 0 {
			e.Invalid(p.Child("defaultRequest").Key(string(name)), request,
				fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", limit.String(), request.String(), name))
		}
	}
}

func checkRatio(e *rules.Errors, l *corev1.LimitRangeItem, name corev1.ResourceName, p *field.Path) {
	ratio, ok := l.MaxLimitRequestRatio[name]
	if !ok {
		return
	}
	if ratio.Cmp(quantity.MustParse("1")) < 0 {
		e.Invalid(p, ratio, fmt.Sprintf("ratio %s is less than 1", ratio.String()))
	}
	least, haveLeast := l.Min[name]
	most, haveMost := l.Max[name]
	if !haveLeast || !haveMost {
		return
	}
	value, low, high := float64(ratio.Value()), least.Value(), most.Value()
	if ratio.Value() < quantity.MaxMilliValue && low < quantity.MaxMilliValue && high < quantity.MaxMilliValue {
		value, low, high = float64(ratio.MilliValue())/1000, least.MilliValue(), most.MilliValue()
	}
	if bound := float64(high) / float64(low); value > bound {
		e.Invalid(p, ratio, fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), bound))
	}
}
