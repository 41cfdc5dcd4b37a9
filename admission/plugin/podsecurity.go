package plugin

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/metrics/measure"
)

// podSecurity is PodSecurity: it checks pods against the pod security standard that the
// labels of their namespace name. Pods are refused, audited or warned about; workloads with
// pod templates are only audited and warned about.
type podSecurity struct {
	base
	objects   admission.Objects
	evaluator policy.Evaluator
	defaults  api.Policy
	exempt    exemptions
	metrics   admission.Metrics
}

// exemptions by user, namespace and RuntimeClass.
type exemptions struct {
	Usernames      []string `json:"usernames"`
	Namespaces     []string `json:"namespaces"`
	RuntimeClasses []string `json:"runtimeClasses"`
}

const (
	// When a namespace gets a stricter standard, at most this many of its pods are
	// checked, for at most podCheckTime.
	maxPodsToCheck = 3000
	podCheckTime   = time.Second
)

// defaultEvaluator has the checks of all versions of the standards. It has no state, so
// the servers of a process share it.
var defaultEvaluator = sync.OnceValues(func() (policy.Evaluator, error) { return policy.NewEvaluator(policy.DefaultChecks(), nil) })

func newPodSecurity(b *builder) (admission.Plugin, error) {
	evaluator, err := defaultEvaluator()
	if err != nil {
		return nil, err
	}
	p := &podSecurity{base: base{"PodSecurity", securityHandles}, objects: b.Objects, evaluator: evaluator, metrics: b.Metrics}
	return p, p.configure(b.configuration)
}

// podResources returns the resources that contain pod specs.
func podResources() []schema.GroupResource {
	return []schema.GroupResource{
		{Resource: "pods"}, {Resource: "replicationcontrollers"}, {Resource: "podtemplates"},
		{Group: "apps", Resource: "replicasets"}, {Group: "apps", Resource: "deployments"},
		{Group: "apps", Resource: "statefulsets"}, {Group: "apps", Resource: "daemonsets"},
		{Group: "batch", Resource: "jobs"}, {Group: "batch", Resource: "cronjobs"},
	}
}

func securityHandles(t admission.Target) bool {
	if t.Operation != admission.Create && t.Operation != admission.Update {
		return false
	}
	resource := schema.GroupResource{Group: t.Group, Resource: t.Resource}
	if resource.Group == "" && resource.Resource == "pods" {
		switch t.Subresource {
		case "exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status":
			return false
		}
		return true
	}
	return t.Subresource == "" && (isNamespace(t) || slices.Contains(podResources(), resource))
}

// configure reads the default standards and the exemptions.
func (p *podSecurity) configure(data []byte) error {
	var file struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Defaults   map[string]string `json:"defaults"`
		Exemptions exemptions        `json:"exemptions"`
	}
	if len(data) > 0 {
		if err := decode(data, &file, "PodSecurityConfiguration",
			"pod-security.admission.config.k8s.io/v1", "pod-security.admission.config.k8s.io/v1beta1", "pod-security.admission.config.k8s.io/v1alpha1"); err != nil {
			return err
		}
	}
	var errs field.ErrorList
	defaults := field.NewPath("defaults")
	for name, to := range map[string]*api.LevelVersion{"enforce": &p.defaults.Enforce, "audit": &p.defaults.Audit, "warn": &p.defaults.Warn} {
		var err error
		level := cmp.Or(file.Defaults[name], string(api.LevelPrivileged))
		if to.Level, err = api.ParseLevel(level); err != nil {
			errs = append(errs, field.Invalid(defaults.Child(name), level, err.Error()))
		}
		version := cmp.Or(file.Defaults[name+"-version"], api.VersionLatest)
		if to.Version, err = api.ParseVersion(version); err != nil {
			errs = append(errs, field.Invalid(defaults.Child(name+"-version"), version, err.Error()))
		}
	}
	p.exempt = file.Exemptions
	check := func(name string, values []string, problem func(string) []string) {
		seen := map[string]bool{}
		for i, v := range values {
			path := field.NewPath("exemptions", name).Index(i)
			if msgs := problem(v); len(msgs) > 0 {
				errs = append(errs, field.Invalid(path, v, strings.Join(msgs, ", ")))
			} else if seen[v] {
				errs = append(errs, field.Duplicate(path, v))
			}
			seen[v] = true
		}
	}
	check("namespaces", p.exempt.Namespaces, func(v string) []string { return apivalidation.ValidateNamespaceName(v, false) })
	check("runtimeClasses", p.exempt.RuntimeClasses, func(v string) []string { return apivalidation.NameIsDNSSubdomain(v, false) })
	check("usernames", p.exempt.Usernames, func(v string) []string {
		if v == "" {
			return []string{"username must not be empty"}
		}
		return nil
	})
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return errs.ToAggregate()
}

