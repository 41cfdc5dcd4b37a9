package flowcontrol

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// maxPrecedence is the largest matchingPrecedence; such schemas match last.
const maxPrecedence = 10000

// FlowSchemas defines flowschemas.
func FlowSchemas() resource.Definition {
	spec := flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()
	return resource.Definition{
		Group:      flowcontrolv1.GroupName,
		Resource:   "flowschemas",
		Kind:       "FlowSchema",
		StorageKey: "flowschemas",
		Versions:   []resource.Version{resource.VersionOf[flowcontrolv1.FlowSchema, flowcontrolv1.FlowSchemaList]("v1", defaultSchema)},
		Old:        oldSchemas(),
		Strategy: resource.Rules[*flowcontrolv1.FlowSchema]{
			NameOnUpdate:  true,
			PrepareCreate: func(_ context.Context, f *flowcontrolv1.FlowSchema) { f.Status = flowcontrolv1.FlowSchemaStatus{} },
			PrepareUpdate: func(_ context.Context, f, old *flowcontrolv1.FlowSchema) { f.Status = old.Status },
			Validate: func(_ context.Context, f *flowcontrolv1.FlowSchema) field.ErrorList {
				return append(validateSchema(f.Name, &f.Spec, field.NewPath("spec")), validateSchemaStatus(f)...)
			},
			Generation: func(f, old *flowcontrolv1.FlowSchema) bool { return !equality.Semantic.DeepEqual(f.Spec, old.Spec) },
		}.Strategy(),
		Subresources: []resource.Subresource{statusPart(
			func(f *flowcontrolv1.FlowSchema) *metav1.ObjectMeta { return &f.ObjectMeta },
			func(f, old *flowcontrolv1.FlowSchema) { f.Spec = old.Spec },
			validateSchemaStatus,
		)},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "PriorityLevel", Type: "string", Description: flowcontrolv1.PriorityLevelConfigurationReference{}.SwaggerDoc()["name"]},
			{Name: "MatchingPrecedence", Type: "string", Description: spec["matchingPrecedence"]},
			{Name: "DistinguisherMethod", Type: "string", Description: spec["distinguisherMethod"]},
			rules.AgeColumn(),
			{Name: "MissingPL", Type: "string", Description: "references a broken or non-existent PriorityLevelConfiguration"},
		},
		Cells: resource.CellsFunc(func(f *flowcontrolv1.FlowSchema) []any {
			method, dangling := "<none>", "?"
			if m := f.Spec.DistinguisherMethod; m != nil {
				method = string(m.Type)
			}
			for _, c := range f.Status.Conditions {
				if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
					dangling = string(c.Status)
					break
				}
			}
			return []any{
				f.Name, f.Spec.PriorityLevelConfiguration.Name, int64(f.Spec.MatchingPrecedence), method,
				resource.Since(f.CreationTimestamp.Time), dangling,
			}
		}),
		// Rows are in the order of matching.
		Arrange: resource.ArrangeFunc(func(all []*flowcontrolv1.FlowSchema) func(*flowcontrolv1.FlowSchema, []any) {
			slices.SortFunc(all, func(a, b *flowcontrolv1.FlowSchema) int {
				return cmp.Or(cmp.Compare(a.Spec.MatchingPrecedence, b.Spec.MatchingPrecedence), cmp.Compare(a.Name, b.Name))
			})
			return nil
		}),
	}
}

// Dangling returns the condition that says whether the priority level of a schema exists.
func Dangling(level string, exists bool, since metav1.Time) flowcontrolv1.FlowSchemaCondition {
	c := flowcontrolv1.FlowSchemaCondition{
		Type:               flowcontrolv1.FlowSchemaConditionDangling,
		Status:             flowcontrolv1.ConditionTrue,
		LastTransitionTime: since,
		Reason:             "NotFound",
		Message:            fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q but there is no such object", level),
	}
	if exists {
		c.Status, c.Reason = flowcontrolv1.ConditionFalse, "Found"
		c.Message = fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists", level)
	}
	return c
}

