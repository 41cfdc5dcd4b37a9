package batch

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/resource"
)

func wantErrors(t *testing.T, errs field.ErrorList, want ...string) {
	t.Helper()
	var got []string
	for _, e := range errs {
		got = append(got, e.Error())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// newJob is a valid one, as it is stored.
func newJob(change func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j", Namespace: "n", UID: "u"}}
	j.Spec.Template = corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}
	if change != nil {
		change(j)
	}
	defaultJob(j)
	Jobs().Strategy.PrepareCreate(context.Background(), j)
	return j
}

func indexed(j *batchv1.Job) {
	j.Spec.CompletionMode, j.Spec.Completions, j.Spec.BackoffLimitPerIndex = ptr.To(batchv1.IndexedCompletion), ptr.To[int32](6), ptr.To[int32](1)
}

func TestJobSelector(t *testing.T) {
	j := newJob(func(j *batchv1.Job) { j.Spec.Template.Labels = map[string]string{"a": "b"} })
	want := map[string]string{"a": "b", "job-name": "j", "controller-uid": "u", batchv1.JobNameLabel: "j", batchv1.ControllerUidLabel: "u"}
	if !maps.Equal(j.Spec.Template.Labels, want) || !maps.Equal(j.Labels, want) {
		t.Errorf("labels: %v, of the template: %v", j.Labels, j.Spec.Template.Labels)
	}
	if got := j.Spec.Selector.MatchLabels; !maps.Equal(got, map[string]string{batchv1.ControllerUidLabel: "u"}) {
		t.Errorf("selector: %v", got)
	}
	j = newJob(func(j *batchv1.Job) { j.Spec.Template.Labels = map[string]string{"job-name": "other"} })
	wantErrors(t, Jobs().Strategy.Validate(context.Background(), j),
		`spec.template.metadata.labels[job-name]: Invalid value: {"batch.kubernetes.io/controller-uid":"u","batch.kubernetes.io/job-name":"j","controller-uid":"u","job-name":"other"}: must be 'j'`)
}

func TestJobValidation(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*batchv1.Job)
		want   []string
	}{
		"valid":   {nil, nil},
		"indexed": {indexed, nil},
		"restart": {func(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = "" }, []string{
			`spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`,
		}},
		"not indexed": {func(j *batchv1.Job) { j.Spec.MaxFailedIndexes = ptr.To[int32](1) }, []string{
			"spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
			"spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode",
		}},
		"many": {func(j *batchv1.Job) {
			indexed(j)
			j.Spec.Completions, j.Spec.Parallelism = ptr.To[int32](100_001), ptr.To[int32](10_001)
		}, []string{
			"spec.maxFailedIndexes: Required value: must be specified when completions is above 100000",
			"spec.parallelism: Invalid value: 10001: must be less than or equal to 10000 when completions are above 100000 and used with backoff limit per index",
		}},
		"long name": {func(j *batchv1.Job) { indexed(j); j.Name = strings.Repeat("a", 62) }, []string{
			"metadata.name: Invalid value: \"" + strings.Repeat("a", 62) + "\": will not able to create pod with invalid DNS label: " + strings.Repeat("a", 62) + "-5",
		}},
		// kube-apiserver cannot answer this one.
		"no completions": {func(j *batchv1.Job) {
			indexed(j)
			j.Spec.Completions, j.Spec.Parallelism = nil, ptr.To[int32](1)
			j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: ptr.To[int32](1)}}}
		}, []string{
			"spec.completions: Required value: when completion mode is Indexed",
			"spec.successPolicy.rules[0].succeededCount: Invalid value: 1: must be less than or equal to 0 (the number of specified completions)",
		}},
		"exit codes": {func(j *batchv1.Job) {
			j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action: batchv1.PodFailurePolicyActionFailIndex,
				OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
					ContainerName: ptr.To("x"), Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{3, 0, 3},
				},
			}}}
		}, []string{
			`spec.podFailurePolicy.rules[0].action: Invalid value: "FailIndex": requires the backoffLimitPerIndex to be set`,
			`spec.podFailurePolicy.rules[0].onExitCodes.containerName: Invalid value: "x": must be one of the container or initContainer names in the pod template`,
			"spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [3,0,3]: must be ordered",
			"spec.podFailurePolicy.rules[0].onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator",
			"spec.podFailurePolicy.rules[0].onExitCodes.values[2]: Duplicate value: 3",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			wantErrors(t, Jobs().Strategy.Validate(context.Background(), newJob(test.change)), test.want...)
		})
	}
}

