package admission

import (
	"time"

	"github.com/apikeel/kelson/metrics/measure"
)

// Metrics makes the series of admission metrics.
type Metrics = measure.Sink

// Series receives measurements: seconds, or increments of a counter.
type Series = measure.Series

// Metrics, with their labels.
const (
	// StepDuration: type, operation, rejected.
	StepDuration = "apiserver_admission_step_admission_duration_seconds"
	// PluginDuration: name, type, operation, rejected.
	PluginDuration = "apiserver_admission_controller_admission_duration_seconds"
	// WebhookDuration: name, type, operation, rejected.
	WebhookDuration = "apiserver_admission_webhook_admission_duration_seconds"
	// WebhookRequests: name, type, operation, code, rejected.
	WebhookRequests = "apiserver_admission_webhook_request_total"
	// WebhookRejections: name, type, operation, error_type, rejection_code.
	WebhookRejections = "apiserver_admission_webhook_rejection_count"
	// WebhookFailOpen: name, type.
	WebhookFailOpen = "apiserver_admission_webhook_fail_open_count"
	// ConditionDuration, ConditionErrors, ConditionExclusions: name, kind, type,
	// operation.
	ConditionDuration   = "apiserver_admission_match_condition_evaluation_seconds"
	ConditionErrors     = "apiserver_admission_match_condition_evaluation_errors_total"
	ConditionExclusions = "apiserver_admission_match_condition_exclusions_total"
	// ValidatingChecks, ValidatingDuration: policy, policy_binding, error_type,
	// enforcement_action.
	ValidatingChecks   = "apiserver_validating_admission_policy_check_total"
	ValidatingDuration = "apiserver_validating_admission_policy_check_duration_seconds"
	// MutatingChecks, MutatingDuration: policy, policy_binding, error_type.
	MutatingChecks   = "apiserver_mutating_admission_policy_check_total"
	MutatingDuration = "apiserver_mutating_admission_policy_check_duration_seconds"
)

// The values of the label type.
const (
	StepAdmit    = "admit"
	StepValidate = "validate"
)

// SeriesOf returns a series of metrics, or one that discards measurements if m is nil.
func SeriesOf(m Metrics, metric string, labels ...string) Series {
	return measure.SeriesOf(m, metric, labels...)
}

// outcomes has one series for admitted writes and one for refused ones.
type outcomes struct{ admitted, rejected Series }

func outcomesOf(m Metrics, metric string, labels ...string) outcomes {
	with := func(rejected string) Series {
		return SeriesOf(m, metric, append(labels[:len(labels):len(labels)], rejected)...)
	}
	return outcomes{with("false"), with("true")}
}

// end records how long something took that began at a time, and returns the current time.
func (o *outcomes) end(began time.Time, err error) time.Time {
	now := time.Now()
	s := o.admitted
	if err != nil {
		s = o.rejected
	}
	s.Observe(now.Sub(began).Seconds())
	return now
}
