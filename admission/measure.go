package admission

import (
	"time"

	"github.com/apikeel/kelson/metrics/measure"
)

// Metrics has the series of what is measured in admission.
type Metrics = measure.Sink

// Series takes measurements: seconds, or by how many a count grows.
type Series = measure.Series

// The metrics, with their labels.
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

// SeriesOf returns a series of metrics, or one that nobody looks at if there are
// none.
func SeriesOf(m Metrics, metric string, labels ...string) Series {
	return measure.SeriesOf(m, metric, labels...)
}

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