func validateSchemaStatus(f *flowcontrolv1.FlowSchema) field.ErrorList {
	return validateConditionTypes(f.Status.Conditions, func(c flowcontrolv1.FlowSchemaCondition) flowcontrolv1.FlowSchemaConditionType { return c.Type })
}

func validateSchema(name string, spec *flowcontrolv1.FlowSchemaSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("matchingPrecedence")
	switch p := spec.MatchingPrecedence; {
	case p <= 0:
		errs = append(errs, field.Invalid(at, p, "must be a positive value"))
	case p > maxPrecedence:
		errs = append(errs, field.Invalid(at, p, fmt.Sprintf("must not be greater than %d", maxPrecedence)))
	case p == 1 && name != flowcontrolv1.FlowSchemaNameExempt:
		errs = append(errs, field.Invalid(at, p, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if m := spec.DistinguisherMethod; m != nil {
		known := []flowcontrolv1.FlowDistinguisherMethodType{flowcontrolv1.FlowDistinguisherMethodByNamespaceType, flowcontrolv1.FlowDistinguisherMethodByUserType}
		if !slices.Contains(known, m.Type) {
			errs = append(errs, field.NotSupported(path.Child("distinguisherMethod", "type"), rules.GoForm(m), known))
		}
	}
	at = path.Child("priorityLevelConfiguration", "name")
	if level := spec.PriorityLevelConfiguration.Name; level == "" {
		errs = append(errs, field.Required(at, "must reference a priority level"))
	} else {
		errs = append(errs, rules.Invalid(at, level, apivalidation.NameIsDNSSubdomain(level, false))...)
	}
	for i := range spec.Rules {
		errs = append(errs, validateRule(&spec.Rules[i], path.Child("rules").Index(i))...)
	}
	if want, ok := MandatorySchemas()[name]; ok && !equality.Semantic.DeepEqual(*spec, want) {
		errs = append(errs, field.Invalid(path, rules.GoForm(spec), fmt.Sprintf("spec of '%s' must equal the fixed value", name)))
	}
	return errs
}

func validateRule(rule *flowcontrolv1.PolicyRulesWithSubjects, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(rule.Subjects) == 0 {
		errs = append(errs, field.Required(path.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range rule.Subjects {
		errs = append(errs, validateSubject(&rule.Subjects[i], path.Child("subjects").Index(i))...)
	}
	if len(rule.ResourceRules)+len(rule.NonResourceRules) == 0 {
		errs = append(errs, field.Required(path, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range rule.ResourceRules {
		r, path := &rule.ResourceRules[i], path.Child("resourceRules").Index(i)
		errs = append(errs, validateVerbs(r.Verbs, path.Child("verbs"))...)
		errs = append(errs, allOrSome(r.APIGroups, "resource rules must supply at least one api group", "api groups", path.Child("apiGroups"))...)
		errs = append(errs, allOrSome(r.Resources, "resource rules must supply at least one resource", "resources", path.Child("resources"))...)
		path = path.Child("namespaces")
		if len(r.Namespaces) > 0 || !r.ClusterScope {
			errs = append(errs, allOrSome(r.Namespaces, "resource rules that are not cluster scoped must supply at least one namespace", "namespaces", path)...)
		}
		if slices.Contains(r.Namespaces, flowcontrolv1.NamespaceEvery) {
			continue
		}
		for i, ns := range r.Namespaces {
			for _, m := range apivalidation.ValidateNamespaceName(ns, false) {
				errs = append(errs, field.Invalid(path.Index(i), ns, "each member of this list must be '*' or a DNS-1123 label; "+m))
			}
		}
	}
	for i := range rule.NonResourceRules {
		r, path := &rule.NonResourceRules[i], path.Child("nonResourceRules").Index(i)
		errs = append(errs, validateVerbs(r.Verbs, path.Child("verbs"))...)
		path = path.Child("nonResourceURLs")
		errs = append(errs, allOrSome(r.NonResourceURLs, "nonResourceURLs must contain at least one value", "non-resource URLs", path)...)
		if slices.Contains(r.NonResourceURLs, flowcontrolv1.NonResourceAll) {
			continue
		}
		for i, url := range r.NonResourceURLs {
			if problem := urlProblem(url); problem != "" {
				errs = append(errs, field.Invalid(path.Index(i), url, problem))
			}
		}
	}
	return errs
}

// allOrSome checks for a list of names, or "*" alone.
func allOrSome(list []string, missing, names string, path *field.Path) field.ErrorList {
	switch {
	case len(list) == 0:
		return field.ErrorList{field.Required(path, missing)}
	case len(list) > 1 && slices.Contains(list, "*"):
		return field.ErrorList{field.Invalid(path, list, "if '*' is present, must not specify other "+names)}
	}
	return nil
}

func validateVerbs(verbs []string, path *field.Path) field.ErrorList {
	errs := allOrSome(verbs, "verbs must contain at least one value", "verbs", path)
	if slices.Contains(verbs, flowcontrolv1.VerbAll) {
		return errs
	}
	known := []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}
	if slices.ContainsFunc(verbs, func(v string) bool { return !slices.Contains(known, v) }) {
		errs = append(errs, field.NotSupported(path, verbs, known))
	}
	return errs
}

func urlProblem(url string) string {
	switch stars := strings.Count(url, "*"); {
	case url == "":
		return "must not be empty"
	case !strings.HasPrefix(url, "/"):
		return "must start with slash"
	case strings.Contains(url, " "):
		return "must not contain white-space"
	case strings.Contains(url, "//"):
		return "must not contain double slash"
	case stars > 1, stars == 1 && !strings.HasSuffix(url, "/*"):
		return "wildcard can only do suffix matching"
	}
	return ""
}

// validateSubject checks that the field of the subject kind, and no other, is set.
func validateSubject(s *flowcontrolv1.Subject, path *field.Path) field.ErrorList {
	named := func(name string, path *field.Path) (errs field.ErrorList) {
		if name == "" {
			errs = field.ErrorList{field.Required(path.Child("name"), "")}
		}
		return errs
	}
	members := []struct {
		kind  flowcontrolv1.SubjectKind
		name  string
		set   bool
		judge func(path *field.Path) field.ErrorList
	}{
		{flowcontrolv1.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil, func(path *field.Path) field.ErrorList { return validateAccount(s.ServiceAccount, path) }},
		{flowcontrolv1.SubjectKindUser, "user", s.User != nil, func(path *field.Path) field.ErrorList { return named(s.User.Name, path) }},
		{flowcontrolv1.SubjectKindGroup, "group", s.Group != nil, func(path *field.Path) field.ErrorList { return named(s.Group.Name, path) }},
	}
	var kinds []flowcontrolv1.SubjectKind
	var own, others field.ErrorList
	for _, m := range members {
		kinds = append(kinds, m.kind)
		switch path := path.Child(m.name); {
		case m.kind == s.Kind && !m.set:
			own = field.ErrorList{field.Required(path, fmt.Sprintf("%s is required when subject kind is '%s'", m.name, m.kind))}
		case m.kind == s.Kind:
			own = m.judge(path)
		case m.set:
			others = append(others, field.Forbidden(path, fmt.Sprintf("%s is forbidden when subject kind is not '%s'", m.name, m.kind)))
		}
	}
	if !slices.Contains(kinds, s.Kind) {
		slices.Sort(kinds)
		return field.ErrorList{field.NotSupported(path.Child("kind"), s.Kind, kinds)}
	}
	return append(own, others...)
}

func validateAccount(a *flowcontrolv1.ServiceAccountSubject, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if a.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else if a.Name != flowcontrolv1.NameAll {
		errs = append(errs, rules.Invalid(path.Child("name"), a.Name, apivalidation.ValidateServiceAccountName(a.Name, false))...)
	}
	if a.Namespace == "" {
		return append(errs, field.Required(path.Child("namespace"), "must specify namespace for service account"))
	}
	return append(errs, rules.Invalid(path.Child("namespace"), a.Namespace, apivalidation.ValidateNamespaceName(a.Namespace, false))...)
}

func defaultSchema(f *flowcontrolv1.FlowSchema) {
	if f.Spec.MatchingPrecedence == 0 {
		f.Spec.MatchingPrecedence = 1000
	}
}
