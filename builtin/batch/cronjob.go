package batch

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // time zones are known on machines that have no data of them

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	batchv1beta1 "k8s.io/api/batch/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// jobSuffix is the length of the suffix that names of jobs add to the name of the CronJob.
const jobSuffix = len("-0123456789")

// CronJobs defines cronjobs.
func CronJobs() resource.Definition {
	status := resource.Rules[*batchv1.CronJob]{
		PrepareUpdate:  func(_ context.Context, c, old *batchv1.CronJob) { c.Spec = old.Spec },
		ValidateUpdate: func(context.Context, *batchv1.CronJob, *batchv1.CronJob) field.ErrorList { return nil },
	}.Strategy()
	spec := batchv1.CronJobSpec{}.SwaggerDoc()
	return resource.Definition{
		Group:      batchv1.GroupName,
		Resource:   "cronjobs",
		Kind:       "CronJob",
		ShortNames: []string{"cj"},
		Categories: []string{"all"},
		Namespaced: true,
		StorageKey: "cronjobs",
		Versions:   []resource.Version{resource.VersionOf[batchv1.CronJob, batchv1.CronJobList]("v1", defaultCronJob), cronJobV1beta1()},
		Strategy: resource.Rules[*batchv1.CronJob]{
			PrepareCreate: func(ctx context.Context, c *batchv1.CronJob) {
				c.Status = batchv1.CronJobStatus{}
				dropDisabled(ctx, &c.Spec.JobTemplate.Spec, nil)
			},
			PrepareUpdate: func(ctx context.Context, c, old *batchv1.CronJob) {
				c.Status = old.Status
				dropDisabled(ctx, &c.Spec.JobTemplate.Spec, &old.Spec.JobTemplate.Spec)
			},
			Validate: func(ctx context.Context, c *batchv1.CronJob) field.ErrorList {
				errs := validateCronJob(ctx, &c.Spec, nil, field.NewPath("spec"))
				if limit := validation.DNS1035LabelMaxLength - jobSuffix; len(c.Name) > limit {
					errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), c.Name, fmt.Sprintf("must be no more than %d characters", limit)))
				}
				return errs
			},
			ValidateUpdate: func(ctx context.Context, c, old *batchv1.CronJob) field.ErrorList {
				return validateCronJob(ctx, &c.Spec, &old.Spec, field.NewPath("spec"))
			},
			Generation: cronJobChanged,
			Warnings:   cronJobWarnings,
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Columns: append([]resource.Column{
			rules.NameColumn(),
			{Name: "Schedule", Type: "string", Description: spec["schedule"]},
			{Name: "Timezone", Type: "string", Description: spec["timeZone"]},
			{Name: "Suspend", Type: "boolean", Description: spec["suspend"]},
			{Name: "Active", Type: "integer", Description: batchv1.CronJobStatus{}.SwaggerDoc()["active"]},
			{Name: "Last Schedule", Type: "string", Description: batchv1.CronJobStatus{}.SwaggerDoc()["lastScheduleTime"]},
			rules.AgeColumn(),
		}, podspec.TemplateColumns(batchv1.JobSpec{}.SwaggerDoc()["selector"])...),
		Cells: resource.CellsFunc(func(c *batchv1.CronJob) []any {
			suspend, last := "<unset>", any("<none>")
			if s := c.Spec.Suspend; s != nil {
				suspend = map[bool]string{true: "True", false: "False"}[*s]
			}
			if t := c.Status.LastScheduleTime; t != nil {
				last = resource.Since(t.Time)
			}
			return append([]any{
				c.Name, c.Spec.Schedule, ptr.Deref(c.Spec.TimeZone, "<none>"), suspend, int64(len(c.Status.Active)),
				last, resource.Since(c.CreationTimestamp.Time),
			}, templateCells(&c.Spec.JobTemplate.Spec)...)
		}),
	}
}

// cronJobV1beta1 returns the version v1beta1.
func cronJobV1beta1() resource.Version {
	kind := batchv1beta1.SchemeGroupVersion.WithKind("CronJob")
	v := resource.AlikeVersion[batchv1beta1.CronJob, batchv1beta1.CronJobList](kind, defaultCronJob, nil, nil)
	v.OrphanByDefault = true
	return v
}

func cronJobChanged(c, old *batchv1.CronJob) bool {
	return !equality.Semantic.DeepEqual(c.Spec, old.Spec)
}

