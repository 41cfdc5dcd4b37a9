package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/quota"
	"github.com/apikeel/kelson/internal/problems"
)

// limitRangerNote is the annotation that lists the resources which were defaulted.
const limitRangerNote = "kubernetes.io/limit-ranger"

// limitRanger is LimitRanger: it sets default requests and limits of containers, and refuses
// those outside of the limits of the namespace.
type limitRanger struct {
	base
	objects admission.Objects
}

func newLimitRanger(b *builder) admission.Plugin {
	return &limitRanger{base{"LimitRanger", func(t admission.Target) bool {
		if t.Group != "" {
			return false
		}
		switch t.Resource + "/" + t.Subresource {
		case "pods/":
			return t.Operation == admission.Create
		case "pods/resize":
			return t.Operation == admission.Update
		case "persistentvolumeclaims/":
			return t.Operation == admission.Create || t.Operation == admission.Update
		}
		return false
	}}, b.Objects}
}

// ranges returns the LimitRanges of the namespace, none if the object is being deleted.
func (l *limitRanger) ranges(ctx context.Context, a *admission.Attributes) ([]*corev1.LimitRange, error) {
	if old, ok := a.Old.(metav1.Object); ok && old.GetDeletionTimestamp() != nil {
		return nil, nil
	}
	ranges, err := list[*corev1.LimitRange](ctx, l.objects, "", "limitranges", a.Namespace)
	if err != nil {
		return nil, a.Forbidden(fmt.Errorf("unable to %s %v at this time because there was an error enforcing limit ranges", a.Operation, a.Served.GroupVersionResource()))
	}
	return ranges, nil
}

// Admit implements admission.Mutator.
func (l *limitRanger) Admit(ctx context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	ranges, err := l.ranges(ctx, a)
	for _, r := range ranges {
		completePod(pod, r)
	}
	return err
}

// Validate implements admission.Validator.
func (l *limitRanger) Validate(ctx context.Context, a *admission.Attributes) error {
	ranges, err := l.ranges(ctx, a)
	for _, r := range ranges {
		var errs []error
		switch obj := a.Object.(type) {
		case *corev1.Pod:
			errs = checkPod(obj, r)
		case *corev1.PersistentVolumeClaim:
			errs = checkClaim(obj, r)
		}
		if err := problems.Join(errs); err != nil {
			return a.Forbidden(err)
		}
	}
	return err
}

// completePod sets the default requests and limits of a LimitRange.
func completePod(pod *corev1.Pod, r *corev1.LimitRange) {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range r.Spec.Limits {
		if limit := &r.Spec.Limits[i]; limit.Type == corev1.LimitTypeContainer {
			maps.Copy(requests, limit.DefaultRequest)
			maps.Copy(limits, limit.Default)
		}
	}
	if len(requests)+len(limits) == 0 {
		return
	}
	var notes []string
	complete := func(c *corev1.Container, kind string) {
		limited := fill(&c.Resources.Limits, limits)
		if names := fill(&c.Resources.Requests, requests); len(names) > 0 {
			notes = append(notes, fmt.Sprintf("%s request for %s %s", strings.Join(names, ", "), kind, c.Name))
		}
		if len(limited) > 0 {
			notes = append(notes, fmt.Sprintf("%s limit for %s %s", strings.Join(limited, ", "), kind, c.Name))
		}
	}
	for i := range pod.Spec.Containers {
		complete(&pod.Spec.Containers[i], "container")
	}
	for i := range pod.Spec.InitContainers {
		complete(&pod.Spec.InitContainers[i], "init container")
	}
	if len(notes) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, limitRangerNote, "LimitRanger plugin set: "+strings.Join(notes, "; "))
	}
}

// fill adds missing resources to a list, and returns their names, sorted.
func fill(list *corev1.ResourceList, defaults corev1.ResourceList) (added []string) {
	for name, quantity := range defaults {
		if _, ok := (*list)[name]; ok {
			continue
		}
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = quantity.DeepCopy()
		added = append(added, string(name))
	}
	slices.Sort(added)
	return added
}

func checkPod(pod *corev1.Pod, r *corev1.LimitRange) (errs []error) {
	for i := range r.Spec.Limits {
		limit := &r.Spec.Limits[i]
		switch limit.Type {
		case corev1.LimitTypeContainer:
			for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
				for j := range containers {
					errs = append(errs, checkLimits(limit, containers[j].Resources.Requests, containers[j].Resources.Limits)...)
				}
			}
		case corev1.LimitTypePod:
			requests := quota.Sum(&pod.Spec, func(c *corev1.Container) corev1.ResourceList { return c.Resources.Requests })
			limits := quota.Sum(&pod.Spec, func(c *corev1.Container) corev1.ResourceList { return c.Resources.Limits })
			if own := pod.Spec.Resources; own != nil {
				ofPod(requests, own.Requests)
				ofPod(limits, own.Limits)
			}
			errs = append(errs, checkLimits(limit, requests, limits)...)
		}
	}
	return errs
}

