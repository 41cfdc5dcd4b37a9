// Package crd serves custom resources: it makes a resource.Definition of each
// CustomResourceDefinition, which is then served as a built-in kind is. Start at
// Server, which follows the stored CustomResourceDefinitions and publishes
// Definitions, and at custom (custom.go), the functions of one such Definition. A
// Definition must never keep the decoded schemas of its CustomResourceDefinition.
//
// # Memory of a definition
//
// A Definition holds names and functions, not schemas. The schema is decoded from the
// stored bytes, which the watch cache keeps anyway, when an object is first read or
// written. Compiled schemas are shared by all versions with an equal schema, and are
// dropped when they have not been used for a while (schemas.go). There is no goroutine,
// timer or watch for each definition.
//
// # From a stored definition to a served resource
//
// One goroutine of Server follows the stored definitions. For each change it decides
// on names, writes the status (NamesAccepted, Established) and then publishes the
// Definitions in the catalog. If writing a status fails, the Definition is published
// nevertheless and the write is repeated.
//
// A client that has seen Established=True can use the resource at once, on any server:
// a request for a resource that the catalog does not have first calls Sync, which
// publishes every acknowledged definition. A request for a resource that the catalog
// has waits only for definitions that this server itself has acknowledged, so that a
// client that changes a definition finds it changed.
package crd

import (
	"context"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/crd/rules"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/resource"
)

// Group and Resource of CustomResourceDefinitions, and the finalizer that keeps one
// until its custom objects are deleted.
const (
	Group     = "apiextensions.k8s.io"
	Resource  = "customresourcedefinitions"
	finalizer = "customresourcecleanup.apiextensions.k8s.io"
)

// Definitions returns the group of CustomResourceDefinitions. metrics, which may be nil,
// measures the compilation of their CEL rules.
func Definitions(metrics measure.Sink) resource.Group {
	v := resource.Version{
		Name:    "v1",
		New:     func() resource.Object { return &apiextensions.CustomResourceDefinition{} },
		NewList: func() runtime.Object { return &apiextensions.CustomResourceDefinitionList{} },
		Default: resource.DefaultFunc(setDefaults),
		// Defaulting is idempotent and PrepareCreate and PrepareUpdate unset no default.
		Settled: func(resource.Object) bool { return true },
	}
	judge := &rules.Judge{Metrics: metrics}
	main := resource.Rules[*apiextensions.CustomResourceDefinition]{
		Repeats:        true,
		JudgesMetadata: true,
		PrepareCreate:  prepareCreate,
		PrepareUpdate:  prepareUpdate,
		Validate: func(ctx context.Context, crd *apiextensions.CustomResourceDefinition) field.ErrorList {
			return normalized(crd, judge.Validate(ctx, crd))
		},
		ValidateUpdate: func(ctx context.Context, crd, old *apiextensions.CustomResourceDefinition) field.ErrorList {
			return normalized(crd, judge.ValidateUpdate(ctx, crd, old))
		},
		Warnings: func(_ context.Context, crd, old *apiextensions.CustomResourceDefinition) []string {
			return rules.Warnings(crd, old)
		},
		Generation: func(crd, old *apiextensions.CustomResourceDefinition) bool {
			return !rules.Equal(&crd.Spec, &old.Spec)
		},
		BeforeDelete: beforeDelete,
	}.Strategy()
	status := resource.Rules[*apiextensions.CustomResourceDefinition]{
		Repeats: true,
		PrepareUpdate: func(_ context.Context, crd, old *apiextensions.CustomResourceDefinition) {
			crd.Spec = old.Spec // the metadata may change through status
		},
		ValidateUpdate: func(_ context.Context, crd, old *apiextensions.CustomResourceDefinition) field.ErrorList {
			return rules.ValidateStatusUpdate(crd, old)
		},
	}.Strategy()
	main.RequireVersion, status.RequireVersion = true, true
	// The finalizer decides when the object is removed, whatever the propagation policy.
	main.NoPropagation = true
	main.Held = func(resource.Object) bool { return false }
	return resource.Group{Name: Group, Resources: []resource.Definition{{
		Group: Group, Resource: Resource, Kind: "CustomResourceDefinition",
		ShortNames: []string{"crd", "crds"}, Categories: []string{"api-extensions"}, NullRows: true,
		Versions: []resource.Version{v, beta()}, StoreJSON: true,
		Strategy:     main,
		Subresources: []resource.Subresource{{Name: "status", NoTable: true, Part: &status}},
		Columns:      columns(),
		Cells:        resource.CellsFunc(cells),
		GatedFields: []resource.GatedField{
			{Gate: "CRDObservedGenerationTracking", Path: "status.observedGeneration status.conditions[].observedGeneration"},
		},
	}}}
}

// normalized normalizes the JSON in the schemas of a valid definition (see
// rules.Respell). Validation has seen it as it was written, where 1.0 is not an integer.
func normalized(crd *apiextensions.CustomResourceDefinition, errs field.ErrorList) field.ErrorList {
	if len(errs) == 0 {
		rules.Respell(&crd.Spec)
	}
	return errs
}

