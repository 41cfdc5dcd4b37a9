package crd

import (
	"context"
	"fmt"
	"math"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/resource"
)

// unset stands for replicas that the object does not have, during an update.
const unset = math.MinInt32

// scaleSubresource makes the scale subresource of a version from its JSON paths.
func (c *custom) scaleSubresource(version string, scale *apiextensions.CustomResourceSubresourceScale) resource.Subresource {
	path, spec, status := scale.SpecReplicasPath, steps(scale.SpecReplicasPath), steps(scale.StatusReplicasPath)
	var selector []string
	if scale.LabelSelectorPath != nil && *scale.LabelSelectorPath != "" {
		selector = steps(*scale.LabelSelectorPath)
	}
	get := func(obj resource.Object) (*autoscalingv1.Scale, bool, error) {
		return getScale(obj, spec, status, selector)
	}
	return resource.Subresource{
		Name: "scale", Versions: []string{version},
		Kind: autoscalingv1.SchemeGroupVersion.WithKind("Scale"),
		New:  func() resource.Object { return &autoscalingv1.Scale{} },
		Projection: &resource.Projection{
			Get: func(obj resource.Object) (resource.Object, error) {
				s, found, err := get(obj)
				if err == nil && !found {
					err = apierrors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist", path))
				}
				return s, err
			},
			Before: func(obj resource.Object) (resource.Object, error) {
				s, found, err := get(obj)
				if err == nil && !found {
					s.Spec.Replicas = unset
				}
				return s, err
			},
			After: func(obj resource.Object) (resource.Object, error) {
				obj = obj.DeepCopyObject().(resource.Object)
				// The schema may not have the path.
				if _, err := c.prune(obj, version, resource.PruneStored); err != nil {
					return nil, err
				}
				s, _, err := get(obj)
				if err != nil {
					return nil, apierrors.NewBadRequest(err.Error())
				}
				return s, nil
			},
			Set: func(_ context.Context, obj, projection resource.Object) error {
				replicas := projection.(*autoscalingv1.Scale).Spec.Replicas
				if replicas == unset {
					return apierrors.NewBadRequest(fmt.Sprintf("the spec replicas field %q cannot be empty", path))
				}
				return unstructured.SetNestedField(content(obj), int64(replicas), spec...)
			},
			Managed: map[string]string{strings.Join(spec, "."): "spec.replicas"},
			Columns: scaleColumns(),
			Cells: func(projection resource.Object) ([]any, error) {
				s := projection.(*autoscalingv1.Scale)
				var desired any // nil if the object has no replicas: the field is then omitted
				if s.Spec.Replicas != 0 {
					desired = int64(s.Spec.Replicas)
				}
				return []any{s.Name, desired, int64(s.Status.Replicas), resource.Since(s.CreationTimestamp.Time)}, nil
			},
		},
	}
}

func scaleColumns() []resource.Column {
	meta := metav1.ObjectMeta{}.SwaggerDoc()
	return []resource.Column{
		{Name: "Name", Type: "string", Format: "name", Description: meta["name"]},
		{Name: "Desired", Type: "integer", Description: "Number of desired replicas"},
		{Name: "Available", Type: "integer", Description: "Number of actual replicas"},
		{Name: "Age", Type: "date", Description: meta["creationTimestamp"]},
	}
}

// steps splits a simple JSON path, .spec.replicas, into its names.
func steps(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }

// getScale makes the Scale of an object, and reports whether the object has replicas.
func getScale(obj resource.Object, spec, status, selector []string) (_ *autoscalingv1.Scale, found bool, err error) {
	object := content(obj)
	replicas, found, err := unstructured.NestedInt64(object, spec...)
	if err != nil {
		return nil, false, err
	}
	current, _, err := unstructured.NestedInt64(object, status...)
	if err != nil {
		return nil, false, err
	}
	text := ""
	if selector != nil {
		if text, _, err = unstructured.NestedString(object, selector...); err != nil {
			return nil, false, err
		}
	}
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: obj.GetName(), Namespace: obj.GetNamespace(), UID: obj.GetUID(),
			ResourceVersion: obj.GetResourceVersion(), CreationTimestamp: obj.GetCreationTimestamp(),
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: int32(replicas)},
		Status: autoscalingv1.ScaleStatus{Replicas: int32(current), Selector: text},
	}, found, nil
}

// validateScale checks the values at the paths of a scale. Errors name the paths as the
// definition has them.
func validateScale(scale *apiextensions.CustomResourceSubresourceScale, obj map[string]any, statusOnly bool) (errs field.ErrorList) {
	if scale == nil {
		return nil
	}
	replicas := func(path string) {
		n, _, err := unstructured.NestedInt64(obj, steps(path)...)
		switch at := field.NewPath(path); {
		case err != nil:
			errs = append(errs, field.Invalid(at, n, err.Error()))
		case n < 0:
			errs = append(errs, field.Invalid(at, n, "should be a non-negative integer"))
		case n > math.MaxInt32:
			errs = append(errs, field.Invalid(at, n, fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)))
		}
	}
	if !statusOnly {
		replicas(scale.SpecReplicasPath)
	}
	replicas(scale.StatusReplicasPath)
	if scale.LabelSelectorPath != nil {
		text, _, err := unstructured.NestedString(obj, steps(*scale.LabelSelectorPath)...)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath(*scale.LabelSelectorPath), text, err.Error()))
		}
	}
	return errs
}