func TestJobTemplateUpdate(t *testing.T) {
	ctx, s := context.Background(), Jobs().Strategy
	move := func(j *batchv1.Job) *batchv1.Job {
		j = j.DeepCopy()
		j.Spec.Template.Spec.NodeSelector = map[string]string{"zone": "a"}
		j.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
		j.Spec.Template.Annotations = map[string]string{"a": "b"}
		return j
	}
	running := newJob(nil)
	if errs := s.ValidateUpdate(ctx, move(running), running); len(errs) != 1 || errs[0].Field != "spec.template" {
		t.Errorf("running: %v", errs)
	}
	suspended := newJob(func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) })
	wantErrors(t, s.ValidateUpdate(ctx, move(suspended), suspended))
	wantErrors(t, s.ValidateUpdate(ctx, suspended, move(suspended)))
	other := suspended.DeepCopy()
	other.Spec.Template.Spec.Containers[0].Image = "x"
	if errs := s.ValidateUpdate(ctx, other, suspended); len(errs) != 1 || errs[0].Field != "spec.template.spec" {
		t.Errorf("suspended: %v", errs)
	}
}

func TestJobStatus(t *testing.T) {
	sub := Jobs().Subresources[0].Part
	now, later := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	conditions := func(kinds ...batchv1.JobConditionType) []batchv1.JobCondition {
		var out []batchv1.JobCondition
		for _, kind := range kinds {
			out = append(out, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue})
		}
		return out
	}
	done := batchv1.JobStatus{Conditions: conditions(batchv1.JobComplete, batchv1.JobSuccessCriteriaMet), StartTime: &now, CompletionTime: &later}
	for name, test := range map[string]struct {
		old, status batchv1.JobStatus
		want        []string
	}{
		"done": {batchv1.JobStatus{StartTime: &now}, done, nil},
		"undone": {done, batchv1.JobStatus{StartTime: &now}, []string{
			"status.conditions: Invalid value: cannot disable the SuccessCriteriaMet=True condition",
			"status.conditions: Invalid value: cannot disable the terminal Complete=True condition",
		}},
		"nothing but the condition": {batchv1.JobStatus{}, batchv1.JobStatus{Conditions: conditions(batchv1.JobComplete)}, []string{
			"status.completionTime: Required value: completionTime is required for Complete jobs",
			"status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
			"status.startTime: Required value: startTime is required for finished job",
		}},
		"started again": {batchv1.JobStatus{StartTime: &now}, batchv1.JobStatus{StartTime: &later}, []string{
			`status.startTime: Invalid value: "1970-01-01T00:33:20Z": field is immutable for unsuspended job once set`,
		}},
		"overlap": {batchv1.JobStatus{}, batchv1.JobStatus{CompletedIndexes: "0-2", FailedIndexes: ptr.To("2,4")}, []string{
			`status.failedIndexes: Invalid value: "2,4": failedIndexes and completedIndexes overlap at index: 2`,
		}},
		"fewer": {batchv1.JobStatus{Failed: 2, Succeeded: 2}, batchv1.JobStatus{Failed: 1, Succeeded: 1}, []string{
			"status.failed: Invalid value: 1: cannot decrease the failed counter",
			"status.succeeded: Invalid value: 1: cannot decrease the succeeded counter",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			old, j := newJob(indexed), newJob(indexed)
			old.Status, j.Status = test.old, test.status
			wantErrors(t, sub.ValidateUpdate(context.Background(), j, old), test.want...)
		})
	}
}

