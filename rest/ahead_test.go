package rest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/store"
)

// countedValues counts how often a single value is read.
type countedValues struct {
	*engine.Engine
	reads atomic.Int64
}

func (c *countedValues) Value(ctx context.Context, key string, revision int64) ([]byte, error) {
	c.reads.Add(1)
	return c.Engine.Value(ctx, key, revision)
}

// TestManyValuesAreReadAtOnce: lists and the initial events of watches read values that are
// out of memory by scans, not one by one.
func TestManyValuesAreReadAtOnce(t *testing.T) {
	t.Parallel() // watches wait for their time-outs
	e, err := engine.Open(engine.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	backend := &countedValues{Engine: e}
	h := serveConfigMaps(t, 0, 0, 0)
	open := func() (end func()) {
		s, err := store.Open(t.Context(), backend, store.Options{ValueBytes: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		h.Store = s
		return s.Close
	}
	// The first objects are as many bytes as stay in memory in any case; those behind them
	// are out after a restart.
	const large, small = 20, 64
	end := open()
	for i := range large + small {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("c%04d", i)}, Data: map[string]string{"x": fmt.Sprint("value-", i)}}
		if i < large {
			cm.Data["large"] = strings.Repeat("x", 1_000_000)
		}
		if err := h.Ensure(t.Context(), "", "configmaps", cm); err != nil {
			t.Fatal(err)
		}
	}
	end()
	for _, path := range []string{
		"/api/v1/configmaps",
		"/api/v1/configmaps?watch=1&timeoutSeconds=1",
		"/api/v1/configmaps?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
	} {
		end := open()
		backend.reads.Store(0)
		got := watched(t, h, path)
		for i := range large + small {
			if !strings.Contains(got, fmt.Sprintf(`"value-%d"`, i)) {
				t.Errorf("%s: got no value of object %d", path, i)
			}
		}
		// Those that are larger than a block are read one by one.
		if n := backend.reads.Load(); n >= large {
			t.Errorf("%s: got %d reads of single values, want fewer than %d", path, n, large)
		}
		if _, _, reads := h.Store.ValueBytes(); reads < small {
			t.Errorf("%s: got %d values that were out of memory, want at least %d", path, reads, small)
		}
		end()
	}
}
