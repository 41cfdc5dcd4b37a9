package bootstrap

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/authz/rbac"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

//go:embed rbac.txt
var rbacText string

const labelPrefix = rbacv1.GroupName + "/"

// RBAC returns ClusterRoles, Roles, ClusterRoleBindings and RoleBindings, in this order.
func RBAC(gates features.Gates) []resource.Object {
	var objects []resource.Object
	skip := false // skip the lines of an object whose gate is disabled
	for line := range strings.Lines(rbacText) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		words, off := splitGate(words, gates)
		switch {
		case line[0] != '\t':
			if skip = off; !skip {
				objects = append(objects, newObject(words))
			}
		case !skip && !off:
			addLine(objects[len(objects)-1], dropItems(words, gates))
		}
	}
	return objects
}

// splitGate splits the feature gate off the words of a line, and reports whether the gate is
// disabled.
func splitGate(words []string, gates features.Gates) (rest []string, off bool) {
	rest = words[:len(words)-1]
	if name, ok := strings.CutPrefix(words[len(words)-1], "if:"); ok {
		return rest, !gates.Enabled(name)
	}
	return words, false
}

// dropItems removes the items of lists whose gate is disabled, and the names of gates.
func dropItems(words []string, gates features.Gates) []string {
	for i, word := range words {
		if !strings.Contains(word, "?") {
			continue
		}
		var kept []string
		for item := range strings.SplitSeq(word, ",") {
			if item, gate, gated := strings.Cut(item, "?"); !gated || gates.Enabled(gate) {
				kept = append(kept, item)
			}
		}
		words[i] = strings.Join(kept, ",")
	}
	return words
}

