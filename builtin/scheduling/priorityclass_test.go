package scheduling

import (
	"testing"

	"github.com/apikeel/kelson/request"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDeletionOfSystemClasses wants the classes of the system to be refused by name, and to
// go with a collection: the server makes them again.
func TestDeletionOfSystemClasses(t *testing.T) {
	begin := PriorityClasses().Strategy.Begin
	for _, c := range []struct {
		verb, name string
		forbidden  bool
	}{
		{request.Delete, "system-node-critical", true},
		{request.Delete, "system-cluster-critical", true},
		{request.Delete, "mine", false},
		{request.DeleteCollection, "system-node-critical", false},
	} {
		ctx := request.With(t.Context(), &request.Request{Info: request.Info{Verb: c.verb}})
		_, err := begin(ctx, nil, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: c.name}})
		if apierrors.IsForbidden(err) != c.forbidden || err != nil && !c.forbidden {
			t.Errorf("%s of %s: got %v, want forbidden %v", c.verb, c.name, err, c.forbidden)
		}
	}
}
