package rest

import (
	"context"
	"net/http"
	"testing"

	"github.com/apikeel/kelson/resource"
)

// TestCreatedMeanwhile: an update that creates what it does not find becomes a change if
// somebody else creates the object in between.
func TestCreatedMeanwhile(t *testing.T) {
	var h *Handler
	others := 0
	h, _ = serve(t, func(def *resource.Definition) {
		def.Strategy.CreateOnUpdate = true
		def.Strategy.PrepareCreate = func(_ context.Context, obj resource.Object) {
			if others == 0 {
				others++
				do(t, h, "POST", "/api/v1/namespaces/a/configmaps", `{"metadata":{"name":"x"},"data":{"by":"other"}}`)
			}
		}
	})
	a := do(t, h, "PUT", "/api/v1/namespaces/a/configmaps/x", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"by":"me"}}`)
	if data, _ := a.object["data"].(map[string]any); a.code != http.StatusOK || data["by"] != "me" || others != 1 {
		t.Errorf("got %d after %d others: %s, want 200 and the data of the update", a.code, others, a.body)
	}
}
