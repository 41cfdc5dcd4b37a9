package rest

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
	"k8s.io/apimachinery/pkg/sharding"
)

const (
	lowerHalf = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')"
	upperHalf = "shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')"
)

// TestShardsOfListsAndWatches wants objects to be listed, watched and deleted by those who
// ask for their shard, and the parameter to be ignored unless the handler has shards.
func TestShardsOfListsAndWatches(t *testing.T) {
	h, _ := serve(t, nil)
	const objects = 20
	lower := map[string]bool{}
	for i := range objects {
		a := do(t, h, "POST", configMaps, fmt.Sprintf(`{"metadata":{"name":"c%02d"}}`, i))
		uid, _ := a.meta("uid").(string)
		if uid == "" {
			t.Fatalf("create: %s", a.body)
		}
		if sharding.HashField(uid) < "8" {
			lower[fmt.Sprintf("c%02d", i)] = true
		}
	}
	query := func(selector string) string { return "?shardSelector=" + url.QueryEscape(selector) }
	names := func(a answer) (names []string) {
		items, _ := a.object["items"].([]any)
		for _, item := range items {
			names = append(names, item.(map[string]any)["metadata"].(map[string]any)["name"].(string))
		}
		return names
	}
	if a := do(t, h, "GET", configMaps+query(lowerHalf), ""); len(names(a)) != objects || a.meta("shardInfo") != nil {
		t.Errorf("without shards: got %d objects and shardInfo %v, want %d and none", len(names(a)), a.meta("shardInfo"), objects)
	}
	if a := do(t, h, "GET", configMaps+query("nonsense"), ""); a.code != 200 {
		t.Errorf("without shards, a wrong selector: got %d, want 200", a.code)
	}
	h.Shards = true
	if a := do(t, h, "GET", configMaps+query("nonsense"), ""); a.code != 500 || !strings.HasPrefix(a.message(), "invalid shard selector: unexpected expression kind") {
		t.Errorf("a wrong selector: got %d %s", a.code, a.message())
	}
	for selector, wantLower := range map[string]bool{lowerHalf: true, upperHalf: false} {
		a := do(t, h, "GET", configMaps+query(selector), "")
		got := names(a)
		want := len(lower)
		if !wantLower {
			want = objects - len(lower)
		}
		if len(got) != want {
			t.Errorf("%s: got %d objects, want %d", selector, len(got), want)
		}
		for _, name := range got {
			if lower[name] != wantLower {
				t.Errorf("%s: %s is of the other shard", selector, name)
			}
		}
		if info, _ := a.meta("shardInfo").(map[string]any); info["selector"] != selector {
			t.Errorf("%s: shardInfo is %v", selector, info)
		}
		if a := do(t, h, "GET", configMaps+query(selector), "", "Accept", "application/json;as=Table;g=meta.k8s.io;v=v1"); a.meta("shardInfo") != nil || strings.Count(a.body, `"cells"`) != want {
			t.Errorf("%s as a table: %s", selector, a.body)
		}
		// A page is what is left of the objects that were looked at.
		page := do(t, h, "GET", configMaps+query(selector)+"&limit=1", "")
		if want > 1 && (len(names(page)) != 1 || page.meta("continue") == nil || page.meta("remainingItemCount") != nil) {
			t.Errorf("%s in pages: %s", selector, page.body)
		}
		if events := watched(t, h, configMaps+query(selector)+"&watch=true&timeoutSeconds=1"); strings.Count(events, `"ADDED"`) != want {
			t.Errorf("%s: got the events %s, want %d", selector, events, want)
		}
	}
	byNamespace := 0
	for _, selector := range []string{lowerHalf, upperHalf} {
		byNamespace += len(names(do(t, h, "GET", configMaps+query(strings.ReplaceAll(selector, "uid", "namespace")), "")))
	}
	if byNamespace != objects {
		t.Errorf("by namespace: got %d objects in both shards, want %d", byNamespace, objects)
	}
	do(t, h, "DELETE", configMaps+query(lowerHalf), "")
	if a := do(t, h, "GET", configMaps, ""); len(names(a)) != objects-len(lower) {
		t.Errorf("after a shard was deleted: got %d objects, want %d", len(names(a)), objects-len(lower))
	}
}

// watched returns what a watch has sent when its client goes.
func watched(t *testing.T, h *Handler, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, "GET", path, nil)
	info, err := request.Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.Route(w, r.WithContext(request.With(ctx, &request.Request{Info: info, Received: time.Now(), Warned: &request.Warnings{}})))
	return w.Body.String()
}
