package bootstrap

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/flowcontrol"
	builtinrbac "github.com/apikeel/kelson/builtin/rbac"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/internal/recorded"
	"github.com/apikeel/kelson/resource"
)

// TestObjects compares the objects with those that kube-apiserver makes.
func TestObjects(t *testing.T) {
	list := recorded.ReadOne[[]map[string]any](t, "testdata/objects.json.gz")
	key := func(obj map[string]any) string {
		meta := obj["metadata"].(map[string]any)
		namespace, _ := meta["namespace"].(string)
		return obj["kind"].(string) + " " + namespace + "/" + meta["name"].(string)
	}
	want := map[string]map[string]any{}
	for _, obj := range list {
		want[key(obj)] = obj
	}
	for _, obj := range slices.Concat(RBAC(features.Gates{}), PriorityClasses(), PriorityLevels(), FlowSchemas()) {
		text, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		delete(got, "status")
		delete(got["metadata"].(map[string]any), "creationTimestamp")
		k := key(got)
		if !reflect.DeepEqual(got, want[k]) {
			t.Errorf("%s:\n%v\nwant\n%v", k, got, want[k])
		}
		delete(want, k)
	}
	for k := range want {
		t.Errorf("%s: missing", k)
	}
}

// TestRolesObeyGates wants roles, rules and URLs to be left out with the gates that they belong to.
func TestRolesObeyGates(t *testing.T) {
	gates, err := features.New(features.Config{EmulatedVersion: "1.34", Set: map[string]bool{
		"DynamicResourceAllocation": false, "DRAAdminAccess": false, "DRAPrioritizedList": false, "DRASchedulerFilterTimeout": false}})
	if err != nil {
		t.Fatal(err)
	}
	var urls []string
	for _, obj := range RBAC(gates) {
		if strings.Contains(obj.GetName(), "resource-claim-controller") {
			t.Errorf("got %s, want it left out", obj.GetName())
		}
		role, ok := obj.(*rbacv1.ClusterRole)
		if !ok {
			continue
		}
		for _, r := range role.Rules {
			if slices.Contains(r.APIGroups, "resource.k8s.io") {
				t.Errorf("%s has the rule %v, want none about devices", role.Name, r)
			}
			if role.Name == "system:monitoring" {
				urls = append(urls, r.NonResourceURLs...)
			}
		}
	}
	want := []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/metrics/slis", "/readyz", "/readyz/*"} // flagz and statusz are alpha in 1.34
	if !slices.Equal(urls, want) {
		t.Errorf("system:monitoring has %v, want %v", urls, want)
	}
}

// TestValid wants the objects to be valid, and complete: there is nothing left to
// default.
func TestValid(t *testing.T) {
	definitions := map[string]resource.Definition{}
	for _, g := range []resource.Group{builtinrbac.Group(builtinrbac.Config{}), flowcontrol.Group()} {
		for _, d := range g.Resources {
			definitions[d.Kind] = d
		}
	}
	for _, obj := range slices.Concat(RBAC(features.Gates{}), PriorityLevels(), FlowSchemas()) {
		d := definitions[obj.GetObjectKind().GroupVersionKind().Kind]
		before := obj.DeepCopyObject()
		if f := d.Versions[0].Default; f != nil {
			f(obj)
		}
		if !reflect.DeepEqual(obj, before) {
			t.Errorf("%s %s: had something left to default", d.Kind, obj.GetName())
		}
		if errs := d.Strategy.Validate(context.Background(), obj); len(errs) > 0 {
			t.Errorf("%s %s: %v", d.Kind, obj.GetName(), errs)
		}
	}
}

func TestReconcileRBAC(t *testing.T) {
	role := func(annotations map[string]string, rules ...rbacv1.PolicyRule) resource.Object {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}, Rules: rules}
	}
	gathers := func(labels ...string) resource.Object {
		r := &rbacv1.ClusterRole{AggregationRule: &rbacv1.AggregationRule{}}
		for _, l := range labels {
			r.AggregationRule.ClusterRoleSelectors = append(r.AggregationRule.ClusterRoleSelectors, metav1.LabelSelector{MatchLabels: map[string]string{l: "true"}})
		}
		return r
	}
	binding := func(role string, users ...string) resource.Object {
		b := &rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{Name: role}}
		for _, u := range users {
			b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: "User", Name: u})
		}
		return b
	}
	on := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{""}, Resources: []string{resource}}
	}
	auto, off := map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"}, map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"}
	tests := map[string]struct {
		existing, wanted, next resource.Object
		action                 Action
	}{
		"the same":        {existing: role(auto, on("pods", "get")), wanted: role(auto, on("pods", "get"))},
		"more than asked": {existing: role(auto, on("*", "*")), wanted: role(auto, on("pods", "get"))},
		"a rule":          {existing: role(auto, on("pods", "get")), wanted: role(auto, on("pods", "get", "list")), next: role(auto, on("pods", "get"), on("pods", "list")), action: Update},
		"switched off":    {existing: role(off), wanted: role(auto, on("pods", "get"))},
		"annotation":      {existing: role(nil), wanted: role(auto), next: role(auto), action: Update},
		"own annotation":  {existing: role(map[string]string{"a": "b", rbacv1.AutoUpdateAnnotationKey: "yes"}), wanted: role(auto)},
		"gathering":       {existing: gathers("x"), wanted: gathers("y", "x"), next: gathers("x", "y"), action: Update},
		"starts to":       {existing: role(nil), wanted: gathers("y"), next: gathers("y"), action: Update},
		"stops to":        {existing: gathers("x"), wanted: role(nil), next: role(nil), action: Update},
		"subjects":        {existing: binding("r", "a"), wanted: binding("r", "b", "b"), next: binding("r", "a", "b"), action: Update},
		"extra subjects":  {existing: binding("r", "a", "b"), wanted: binding("r", "b")},
		"another role":    {existing: binding("r", "a"), wanted: binding("s", "b"), next: binding("s", "b"), action: Recreate},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			before := test.existing.DeepCopyObject()
			next, action := ReconcileRBAC(test.existing, test.wanted)
			if test.next == nil {
				test.next = test.existing
			}
			if action != test.action || !reflect.DeepEqual(next, test.next) {
				t.Errorf("action %d: %+v, want %d: %+v", action, next, test.action, test.next)
			}
			if !reflect.DeepEqual(test.existing, before) {
				t.Error("the existing object was changed")
			}
		})
	}
}

func TestReconcileFlowControl(t *testing.T) {
	level := func(name, annotation string, generation int64, shares int32) resource.Object {
		p := &flowcontrolv1.PriorityLevelConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: name, Generation: generation},
			Spec:       flowcontrolv1.PriorityLevelConfigurationSpec{Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: &shares}},
		}
		if annotation != "" {
			p.Annotations = map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: annotation}
		}
		return p
	}
	exempt := func(annotation string, shares int32) resource.Object {
		p := level("exempt", annotation, 2, 0).(*flowcontrolv1.PriorityLevelConfiguration)
		p.Spec = flowcontrolv1.PriorityLevelConfigurationSpec{Exempt: &flowcontrolv1.ExemptPriorityLevelConfiguration{NominalConcurrencyShares: &shares}}
		return p
	}
	tests := map[string]struct {
		existing, wanted, next resource.Object
	}{
		"the same":              {existing: level("x", "true", 1, 5), wanted: level("x", "true", 0, 5)},
		"another specification": {existing: level("x", "true", 3, 5), wanted: level("x", "true", 0, 6), next: level("x", "true", 3, 6)},
		"taken over":            {existing: level("x", "false", 3, 5), wanted: level("x", "true", 0, 6)},
		"nobody touched it":     {existing: level("x", "", 1, 5), wanted: level("x", "true", 0, 6), next: level("x", "true", 1, 6)},
		"somebody touched it":   {existing: level("x", "", 2, 5), wanted: level("x", "true", 0, 6), next: level("x", "false", 2, 5)},
		"nonsense":              {existing: level("x", "maybe", 2, 5), wanted: level("x", "true", 0, 6), next: level("x", "false", 2, 5)},
		"mandatory":             {existing: level("catch-all", "false", 2, 5), wanted: level("catch-all", "true", 0, 6), next: level("catch-all", "true", 2, 6)},
		"shares of the exempt":  {existing: exempt("true", 7), wanted: exempt("true", 0)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			want := Update
			if test.next == nil {
				test.next, want = test.existing, Keep
			}
			if next, action := ReconcileFlowControl(test.existing, test.wanted); action != want || !reflect.DeepEqual(next, test.next) {
				t.Errorf("action %d: %+v, want %d: %+v", action, next, want, test.next)
			}
		})
	}
	wanted := []resource.Object{level("x", "true", 0, 0)}
	for name, test := range map[string]struct {
		obj  resource.Object
		want bool
	}{
		"wanted":     {level("x", "true", 1, 0), false},
		"left over":  {level("y", "true", 1, 0), true},
		"taken over": {level("y", "false", 1, 0), false},
		"not ours":   {level("y", "", 1, 0), false},
	} {
		if got := Unwanted(test.obj, wanted); got != test.want {
			t.Errorf("%s: unwanted %v", name, got)
		}
	}
}
