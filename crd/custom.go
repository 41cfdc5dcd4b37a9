package crd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/crd/cel"
	"github.com/apikeel/kelson/internal/jsonvalue"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// custom implements the functions of the Definition of one custom resource.
type custom struct {
	server *Server
	name   string // of the CustomResourceDefinition
	group  string
	kind   string
	hub    string
	// schemas of the versions, by name.
	schemas map[string]*lazySchema
	// status has the versions with the status subresource.
	status map[string]bool
	scale  map[string]*apiextensions.CustomResourceSubresourceScale
	// selectors are the paths of selectable fields, by version.
	selectors map[string][]string
	convert   converter
}

// versionOf returns the version that an object of a write is in, and whose schema
// validates it: the version of the request.
func (c *custom) versionOf(ctx context.Context) string {
	if v := request.From(ctx).Version; c.schemas[v] != nil {
		return v
	}
	return c.hub
}

// define makes the Definition of a custom resource. It must keep nothing of crd but
// strings; stored holds the bytes that crd was decoded from.
func (s *Server) define(crd *apiextensions.CustomResourceDefinition, stored *source) resource.Definition {
	c := &custom{
		server: s, name: crd.Name, group: crd.Spec.Group, kind: crd.Status.AcceptedNames.Kind,
		schemas: map[string]*lazySchema{}, status: map[string]bool{}, scale: map[string]*apiextensions.CustomResourceSubresourceScale{},
		selectors: map[string][]string{},
	}
	names := &crd.Status.AcceptedNames
	def := resource.Definition{
		Group: crd.Spec.Group, Resource: names.Plural, Singular: names.Singular, Kind: names.Kind, ListKind: names.ListKind,
		ShortNames: slices.Clone(names.ShortNames), Categories: slices.Clone(names.Categories),
		Namespaced: crd.Spec.Scope == apiextensions.NamespaceScoped, NoNamespaceField: crd.Spec.Scope != apiextensions.NamespaceScoped,
		StorageKey: crd.Spec.Group + "/" + names.Plural, StoreJSON: true, StoreCBOR: s.StoreCBOR,
		UnknownField: func(path string) string { return "field label not supported: " + path },
		Verbs:        []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}, // in the order of kube-apiserver's discovery
	}
	versions := slices.Clone(crd.Spec.Versions)
	slices.SortStableFunc(versions, func(a, b apiextensions.CustomResourceDefinitionVersion) int {
		return version.CompareKubeAwareVersionStrings(b.Name, a.Name)
	})
	c.convert = s.converter(crd)
	def.Between = c.between
	for i := range versions {
		v := &versions[i]
		if v.Storage {
			c.hub, def.Hub = v.Name, v.Name
		}
		c.schemas[v.Name] = &lazySchema{server: s, stored: stored, version: v.Name}
		if v.Subresources != nil {
			c.status[v.Name] = v.Subresources.Status != nil
			c.scale[v.Name] = v.Subresources.Scale
		}
		def.Versions = append(def.Versions, c.version(v, versions))
	}
	for i := range def.Versions {
		c.conversions(&def.Versions[i])
	}
	c.selectable(&def, versions)
	def.Strategy = c.strategy()
	c.subresources(&def, versions)
	c.table(&def, versions)
	def.Strategy.Begin = refuseNew(def.Group, def.Resource, &stored.deleting)
	return def
}

// version makes one version of a Definition. all are the versions, the newest first.
func (c *custom) version(v *apiextensions.CustomResourceDefinitionVersion, all []apiextensions.CustomResourceDefinitionVersion) resource.Version {
	// The closures must not capture v, which holds the schema.
	name, apiVersion := v.Name, c.group+"/"+v.Name
	out := resource.Version{
		Name: name, Off: !v.Served,
		New: func() resource.Object {
			return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": c.kind}}
		},
		NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
		Default: func(obj resource.Object) { c.complete(obj, name) },
		Prune:   func(obj resource.Object, how resource.Pruning) ([]string, error) { return c.prune(obj, name, how) },
		Settled: func(obj resource.Object) bool {
			s, err := c.schemas[name].get()
			return err == nil && s.Settled(content(obj))
		},
		Schema: func() *spec.Schema { return c.openAPI(name) },
	}
	if v.Deprecated {
		out.Deprecation = c.deprecation(v, all)
	}
	return out
}

