package apps

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// scalable is what the subresource scale shows of an object.
type scalable struct {
	// wanted is the field with the number of replicas that there should be.
	wanted **int32
	// seen is the number that there is.
	seen     int32
	selector *metav1.LabelSelector
}

// scale is the subresource with which autoscalers change the number of replicas
// of a workload.
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