func cronJobWarnings(_ context.Context, c, old *batchv1.CronJob) []string {
	path, job := field.NewPath("spec", "jobTemplate", "spec"), &c.Spec.JobTemplate.Spec
	if old == nil {
		return append(podspec.NameWarnings(c.Name), jobWarnings(job, nil, path)...)
	}
	var w []string
	if cronJobChanged(c, old) {
		w = jobWarnings(job, &old.Spec.JobTemplate.Spec, path)
	}
	if strings.Contains(c.Spec.Schedule, "TZ") {
		w = append(w, "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details")
	}
	return w
}

func defaultCronJob(c *batchv1.CronJob) {
	spec := &c.Spec
	if spec.ConcurrencyPolicy == "" {
		spec.ConcurrencyPolicy = batchv1.AllowConcurrent
	}
	rules.DefaultPointer(&spec.Suspend, false)
	rules.DefaultPointer(&spec.SuccessfulJobsHistoryLimit, 3)
	rules.DefaultPointer(&spec.FailedJobsHistoryLimit, 1)
	defaultJobSpec(&spec.JobTemplate.Spec)
}

// validateCronJob validates the specification; old is nil on create.
func validateCronJob(ctx context.Context, spec, old *batchv1.CronJobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if at := path.Child("schedule"); spec.Schedule == "" {
		errs = resource.DeclaredBeta(field.Required(at, ""))
	} else {
		if err := parseSchedule(spec.Schedule); err != nil {
			errs = append(errs, field.Invalid(at, spec.Schedule, err.Error()))
		}
		// A time zone in the schedule is accepted if the old object has one.
		switch allowed, has := old != nil && strings.Contains(old.Schedule, "TZ"), strings.Contains(spec.Schedule, "TZ"); {
		case has && !allowed:
			errs = append(errs, field.Invalid(at, spec.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
		case has && spec.TimeZone != nil:
			errs = append(errs, field.Invalid(at, spec.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule"))
		}
	}
	errs = append(errs, nonnegative(spec.StartingDeadlineSeconds, path.Child("startingDeadlineSeconds"))...)
	if old == nil || !ptr.Equal(spec.TimeZone, old.TimeZone) {
		errs = append(errs, validateTimeZone(spec.TimeZone, path.Child("timeZone"))...)
	}
	if at := path.Child("concurrencyPolicy"); spec.ConcurrencyPolicy == "" {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, oneOf(spec.ConcurrencyPolicy, at,
			[]batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent})...)
	}
	var oldJob *batchv1.JobSpec
	if old != nil {
		oldJob = &old.JobTemplate.Spec
	}
	job, at := &spec.JobTemplate.Spec, path.Child("jobTemplate", "spec")
	errs = append(errs, validateJobSpec(ctx, job, oldJob, at)...)
	if job.Selector != nil {
		errs = append(errs, field.Invalid(at.Child("selector"), job.Selector, "`selector` will be auto-generated"))
	}
	if ptr.Deref(job.ManualSelector, false) {
		errs = append(errs, field.NotSupported(at.Child("manualSelector"), *job.ManualSelector, []string{"nil", "false"}))
	}
	errs = append(errs, nonnegative(spec.SuccessfulJobsHistoryLimit, path.Child("successfulJobsHistoryLimit"))...)
	return append(errs, nonnegative(spec.FailedJobsHistoryLimit, path.Child("failedJobsHistoryLimit"))...)
}

// parseSchedule returns the parse error of a schedule. The parser panics for some.
func parseSchedule(schedule string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	_, err = cron.ParseStandard(schedule)
	return err
}

// zonePart matches a segment of a time zone name. Digits and + occur in old names.
var zonePart = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z\.\-_0-9+]{1,14}$`) })

func validateTimeZone(zone *string, path *field.Path) field.ErrorList {
	if zone == nil {
		return nil
	}
	wrong := func(detail string) field.ErrorList { return field.ErrorList{field.Invalid(path, zone, detail)} }
	if *zone == "" {
		return wrong("timeZone must be nil or non-empty string")
	}
	for part := range strings.SplitSeq(*zone, "/") {
		if part == "." || part == ".." || strings.HasPrefix(part, "-") || !zonePart().MatchString(part) {
			return wrong("unknown time zone " + *zone)
		}
	}
	var errs field.ErrorList
	if strings.EqualFold(*zone, "Local") {
		errs = wrong("timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")
	}
	if _, err := time.LoadLocation(*zone); err != nil {
		errs = append(errs, wrong(err.Error())...)
	}
	return errs
}