// setDefaults is the defaulting of CustomResourceDefinitions.
func setDefaults(crd *apiextensions.CustomResourceDefinition) {
	names := &crd.Spec.Names
	if names.Singular == "" {
		names.Singular = strings.ToLower(names.Kind)
	}
	if names.ListKind == "" && names.Kind != "" {
		names.ListKind = names.Kind + "List"
	}
	if crd.Spec.Conversion == nil {
		crd.Spec.Conversion = &apiextensions.CustomResourceConversion{Strategy: apiextensions.NoneConverter}
	}
	if hook := crd.Spec.Conversion.Webhook; hook != nil && hook.ClientConfig == nil && hook.ConversionReviewVersions == nil {
		crd.Spec.Conversion.Webhook = nil // an empty object is the same as none
	} else if hook != nil && hook.ClientConfig != nil && hook.ClientConfig.Service != nil && hook.ClientConfig.Service.Port == nil {
		hook.ClientConfig.Service.Port = ptr.To[int32](443)
	}
	if len(crd.Status.StoredVersions) == 0 {
		rememberStored(crd)
	}
}

func prepareCreate(_ context.Context, crd *apiextensions.CustomResourceDefinition) {
	crd.Status = apiextensions.CustomResourceDefinitionStatus{}
	rememberStored(crd)
}

func prepareUpdate(_ context.Context, crd, old *apiextensions.CustomResourceDefinition) {
	crd.Status = *old.Status.DeepCopy()
	rememberStored(crd)
}

// rememberStored adds the storage version to status.storedVersions.
func rememberStored(crd *apiextensions.CustomResourceDefinition) {
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if !v.Storage {
			continue
		}
		if !slices.Contains(crd.Status.StoredVersions, v.Name) {
			crd.Status.StoredVersions = append(crd.Status.StoredVersions, v.Name)
		}
		return // two storage versions are an error of validation
	}
}

// beforeDelete adds the finalizer and the condition Terminating.
func beforeDelete(crd *apiextensions.CustomResourceDefinition) {
	if !slices.Contains(crd.Finalizers, finalizer) {
		crd.Finalizers = append(crd.Finalizers, finalizer)
	}
	setCondition(&crd.Status, apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.Terminating, Status: apiextensions.ConditionTrue, Reason: "InstanceDeletionPending",
		Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
	}, *crd.DeletionTimestamp)
}

func columns() []resource.Column {
	meta := metav1.ObjectMeta{}.SwaggerDoc()
	return []resource.Column{
		{Name: "Name", Type: "string", Format: "name", Description: meta["name"]},
		{Name: "Scope", Type: "string", Description: "Cluster/Namespaced"},
		{Name: "Versions", Type: "string", Description: "Served versions"},
		{Name: "Created At", Type: "date", Description: meta["creationTimestamp"]},
		{Name: "Group", Type: "string", Priority: 1, Description: "API group"},
		{Name: "Kind", Type: "string", Priority: 1, Description: "CustomResource kind"},
		{Name: "ShortNames", Type: "string", Priority: 1, Description: "Short names"},
		{Name: "Established", Type: "boolean", Priority: 1, Description: "Established status"},
	}
}

func cells(crd *apiextensions.CustomResourceDefinition) []any {
	var versions []string
	for i := range crd.Spec.Versions {
		if v := &crd.Spec.Versions[i]; v.Served {
			name := v.Name
			if v.Storage {
				name += "(storage)"
			}
			versions = append(versions, name)
		}
	}
	return []any{
		crd.Name, string(crd.Spec.Scope), strings.Join(versions, ","), crd.CreationTimestamp.UTC().Format("2006-01-02T15:04:05Z07:00"),
		crd.Spec.Group, crd.Spec.Names.Kind, strings.Join(crd.Spec.Names.ShortNames, ","), isTrue(&crd.Status, apiextensions.Established),
	}
}

// condition returns a condition of the status, nil if there is none.
func condition(status *apiextensions.CustomResourceDefinitionStatus, t apiextensions.CustomResourceDefinitionConditionType) *apiextensions.CustomResourceDefinitionCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == t {
			return &status.Conditions[i]
		}
	}
	return nil
}

func isTrue(status *apiextensions.CustomResourceDefinitionStatus, t apiextensions.CustomResourceDefinitionConditionType) bool {
	c := condition(status, t)
	return c != nil && c.Status == apiextensions.ConditionTrue
}

// setCondition sets a condition. lastTransitionTime changes only with the status of the
// condition.
func setCondition(status *apiextensions.CustomResourceDefinitionStatus, c apiextensions.CustomResourceDefinitionCondition, now metav1.Time) {
	c.LastTransitionTime = metav1.NewTime(now.UTC().Truncate(1e9))
	old := condition(status, c.Type)
	if old == nil {
		status.Conditions = append(status.Conditions, c)
		return
	}
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	*old = c
}

func dropCondition(status *apiextensions.CustomResourceDefinitionStatus, t apiextensions.CustomResourceDefinitionConditionType) {
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c apiextensions.CustomResourceDefinitionCondition) bool { return c.Type == t })
}
