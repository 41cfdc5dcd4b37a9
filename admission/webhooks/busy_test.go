package webhooks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/admissiontest"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/resource"
)

// busyMemory is an admission.Memory that has none for large answers if busy says so.
type busyMemory struct{ busy func(of string) error }

func (busyMemory) HoldPatch(int64) error          { return nil }
func (m busyMemory) HoldAnswer(bytes int64) error { return m.busy("answer") }
func (busyMemory) HoldDecoded([]byte) error       { return nil }
func (busyMemory) Settle(bool)                    {}

// TestShortMemoryIsNoFaultOfAWebhook: when the server is short of memory for what a webhook is asked, or
// for its answer, the write is refused with budget.ErrBusy whatever the failurePolicy is, and the webhook
// is not blamed. It is short once: what is tried again succeeds.
func TestShortMemoryIsNoFaultOfAWebhook(t *testing.T) {
	s := serve(t, map[string]reply{"/deny": denying(&metav1.Status{Message: strings.Repeat("no ", 100<<10)})})
	for _, c := range []struct {
		name, condition string
		// of is what memory is asked for: the "conversion" of a widget, or the "answer" of the webhook.
		of string
	}{
		{name: "the object", of: "conversion"},
		{name: "a condition", of: "conversion", condition: "object.spec.width + 1 > 0"},
		{name: "a quick condition", of: "conversion", condition: "object.spec.width > 1"},
		{name: "a needed value", of: "conversion", condition: "object.metadata.name == 'w'"},
		{name: "the answer", of: "answer"},
	} {
		for kind, configure := range map[string]func(string, ...registrationv1.MutatingWebhook) resource.Object{"mutating": mutatingConfig, "validating": validatingConfig} {
			for _, failure := range []registrationv1.FailurePolicyType{registrationv1.Ignore, registrationv1.Fail} {
				t.Run(fmt.Sprintf("%s: %s, %s", kind, c.name, failure), func(t *testing.T) {
					counts := &admissiontest.Counts{}
					try := func(short bool) error {
						busy := func(of string) error {
							if of != c.of || !short {
								return nil
							}
							short = false
							return fmt.Errorf("who asks: %w", budget.ErrBusy)
						}
						cfg := config(t, configure("c", s.hook("x.example.com", "/deny", func(w *registrationv1.MutatingWebhook) {
							w.Rules[0].APIVersions, w.FailurePolicy = []string{"v1beta1"}, &failure
							if c.condition != "" {
								w.MatchConditions = []registrationv1.MatchCondition{{Name: "c", Expression: c.condition}}
							}
						})))
						cfg.Client.Hold = func(context.Context, int64) (func(), error) { return func() {}, busy("answer") }
						if short {
							cfg.Metrics = counts
						}
						catalog := admissiontest.Catalog()
						admissiontest.OnConversion(catalog, func() error { return busy("conversion") })
						a := admissiontest.Write(catalog, admission.Create, "v1", "widgets", admissiontest.Widget("w", 5), nil)
						a.Memory = busyMemory{busy}
						if kind == "mutating" {
							return admitted(admission.NewChain(NewMutating(cfg)), a)
						}
						return admitted(admission.NewChain(NewValidating(cfg)), a)
					}
					if err := try(false); err == nil || !strings.Contains(err.Error(), "denied the request") {
						t.Fatalf("with memory: got %.100v, so the webhook is not asked", err)
					}
					err := try(true)
					if !errors.Is(err, budget.ErrBusy) {
						t.Fatalf("got %.100v, want budget.ErrBusy", err)
					}
					if text := err.Error(); strings.Contains(text, "x.example.com") || strings.Contains(text, "failed") {
						t.Errorf("the webhook is blamed: %.100s", text)
					}
					if n := counts.Of(admission.WebhookRequests, admission.WebhookRejections, admission.WebhookFailOpen, admission.ConditionErrors, admission.ConditionExclusions); n != 0 {
						t.Errorf("%d failures of the webhook are counted", n)
					}
				})
			}
		}
	}
}
