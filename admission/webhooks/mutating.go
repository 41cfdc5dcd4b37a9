package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/budget"
)

// Mutating is the plugin MutatingAdmissionWebhook.
type Mutating struct{ *plugin }

var _ admission.Mutator = Mutating{}

// NewMutating returns the plugin.
func NewMutating(cfg Config) Mutating {
	return Mutating{newPlugin(cfg, admission.StepAdmit, admission.StepAdmit)}
}

// Name implements admission.Plugin.
func (Mutating) Name() string { return "MutatingAdmissionWebhook" }

// Admit implements admission.Mutator. Webhooks are called one after the other; each sees the
// changes of those before it.
func (m Mutating) Admit(ctx context.Context, a *admission.Attributes) error {
	w, hooks, err := m.candidates(ctx, a)
	if err != nil || len(hooks.Candidates) == 0 {
		return err
	}
	rounds := admission.RoundsOf[string](a, m.Name())
	asked := false
	sieve := hooks.Sieve(w)
	for i := range hooks.Candidates {
		if sieve.Excludes(i) {
			continue
		}
		h := hooks.Candidates[i].Item
		form, err := m.matchingForm(ctx, w, &hooks.Candidates[i])
		if err != nil {
			return err
		}
		if form == nil || a.Round > 0 && !rounds.Again(h.key) {
			continue
		}
		asked = true
		if err := m.askOne(ctx, w, h, form, rounds); err != nil {
			return err
		}
	}
	if asked || a.Round == 0 {
		rounds.End(a)
	}
	return nil
}

func (m Mutating) askOne(ctx context.Context, w *match.Write, h *hook, form *match.Form, rounds *admission.Rounds[string]) error {
	began := time.Now()
	changed, err := m.change(ctx, w, h, form)
	took := time.Since(began)
	m.measure(w, h, err, took)
	if errors.Is(err, budget.ErrBusy) {
		return err
	}
	if w.Trace != nil {
		w.Trace.Part(w.Attributes, h.part("mutatingwebhookconfigurations", err), took)
	}
	note := func(kind string) string {
		return fmt.Sprintf("%smutation.webhook.admission.k8s.io/round_%d_index_%d", kind, w.Round, h.ordinal)
	}
	if text, err := json.Marshal(mutated{h.config, h.name, changed}); err == nil {
		w.Request.Annotate(note(""), string(text))
	}
	if changed {
		rounds.Changed(w.Attributes)
	}
	if h.again {
		rounds.Asked(h.key)
	}
	var call *callError
	if !errors.As(err, &call) {
		return clientError(err)
	}
	if !h.ignore {
		m.Logger.Warn("webhook failed, the write is refused", "webhook", h.name, "error", err)
		return apierrors.NewInternalError(err)
	}
	m.Logger.Warn("webhook failed, the write goes on", "webhook", h.name, "error", err)
	if !errors.Is(err, context.Canceled) {
		w.Request.Annotate(note("failed-open."), h.name)
	}
	if ctx.Err() != nil {
		return timedOut()
	}
	return nil
}

// mutated is the audit annotation that says whether a webhook changed the object.
type mutated struct {
	Configuration string `json:"configuration"`
	Webhook       string `json:"webhook"`
	Mutated       bool   `json:"mutated"`
}

// patched is the audit annotation with the patch of a webhook.
type patched struct {
	Configuration string          `json:"configuration"`
	Webhook       string          `json:"webhook"`
	Patch         jsonpatch.Patch `json:"patch,omitempty"`
	PatchType     string          `json:"patchType,omitempty"`
}

// change calls a webhook, and applies its patch.
func (m Mutating) change(ctx context.Context, w *match.Write, h *hook, form *match.Form) (changed bool, err error) {
	e, err := encode(w, form)
	if err != nil {
		return false, err
	}
	var hold func(bytes int64) error
	replaced := false
	if w.Memory != nil {
		w.Memory.Settle(false) // the webhook takes its time
		hold = w.Memory.HoldAnswer
		defer func() { w.Memory.Settle(replaced) }()
	}
	r, err := m.call(ctx, h, e, true, hold)
	if err != nil {
		return false, err
	}
	h.passOn(w, r)
	if !r.Allowed {
		return false, h.denied(r.Result)
	}
	if len(r.Patch) == 0 {
		return false, nil
	}
	patch, err := jsonpatch.DecodePatch(r.Patch)
	if err != nil {
		return false, h.failed("received undecodable patch in webhook response: %w", err)
	}
	if len(patch) == 0 {
		return false, nil
	}
	if e.object == nil {
		return false, apierrors.NewInternalError(fmt.Errorf("admission webhook %q attempted to modify the object, which is not supported for this operation", h.name))
	}
	if *r.PatchType != admissionv1.PatchTypeJSONPatch {
		return false, h.misconfigured("unsupported patch type %q", *r.PatchType)
	}
	if changed, err = m.patch(e, patch); err != nil {
		return false, err
	}
	replaced = true
	text, err := json.Marshal(patched{h.config, h.name, patch, string(*r.PatchType)})
	if err == nil {
		w.Request.AnnotateBody(fmt.Sprintf("patch.webhook.admission.k8s.io/round_%d_index_%d", w.Round, h.ordinal), string(text))
	}
	return changed, nil
}

// patch applies a JSON patch. The result must be an object of the kind; it is defaulted.
func (m Mutating) patch(e *encoded, patch jsonpatch.Patch) (changed bool, err error) {
	before, _, err := e.form.Objects()
	if err != nil {
		return false, match.InternalError(err)
	}
	text, err := e.form.Apply(e.object, patch)
	if err != nil {
		return false, match.InternalError(err)
	}
	obj, err := e.form.Decode(text, false)
	if err != nil {
		return false, match.InternalError(err)
	}
	if err := e.form.Prune(obj); err != nil {
		return false, apierrors.NewInternalError(err)
	}
	changed = !equality.Semantic.DeepEqual(before, obj)
	_, defaults := e.form.Empty()
	defaults(obj)
	if err := e.form.Replace(obj); err != nil {
		return false, match.InternalError(err)
	}
	return changed, nil
}
