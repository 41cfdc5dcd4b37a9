package batch

import (
	"context"
	"fmt"
	"math"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// Legacy labels of the pods of a job, without a domain.
const (
	oldNameLabel = "job-name"
	oldUIDLabel  = "controller-uid"
)

// Jobs defines jobs.
func Jobs() resource.Definition {
	status := resource.Rules[*batchv1.Job]{
		PrepareUpdate: func(_ context.Context, j, old *batchv1.Job) { j.Spec = old.Spec },
		ValidateUpdate: func(_ context.Context, j, old *batchv1.Job) field.ErrorList {
			return validateJobStatus(j, old, field.NewPath("status"))
		},
	}.Strategy()
	strategy := resource.Rules[*batchv1.Job]{
		PrepareCreate: func(ctx context.Context, j *batchv1.Job) {
			if !ptr.Deref(j.Spec.ManualSelector, false) {
				generateSelector(j)
			}
			j.Status = batchv1.JobStatus{}
			dropDisabled(ctx, &j.Spec, nil)
		},
		PrepareUpdate: func(ctx context.Context, j, old *batchv1.Job) {
			j.Status = old.Status
			dropDisabled(ctx, &j.Spec, &old.Spec)
		},
		Validate: func(ctx context.Context, j *batchv1.Job) field.ErrorList {
			path := field.NewPath("spec")
			errs := validateGenerated(j)
			errs = append(errs, validateJobSpec(ctx, &j.Spec, nil, path)...)
			errs = append(errs, validateSelector(&j.Spec, nil, path)...)
			return append(errs, validateIndexedName(j)...)
		},
		ValidateUpdate: func(ctx context.Context, j, old *batchv1.Job) field.ErrorList {
			return append(validateJobUpdate(ctx, j, old, field.NewPath("spec")), validateIndexedName(j)...)
		},
		Generation: jobChanged,
		Warnings: func(_ context.Context, j, old *batchv1.Job) []string {
			path := field.NewPath("spec")
			switch {
			case old == nil:
				return append(podspec.NameWarnings(j.Name), jobWarnings(&j.Spec, nil, path)...)
			case jobChanged(j, old):
				return jobWarnings(&j.Spec, &old.Spec, path)
			}
			return nil
		},
		OrphanByDefault: true,
		OrphanWarning:   "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
	}.Strategy()
	return resource.Definition{
		Group:        batchv1.GroupName,
		Resource:     "jobs",
		Kind:         "Job",
		Categories:   []string{"all"},
		Namespaced:   true,
		StorageKey:   "jobs",
		ReadDefaults: true, // labels that generateSelector adds to the template
		Versions:     []resource.Version{resource.VersionOf[batchv1.Job, batchv1.JobList]("v1", defaultJob)},
		Strategy:     strategy,
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Fields: []resource.Field{resource.FieldFunc("status.successful", func(j *batchv1.Job) string {
			return strconv.Itoa(int(j.Status.Succeeded))
		})},
		UnknownField: func(path string) string { return fmt.Sprintf("field label %q not supported for Job", path) },
		Columns: append([]resource.Column{
			rules.NameColumn(),
			{Name: "Status", Type: "string", Description: "Status of the job."},
			{Name: "Completions", Type: "string", Description: batchv1.JobStatus{}.SwaggerDoc()["succeeded"]},
			{Name: "Duration", Type: "string", Description: "Time required to complete the job."},
			rules.AgeColumn(),
		}, podspec.TemplateColumns(batchv1.JobSpec{}.SwaggerDoc()["selector"])...),
		Cells: resource.CellsFunc(func(j *batchv1.Job) []any {
			return append([]any{
				j.Name, jobState(j), jobCompletions(j), jobDuration(&j.Status), resource.Since(j.CreationTimestamp.Time),
			}, templateCells(&j.Spec)...)
		}),
	}
}

func jobChanged(j, old *batchv1.Job) bool { return !equality.Semantic.DeepEqual(j.Spec, old.Spec) }

func defaultJob(j *batchv1.Job) {
	spec := &j.Spec
	if spec.Parallelism == nil {
		rules.DefaultPointer(&spec.Completions, 1)
	}
	rules.DefaultPointer(&spec.Parallelism, 1)
	if spec.BackoffLimitPerIndex != nil {
		rules.DefaultPointer(&spec.BackoffLimit, math.MaxInt32)
	}
	rules.DefaultPointer(&spec.BackoffLimit, 6)
	if labels := spec.Template.Labels; labels != nil && len(j.Labels) == 0 {
		j.Labels = labels
	}
	rules.DefaultPointer(&spec.CompletionMode, batchv1.NonIndexedCompletion)
	rules.DefaultPointer(&spec.Suspend, false)
	if spec.PodFailurePolicy != nil {
		rules.DefaultPointer(&spec.PodReplacementPolicy, batchv1.Failed)
	}
	rules.DefaultPointer(&spec.PodReplacementPolicy, batchv1.TerminatingOrFailed)
	rules.DefaultPointer(&spec.ManualSelector, false)
	defaultJobSpec(spec)
}

// defaultJobSpec is the defaulting of jobs and job templates.
func defaultJobSpec(spec *batchv1.JobSpec) {
	if p := spec.PodFailurePolicy; p != nil {
		for i := range p.Rules {
			for j := range p.Rules[i].OnPodConditions {
				if c := &p.Rules[i].OnPodConditions[j]; c.Status == "" {
					c.Status = corev1.ConditionTrue
				}
			}
		}
	}
	podspec.DefaultTemplate(&spec.Template)
}

// dropDisabled clears fields behind disabled feature gates, unless the old spec, nil on
// create, uses them.
func dropDisabled(ctx context.Context, spec, old *batchv1.JobSpec) {
	off := !features.From(ctx).Enabled(workloadWithJob)
	if old == nil {
		if off {
			spec.Scheduling = nil
		}
		podspec.DropDisabledTemplateFields(ctx, &spec.Template, nil)
		return
	}
	if off && old.Scheduling == nil {
		spec.Scheduling = nil
	}
	podspec.DropDisabledTemplateFields(ctx, &spec.Template, &old.Template)
}

// generateSelector sets selector and labels so that the job selects only its own pods. Values
// that a client has set are kept and validated later. A job without labels shares the map of
// its template's labels since defaulting (defaultJob), so it gets the generated ones too; if
// there was no map to share, defaulting on read copies them (ReadDefaults).
func generateSelector(j *batchv1.Job) {
	name, uid := j.Name, string(j.UID)
	addMissing(&j.Spec.Template.Labels, map[string]string{
		oldNameLabel: name, batchv1.JobNameLabel: name, oldUIDLabel: uid, batchv1.ControllerUidLabel: uid,
	})
	rules.DefaultPointer(&j.Spec.Selector, metav1.LabelSelector{})
	addMissing(&j.Spec.Selector.MatchLabels, map[string]string{batchv1.ControllerUidLabel: uid})
}

func addMissing(labels *map[string]string, more map[string]string) {
	if *labels == nil {
		*labels = map[string]string{}
	}
	for label, value := range more {
		if _, ok := (*labels)[label]; !ok {
			(*labels)[label] = value
		}
	}
}

func jobWarnings(spec, old *batchv1.JobSpec, path *field.Path) []string {
	var w []string
	if isIndexed(spec) && ptr.Deref(spec.Completions, 0) > manyCompletions && ptr.Deref(spec.Parallelism, 0) > 10_000 {
		w = append(w, path.String()+": In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail")
	}
	var template *corev1.PodTemplateSpec
	if old != nil {
		template = &old.Template
	}
	return append(w, podspec.TemplateWarnings(&spec.Template, template, path.Child("template"))...)
}

func isIndexed(spec *batchv1.JobSpec) bool {
	return spec.CompletionMode != nil && *spec.CompletionMode == batchv1.IndexedCompletion
}

func has(conditions []batchv1.JobCondition, kind batchv1.JobConditionType, status corev1.ConditionStatus) bool {
	for _, c := range conditions {
		if c.Type == kind && c.Status == status {
			return true
		}
	}
	return false
}

func isTrue(j *batchv1.Job, kind batchv1.JobConditionType) bool {
	return has(j.Status.Conditions, kind, corev1.ConditionTrue)
}

func jobState(j *batchv1.Job) string {
	for _, s := range []struct {
		is   bool
		name string
	}{
		{isTrue(j, batchv1.JobComplete), "Complete"},
		{isTrue(j, batchv1.JobFailed), "Failed"},
		{j.DeletionTimestamp != nil, "Terminating"},
		{isTrue(j, batchv1.JobSuspended), "Suspended"},
		{isTrue(j, batchv1.JobFailureTarget), "FailureTarget"},
		{isTrue(j, batchv1.JobSuccessCriteriaMet), "SuccessCriteriaMet"},
	} {
		if s.is {
			return s.name
		}
	}
	return "Running"
}

func jobCompletions(j *batchv1.Job) string {
	if n := j.Spec.Completions; n != nil {
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *n)
	}
	if n := ptr.Deref(j.Spec.Parallelism, 0); n > 1 {
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, n)
	}
	return fmt.Sprintf("%d/1", j.Status.Succeeded)
}

func jobDuration(s *batchv1.JobStatus) any {
	switch {
	case s.StartTime == nil:
		return ""
	case s.CompletionTime == nil:
		return resource.Since(s.StartTime.Time)
	}
	return duration.HumanDuration(s.CompletionTime.Sub(s.StartTime.Time))
}

func templateCells(spec *batchv1.JobSpec) []any {
	names, images := podspec.ContainerCells(spec.Template.Spec.Containers)
	return []any{names, images, metav1.FormatLabelSelector(spec.Selector)}
}