// newObject makes the object of an unindented line.
func newObject(words []string) resource.Object {
	kind := metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: words[0]}
	meta := metav1.ObjectMeta{
		Name:        words[1],
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
	if namespace, name, ok := strings.Cut(words[1], "/"); ok {
		meta.Namespace, meta.Name = namespace, name
	}
	ref := func() rbacv1.RoleRef {
		kind, name, _ := strings.Cut(words[2], "/")
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	switch words[0] {
	case "ClusterRole":
		for _, label := range words[2:] {
			meta.Labels[labelPrefix+label] = "true"
		}
		return &rbacv1.ClusterRole{TypeMeta: kind, ObjectMeta: meta}
	case "Role":
		return &rbacv1.Role{TypeMeta: kind, ObjectMeta: meta}
	case "ClusterRoleBinding":
		return &rbacv1.ClusterRoleBinding{TypeMeta: kind, ObjectMeta: meta, RoleRef: ref()}
	case "RoleBinding":
		return &rbacv1.RoleBinding{TypeMeta: kind, ObjectMeta: meta, RoleRef: ref()}
	}
	panic(fmt.Sprintf("rbac.txt: unknown kind %s", words[0]))
}

// addLine adds the content of an indented line to the object.
func addLine(obj resource.Object, words []string) {
	switch obj := obj.(type) {
	case *rbacv1.ClusterRole:
		if words[0] != "gathers" {
			obj.Rules = append(obj.Rules, rule(words))
			return
		}
		if obj.AggregationRule == nil {
			obj.AggregationRule = &rbacv1.AggregationRule{}
		}
		obj.AggregationRule.ClusterRoleSelectors = append(obj.AggregationRule.ClusterRoleSelectors,
			metav1.LabelSelector{MatchLabels: map[string]string{labelPrefix + words[1]: "true"}})
	case *rbacv1.Role:
		obj.Rules = append(obj.Rules, rule(words))
	case *rbacv1.ClusterRoleBinding:
		obj.Subjects = append(obj.Subjects, subject(words))
	case *rbacv1.RoleBinding:
		obj.Subjects = append(obj.Subjects, subject(words))
	}
}

func rule(words []string) rbacv1.PolicyRule {
	list := func(word string) []string { return strings.Split(word, ",") }
	r := rbacv1.PolicyRule{Verbs: list(words[0])}
	if len(words) == 2 {
		r.NonResourceURLs = list(words[1])
		return r
	}
	r.APIGroups, r.Resources = list(words[1]), list(words[2])
	if i := slices.Index(r.APIGroups, "core"); i >= 0 {
		r.APIGroups[i] = ""
	}
	if len(words) == 4 {
		r.ResourceNames = list(words[3])
	}
	return r
}

func subject(words []string) rbacv1.Subject {
	s := rbacv1.Subject{Kind: words[0], Name: words[1]}
	if s.Kind == rbacv1.ServiceAccountKind {
		s.Namespace, s.Name, _ = strings.Cut(words[1], "/")
	} else {
		s.APIGroup = rbacv1.GroupName
	}
	return s
}

// ReconcileRBAC computes the update of an existing role or binding so that it includes all
// that is wanted. Additional rules and subjects are kept, and an object whose annotation
// disables auto-update is left alone. The arguments are not changed.
func ReconcileRBAC(existing, wanted resource.Object) (resource.Object, Action) {
	if existing.GetAnnotations()[rbacv1.AutoUpdateAnnotationKey] == "false" {
		return existing, Keep
	}
	next := existing.DeepCopyObject().(resource.Object)
	next.SetAnnotations(merged(wanted.GetAnnotations(), existing.GetAnnotations()))
	next.SetLabels(merged(wanted.GetLabels(), existing.GetLabels()))
	changed := !maps.Equal(next.GetAnnotations(), existing.GetAnnotations()) || !maps.Equal(next.GetLabels(), existing.GetLabels())
	rules := func(rules *[]rbacv1.PolicyRule, wanted []rbacv1.PolicyRule) {
		missing := rbac.Uncovered(*rules, wanted)
		*rules = append(*rules, missing...)
		changed = changed || len(missing) > 0
	}
	subjects := func(subjects *[]rbacv1.Subject, wanted []rbacv1.Subject) {
		for _, s := range wanted {
			if !slices.Contains(*subjects, s) {
				*subjects = append(*subjects, s)
				changed = true
			}
		}
	}
	switch next := next.(type) {
	case *rbacv1.ClusterRole:
		wanted := wanted.(*rbacv1.ClusterRole)
		rules(&next.Rules, wanted.Rules)
		changed = reconcileAggregation(next, wanted.AggregationRule) || changed
	case *rbacv1.Role:
		rules(&next.Rules, wanted.(*rbacv1.Role).Rules)
	case *rbacv1.ClusterRoleBinding:
		wanted := wanted.(*rbacv1.ClusterRoleBinding)
		if next.RoleRef != wanted.RoleRef {
			return wanted, Recreate
		}
		subjects(&next.Subjects, wanted.Subjects)
	case *rbacv1.RoleBinding:
		wanted := wanted.(*rbacv1.RoleBinding)
		if next.RoleRef != wanted.RoleRef {
			return wanted, Recreate
		}
		subjects(&next.Subjects, wanted.Subjects)
	}
	if !changed {
		return existing, Keep
	}
	return next, Update
}

// merged returns the union of two maps; the second wins.
func merged(first, second map[string]string) map[string]string {
	out := maps.Clone(first)
	if out == nil {
		return maps.Clone(second)
	}
	maps.Copy(out, second)
	return out
}

// reconcileAggregation adds wanted selectors to the aggregationRule of a role, or removes the rule if none
// is wanted, and reports whether that changes the role.
func reconcileAggregation(role *rbacv1.ClusterRole, wanted *rbacv1.AggregationRule) bool {
	if wanted == nil {
		changed := role.AggregationRule != nil
		role.AggregationRule = nil
		return changed
	}
	var missing []metav1.LabelSelector
	for _, w := range wanted.ClusterRoleSelectors {
		if role.AggregationRule == nil || !slices.ContainsFunc(role.AggregationRule.ClusterRoleSelectors, func(s metav1.LabelSelector) bool {
			return equality.Semantic.DeepEqual(s, w)
		}) {
			missing = append(missing, w)
		}
	}
	if len(missing) == 0 {
		return false
	}
	if role.AggregationRule == nil {
		role.AggregationRule = &rbacv1.AggregationRule{}
	}
	role.AggregationRule.ClusterRoleSelectors = append(role.AggregationRule.ClusterRoleSelectors, missing...)
	return true
}