// Validate implements admission.Validator.
func (p *podSecurity) Validate(ctx context.Context, a *admission.Attributes) error {
	if isNamespace(a.Target()) {
		return p.namespace(ctx, a)
	}
	switch {
	case slices.Contains(p.exempt.Namespaces, a.Namespace):
		p.exempted(a, "namespace")
		return nil
	case slices.Contains(p.exempt.Usernames, a.Request.User.Name):
		p.exempted(a, "user")
		return nil
	}
	pod, isPod := a.Object.(*corev1.Pod)
	ns, err := namespace(ctx, p.objects, a.Namespace)
	if err != nil {
		p.failed(a, true)
		if !isPod {
			p.annotate(a, "error", fmt.Sprintf("failed to lookup namespace %q: %v", a.Namespace, err))
			return nil
		}
		failed := apierrors.NewInternalError(fmt.Errorf("failed to lookup namespace %q", a.Namespace))
		p.annotate(a, "error", fmt.Sprintf("%s: %v", failed.ErrStatus.Message, err))
		return failed
	}
	standard, errs := api.PolicyToEvaluate(ns.Labels, p.defaults)
	if !isPod {
		if len(errs) == 0 && standard.Warn.Level == api.LevelPrivileged && standard.Audit.Level == api.LevelPrivileged {
			return nil
		}
		if meta, spec := template(a.Object); spec != nil {
			return p.check(a, standard, errs, meta, spec, false)
		}
		return nil
	}
	if len(errs) == 0 && standard.FullyPrivileged() {
		p.annotate(a, api.EnforcedPolicyAnnotationKey, "privileged:latest")
		p.evaluated(a, true, standard.Enforce, "enforce")
		return nil
	}
	if old, ok := a.Old.(*corev1.Pod); ok && !significant(&pod.Spec, &old.Spec) {
		return nil
	}
	return p.check(a, standard, errs, &pod.ObjectMeta, &pod.Spec, true)
}

func (p *podSecurity) annotate(a *admission.Attributes, key, value string) {
	a.Request.Annotate(api.AuditAnnotationPrefix+key, value)
}

// exempted records in audit and metrics that a write is exempt, and why.
func (p *podSecurity) exempted(a *admission.Attributes, why string) {
	p.annotate(a, api.ExemptionReasonAnnotationKey, why)
	measure.Count(p.metrics, measure.PodSecurityExemptions, securityLabels(a)...)
}

// failed counts an error that prevented the evaluation, or changed the standard that was
// applied.
func (p *podSecurity) failed(a *admission.Attributes, fatal bool) {
	measure.Count(p.metrics, measure.PodSecurityErrors, append([]string{strconv.FormatBool(fatal)}, securityLabels(a)...)...)
}

// evaluated counts a decision.
func (p *podSecurity) evaluated(a *admission.Attributes, allowed bool, by api.LevelVersion, mode string) {
	decision, version := "deny", by.Version.String()
	if allowed {
		decision = "allow"
	}
	if by.Level == api.LevelPrivileged {
		version = api.VersionLatest
	}
	measure.Count(p.metrics, measure.PodSecurityEvaluations, append([]string{decision, string(by.Level), version, mode}, securityLabels(a)...)...)
}

// securityLabels returns the metric labels operation, resource and subresource.
func securityLabels(a *admission.Attributes) []string {
	t := a.Target()
	resource := "controller"
	switch {
	case isNamespace(t):
		resource = "namespace"
	case t.Group == "" && t.Resource == "pods":
		resource = "pod"
	}
	return []string{strings.ToLower(string(t.Operation)), resource, t.Subresource}
}

