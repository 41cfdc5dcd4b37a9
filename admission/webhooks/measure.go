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
	"github.com/apikeel/kelson/request"
)

// maxCode bounds the codes that are told apart: services make them up.
const maxCode = 600

// measure counts what has become of asking a webhook.
func (p *plugin) measure(w *match.Write, h *hook, step string, err error, took time.Duration) {
	part := request.ValidatingWebhooks
	if step == "admit" {
		part = request.MutatingWebhooks
	}
	w.Request.Spent(part, took)
	op, code, rejected := string(w.Operation), http.StatusOK, err != nil
	why := "" // the write is refused
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

// code is what a failed call counts as: what the service has answered, if it has.
func (e *callError) code() int {
	var status apierrors.APIStatus
	if errors.As(e.reason, &status) {
		return int(status.Status().Code)
	}
	return http.StatusServiceUnavailable
}
