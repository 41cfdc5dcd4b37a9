package batch

import (
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/rules"
)

// validateJobStatus validates an update of the status. Most rules apply only if one of
// their fields changes.
func validateJobStatus(j, old *batchv1.Job, path *field.Path) field.ErrorList {
	s, was := &j.Status, &old.Status
	errs := nonnegative(&s.Active, path.Child("active"))
	errs = append(errs, nonnegative(&s.Succeeded, path.Child("succeeded"))...)
	errs = append(errs, nonnegative(&s.Failed, path.Child("failed"))...)
	errs = append(errs, nonnegative(s.Ready, path.Child("ready"))...)
	errs = append(errs, nonnegative(s.Terminating, path.Child("terminating"))...)
	errs = append(errs, validateUncounted(s.UncountedTerminatedPods, path.Child("uncountedTerminatedPods"))...)

	// turned reports whether one of the conditions has changed to or from True.
	turned := func(kinds ...batchv1.JobConditionType) bool {
		for _, kind := range kinds {
			if isTrue(j, kind) != isTrue(old, kind) {
				return true
			}
		}
		return false
	}
	reject := func(when bool, err func() *field.Error) {
		if when {
			errs = append(errs, err())
		}
	}
	condition := func(detail string) func() *field.Error {
		return func() *field.Error { return field.Invalid(path.Child("conditions"), field.OmitValueType{}, detail) }
	}
	invalid := func(name string, value any, detail string) func() *field.Error {
		return func() *field.Error { return field.Invalid(path.Child(name), value, detail) }
	}
	required := func(name, detail string) func() *field.Error {
		return func() *field.Error { return field.Required(path.Child(name), detail) }
	}

	complete, failed := isTrue(j, batchv1.JobComplete), isTrue(j, batchv1.JobFailed)
	target, criteria := isTrue(j, batchv1.JobFailureTarget), isTrue(j, batchv1.JobSuccessCriteriaMet)
	completes, fails := turned(batchv1.JobComplete), turned(batchv1.JobFailed)
	finished := complete || failed
	finishes := finished != (isTrue(old, batchv1.JobComplete) || isTrue(old, batchv1.JobFailed))
	starts, ends := !ptr.Equal(s.StartTime, was.StartTime), !ptr.Equal(s.CompletionTime, was.CompletionTime)
	activeChanges := s.Active != was.Active

	reject((completes || fails) && complete && failed, condition("cannot set Complete=True and Failed=true conditions"))
	reject((completes || turned(batchv1.JobFailureTarget)) && complete && target, condition("cannot set Complete=True and FailureTarget=true conditions"))
	reject((completes || ends) && s.CompletionTime != nil && !complete,
		invalid("completionTime", s.CompletionTime, "cannot set completionTime when there is no Complete=True condition"))
	reject((completes || ends) && s.CompletionTime == nil && complete, required("completionTime", "completionTime is required for Complete jobs"))
	reject((starts || ends) && s.StartTime != nil && s.CompletionTime != nil && s.CompletionTime.Before(s.StartTime),
		invalid("completionTime", s.CompletionTime, "must be equal to or after `startTime`"))
	failedIndexesChange, completedIndexesChange := !ptr.Equal(s.FailedIndexes, was.FailedIndexes), s.CompletedIndexes != was.CompletedIndexes
	reject((fails || failedIndexesChange) && failed && !target, condition("cannot set Failed=True condition without the FailureTarget=true condition"))
	reject(turned(batchv1.JobComplete, batchv1.JobSuccessCriteriaMet) && complete && !criteria,
		condition("cannot set Complete=True condition without the SuccessCriteriaMet=true condition"))
	reject((finishes || activeChanges) && s.Active > 0 && finished, invalid("active", s.Active, "active>0 is invalid for finished job"))
	nothingToDo := ptr.Deref(j.Spec.Suspend, false) && j.Spec.Completions != nil && *j.Spec.Completions == 0
	reject((finishes || starts) && !nothingToDo && s.StartTime == nil && finished, required("startTime", "startTime is required for finished job"))
	uncounted := s.UncountedTerminatedPods
	reject((finishes || !equality.Semantic.DeepEqual(uncounted, was.UncountedTerminatedPods)) && finished && uncounted != nil &&
		len(uncounted.Failed)+len(uncounted.Succeeded) > 0,
		invalid("uncountedTerminatedPods", rules.GoForm(uncounted), "must be empty for finished job"))
	errs = append(errs, validateIndexes(j, completedIndexesChange, failedIndexesChange, path)...)
	reject((finishes || !ptr.Equal(s.Terminating, was.Terminating)) && ptr.Deref(s.Terminating, 0) > 0 && finished,
		invalid("terminating", s.Terminating, "terminating>0 is invalid for finished job"))
	reject((activeChanges || !ptr.Equal(s.Ready, was.Ready)) && s.Ready != nil && *s.Ready > s.Active,
		invalid("ready", ptr.Deref(s.Ready, 0), "cannot set more ready pods than active"))
	reject(criteria && failed, condition("cannot set SuccessCriteriaMet=True and Failed=true conditions"))
	reject(criteria && target, condition("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"))
	reject(j.Spec.SuccessPolicy != nil && !criteria && complete,
		condition("cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True"))

	for _, kind := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobComplete, batchv1.JobFailureTarget} {
		reject(isTrue(old, kind) && !isTrue(j, kind), condition(fmt.Sprintf("cannot disable the terminal %s=True condition", kind)))
	}
	reject(s.Failed < was.Failed, invalid("failed", s.Failed, "cannot decrease the failed counter"))
	// An indexed job whose completions equal its parallelism can be scaled down.
	elastic := isIndexed(&j.Spec) && ptr.Equal(j.Spec.Completions, j.Spec.Parallelism)
	reject(!elastic && s.Succeeded < was.Succeeded, invalid("succeeded", s.Succeeded, "cannot decrease the succeeded counter"))
	reject(ends && s.CompletionTime != nil && was.CompletionTime != nil, invalid("completionTime", s.CompletionTime, "field is immutable"))
	resumes := isTrue(old, batchv1.JobSuspended) && has(s.Conditions, batchv1.JobSuspended, corev1.ConditionFalse)
	reject(starts && !resumes && was.StartTime != nil && !ptr.Deref(j.Spec.Suspend, false),
		invalid("startTime", s.StartTime, "field is immutable for unsuspended job once set"))
	reject(isTrue(old, batchv1.JobSuccessCriteriaMet) && !criteria, condition("cannot disable the SuccessCriteriaMet=True condition"))
	reject(isTrue(old, batchv1.JobComplete) && !isTrue(old, batchv1.JobSuccessCriteriaMet) && criteria,
		condition("cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions"))
	return errs
}

