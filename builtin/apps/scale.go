package apps

import (
	"context"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/core"
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
// without knowing the kind.
func scale[T resource.Object](part func(T) scalable) resource.Subresource {
	return resource.Subresource{
		Name: "scale",
		Kind: autoscalingv1.SchemeGroupVersion.WithKind("Scale"),
		Former: []schema.GroupVersion{
			{Group: "extensions", Version: "v1beta1"}, {Group: "apps", Version: "v1beta1"}, {Group: "apps", Version: "v1beta2"},
		},
		New: func() resource.Object { return &autoscalingv1.Scale{} },
		Projection: &resource.Projection{
			Get: func(obj resource.Object) (resource.Object, error) {
				p := part(obj.(T))
				selector, err := metav1.LabelSelectorAsSelector(p.selector)
				if err != nil {
					return nil, errors.NewBadRequest(err.Error())
				}
				return &autoscalingv1.Scale{
					ObjectMeta: metav1.ObjectMeta{
						Name:              obj.GetName(),
						Namespace:         obj.GetNamespace(),
						UID:               obj.GetUID(),
						ResourceVersion:   obj.GetResourceVersion(),
						CreationTimestamp: obj.GetCreationTimestamp(),
					},
					Spec:   autoscalingv1.ScaleSpec{Replicas: deref(*p.wanted)},
					Status: autoscalingv1.ScaleStatus{Replicas: p.seen, Selector: selector.String()},
				}, nil
			},
			Set: func(_ context.Context, obj, projection resource.Object) error {
				*part(obj.(T)).wanted = &projection.(*autoscalingv1.Scale).Spec.Replicas
				return nil
			},
			// Of the metadata only the managed fields reach the object, so
			// they alone are judged.
			Validate: func(_ context.Context, projection resource.Object) field.ErrorList {
				s := projection.(*autoscalingv1.Scale)
				errs := metavalidation.ValidateManagedFields(s.ManagedFields, field.NewPath("metadata", "managedFields"))
				return append(errs, nonnegative(s.Spec.Replicas, field.NewPath("spec", "replicas"))...)
			},
			Managed: map[string]string{"spec.replicas": "spec.replicas"},
			Columns: []resource.Column{
				{Name: "Name", Type: "string", Description: core.NameColumn().Description},
				{Name: "Desired", Type: "integer", Description: autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"]},
				{Name: "Available", Type: "integer", Description: autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"]},
				core.AgeColumn(),
			},
			Cells: resource.CellsFunc(func(s *autoscalingv1.Scale) []any {
				return []any{s.Name, int64(s.Spec.Replicas), int64(s.Status.Replicas), core.Since(s.CreationTimestamp.Time)}
			}),
		},
	}
}
