package api

import (
	"fmt"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/kelsontest"
)

// TestManagersApplyAtOnce: managers of different fields that apply one new object at the
// same time all succeed, and the object has what all of them want.
func TestManagersApplyAtOnce(t *testing.T) {
	t.Parallel()
	const managers, rounds = 8, 10
	c := kubernetes.NewForConfigOrDie(kelsontest.Start(t, kelsontest.NoControllers()).Config()).CoreV1().ConfigMaps("default")
	for round := range rounds {
		name := fmt.Sprint("shared-", round)
		var all sync.WaitGroup
		for m := range managers {
			all.Go(func() {
				body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"m%d":"x"}}`, name, m)
				if _, err := c.Patch(t.Context(), name, types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: fmt.Sprint("m", m)}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got := must(c.Get(t.Context(), name, metav1.GetOptions{}))(t).Data; len(got) != managers {
			t.Errorf("round %d: got %v, want %d entries", round, got, managers)
		}
	}
}