// validateUncounted checks that no pod is listed twice.
func validateUncounted(pods *batchv1.UncountedTerminatedPods, path *field.Path) field.ErrorList {
	if pods == nil {
		return nil
	}
	var errs field.ErrorList
	seen := map[types.UID]bool{}
	each := func(uids []types.UID, path *field.Path) {
		for i, uid := range uids {
			switch {
			case uid == "":
				errs = append(errs, field.Invalid(path.Index(i), uid, "must not be empty"))
			case seen[uid]:
				errs = append(errs, field.Duplicate(path.Index(i), uid))
			}
			seen[uid] = true
		}
	}
	each(pods.Succeeded, path.Child("succeeded"))
	each(pods.Failed, path.Child("failed"))
	return errs
}

// validateIndexes validates completedIndexes and failedIndexes if they change.
func validateIndexes(j *batchv1.Job, completedChange, failedChange bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	completed, failed, n := j.Status.CompletedIndexes, j.Status.FailedIndexes, j.Spec.Completions
	perIndex := j.Spec.BackoffLimitPerIndex != nil
	if completedChange {
		if n != nil {
			if _, err := countIndexes(completed, *n); err != nil {
				errs = append(errs, field.Invalid(path.Child("completedIndexes"), completed, "error parsing completedIndexes: "+err.Error()))
			}
		}
		if completed != "" && !isIndexed(&j.Spec) {
			errs = append(errs, field.Invalid(path.Child("completedIndexes"), completed, "cannot set non-empty completedIndexes when non-indexed completion mode"))
		}
	}
	if failed == nil {
		return errs
	}
	at := path.Child("failedIndexes")
	if failedChange {
		if n != nil && perIndex {
			if _, err := countIndexes(*failed, *n); err != nil {
				errs = append(errs, field.Invalid(at, failed, "error parsing failedIndexes: "+err.Error()))
			}
		}
		if !perIndex {
			errs = append(errs, field.Invalid(at, *failed, "cannot set non-null failedIndexes when backoffLimitPerIndex is null"))
		}
	}
	if n != nil && (failedChange || completedChange) {
		if index, ok := overlap(intervals(completed, *n), intervals(*failed, *n)); ok {
			errs = append(errs, field.Invalid(at, *failed, fmt.Sprintf("failedIndexes and completedIndexes overlap at index: %d", index)))
		}
	}
	return errs
}

// interval is a range of indexes, both ends included.
type interval struct{ first, last int32 }

// intervals parses a list like "0,2-5" as far as it can be parsed.
func intervals(text string, completions int32) []interval {
	var out []interval
	for _, part := range strings.Split(text, ",") {
		if i, err := parseInterval(part, completions); err == nil {
			out = append(out, i)
		}
	}
	return out
}

// overlap returns the first index that is in both of two ascending lists.
func overlap(a, b []interval) (int32, bool) {
	for len(a) > 0 && len(b) > 0 {
		if a[0].first <= b[0].last && b[0].first <= a[0].last {
			return max(a[0].first, b[0].first), true
		}
		if a[0].first <= b[0].first {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return 0, false
}

// countIndexes returns how many indexes a list like "0,2-5" has.
func countIndexes(text string, completions int32) (int32, error) {
	if text == "" {
		return 0, nil
	}
	var total int32
	previous := int32(-1)
	for i, part := range strings.Split(text, ",") {
		in, err := parseInterval(part, completions)
		if err != nil {
			return 0, err
		}
		if i > 0 && previous >= in.first {
			return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", previous, in.first)
		}
		total += in.last - in.first + 1
		previous = in.last
	}
	return total, nil
}

func parseInterval(text string, completions int32) (interval, error) {
	parts := strings.Split(text, "-")
	if len(parts) > 2 {
		return interval{}, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at most two parts separated by '-'", text)
	}
	var limits []int
	for _, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil {
			return interval{}, fmt.Errorf("cannot convert string to integer for index: %q", part)
		}
		if n >= int(completions) {
			return interval{}, fmt.Errorf("too large index: %q", part)
		}
		limits = append(limits, n)
	}
	first, last := limits[0], limits[len(limits)-1]
	if len(parts) == 2 && first >= last {
		return interval{}, fmt.Errorf("non-increasing order, previous: %d, current: %d", first, last)
	}
	return interval{int32(first), int32(last)}, nil
}
