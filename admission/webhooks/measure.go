package webhooks

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/request"
)

// maxCode bounds the cardinality of the label code: webhooks choose their codes.
const maxCode = 600

// measure records the result of a call. One for which the server was short of memory has none.
func (p *plugin) measure(w *match.Write, h *hook, err error, took time.Duration) {
	part := request.ValidatingWebhooks
	if p.step == admission.StepAdmit {
		part = request.MutatingWebhooks
	}
	w.Request.Spent(part, took)
	if errors.Is(err, budget.ErrBusy) {
		return
	}
	step, op, code, rejected := p.kind, string(w.Operation), http.StatusOK, err != nil
	why := "" // why the write is refused
	var call *callError
	var no *denial
	switch {
	case errors.As(err, &call):
		code, rejected = call.code(), !h.ignore
		switch canceled := errors.Is(err, context.Canceled); {
		case canceled:
		case h.ignore:
			admission.SeriesOf(p.Metrics, admission.WebhookFailOpen, h.name, step).Observe(1)
		default:
			why = "calling_webhook_error"
		}
	case errors.As(err, &no):
		code, why = int(no.ErrStatus.Code), "no_error"
	case err != nil:
		code, why = 0, "apiserver_internal_error"
	}
	text := strconv.Itoa(min(code, maxCode))
	if why != "" {
		admission.SeriesOf(p.Metrics, admission.WebhookRejections, h.name, step, op, why, text).Observe(1)
	}
	admission.SeriesOf(p.Metrics, admission.WebhookRequests, h.name, step, op, text, strconv.FormatBool(rejected)).Observe(1)
	admission.SeriesOf(p.Metrics, admission.WebhookDuration, h.name, step, op, strconv.FormatBool(rejected)).Observe(took.Seconds())
}

// code returns the code of a failed call for metrics: that of the response, if there is one.
func (e *callError) code() int {
	if e.status != 0 {
		return e.status
	}
	if status, ok := errors.Unwrap(e.reason).(*apierrors.StatusError); ok {
		return int(status.ErrStatus.Code)
	}
	return http.StatusServiceUnavailable
}
