package crd

import (
	"context"
	"fmt"
	"math"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/resource"
)

// scaleSubresource shows the replicas of a custom resource as a Scale. The paths
// are those of a version.
func scaleSubresource(version string, scale *apiextensions.CustomResourceSubresourceScale) resource.Subresource {
	spec, status := steps(scale.SpecReplicasPath), steps(scale.StatusReplicasPath)
	var selector []string
	if scale.LabelSelectorPath != nil && *scale.LabelSelectorPath != "" {
		selector = steps(*scale.LabelSelectorPath)
	}
	get := func(obj resource.Object, must bool) (resource.Object, error) {
		return getScale(obj, spec, status, selector, must)
	}
	return resource.Subresource{
		Name: "scale", Versions: []string{version},
		Kind: autoscalingv1.SchemeGroupVersion.WithKind("Scale"),
		New:  func() resource.Object { return &autoscalingv1.Scale{} },
		Projection: &resource.Projection{
			Get:    func(obj resource.Object) (resource.Object, error) { return get(obj, true) },
			Before: func(obj resource.Object) (resource.Object, error) { return get(obj, false) },
			Set: func(_ context.Context, obj, projection resource.Object) error {
				return unstructured.SetNestedField(content(obj), int64(projection.(*autoscalingv1.Scale).Spec.Replicas), spec...)
			},
			Managed: map[string]string{strings.Join(spec, "."): "spec.replicas"},
			Columns: scaleColumns(),
			Cells: func(projection resource.Object) ([]any, error) {
				s := projection.(*autoscalingv1.Scale)
				var desired any // nothing if it is none: the field is left out then
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

// steps takes a simple JSON path apart: .spec.replicas.
func steps(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }

func getScale(obj resource.Object, spec, status, selector []string, must bool) (resource.Object, error) {
	object := content(obj)
	replicas, ok, err := unstructured.NestedInt64(object, spec...)
	if err != nil {
		return nil, err
	}
	if !ok && must {
		return nil, fmt.Errorf("the spec replicas field %q does not exist", "."+strings.Join(spec, "."))
	}
	current, _, err := unstructured.NestedInt64(object, status...)
	if err != nil {
		return nil, err
	}
	text := ""
	if selector != nil {
		if text, _, err = unstructured.NestedString(object, selector...); err != nil {
			return nil, err
		}
	}
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: obj.GetName(), Namespace: obj.GetNamespace(), UID: obj.GetUID(),
			ResourceVersion: obj.GetResourceVersion(), CreationTimestamp: obj.GetCreationTimestamp(),
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: int32(replicas)},
		Status: autoscalingv1.ScaleStatus{Replicas: int32(current), Selector: text},
	}, nil
}

// validateScale checks the values that a scale shows. What is wrong is said of
// the paths as they were written.
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
