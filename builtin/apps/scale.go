package apps

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// scalable has the fields of a workload that its scale subresource uses.
type scalable struct {
	// wanted points to the field with the desired replicas.
	wanted **int32
	// seen is the number of replicas in the status.
	seen     int32
	selector *metav1.LabelSelector
}

// scale makes the scale subresource of a workload.
func scale[T resource.Object](part func(T) scalable) resource.Subresource {
	return rules.Scale(func(obj T) (rules.Scalable, error) {
		p := part(obj)
		selector, err := metav1.LabelSelectorAsSelector(p.selector)
		if err != nil {
			return rules.Scalable{}, apierrors.NewBadRequest(err.Error())
		}
		return rules.Scalable{Wanted: p.wanted, Seen: p.seen, Selector: selector.String()}, nil
	})
}
