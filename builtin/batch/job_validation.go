package batch

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
)

const (
	// maxIndexes bounds what is remembered of an indexed job: the intervals of
	// indexes that are done.
	maxIndexes = 100_000
	// manyCompletions is from where on a job has to make do with less of the
	// rest, fewIndexes.
	manyCompletions = 100_000
	fewIndexes      = 10_000

	maxRules        = 20
	maxExitCodes    = 255
	maxPatterns     = 20
	maxManagedBy    = 63
	maxIndexesBytes = 64 << 10
)

// validateGenerated checks that a generated selector and its labels have the uid of the
// job.
func validateGenerated(j *batchv1.Job) field.ErrorList {
	if ptr.Deref(j.Spec.ManualSelector, false) || j.Spec.Selector == nil {
		return nil
	}
	var errs field.ErrorList
	want := map[string]string{
		oldUIDLabel: string(j.UID), oldNameLabel: j.Name,
		batchv1.ControllerUidLabel: string(j.UID), batchv1.JobNameLabel: j.Name,
	}
	path := field.NewPath("spec", "template", "metadata", "labels")
	for _, label := range []string{oldUIDLabel, oldNameLabel, batchv1.ControllerUidLabel, batchv1.JobNameLabel} {
		detail := fmt.Sprintf("must be '%s'", want[label])
		if value, ok := j.Spec.Template.Labels[label]; !ok {
			errs = append(errs, field.Required(path.Key(label), detail))
		} else if value != want[label] {
			errs = append(errs, field.Invalid(path.Key(label), j.Spec.Template.Labels, detail))
		}
	}
	if selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !selector.Matches(labels.Set(want)) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), j.Spec.Selector, "`selector` not auto-generated"))
	}
	return errs
}

// validateIndexedName checks that the hostname of the last pod of an indexed job is valid.
func validateIndexedName(j *batchv1.Job) field.ErrorList {
	if n := ptr.Deref(j.Spec.Completions, 0); isIndexed(&j.Spec) && n > 0 {
		last := fmt.Sprintf("%s-%d", j.Name, n-1)
		if len(validation.IsDNS1123Label(last)) > 0 {
			return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), j.Name, "will not able to create pod with invalid DNS label: "+last)}
		}
	}
	return nil
}