// ofPod replaces the sum by pod-level resources.
func ofPod(sum, own corev1.ResourceList) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if quantity, ok := own[name]; ok {
			sum[name] = quantity
		}
	}
}

func checkClaim(claim *corev1.PersistentVolumeClaim, r *corev1.LimitRange) (errs []error) {
	for i := range r.Spec.Limits {
		limit := &r.Spec.Limits[i]
		if limit.Type != corev1.LimitTypePersistentVolumeClaim {
			continue
		}
		check := amounts{limit.Type, claim.Spec.Resources.Requests, nil}
		for _, name := range names(limit.Min) {
			errs = append(errs, check.least(name, limit.Min[name]))
		}
		for _, name := range names(limit.Max) {
			errs = append(errs, check.mostRequested(name, limit.Max[name]))
		}
	}
	return errs
}

func checkLimits(limit *corev1.LimitRangeItem, requests, limits corev1.ResourceList) (errs []error) {
	check := amounts{limit.Type, requests, limits}
	for _, name := range names(limit.Min) {
		errs = append(errs, check.least(name, limit.Min[name]))
	}
	for _, name := range names(limit.Max) {
		errs = append(errs, check.most(name, limit.Max[name]))
	}
	for _, name := range names(limit.MaxLimitRequestRatio) {
		errs = append(errs, check.ratio(name, limit.MaxLimitRequestRatio[name]))
	}
	return errs
}

func names(list corev1.ResourceList) []corev1.ResourceName { return slices.Sorted(maps.Keys(list)) }

// amounts are the requests and limits of a container, pod or claim.
type amounts struct {
	of               corev1.LimitType
	requests, limits corev1.ResourceList
}

// comparable returns quantities in milli-units, or in units if one of them is too large.
func comparable(quantities ...resource.Quantity) []int64 {
	values := make([]int64, len(quantities))
	milli := true
	for i, q := range quantities {
		values[i] = q.Value()
		milli = milli && values[i] <= resource.MaxMilliValue
	}
	for i := 0; milli && i < len(values); i++ {
		values[i] = quantities[i].MilliValue()
	}
	return values
}

func (a amounts) least(name corev1.ResourceName, bound resource.Quantity) error {
	request, requested := a.requests[name]
	limit, limited := a.limits[name]
	v := comparable(request, limit, bound)
	rule := fmt.Sprintf("minimum %s usage per %s is %s", name, a.of, bound.String())
	switch {
	case !requested:
		return fmt.Errorf("%s.  No request is specified", rule)
	case v[0] < v[2]:
		return fmt.Errorf("%s, but request is %s", rule, request.String())
	case limited && v[1] < v[2]:
		return fmt.Errorf("%s, but limit is %s", rule, limit.String())
	}
	return nil
}

func (a amounts) most(name corev1.ResourceName, bound resource.Quantity) error {
	request, requested := a.requests[name]
	limit, limited := a.limits[name]
	v := comparable(request, limit, bound)
	rule := fmt.Sprintf("maximum %s usage per %s is %s", name, a.of, bound.String())
	switch {
	case !limited:
		return fmt.Errorf("%s.  No limit is specified", rule)
	case v[1] > v[2]:
		return fmt.Errorf("%s, but limit is %s", rule, limit.String())
	case requested && v[0] > v[2]:
		return fmt.Errorf("%s, but request is %s", rule, request.String())
	}
	return nil
}

func (a amounts) mostRequested(name corev1.ResourceName, bound resource.Quantity) error {
	request, requested := a.requests[name]
	v := comparable(request, bound)
	rule := fmt.Sprintf("maximum %s usage per %s is %s", name, a.of, bound.String())
	switch {
	case !requested:
		return fmt.Errorf("%s.  No request is specified", rule)
	case v[0] > v[1]:
		return fmt.Errorf("%s, but request is %s", rule, request.String())
	}
	return nil
}

func (a amounts) ratio(name corev1.ResourceName, bound resource.Quantity) error {
	v := comparable(a.requests[name], a.limits[name], bound)
	rule := fmt.Sprintf("%s max limit to request ratio per %s is %s", name, a.of, bound.String())
	switch {
	case v[0] == 0:
		return fmt.Errorf("%s, but no request is specified or request is 0", rule)
	case v[1] == 0:
		return fmt.Errorf("%s, but no limit is specified or limit is 0", rule)
	}
	ratio := float64(v[1]) / float64(v[0])
	highest, compared := float64(bound.Value()), ratio
	if bound.Value() <= resource.MaxMilliValue {
		highest, compared = float64(bound.MilliValue()), ratio*1000
	}
	if compared > highest {
		return fmt.Errorf("%s, but provided ratio is %f", rule, ratio)
	}
	return nil
}
