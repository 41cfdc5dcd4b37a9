package webhooks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/protect"
)

// Validating is the plugin ValidatingAdmissionWebhook.
type Validating struct{ *plugin }

var _ admission.Validator = Validating{}

// NewValidating returns the plugin.
func NewValidating(cfg Config) Validating {
	return Validating{newPlugin(cfg, admission.StepValidate, "validating")}
}

// Name implements admission.Plugin.
func (Validating) Name() string { return "ValidatingAdmissionWebhook" }

// answerFactor is how many times its bytes an answer takes: its text, which grows by doubling, and
// what it is decoded into.
const answerFactor = 6

// outcome is the call of one hook and its result.
type outcome struct {
	hook     *hook
	encoded  *encoded
	response *admissionv1.AdmissionResponse
	err      error
	took     time.Duration
}

// Validate implements admission.Validator. All webhooks are called concurrently; of several
// refusals the first in the order of hooks is returned.
func (v Validating) Validate(ctx context.Context, a *admission.Attributes) error {
	w, hooks, err := v.candidates(ctx, a)
	if err != nil || len(hooks.Candidates) == 0 {
		return err
	}
	outcomes, err := v.prepare(ctx, w, hooks)
	if err != nil || len(outcomes) == 0 {
		return err
	}
	if ctx.Err() != nil {
		return timedOut()
	}
	var asking sync.WaitGroup
	for i := range outcomes {
		o := &outcomes[i]
		asking.Go(func() {
			began := time.Now()
			defer func() {
				o.took = time.Since(began)
				if r := recover(); r != nil { // a panic in a goroutine would end the process
					v.Logger.Error("asking a webhook caused a panic", "webhook", o.hook.name, "panic", r, "stack", string(protect.Stack(r)))
					o.err = apierrors.NewInternalError(fmt.Errorf("ValidatingAdmissionWebhook/%v has panicked: %v", o.hook.name, r))
				}
			}()
			hold, release := v.Client.Holding(ctx, answerFactor)
			defer release()
			o.response, o.err = v.call(ctx, o.hook, o.encoded, false, hold)
		})
	}
	asking.Wait()
	var first error
	for i := range outcomes {
		if err := v.conclude(w, i, &outcomes[i]); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// prepare returns the hooks to call, with the encoded objects.
func (v Validating) prepare(ctx context.Context, w *match.Write, hooks *match.Found[*hook]) ([]outcome, error) {
	var outcomes []outcome
	known := map[*match.Form]*encoded{}
	sieve := hooks.Sieve(w)
	for i := range hooks.Candidates {
		if sieve.Excludes(i) {
			continue
		}
		h := hooks.Candidates[i].Item
		form, err := v.matchingForm(ctx, w, &hooks.Candidates[i])
		if err != nil {
			return nil, err
		}
		if form == nil {
			continue
		}
		if known[form] == nil {
			if known[form], err = encode(w, form); err != nil {
				return nil, err
			}
		}
		outcomes = append(outcomes, outcome{hook: h, encoded: known[form]})
	}
	return outcomes, nil
}

func (v Validating) conclude(w *match.Write, index int, o *outcome) error {
	var call *callError
	err := o.err
	if err == nil && !o.response.Allowed {
		err = o.hook.denied(o.response.Result)
	}
	v.measure(w, o.hook, err, o.took)
	if errors.Is(err, budget.ErrBusy) {
		return err
	}
	if w.Trace != nil {
		w.Trace.Part(w.Attributes, o.hook.part("validatingwebhookconfigurations", err), o.took)
	}
	switch {
	case errors.As(o.err, &call) && o.hook.ignore:
		v.Logger.Warn("webhook failed, the write goes on", "webhook", o.hook.name, "error", o.err)
		if !errors.Is(o.err, context.Canceled) {
			w.Request.Annotate(fmt.Sprintf("failed-open.validating.webhook.admission.k8s.io/round_0_index_%d", index), o.hook.name)
		}
		return nil
	case call != nil:
		v.Logger.Warn("webhook failed, the write is refused", "webhook", o.hook.name, "error", o.err)
		return apierrors.NewInternalError(o.err)
	case o.err != nil:
		return o.err
	}
	o.hook.passOn(w, o.response)
	return clientError(err)
}

func timedOut() error {
	return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
}
