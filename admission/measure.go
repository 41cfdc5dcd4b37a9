package admission

import "time"

// Metrics has the series of what is measured in admission.
type Metrics interface {
	// Series returns the series of a metric with values of its labels. It is made
	// when something is first observed.
	Series(metric string, labels ...string) Series
}

// Series takes measurements: seconds, or by how many a count grows.
type Series = interface{ Observe(value float64) }

// The metrics, as their names end, with their labels.
const (
	// StepDuration: type, operation, rejected.
	StepDuration = "step_admission_duration_seconds"
	// PluginDuration: name, type, operation, rejected.
	PluginDuration = "controller_admission_duration_seconds"
	// WebhookDuration: name, type, operation, rejected.
	WebhookDuration = "webhook_admission_duration_seconds"
	// WebhookRequests: name, type, operation, code, rejected.
	WebhookRequests = "webhook_request_total"
	// WebhookRejections: name, type, operation, error_type, rejection_code.
	WebhookRejections = "webhook_rejection_count"
	// WebhookFailOpen: name, type.
	WebhookFailOpen = "webhook_fail_open_count"
	// ConditionDuration, ConditionErrors, ConditionExclusions: name, kind, type,
	// operation.
	ConditionDuration   = "match_condition_evaluation_seconds"
	ConditionErrors     = "match_condition_evaluation_errors_total"
	ConditionExclusions = "match_condition_exclusions_total"
	// ValidatingChecks, ValidatingDuration: policy, policy_binding, error_type,
	// enforcement_action.
	ValidatingChecks   = "validating_admission_policy_check_total"
	ValidatingDuration = "validating_admission_policy_check_duration_seconds"
	// MutatingChecks, MutatingDuration: policy, policy_binding, error_type.
	MutatingChecks   = "mutating_admission_policy_check_total"
	MutatingDuration = "mutating_admission_policy_check_duration_seconds"
)

// The values of the label type.
const (
	StepAdmit    = "admit"
	StepValidate = "validate"
)

// SeriesOf returns a series of metrics, or one that nobody looks at if there are
// none.
func SeriesOf(m Metrics, metric string, labels ...string) Series {
	if m == nil {
		return unseen{}
	}
	return m.Series(metric, labels...)
}

type unseen struct{}

// Observe implements Series.
func (unseen) Observe(float64) {}

// outcomes are a series for what was admitted, and one for what was refused.
type outcomes struct{ admitted, rejected Series }

func outcomesOf(m Metrics, metric string, labels ...string) outcomes {
	with := func(rejected string) Series {
		return SeriesOf(m, metric, append(labels[:len(labels):len(labels)], rejected)...)
	}
	return outcomes{with("false"), with("true")}
}

// end observes how long something took that began at a time, and returns the
// time of now.
func (o *outcomes) end(began time.Time, err error) time.Time {
	now := time.Now()
	s := o.admitted
	if err != nil {
		s = o.rejected
	}
	s.Observe(now.Sub(began).Seconds())
	return now
}
