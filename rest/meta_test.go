package rest

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/resource"
)

// ownersWithoutMemory are Owners for which there is no memory.
type ownersWithoutMemory struct{ Owners }

func (ownersWithoutMemory) Update(_ *resource.Served, _ string, _, obj resource.Object, _ string, _ time.Time) (resource.Object, error) {
	return obj, fmt.Errorf("the webhook: %w", budget.ErrBusy)
}

func (ownersWithoutMemory) KeepTimes(_, _ resource.Object) {}

// TestOwnersNeedMemory: a write for whose owners of fields there is no memory is refused, and not done
// without them.
func TestOwnersNeedMemory(t *testing.T) {
	h, _ := serve(t, nil)
	if a := do(t, h, "POST", configMaps, `{"metadata":{"name":"a"}}`); a.code != http.StatusCreated {
		t.Fatalf("got %d %s, want 201", a.code, a.body)
	}
	before := do(t, h, "GET", configMaps, "").body
	h.Owners = ownersWithoutMemory{}
	for _, c := range []struct{ method, path, body, contentType string }{
		{"POST", configMaps, `{"metadata":{"name":"b"}}`, "application/json"},
		{"PUT", configMaps + "/a", `{"metadata":{"name":"a"},"data":{"x":"y"}}`, "application/json"},
		{"PATCH", configMaps + "/a", `{"data":{"x":"y"}}`, "application/merge-patch+json"},
	} {
		a := do(t, h, c.method, c.path, c.body, "Content-Type", c.contentType)
		if a.code != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: got %d %v %s, want 429 with Retry-After", c.method, a.code, a.header, a.body)
		}
		if after := do(t, h, "GET", configMaps, "").body; after != before {
			t.Errorf("%s: something was written: got %s, want %s", c.method, after, before)
		}
	}
}