// check evaluates a pod spec. Only with enforce the write is refused.
func (p *podSecurity) check(a *admission.Attributes, standard api.Policy, labels field.ErrorList, meta *metav1.ObjectMeta, spec *corev1.PodSpec, enforce bool) error {
	if class := spec.RuntimeClassName; class != nil && slices.Contains(p.exempt.RuntimeClasses, *class) && *class != "" {
		p.exempted(a, "runtimeClass")
		return nil
	}
	if len(labels) > 0 {
		p.failed(a, false)
		p.annotate(a, "error", fmt.Sprintf("Failed to parse policy: %v", labels.ToAggregate()))
	}
	results := map[api.LevelVersion]policy.AggregateCheckResult{}
	judge := func(by api.LevelVersion) policy.AggregateCheckResult {
		result, ok := results[by]
		if !ok {
			result = policy.AggregateCheckResults(p.evaluator.EvaluatePod(by, meta, spec))
			results[by] = result
		}
		return result
	}
	var refused error
	if enforce {
		p.annotate(a, api.EnforcedPolicyAnnotationKey, standard.Enforce.String())
		result := judge(standard.Enforce)
		p.evaluated(a, result.Allowed, standard.Enforce, "enforce")
		if !result.Allowed {
			refused = apierrors.NewForbidden(a.GroupResource(), a.Name, fmt.Errorf("violates PodSecurity %q: %s", standard.Enforce.String(), result.ForbiddenDetail()))
		}
	}
	if result := judge(standard.Audit); !result.Allowed {
		p.evaluated(a, false, standard.Audit, "audit")
		p.annotate(a, api.AuditViolationsAnnotationKey, fmt.Sprintf("would violate PodSecurity %q: %s", standard.Audit.String(), result.ForbiddenDetail()))
	}
	if refused == nil {
		if result := judge(standard.Warn); !result.Allowed {
			p.evaluated(a, false, standard.Warn, "warn")
			a.Request.Warn(fmt.Sprintf("would violate PodSecurity %q: %s", standard.Warn.String(), result.ForbiddenDetail()))
		}
	}
	return refused
}

// template returns the metadata and spec of the pod template in an object, nil if there is
// none.
func template(obj runtime.Object) (*metav1.ObjectMeta, *corev1.PodSpec) {
	var t *corev1.PodTemplateSpec
	switch obj := obj.(type) {
	case *corev1.PodTemplate:
		t = &obj.Template
	case *corev1.ReplicationController:
		t = obj.Spec.Template
	case *appsv1.ReplicaSet:
		t = &obj.Spec.Template
	case *appsv1.Deployment:
		t = &obj.Spec.Template
	case *appsv1.DaemonSet:
		t = &obj.Spec.Template
	case *appsv1.StatefulSet:
		t = &obj.Spec.Template
	case *batchv1.Job:
		t = &obj.Spec.Template
	case *batchv1.CronJob:
		t = &obj.Spec.JobTemplate.Spec.Template
	}
	if t == nil {
		return nil, nil
	}
	return &t.ObjectMeta, &t.Spec
}

// significant reports whether an update of a pod changes images or containers.
func significant(spec, old *corev1.PodSpec) bool {
	sameImage := func(a, b corev1.Container) bool { return a.Image == b.Image }
	if !slices.EqualFunc(spec.Containers, old.Containers, sameImage) || !slices.EqualFunc(spec.InitContainers, old.InitContainers, sameImage) {
		return true
	}
	for i := range spec.EphemeralContainers {
		c := &spec.EphemeralContainers[i]
		if !slices.ContainsFunc(old.EphemeralContainers, func(o corev1.EphemeralContainer) bool { return o.Name == c.Name && o.Image == c.Image }) {
			return true
		}
	}
	return false
}

// namespace validates the labels of a namespace, and warns about its pods that violate a
// stricter standard.
func (p *podSecurity) namespace(ctx context.Context, a *admission.Attributes) error {
	ns, ok := a.Object.(*corev1.Namespace)
	if !ok {
		return apierrors.NewBadRequest("failed to decode namespace")
	}
	standard, errs := api.PolicyToEvaluate(ns.Labels, p.defaults)
	invalid := func() error { return problems.Invalid(a.Kind.GroupKind(), a.Name, errs) }
	exempt := slices.Contains(p.exempt.Namespaces, a.Namespace)
	old, was := a.Old.(*corev1.Namespace)
	if !was {
		if len(errs) > 0 {
			return invalid()
		}
		if exempt {
			p.warnExempt(a, ns, standard)
		}
		return nil
	}
	before, oldErrs := api.PolicyToEvaluate(old.Labels, p.defaults)
	now := standard.Enforce
	switch {
	case len(errs) > 0 && (len(oldErrs) == 0 || !reflect.DeepEqual(errs, oldErrs)):
		return invalid()
	case now == before.Enforce, now.Level == api.LevelPrivileged,
		now.Version == before.Enforce.Version && api.CompareLevels(now.Level, before.Enforce.Level) < 1:
	case exempt:
		p.warnExempt(a, ns, standard)
	default:
		for _, warning := range p.violations(ctx, ns.Name, now) {
			a.Request.Warn(warning)
		}
	}
	return nil
}

