// Package apiserverinternal is the API group internal.apiserver.k8s.io: the storage versions of
// servers that share a storage. Start at Group and Agree.
package apiserverinternal

import (
	"context"
	"fmt"
	"slices"
	"strings"

	internalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// shownServers is how many servers a table cell lists.
const shownServers = 3

// maxSaid is after how many bytes of details errors that repeat a list stop.
const maxSaid = 4 << 20

type storageVersion = internalv1alpha1.StorageVersion

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: internalv1alpha1.GroupName, Resources: []resource.Definition{StorageVersions()}}
}

// StorageVersions defines storageversions: in which version each server encodes a resource, and
// which it can decode.
func StorageVersions() resource.Definition {
	v1alpha1 := resource.VersionOf[storageVersion, internalv1alpha1.StorageVersionList]("v1alpha1", nil)
	v1alpha1.Off = true
	status := resource.Rules[*storageVersion]{
		RequireVersion: true,
		PrepareUpdate: func(_ context.Context, v, old *storageVersion) {
			v.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&v.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: func(_ context.Context, v, _ *storageVersion) field.ErrorList { return validateStatus(&v.Status) },
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	text := internalv1alpha1.StorageVersionStatus{}.SwaggerDoc()
	return resource.Definition{
		Group:      internalv1alpha1.GroupName,
		Resource:   "storageversions",
		Kind:       "StorageVersion",
		StorageKey: "storageversions",
		Versions:   []resource.Version{v1alpha1},
		Strategy: resource.Rules[*storageVersion]{
			RequireVersion: true,
			ValidateName:   func(name string, _ bool) []string { return nameProblems(name) },
			PrepareCreate: func(_ context.Context, v *storageVersion) {
				v.Status = internalv1alpha1.StorageVersionStatus{}
			},
			PrepareUpdate: func(_ context.Context, v, old *storageVersion) { v.Status = old.Status },
			Validate: func(_ context.Context, v *storageVersion) field.ErrorList {
				return rules.ValidateFinalizers(v.Finalizers, field.NewPath("metadata", "finalizers"))
			},
			ValidateUpdate: func(context.Context, *storageVersion, *storageVersion) field.ErrorList { return nil },
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "CommonEncodingVersion", Type: "string", Description: text["commonEncodingVersion"]},
			{Name: "StorageVersions", Type: "string", Description: text["storageVersions"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(v *storageVersion) []any {
			common := "<unset>"
			if c := v.Status.CommonEncodingVersion; c != nil {
				common = *c
			}
			return []any{v.Name, common, servers(v.Status.StorageVersions), resource.Since(v.CreationTimestamp.Time)}
		}),
	}
}

func servers(all []internalv1alpha1.ServerStorageVersion) string {
	if len(all) == 0 {
		return "<unset>"
	}
	var list []string
	for _, s := range all[:min(len(all), shownServers)] {
		list = append(list, s.APIServerID+"="+s.EncodingVersion)
	}
	out := strings.Join(list, ",")
	if more := len(all) - shownServers; more > 0 {
		out += fmt.Sprintf(" + %d more...", more)
	}
	return out
}

// nameProblems checks that a name is <group>.<resource>.
func nameProblems(name string) []string {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return []string{"name must be in the form of <group>.<resource>"}
	}
	return append(prefixed("the group segment ", validation.IsDNS1123Subdomain(name[:i])),
		prefixed("the resource segment ", validation.IsDNS1035Label(name[i+1:]))...)
}

func prefixed(prefix string, messages []string) []string {
	for i := range messages {
		messages[i] = prefix + messages[i]
	}
	return messages
}

func validateStatus(s *internalv1alpha1.StorageVersionStatus) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status")
	seen := map[string]bool{}
	for i := range s.StorageVersions {
		v, path := &s.StorageVersions[i], path.Child("storageVersions").Index(i)
		if seen[v.APIServerID] {
			errs = append(errs, field.Duplicate(path.Child("apiServerID"), v.APIServerID))
		}
		seen[v.APIServerID] = true
		errs = append(errs, validateServer(v, path)...)
	}
	errs = append(errs, validateCommon(s, path.Child("commonEncodingVersion"))...)
	return append(errs, validateConditions(s.Conditions, path)...)
}

func validateServer(v *internalv1alpha1.ServerStorageVersion, path *field.Path) field.ErrorList {
	errs := rules.Invalid(path.Child("apiServerID"), v.APIServerID, apivalidation.NameIsDNSSubdomain(v.APIServerID, false))
	version := func(version string, path *field.Path) {
		if problems := versionProblems(version); len(problems) > 0 {
			errs = append(errs, field.Invalid(path, version, strings.Join(problems, ",")))
		}
	}
	version(v.EncodingVersion, path.Child("encodingVersion"))
	readable := path.Child("decodableVersions")
	for i, r := range v.DecodableVersions {
		version(r, readable.Index(i))
	}
	if !slices.Contains(v.DecodableVersions, v.EncodingVersion) {
		errs = append(errs, field.Invalid(readable, v.DecodableVersions, "decodableVersions must include encodingVersion "+v.EncodingVersion))
	}
	decodable := sets.New(v.DecodableVersions...)
	said := 0
	for i, served := range v.ServedVersions {
		path := path.Child("servedVersions").Index(i)
		version(served, path)
		if !decodable.Has(served) && said < maxSaid {
			// Each error repeats the whole list.
			err := field.Invalid(path, served,
				fmt.Sprintf("individual served version : %s must be included in decodableVersions : %s", served, v.DecodableVersions))
			errs, said = append(errs, err), said+len(err.Detail)
		}
	}
	return errs
}

// validateCommon checks commonEncodingVersion against the versions of all servers.
func validateCommon(s *internalv1alpha1.StorageVersionStatus, path *field.Path) field.ErrorList {
	agreed := len(s.StorageVersions) > 0
	var version string
	for i, v := range s.StorageVersions {
		agreed = agreed && (i == 0 || v.EncodingVersion == version)
		version = v.EncodingVersion
	}
	given := s.CommonEncodingVersion
	switch {
	case !agreed && given != nil:
		return field.ErrorList{field.Invalid(path, *given, "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet")}
	case agreed && given == nil:
		return field.ErrorList{field.Invalid(path, given, "the common encoding version is "+version)}
	case agreed && *given != version:
		return field.ErrorList{field.Invalid(path, *given, "the actual common encoding version is "+version)}
	}
	return nil
}

// validateConditions validates conditions. As in kube-apiserver, paths lack the field name.
func validateConditions(conditions []internalv1alpha1.StorageVersionCondition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[internalv1alpha1.StorageVersionConditionType]int{}
	for i, c := range conditions {
		path := path.Index(i)
		if before, ok := seen[c.Type]; ok {
			errs = append(errs, field.Invalid(path.Child("type"), string(c.Type),
				fmt.Sprintf("the type of the condition is not unique, it also appears in conditions[%d]", before)))
		}
		seen[c.Type] = i
		errs = append(errs, rules.Invalid(path.Child("type"), string(c.Type), validation.IsQualifiedName(string(c.Type)))...)
		errs = append(errs, rules.Invalid(path.Child("status"), string(c.Status), validation.IsQualifiedName(string(c.Status)))...)
		if c.Reason == "" {
			errs = append(errs, field.Required(path.Child("reason"), ""))
		}
		if c.Message == "" {
			errs = append(errs, field.Required(path.Child("message"), ""))
		}
	}
	return errs
}

// versionProblems checks that an apiVersion is valid.
func versionProblems(apiVersion string) []string {
	group, version, ok := strings.Cut(apiVersion, "/")
	if !ok {
		version = apiVersion
	}
	if strings.Contains(version, "/") {
		return []string{"an apiVersion is " + validation.RegexError("a DNS-1035 label, which must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
			"[a-z]([-a-z0-9]*[a-z0-9])?", "my-name", "abc-123") + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyVersion')"}
	}
	part := func(name, text string, judge func(string) []string) []string {
		if text == "" {
			return []string{name + validation.EmptyError()}
		}
		return prefixed(name, judge(text))
	}
	var problems []string
	if ok {
		problems = part("group part: ", group, validation.IsDNS1123Subdomain)
	}
	return append(problems, part("version part: ", version, validation.IsDNS1035Label)...)
}
