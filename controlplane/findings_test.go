package controlplane

import (
	"testing"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/usage"
)

func TestWebhookCosts(t *testing.T) {
	a := &assembly{registry: metrics.New()}
	a.measured = metrics.NewFamilies(a.registry)
	for range 3 {
		a.measured.Series(admission.WebhookDuration, "slow.example.com", "admit", "CREATE", "false").Observe(2)
	}
	a.measured.Series(admission.WebhookDuration, "fast.example.com", "validating", "CREATE", "true").Observe(0.5)
	a.measured.Series(admission.WebhookRejections, "fast.example.com", "validating", "CREATE", "no_error", "403").Observe(1)
	a.measured.Series(admission.WebhookRejections, "slow.example.com", "admit", "CREATE", "calling_webhook_error", "503").Observe(1)
	a.measured.Series(admission.WebhookFailOpen, "slow.example.com", "admit").Observe(1)
	got := a.webhookCosts()
	want := []usage.Webhook{
		{Name: "slow.example.com", Type: "admit", Requests: 3, TotalSeconds: 6, MeanSeconds: 2, Failed: 2, FailedOpen: 1},
		{Name: "fast.example.com", Type: "validating", Requests: 1, TotalSeconds: 0.5, MeanSeconds: 0.5, Rejected: 1},
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestInsertLargest(t *testing.T) {
	var list []usage.Size
	for i := range int64(100) {
		list = insertLargest(list, usage.Size{Bytes: i * 37 % 100})
	}
	for i, size := range list {
		if size.Bytes != int64(99-i) || len(list) != largestShown {
			t.Fatalf("got %+v, want the %d largest, largest first", list, largestShown)
		}
	}
}