func validateSelector(spec, old *batchv1.JobSpec, path *field.Path) field.ErrorList {
	if spec.Selector == nil {
		errs := field.ErrorList{field.Required(path.Child("selector"), "")}
		return append(errs, field.Invalid(path.Child("template", "metadata", "labels"), spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	var opts metavalidation.LabelSelectorValidationOptions
	if old != nil {
		opts.AllowInvalidLabelValueInSelector = metavalidation.LabelSelectorHasInvalidLabelValue(old.Selector)
	}
	errs := metavalidation.ValidateLabelSelector(spec.Selector, opts, path.Child("selector"))
	if selector, err := metav1.LabelSelectorAsSelector(spec.Selector); err == nil && !selector.Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

// validateJobSpec validates what jobs and templates of jobs have in common; old is
// nil on create.
func validateJobSpec(ctx context.Context, spec, old *batchv1.JobSpec, path *field.Path) field.ErrorList {
	errs := nonnegative(spec.Parallelism, path.Child("parallelism"))
	errs = append(errs, nonnegative(spec.Completions, path.Child("completions"))...)
	errs = append(errs, nonnegative(spec.ActiveDeadlineSeconds, path.Child("activeDeadlineSeconds"))...)
	errs = append(errs, nonnegative(spec.BackoffLimit, path.Child("backoffLimit"))...)
	errs = append(errs, nonnegative(spec.TTLSecondsAfterFinished, path.Child("ttlSecondsAfterFinished"))...)
	errs = append(errs, nonnegative(spec.BackoffLimitPerIndex, path.Child("backoffLimitPerIndex"))...)
	errs = append(errs, nonnegative(spec.MaxFailedIndexes, path.Child("maxFailedIndexes"))...)
	if spec.MaxFailedIndexes != nil && spec.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Required(path.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	if m := spec.ManagedBy; m != nil {
		errs = append(errs, validation.IsDomainPrefixedPath(path.Child("managedBy"), *m)...)
		if len(*m) > maxManagedBy {
			errs = append(errs, field.TooLong(path.Child("managedBy"), "", maxManagedBy))
		}
	}
	errs = append(errs, validateMode(spec, path)...)
	if spec.PodFailurePolicy != nil {
		errs = append(errs, validateFailurePolicy(spec, path.Child("podFailurePolicy", "rules"))...)
	}
	if p := spec.SuccessPolicy; p != nil {
		if isIndexed(spec) {
			errs = append(errs, validateSuccessPolicy(spec, path.Child("successPolicy", "rules"))...)
		} else {
			errs = append(errs, field.Invalid(path.Child("successPolicy"), rules.GoForm(*p), "requires indexed completion mode"))
		}
	}
	if p := spec.PodReplacementPolicy; p != nil {
		known := []batchv1.PodReplacementPolicy{batchv1.Failed, batchv1.TerminatingOrFailed}
		if spec.PodFailurePolicy != nil {
			known = known[:1]
		}
		errs = append(errs, oneOf(*p, path.Child("podReplacementPolicy"), known)...)
	}
	errs = append(errs, validateScheduling(ctx, spec, old, path)...)
	var template *corev1.PodTemplateSpec
	if old != nil {
		template = &old.Template
	}
	errs = append(errs, podspec.ValidateTemplate(ctx, &spec.Template, path.Child("template"), template)...)

	at := path.Child("template", "spec", "restartPolicy")
	switch p := spec.Template.Spec.RestartPolicy; {
	case p == corev1.RestartPolicyAlways, p == "":
		// Always is also the default.
		errs = append(errs, field.Required(at, `valid values: "OnFailure", "Never"`))
	case p != corev1.RestartPolicyOnFailure && p != corev1.RestartPolicyNever:
		errs = append(errs, field.NotSupported(at, p, []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	case p != corev1.RestartPolicyNever && spec.PodFailurePolicy != nil:
		errs = append(errs, field.Invalid(at, p, `only "Never" is supported when podFailurePolicy is specified`))
	}
	return errs
}

// validateMode validates the completion mode and the numbers that depend on it.
func validateMode(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m := spec.CompletionMode; m != nil {
		errs = oneOf(*m, path.Child("completionMode"), []batchv1.CompletionMode{batchv1.NonIndexedCompletion, batchv1.IndexedCompletion})
	}
	if spec.CompletionMode == nil || *spec.CompletionMode == batchv1.NonIndexedCompletion {
		for name, n := range map[string]*int32{"backoffLimitPerIndex": spec.BackoffLimitPerIndex, "maxFailedIndexes": spec.MaxFailedIndexes} {
			if n != nil {
				errs = append(errs, field.Invalid(path.Child(name), *n, "requires indexed completion mode"))
			}
		}
	}
	if !isIndexed(spec) {
		return errs
	}
	atMost := func(name string, n *int32, limit int32, detail string) {
		if n != nil && *n > limit {
			errs = append(errs, field.Invalid(path.Child(name), *n, "must be less than or equal to "+detail))
		}
	}
	if spec.Completions == nil {
		errs = append(errs, field.Required(path.Child("completions"), "when completion mode is Indexed"))
	}
	atMost("parallelism", spec.Parallelism, maxIndexes, fmt.Sprintf("%d when completion mode is Indexed", maxIndexes))
	if spec.Completions != nil {
		atMost("maxFailedIndexes", spec.MaxFailedIndexes, *spec.Completions, "completions")
	}
	atMost("maxFailedIndexes", spec.MaxFailedIndexes, maxIndexes, fmt.Sprint(maxIndexes))
	if ptr.Deref(spec.Completions, 0) > manyCompletions && spec.BackoffLimitPerIndex != nil {
		if spec.MaxFailedIndexes == nil {
			errs = append(errs, field.Required(path.Child("maxFailedIndexes"), fmt.Sprintf("must be specified when completions is above %d", manyCompletions)))
		}
		detail := fmt.Sprintf("%d when completions are above %d and used with backoff limit per index", fewIndexes, manyCompletions)
		atMost("parallelism", spec.Parallelism, fewIndexes, detail)
		atMost("maxFailedIndexes", spec.MaxFailedIndexes, fewIndexes, detail)
	}
	return errs
}

func validateFailurePolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	rules := spec.PodFailurePolicy.Rules
	if len(rules) > maxRules {
		errs = append(errs, field.TooMany(path, len(rules), maxRules))
	}
	var containers []string
	for _, c := range slices.Concat(spec.Template.Spec.Containers, spec.Template.Spec.InitContainers) {
		containers = append(containers, c.Name)
	}
	for i := range rules {
		rule, path := &rules[i], path.Index(i)
		actions := []batchv1.PodFailurePolicyAction{
			batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex,
			batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore,
		}
		errs = append(errs, oneOfOrRequired(rule.Action, path.Child("action"), actions)...)
		if rule.Action == batchv1.PodFailurePolicyActionFailIndex && spec.BackoffLimitPerIndex == nil {
			errs = append(errs, field.Invalid(path.Child("action"), rule.Action, "requires the backoffLimitPerIndex to be set"))
		}
		if rule.OnExitCodes != nil {
			errs = append(errs, validateExitCodes(rule.OnExitCodes, path.Child("onExitCodes"), containers)...)
		}
		errs = append(errs, validatePatterns(rule.OnPodConditions, path.Child("onPodConditions"))...)
		switch codes, conditions := rule.OnExitCodes != nil, len(rule.OnPodConditions) > 0; {
		case codes && conditions:
			errs = append(errs, field.Invalid(path, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported"))
		case !codes && !conditions:
			errs = append(errs, field.Invalid(path, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required"))
		}
	}
	return errs
}

func validatePatterns(patterns []batchv1.PodFailurePolicyOnPodConditionsPattern, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(patterns) > maxPatterns {
		errs = append(errs, field.TooMany(path, len(patterns), maxPatterns))
	}
	known := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
	for i, p := range patterns {
		for _, m := range validation.IsQualifiedName(string(p.Type)) {
			errs = append(errs, field.Invalid(path.Index(i).Child("type"), string(p.Type), m))
		}
		errs = append(errs, oneOfOrRequired(p.Status, path.Index(i).Child("status"), known)...)
	}
	return errs
}

func validateExitCodes(codes *batchv1.PodFailurePolicyOnExitCodesRequirement, path *field.Path, containers []string) field.ErrorList {
	errs := oneOfOrRequired(codes.Operator, path.Child("operator"),
		[]batchv1.PodFailurePolicyOnExitCodesOperator{batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn})
	if name := codes.ContainerName; name != nil && !slices.Contains(containers, *name) {
		errs = append(errs, field.Invalid(path.Child("containerName"), *name, "must be one of the container or initContainer names in the pod template"))
	}
	path = path.Child("values")
	switch n := len(codes.Values); {
	case n == 0:
		errs = append(errs, field.Invalid(path, codes.Values, "at least one value is required"))
	case n > maxExitCodes:
		errs = append(errs, field.TooMany(path, n, maxExitCodes))
	}
	var seen rules.Seen[int32]
	for i, code := range codes.Values {
		if code == 0 && codes.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn {
			errs = append(errs, field.Invalid(path.Index(i), code, "must not be 0 for the In operator"))
		}
		if seen.Again(code) {
			errs = append(errs, field.Duplicate(path.Index(i), code))
		}
	}
	if !slices.IsSorted(codes.Values) {
		errs = append(errs, field.Invalid(path, codes.Values, "must be ordered"))
	}
	return errs
}

func validateSuccessPolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	rules, completions := spec.SuccessPolicy.Rules, ptr.Deref(spec.Completions, 0)
	if len(rules) == 0 {
		errs = append(errs, field.Required(path, "at least one rules must be specified when the successPolicy is specified"))
	}
	if len(rules) > maxRules {
		errs = append(errs, field.TooMany(path, len(rules), maxRules))
	}
	for i, rule := range rules {
		path := path.Index(i)
		if rule.SucceededCount == nil && rule.SucceededIndexes == nil {
			errs = append(errs, field.Required(path, "at least one of succeededCount or succeededIndexes must be specified"))
		}
		var indexes int32
		if text := rule.SucceededIndexes; text != nil {
			at := path.Child("succeededIndexes")
			if len(*text) > maxIndexesBytes {
				errs = append(errs, field.TooLong(at, "", maxIndexesBytes))
			}
			var err error
			if indexes, err = countIndexes(*text, completions); err != nil {
				errs = append(errs, field.Invalid(at, *text, "error parsing succeededIndexes: "+err.Error()))
			}
		}
		count, at := rule.SucceededCount, path.Child("succeededCount")
		if count == nil {
			continue
		}
		errs = append(errs, nonnegative(count, at)...)
		if *count > completions {
			errs = append(errs, field.Invalid(at, *count, fmt.Sprintf("must be less than or equal to %d (the number of specified completions)", completions)))
		}
		if rule.SucceededIndexes != nil && *count > indexes {
			errs = append(errs, field.Invalid(at, *count, fmt.Sprintf("must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)", indexes)))
		}
	}
	return errs
}

func validateJobUpdate(ctx context.Context, j, oldJob *batchv1.Job, path *field.Path) field.ErrorList {
	spec, old := &j.Spec, &oldJob.Spec
	errs := validateJobSpec(ctx, spec, old, path)
	errs = append(errs, validateSelector(spec, old, path)...)
	if at := path.Child("completions"); !isIndexed(spec) {
		errs = append(errs, apivalidation.ValidateImmutableField(spec.Completions, old.Completions, at)...)
	} else if spec.Completions != nil && !ptr.Equal(spec.Completions, old.Completions) && !ptr.Equal(spec.Completions, spec.Parallelism) {
		errs = append(errs, field.Invalid(at, *spec.Completions, "can only be modified in tandem with spec.parallelism"))
	}
	errs = append(errs, apivalidation.ValidateImmutableField(spec.Selector, old.Selector, path.Child("selector"))...)
	errs = append(errs, validateTemplateUpdate(ctx, &spec.Template, oldJob, path)...)
	errs = append(errs, immutable(spec.CompletionMode, old.CompletionMode, path.Child("completionMode"))...)
	errs = append(errs, immutable(spec.PodFailurePolicy, old.PodFailurePolicy, path.Child("podFailurePolicy"))...)
	errs = append(errs, immutable(spec.BackoffLimitPerIndex, old.BackoffLimitPerIndex, path.Child("backoffLimitPerIndex"))...)
	errs = append(errs, immutable(spec.ManagedBy, old.ManagedBy, path.Child("managedBy"))...)
	errs = append(errs, immutable(spec.SuccessPolicy, old.SuccessPolicy, path.Child("successPolicy"))...)
	return append(errs, samePolicy(spec, old, path)...)
}

// validateTemplateUpdate checks that the template is unchanged. While a job is suspended and
// has no pods, scheduling directives and resources may change, as far as gates allow it.
// Without the gate, scheduling directives may change until the job has started once.
func validateTemplateUpdate(ctx context.Context, t *corev1.PodTemplateSpec, oldJob *batchv1.Job, path *field.Path) field.ErrorList {
	gates, suspended, started := features.From(ctx), ptr.Deref(oldJob.Spec.Suspend, false), oldJob.Status.StartTime != nil
	idle := suspended && (!started || isTrue(oldJob, batchv1.JobSuspended)) && oldJob.Status.Active == 0
	resources, directives := idle && gates.Enabled("MutablePodResourcesForSuspendedJobs"), suspended && !started
	if gates.Enabled("MutableSchedulingDirectivesForSuspendedJobs") {
		directives = idle
	}
	old := oldJob.Spec.Template.DeepCopy()
	if directives {
		keepDirectives(&old.Spec, &t.Spec)
		old.Labels, old.Annotations = t.Labels, t.Annotations
	}
	if !resources {
		return immutable(t, old, path.Child("template"))
	}
	// Metadata is not compared here, as in kube-apiserver.
	keepResources(old.Spec.Containers, t.Spec.Containers)
	keepResources(old.Spec.InitContainers, t.Spec.InitContainers)
	return immutable(t.Spec, old.Spec, path.Child("template.spec"))
}

// keepDirectives copies the scheduling directives of the new spec to the old one.
func keepDirectives(old, spec *corev1.PodSpec) {
	var affinity corev1.Affinity
	if old.Affinity != nil {
		affinity = *old.Affinity
	}
	affinity.NodeAffinity = nil
	if a := spec.Affinity; a != nil {
		affinity.NodeAffinity = a.NodeAffinity
	}
	if old.Affinity = &affinity; spec.Affinity == nil && affinity == (corev1.Affinity{}) {
		old.Affinity = nil
	}
	old.NodeSelector, old.Tolerations, old.SchedulingGates = spec.NodeSelector, spec.Tolerations, spec.SchedulingGates
}

// keepResources copies the resources of the new containers to the old ones.
func keepResources(old, containers []corev1.Container) {
	if len(old) != len(containers) {
		return
	}
	for i := range old {
		if old[i].Name == containers[i].Name {
			old[i].Resources = containers[i].Resources
		}
	}
}

// immutable checks that a field is unchanged.
func immutable[T any](value, old T, path *field.Path) field.ErrorList {
	if equality.Semantic.DeepEqual(value, old) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, rules.GoForm(value), apivalidation.FieldImmutableErrorMsg)}
}

func oneOf[T ~string](value T, path *field.Path, known []T) field.ErrorList {
	if slices.Contains(known, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, known)}
}

func oneOfOrRequired[T ~string](value T, path *field.Path, known []T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, fmt.Sprintf("valid values: %q", known))}
	}
	return oneOf(value, path, known)
}
