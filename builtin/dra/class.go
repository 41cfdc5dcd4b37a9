package dra

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// DeviceClasses defines deviceclasses.
func DeviceClasses(s *Selectors) resource.Definition {
	return resource.Definition{
		Group:      resourcev1.GroupName,
		Resource:   "deviceclasses",
		Kind:       "DeviceClass",
		StorageKey: "deviceclasses",
		GatedFields: []resource.GatedField{
			{Path: "spec.extendedResourceName", Gate: "DRAExtendedResource"},
		},
		Versions: classVersions(),
		Strategy: resource.Rules[*resourcev1.DeviceClass]{
			ReturnDeleted: true,
			ValidateName:  rules.AnyName,
			Validate: func(ctx context.Context, c *resourcev1.DeviceClass) field.ErrorList {
				return append(rules.ValidateLongName(c.Name), s.validateClass(ctx, &c.Spec, nil)...)
			},
			ValidateUpdate: func(ctx context.Context, c, old *resourcev1.DeviceClass) field.ErrorList {
				return s.validateClass(ctx, &c.Spec, &old.Spec)
			},
			Generation: func(c, old *resourcev1.DeviceClass) bool { return !equality.Semantic.DeepEqual(c.Spec, old.Spec) },
		}.Strategy(),
		Columns: []resource.Column{rules.NameColumn(), rules.AgeColumn()},
		Cells:   nameAndAge,
	}
}

func nameAndAge(obj resource.Object) ([]any, error) {
	return []any{obj.GetName(), resource.Since(obj.GetCreationTimestamp().Time)}, nil
}

// validateClass validates a class; old is nil on create.
func (s *Selectors) validateClass(ctx context.Context, spec, old *resourcev1.DeviceClassSpec) field.ErrorList {
	path := field.NewPath("spec")
	sameSelectors := old != nil && equality.Semantic.DeepEqual(spec.Selectors, old.Selectors)
	errs := s.expressions(ctx).validate(spec.Selectors, sameSelectors, path.Child("selectors"))
	sameConfig := old != nil && equality.Semantic.DeepEqual(spec.Config, old.Config)
	errs = append(errs, each(spec.Config, resourcev1.DeviceConfigMaxSize, path.Child("config"), func(c *resourcev1.DeviceClassConfiguration, path *field.Path) field.ErrorList {
		return validateConfiguration(&c.DeviceConfiguration, sameConfig, path)
	})...)
	if name := spec.ExtendedResourceName; name != nil {
		errs = append(errs, betaFormat(validate.ExtendedResourceName, func(name string, path *field.Path) field.ErrorList {
			return field.ErrorList{field.Invalid(path, name, "must be a valid extended resource name")}
		}, *name, path.Child("extendedResourceName"))...)
	}
	return errs
}