// deprecation returns the warning of a deprecated version, which names the newest version
// that is not deprecated, if it is newer.
func (c *custom) deprecation(v *apiextensions.CustomResourceDefinitionVersion, all []apiextensions.CustomResourceDefinitionVersion) string {
	if v.DeprecationWarning != nil {
		return *v.DeprecationWarning
	}
	text := fmt.Sprintf("%s/%s %s is deprecated", c.group, v.Name, c.kind)
	for i := range all {
		if all[i].Name == v.Name {
			break
		}
		if all[i].Served && !all[i].Deprecated {
			return fmt.Sprintf("%s; use %s/%s %s", text, c.group, all[i].Name, c.kind)
		}
	}
	return text
}

// content returns the map of an unstructured object.
func content(obj runtime.Object) map[string]any { return obj.(*unstructured.Unstructured).Object }

// complete applies the defaults of a version.
func (c *custom) complete(obj resource.Object, version string) {
	if s, err := c.schemas[version].get(); err == nil {
		s.Default(content(obj))
	}
}

// prune implements Version.Prune.
func (c *custom) prune(obj resource.Object, version string, how resource.Pruning) ([]string, error) {
	s, err := c.schemas[version].get()
	if err != nil {
		return nil, err
	}
	unknown := s.Prune(content(obj), how == resource.PruneReporting)
	s.DropNulls(content(obj))
	more, problem := s.Coerce(content(obj), how == resource.PruneStored)
	if problem != nil && problem.Field == "metadata" {
		return nil, errors.New(problem.Detail) // about the object itself: no path needed
	}
	if problem != nil {
		return nil, problem
	}
	if how != resource.PruneReporting {
		return nil, nil
	}
	// Unknown fields of the object's own metadata come first, those of embedded
	// resources last.
	var own, inner []string
	for _, path := range more {
		if strings.HasPrefix(path, "metadata.") {
			own = append(own, path)
		} else {
			inner = append(inner, path)
		}
	}
	return slices.Concat(own, unknown, inner), nil
}

// strategy returns the Strategy of custom objects.
func (c *custom) strategy() resource.Strategy {
	return resource.Strategy{
		PrepareCreate: func(ctx context.Context, obj resource.Object) {
			if c.status[c.versionOf(ctx)] {
				delete(content(obj), "status")
			}
		},
		PrepareUpdate: func(ctx context.Context, obj, old resource.Object) {
			if !c.status[c.versionOf(ctx)] {
				return
			}
			if was, ok := content(old)["status"]; ok {
				content(obj)["status"] = was
			} else {
				delete(content(obj), "status")
			}
		},
		// The status counts too; if there is a status subresource, PrepareUpdate has
		// restored it.
		Generation: changed,
		Validate: func(ctx context.Context, obj resource.Object) field.ErrorList {
			return c.validate(ctx, obj, nil, false)
		},
		ValidateUpdate: func(ctx context.Context, obj, old resource.Object) field.ErrorList {
			return c.validate(ctx, obj, old, false)
		},
		Warnings:       finalizerWarnings,
		RequireVersion: true,
		Repeats:        true,
	}
}

// changed reports whether two objects differ outside of metadata.
func changed(obj, old resource.Object) bool {
	is, was := content(obj), content(old)
	isMeta := func(name string) bool { return name == "metadata" || name == "apiVersion" || name == "kind" }
	for name, v := range is {
		if other, ok := was[name]; !isMeta(name) && (!ok || !jsonvalue.Equal(v, other)) {
			return true
		}
	}
	for name := range was {
		if _, ok := is[name]; !ok && !isMeta(name) {
			return true
		}
	}
	return false
}

// validate checks an object against the schema and the CEL rules; old is nil on create.
// statusOnly checks nothing but the status.
func (c *custom) validate(ctx context.Context, obj, old resource.Object, statusOnly bool) field.ErrorList {
	version := c.versionOf(ctx)
	s, err := c.schemas[version].get()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	var was map[string]any
	if old != nil {
		was = content(old)
	}
	var errs field.ErrorList
	switch {
	case old == nil:
		errs = s.Validate(ctx, content(obj))
	case statusOnly:
		errs = s.ValidateStatus(ctx, content(obj), was)
	default:
		errs = s.ValidateUpdate(ctx, content(obj), was)
	}
	errs = append(errs, validateScale(c.scale[version], content(obj), statusOnly)...)
	if !s.Ruled() {
		return errs
	}
	began := time.Now()
	check := &cel.Check{
		Budget: cel.Budget,
		Warn:   func(err *field.Error) { request.From(ctx).Warn(err.Error()) },
		Compiled: func(took time.Duration) {
			measure.SeriesOf(c.server.Metrics, measure.CELCompilation).Observe(took.Seconds())
			began = began.Add(took) // compilation is not part of the evaluation
		},
	}
	found := append(judgeMeta(obj), errs...)
	errs = append(errs, s.ValidateRules(ctx, content(obj), was, found, check)...)
	measure.Since(c.server.Metrics, began, measure.CELEvaluation)
	return errs
}

