package apps

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// ControllerRevisions defines controllerrevisions, the template history of controllers.
func ControllerRevisions() resource.Definition {
	v1 := resource.VersionOf[appsv1.ControllerRevision, appsv1.ControllerRevisionList]("v1", nil)
	v1.Check = func(obj resource.Object) error {
		if raw := obj.(*appsv1.ControllerRevision).Data.Raw; raw != nil && !json.Valid(raw) {
			return resource.ErrNotJSON
		}
		return nil
	}
	return resource.Definition{
		Group:      appsv1.GroupName,
		Resource:   "controllerrevisions",
		Kind:       "ControllerRevision",
		Namespaced: true,
		StorageKey: "controllerrevisions",
		Versions:   append([]resource.Version{v1}, oldControllerRevisions()...),
		Strategy: resource.Rules[*appsv1.ControllerRevision]{
			NameOnUpdate: true,
			Validate: func(_ context.Context, r *appsv1.ControllerRevision) field.ErrorList {
				errs := nonnegative(r.Revision, field.NewPath("revision"))
				return append(errs, validateRevisionData(r.Data.Raw, field.NewPath("data"))...)
			},
			ValidateUpdate: func(_ context.Context, r, old *appsv1.ControllerRevision) field.ErrorList {
				errs := nonnegative(r.Revision, field.NewPath("revision"))
				return append(errs, validation.ValidateImmutableField(r.Data, old.Data, field.NewPath("data"))...)
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Controller", Type: "string", Description: "Controller of the object"},
			{Name: "Revision", Type: "string", Description: appsv1.ControllerRevision{}.SwaggerDoc()["revision"]},
			rules.AgeColumn(),
		},
		Cells: func(obj resource.Object) ([]any, error) {
			r := obj.(*appsv1.ControllerRevision)
			controller := "<none>"
			if ref := metav1.GetControllerOf(r); ref != nil {
				gv, err := schema.ParseGroupVersion(ref.APIVersion)
				if err != nil {
					return nil, err
				}
				controller = strings.ToLower(gv.WithKind(ref.Kind).GroupKind().String()) + "/" + ref.Name
			}
			return []any{r.Name, controller, r.Revision, resource.Since(r.CreationTimestamp.Time)}, nil
		},
	}
}

// validateRevisionData checks that data is a JSON object.
func validateRevisionData(data []byte, path *field.Path) field.ErrorList {
	var value any
	err := json.Unmarshal(data, &value)
	switch {
	case data == nil || bytes.Equal(data, []byte("null")):
		return field.ErrorList{field.Required(path, "data is mandatory")}
	case err != nil:
		return field.ErrorList{field.Invalid(path, "<value omitted>", "error parsing data: "+err.Error())}
	}
	if _, ok := value.(map[string]any); !ok {
		return field.ErrorList{field.Required(path, "data must be a valid JSON object")}
	}
	return nil
}