// warnExempt warns that the namespace is exempt, so that its labels have no effect.
func (p *podSecurity) warnExempt(a *admission.Attributes, ns *corev1.Namespace, standard api.Policy) {
	if standard.FullyPrivileged() || standard.Equivalent(&p.defaults) {
		return
	}
	var named []string
	for _, mode := range []struct {
		name, level, version string
		is                   api.LevelVersion
	}{
		{"enforce", api.EnforceLevelLabel, api.EnforceVersionLabel, standard.Enforce},
		{"audit", api.AuditLevelLabel, api.AuditVersionLabel, standard.Audit},
		{"warn", api.WarnLevelLabel, api.WarnVersionLabel, standard.Warn},
	} {
		_, level := ns.Labels[mode.level]
		_, version := ns.Labels[mode.version]
		if mode.is.Level != api.LevelPrivileged && (level || version) {
			named = append(named, mode.name+"="+mode.is.String())
		}
	}
	a.Request.Warn(fmt.Sprintf("namespace %q is exempt from Pod Security, and the policy (%s) will be ignored", ns.Name, strings.Join(named, ", ")))
}

// violations returns warnings about the pods of a namespace that violate a standard.
func (p *podSecurity) violations(ctx context.Context, name string, standard api.LevelVersion) (warnings []string) {
	limit := podCheckTime
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	all, err := list[*corev1.Pod](ctx, p.objects, "", "pods", name)
	if err != nil {
		return []string{"failed to list pods while checking new PodSecurity enforce level"}
	}
	pods := p.oneOfEachFirst(all)
	checked := min(len(pods), maxPodsToCheck)
	type found struct {
		pod   string
		count int
	}
	reasons := map[string]*found{}
	for i, pod := range pods[:checked] {
		if r := policy.AggregateCheckResults(p.evaluator.EvaluatePod(standard, &pod.ObjectMeta, &pod.Spec)); !r.Allowed {
			f := reasons[r.ForbiddenReason()]
			if f == nil {
				f = &found{pod: pod.Name}
				reasons[r.ForbiddenReason()] = f
			}
			f.pod = min(f.pod, pod.Name)
			f.count++
		}
		if ctx.Err() != nil {
			checked = i + 1
			break
		}
	}
	if checked < len(pods) {
		warnings = append(warnings, fmt.Sprintf("new PodSecurity enforce level only checked against the first %d of %d existing pods", checked, len(pods)))
	}
	if len(reasons) > 0 {
		warnings = append(warnings, fmt.Sprintf("existing pods in namespace %q violate the new PodSecurity enforce level %q", name, standard.String()))
	}
	var each []string
	for reason, f := range reasons {
		switch f.count {
		case 1:
			each = append(each, fmt.Sprintf("%s: %s", f.pod, reason))
		case 2:
			each = append(each, fmt.Sprintf("%s (and 1 other pod): %s", f.pod, reason))
		default:
			each = append(each, fmt.Sprintf("%s (and %d other pods): %s", f.pod, f.count-1, reason))
		}
	}
	slices.Sort(each)
	return append(warnings, each...)
}

// oneOfEachFirst sorts one pod of each controller first, and drops exempt pods.
func (p *podSecurity) oneOfEachFirst(pods []*corev1.Pod) []*corev1.Pod {
	var first, rest []*corev1.Pod
	seen := map[types.UID]bool{}
	for _, pod := range pods {
		if class := pod.Spec.RuntimeClassName; class != nil && *class != "" && slices.Contains(p.exempt.RuntimeClasses, *class) {
			continue
		}
		if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
			if seen[owner.UID] {
				rest = append(rest, pod)
				continue
			}
			seen[owner.UID] = true
		}
		first = append(first, pod)
	}
	return append(first, rest...)
}