// judgeMeta returns errors in the metadata after which CEL rules are not evaluated. They
// are not reported from here: package rest reports them.
func judgeMeta(obj resource.Object) field.ErrorList {
	path := field.NewPath("metadata")
	errs := apivalidation.ValidateAnnotations(obj.GetAnnotations(), path.Child("annotations"))
	errs = append(errs, apivalidation.ValidateOwnerReferences(obj.GetOwnerReferences(), path.Child("ownerReferences"))...)
	if obj.GetName() == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	return errs
}

// subresources adds status and scale for the versions that have them.
func (c *custom) subresources(def *resource.Definition, versions []apiextensions.CustomResourceDefinitionVersion) {
	var status []string
	for i := range versions {
		if c.status[versions[i].Name] {
			status = append(status, versions[i].Name)
		}
	}
	if len(status) > 0 {
		def.Subresources = append(def.Subresources, resource.Subresource{Name: "status", Versions: status, Part: &resource.Strategy{
			PrepareUpdate: func(ctx context.Context, obj, old resource.Object) {
				// Only the status may change, and the fields of metadata that the server sets.
				now := content(obj)
				next := maps.Clone(content(old))
				if status, ok := now["status"]; ok {
					next["status"] = status
				} else {
					delete(next, "status")
				}
				fields, rv := resource.ManagedFields(obj), obj.GetResourceVersion()
				clear(now)
				maps.Copy(now, runtime.DeepCopyJSON(next))
				resource.SetManagedFields(obj, fields)
				obj.SetResourceVersion(rv)
			},
			ValidateUpdate: func(ctx context.Context, obj, old resource.Object) field.ErrorList {
				return c.validate(ctx, obj, old, true)
			},
			Resets:         []string{"metadata", "spec"},
			RequireVersion: true,
			Repeats:        true,
		}})
	}
	for i := range versions {
		if scale := c.scale[versions[i].Name]; scale != nil {
			def.Subresources = append(def.Subresources, c.scaleSubresource(versions[i].Name, scale))
		}
	}
}

// selectable adds the selectable fields of the versions.
func (c *custom) selectable(def *resource.Definition, versions []apiextensions.CustomResourceDefinitionVersion) {
	known := map[string]bool{}
	for i := range versions {
		names := map[string]string{}
		for _, f := range versions[i].SelectableFields {
			path := strings.TrimPrefix(f.JSONPath, ".")
			names[path] = path
			c.selectors[versions[i].Name] = append(c.selectors[versions[i].Name], path)
			if known[path] {
				continue
			}
			known[path] = true
			steps := strings.Split(path, ".")
			def.Fields = append(def.Fields, resource.Field{Path: path, Get: func(obj resource.Object) string {
				v, ok, err := unstructured.NestedFieldNoCopy(content(obj), steps...)
				if !ok || err != nil || v == nil {
					return ""
				}
				return fmt.Sprint(v)
			}})
		}
		def.Versions[i].FieldNames = names
	}
	if len(known) == 0 {
		for i := range def.Versions {
			def.Versions[i].FieldNames = nil
		}
	}
}

// finalizerWarnings returns warnings for new finalizers that are not qualified names.
func finalizerWarnings(_ context.Context, obj, old resource.Object) (warnings []string) {
	const path = "metadata.finalizers"
	names := slices.Clone(obj.GetFinalizers())
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if old != nil && slices.Contains(old.GetFinalizers(), name) {
			continue
		}
		for _, problem := range validation.IsQualifiedName(name) {
			warnings = append(warnings, fmt.Sprintf("%s: %q: %s", path, name, problem))
		}
		standard := name == metav1.FinalizerOrphanDependents || name == metav1.FinalizerDeleteDependents || name == string(corev1.FinalizerKubernetes)
		if standard || strings.Contains(name, "/") {
			continue
		}
		including := ""
		if strings.Contains(name, ".") {
			including = " including a path (/)"
		}
		warnings = append(warnings, fmt.Sprintf("%s: %q: prefer a domain-qualified finalizer name%s to avoid accidental conflicts with other finalizer writers", path, name, including))
	}
	return warnings
}

// openAPI returns the schema of a version as OpenAPI publishes it.
func (c *custom) openAPI(version string) *spec.Schema {
	text, err := c.schemas[version].text()
	if err != nil || text.json == nil {
		return openSchema()
	}
	out := openAPISchema(text)
	if paths := c.selectors[version]; len(paths) > 0 {
		var fields []any
		for _, path := range paths {
			fields = append(fields, map[string]any{"fieldPath": path})
		}
		out.AddExtension("x-kubernetes-selectable-fields", fields)
	}
	return out
}
