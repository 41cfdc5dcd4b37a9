// Package storagemigration is the API group storagemigration.k8s.io: requests to rewrite the
// stored objects of a resource. Start at Group; the migration itself is in package controller.
package storagemigration

import (
	"context"
	"strings"

	migrationv1 "k8s.io/api/storagemigration/v1"
	migrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// migration is the storage version of the kind.
type migration = migrationv1beta1.StorageVersionMigration

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: migrationv1.GroupName, Resources: []resource.Definition{Migrations()}}
}

// Migrations defines storageversionmigrations.
func Migrations() resource.Definition {
	status := resource.Rules[*migration]{
		RequireVersion: true,
		PrepareUpdate: func(_ context.Context, m, old *migration) {
			m.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&m.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: func(_ context.Context, m, old *migration) field.ErrorList { return validateStatus(m, old) },
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	name := rules.NameColumn()
	name.Format = ""
	return resource.Definition{
		Group:      migrationv1.GroupName,
		Resource:   "storageversionmigrations",
		Gate:       "StorageVersionMigrator",
		Kind:       "StorageVersionMigration",
		StorageKey: "storageversionmigrations",
		Hub:        "v1beta1",
		Versions:   versions(),
		Strategy: resource.Rules[*migration]{
			NameOnUpdate:   true,
			RequireVersion: true,
			PrepareCreate: func(_ context.Context, m *migration) {
				m.Status = migrationv1beta1.StorageVersionMigrationStatus{}
			},
			PrepareUpdate: func(_ context.Context, m, old *migration) { m.Status = old.Status },
			Validate:      func(_ context.Context, m *migration) field.ErrorList { return validateResource(m.Spec.Resource) },
			ValidateUpdate: func(_ context.Context, m, old *migration) field.ErrorList {
				errs := validateResource(m.Spec.Resource)
				if m.Spec != old.Spec {
					errs = append(errs, field.Invalid(field.NewPath("spec"), rules.GoForm(m.Spec), apivalidation.FieldImmutableErrorMsg))
				}
				return errs
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Columns: []resource.Column{
			name,
			{Name: "Resource", Type: "string", Description: "GroupResource to migrate"},
			{Name: "Status", Type: "string", Description: "Status of the migration"},
		},
		Cells: resource.CellsFunc(func(m *migration) []any {
			state := "Unknown"
			for _, c := range m.Status.Conditions {
				switch migrationv1beta1.MigrationConditionType(c.Type) {
				case migrationv1beta1.MigrationRunning, migrationv1beta1.MigrationFailed, migrationv1beta1.MigrationSucceeded:
					if c.Status == metav1.ConditionTrue {
						state = c.Type
					}
				}
			}
			return []any{m.Name, m.Spec.Resource.String(), state}
		}),
	}
}

// versions returns the served version and the older one that is stored. They have the same
// fields.
func versions() []resource.Version {
	v1 := resource.VersionOf[migrationv1.StorageVersionMigration, migrationv1.StorageVersionMigrationList]("v1", nil)
	v1.ToHub = func(obj resource.Object) (resource.Object, error) {
		m := obj.(*migrationv1.StorageVersionMigration)
		return &migration{
			TypeMeta: m.TypeMeta, ObjectMeta: m.ObjectMeta,
			Spec:   migrationv1beta1.StorageVersionMigrationSpec(m.Spec),
			Status: migrationv1beta1.StorageVersionMigrationStatus(m.Status),
		}, nil
	}
	v1.FromHub = func(obj resource.Object) (resource.Object, error) {
		m := obj.(*migration)
		return &migrationv1.StorageVersionMigration{
			TypeMeta: m.TypeMeta, ObjectMeta: m.ObjectMeta,
			Spec:   migrationv1.StorageVersionMigrationSpec(m.Spec),
			Status: migrationv1.StorageVersionMigrationStatus(m.Status),
		}, nil
	}
	v1beta1 := resource.VersionOf[migration, migrationv1beta1.StorageVersionMigrationList]("v1beta1", nil)
	v1beta1.Off = true
	v1beta1.Deprecation = resource.Deprecation(new(migration), migrationv1beta1.SchemeGroupVersion.WithKind("StorageVersionMigration"))
	return []resource.Version{v1, v1beta1}
}

func validateResource(r metav1.GroupResource) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "resource")
	judge := func(name, value string, messages []string) {
		if len(messages) > 0 {
			errs = append(errs, field.Invalid(path.Child(name), value, strings.Join(messages, ",")))
		}
	}
	if r.Resource == "" {
		errs = append(errs, field.Required(path.Child("resource"), "resource is required to be set"))
	} else {
		judge("resource", r.Resource, validation.IsDNS1035Label(r.Resource))
	}
	if r.Group != "" {
		judge("group", r.Group, validation.IsDNS1123Subdomain(r.Group))
	}
	return errs
}

func validateStatus(m, old *migration) field.ErrorList {
	path := field.NewPath("status")
	var errs field.ErrorList
	version := m.Status.ResourceVersion
	if version != "" {
		if _, err := resourceversion.CompareResourceVersion(version, version); err != nil {
			errs = append(errs, field.Invalid(path.Child("resourceVersion"), version, err.Error()))
		}
	}
	errs = append(errs, metavalidation.ValidateConditions(m.Status.Conditions, path.Child("conditions"))...)
	if before := old.Status.ResourceVersion; before != "" && before != version {
		errs = append(errs, field.Invalid(path.Child("resourceVersion"), version, apivalidation.FieldImmutableErrorMsg))
	}
	is := func(m *migration, t migrationv1beta1.MigrationConditionType) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, string(t))
	}
	wrong := func(detail string) {
		errs = append(errs, field.Invalid(path.Child("conditions"), m.Status.Conditions, detail))
	}
	succeeded, failed := is(m, migrationv1beta1.MigrationSucceeded), is(m, migrationv1beta1.MigrationFailed)
	if succeeded && failed {
		wrong("Both success and failed conditions cannot be true at the same time")
	}
	if is(old, migrationv1beta1.MigrationSucceeded) && !succeeded {
		wrong("Success condition cannot be set to false once it is true")
	}
	if is(old, migrationv1beta1.MigrationFailed) && !failed {
		wrong("Failed condition cannot be set to false once it is true")
	}
	return errs
}