func TestCountIndexes(t *testing.T) {
	for text, want := range map[string]string{
		"":      "0",
		"0,2-4": "4",
		"1,0":   "non-increasing order, previous: 1, current: 0",
		"2-2":   "non-increasing order, previous: 2, current: 2",
		"0-9":   `too large index: "9"`,
		"0-1-2": `the fragment "0-1-2" violates the requirement that an index interval can have at most two parts separated by '-'`,
		"x":     `cannot convert string to integer for index: "x"`,
	} {
		n, err := countIndexes(text, 6)
		got := string(rune('0' + n))
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestCronJob(t *testing.T) {
	ctx, s := context.Background(), CronJobs().Strategy
	newCronJob := func(change func(*batchv1.CronJob)) *batchv1.CronJob {
		c := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
		c.Spec.Schedule = "0 * * * *"
		c.Spec.JobTemplate.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		defaultCronJob(c)
		if change != nil {
			change(c)
		}
		return c
	}
	for name, test := range map[string]struct {
		change func(*batchv1.CronJob)
		want   []string
	}{
		"valid": {func(c *batchv1.CronJob) { c.Spec.TimeZone = ptr.To("Europe/Berlin") }, nil},
		"no schedule": {func(c *batchv1.CronJob) { c.Spec.Schedule = "" }, []string{
			"spec.schedule: Required value",
		}},
		"zone in the schedule": {func(c *batchv1.CronJob) { c.Spec.Schedule = "TZ=UTC 0 * * * *" }, []string{
			`spec.schedule: Invalid value: "TZ=UTC 0 * * * *": cannot use TZ or CRON_TZ in schedule, use timeZone field instead`,
		}},
		"local": {func(c *batchv1.CronJob) { c.Spec.TimeZone = ptr.To("Local") }, []string{
			`spec.timeZone: Invalid value: "Local": timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones`,
		}},
		"path": {func(c *batchv1.CronJob) { c.Spec.TimeZone = ptr.To("../x") }, []string{`spec.timeZone: Invalid value: "../x": unknown time zone ../x`}},
		"selector": {func(c *batchv1.CronJob) {
			c.Spec.JobTemplate.Spec.Selector, c.Spec.JobTemplate.Spec.ManualSelector = &metav1.LabelSelector{}, ptr.To(true)
		}, []string{
			"spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: \"nil\", \"false\"",
			"spec.jobTemplate.spec.selector: Invalid value: {}: `selector` will be auto-generated",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			wantErrors(t, resource.DeclaredLast(s.Validate(ctx, newCronJob(test.change))), test.want...)
		})
	}
	// The parser panics on this one.
	if err := parseSchedule("TZ=0"); err == nil {
		t.Error("a zone without a schedule")
	}
	zoned := newCronJob(func(c *batchv1.CronJob) { c.Spec.Schedule = "TZ=UTC 0 * * * *" })
	wantErrors(t, s.ValidateUpdate(ctx, zoned, zoned))
}

func TestJobCells(t *testing.T) {
	start := metav1.Unix(1000, 0)
	for _, test := range []struct {
		change                       func(*batchv1.Job)
		state, completions, duration string
	}{
		{func(*batchv1.Job) {}, "Running", "0/1", ""},
		{func(j *batchv1.Job) { j.Spec.Completions, *j.Spec.Parallelism = nil, 3 }, "Running", "0/1 of 3", ""},
		{func(j *batchv1.Job) {
			j.Status = batchv1.JobStatus{
				Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}},
				Succeeded:  1, StartTime: &start, CompletionTime: ptr.To(metav1.NewTime(start.Add(90 * time.Second))),
			}
		}, "Complete", "1/1", "90s"},
	} {
		j := newJob(nil)
		test.change(j)
		cells, err := Jobs().Cells(j)
		if err != nil || cells[1] != test.state || cells[2] != test.completions || cells[3] != test.duration {
			t.Errorf("%v, %v", cells, err)
		}
	}
}
