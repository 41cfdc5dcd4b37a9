package rules

import (
	"context"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/resource"
)

// Scalable has the parts of an object that its scale subresource shows.
type Scalable struct {
	// Wanted points to the field for the desired number of replicas.
	Wanted **int32
	// Seen is the number of replicas in the status.
	Seen int32
	// Selector is the label selector of the replicas, as text.
	Selector string
}

// Scale returns the scale subresource of a kind, with which autoscalers change
// the number of replicas without knowing the kind. part returns the parts of an
// object that it shows and changes.
func Scale[T resource.Object](part func(T) (Scalable, error)) resource.Subresource {
	return resource.Subresource{
		Name: "scale",
		Kind: autoscalingv1.SchemeGroupVersion.WithKind("Scale"),
		Former: []schema.GroupVersion{
			{Group: "extensions", Version: "v1beta1"}, {Group: "apps", Version: "v1beta1"}, {Group: "apps", Version: "v1beta2"},
		},
		New: func() resource.Object { return &autoscalingv1.Scale{} },
		Projection: &resource.Projection{
			Get: func(obj resource.Object) (resource.Object, error) {
				p, err := part(obj.(T))
				if err != nil {
					return nil, err
				}
				return &autoscalingv1.Scale{
					ObjectMeta: metav1.ObjectMeta{
						Name:              obj.GetName(),
						Namespace:         obj.GetNamespace(),
						UID:               obj.GetUID(),
						ResourceVersion:   obj.GetResourceVersion(),
						CreationTimestamp: obj.GetCreationTimestamp(),
					},
					Spec:   autoscalingv1.ScaleSpec{Replicas: ptr.Deref(*p.Wanted, 0)},
					Status: autoscalingv1.ScaleStatus{Replicas: p.Seen, Selector: p.Selector},
				}, nil
			},
			Set: func(_ context.Context, obj, projection resource.Object) error {
				p, err := part(obj.(T))
				if err == nil {
					*p.Wanted = ptr.To(projection.(*autoscalingv1.Scale).Spec.Replicas)
				}
				return err
			},
			// Of the metadata only the managed fields reach the object, so
			// only they are validated.
			Validate: func(_ context.Context, projection resource.Object) field.ErrorList {
				var e Errors
				s := projection.(*autoscalingv1.Scale)
				e.Add(metavalidation.ValidateManagedFields(s.ManagedFields, field.NewPath("metadata", "managedFields"))...)
				e.NonNegative(field.NewPath("spec", "replicas"), int64(s.Spec.Replicas))
				return field.ErrorList(e)
			},
			Managed: map[string]string{"spec.replicas": "spec.replicas"},
			Columns: []resource.Column{
				{Name: "Name", Type: "string", Description: NameColumn().Description},
				{Name: "Desired", Type: "integer", Description: autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"]},
				{Name: "Available", Type: "integer", Description: autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"]},
				AgeColumn(),
			},
			Cells: resource.CellsFunc(func(s *autoscalingv1.Scale) []any {
				return []any{s.Name, int64(s.Spec.Replicas), int64(s.Status.Replicas), resource.Since(s.CreationTimestamp.Time)}
			}),
		},
	}
}
