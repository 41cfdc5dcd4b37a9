package metrics

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/apikeel/kelson/admission"
)

var _ admission.Metrics = (*Admission)(nil)

func TestAdmission(t *testing.T) {
	r := New()
	m := NewAdmission(r)
	for metric, labels := range map[string]int{
		admission.StepDuration: 3, admission.PluginDuration: 4, admission.WebhookDuration: 4, admission.WebhookRequests: 5, admission.WebhookRejections: 5,
		admission.WebhookFailOpen: 2, admission.ConditionDuration: 4, admission.ConditionErrors: 4, admission.ConditionExclusions: 4,
		admission.ValidatingChecks: 4, admission.ValidatingDuration: 4, admission.MutatingChecks: 3, admission.MutatingDuration: 3,
	} {
		m.Series(metric, []string{"a", "b", "c", "d", "e"}[:labels]...).Observe(1)
		if text := show(t, r); !strings.Contains(text, "_"+metric+"{") && !strings.Contains(text, "_"+metric+"_sum{") {
			t.Errorf("no %s", metric)
		}
	}
	kept := m.Series(admission.WebhookFailOpen, "n", "admit")
	for range 2 {
		kept.Observe(1)
	}
	if want := `apiserver_admission_webhook_fail_open_count{name="n",type="admit"} 2`; !strings.Contains(show(t, r), want) {
		t.Errorf("no %s", want)
	}
	r.Handler(true).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("DELETE", "/metrics", nil))
	kept.Observe(1)
	if want := `apiserver_admission_webhook_fail_open_count{name="n",type="admit"} 1`; !strings.Contains(show(t, r), want) {
		t.Errorf("after a reset, no %s", want)
	}
	for i := range maxNamed + 10 {
		m.Series(admission.WebhookFailOpen, fmt.Sprint(i), "admit").Observe(1)
	}
	if n := strings.Count(show(t, r), "webhook_fail_open_count{"); n > maxNamed+1 {
		t.Errorf("there are %d series", n)
	}
}
