package kelsontest_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/kelsontest"
)

// TestServersBeginWithTheSameObjects: what servers write into an empty store is the same
// for the first and the second of a process, and for one that creates object by object,
// as a plugin of its own makes it do. Only uids and times differ.
func TestServersBeginWithTheSameObjects(t *testing.T) {
	want, uids := bootstrapObjects(t, kelsontest.Start(t))
	if n := len(want); n < 150 {
		t.Errorf("got %d objects, want those of a cluster", n)
	}
	second, others := bootstrapObjects(t, kelsontest.Start(t))
	if diff := difference(second, want); diff != "" {
		t.Errorf("a second server has other objects than the first: %s", diff)
	}
	for uid := range others {
		if uids[uid] {
			t.Errorf("uid %s is that of an object of another server, want one of its own", uid)
		}
	}
	// Here roles are aggregated, and flow schemas get their status, after the start.
	single := kelsontest.Start(t, kelsontest.Admission(plugin.Config{MakeAccounts: true}, idlePlugin{}))
	var diff string
	t.Cleanup(func() {
		if diff != "" {
			t.Logf("a server that creates object by object has others: %s", diff)
		}
	})
	polltest.Until(t, "a server that creates object by object has the same", func() bool {
		got, _ := bootstrapObjects(t, single)
		diff = difference(got, want)
		return diff == ""
	})
}

// TestRolesAreAggregatedAfterTheStart: a server that begins with aggregated roles still
// notices those of others, and that one of its own goes.
func TestRolesAreAggregatedAfterTheStart(t *testing.T) {
	client, err := kubernetes.NewForConfig(kelsontest.Start(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	roles := client.RbacV1().ClusterRoles()
	has := func(resource string) bool {
		admin, err := roles.Get(t.Context(), "admin", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(admin.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, resource) })
	}
	if !has("pods/log") {
		t.Error("got a role admin without rules of view, want them from the start")
	}
	if _, err := roles.Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "further", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"things"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "the role admin has rules of a further role", func() bool { return has("things") })
	if err := roles.Delete(t.Context(), "system:aggregate-to-view", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "the role admin has no rules of a role that is gone", func() bool { return !has("pods/log") })
}

// idlePlugin is an admission plugin that does nothing.
type idlePlugin struct{}

func (idlePlugin) Name() string { return "Idle" }

// Handles implements admission.Plugin.
func (idlePlugin) Handles(admission.Target) bool { return false }

// difference returns how the objects of two servers differ, "" if they do not.
func difference(got, want map[string]string) string {
	for key := range want {
		if got[key] != want[key] {
			return key + ":\n got " + got[key] + "\nwant " + want[key]
		}
	}
	for key := range got {
		if want[key] == "" {
			return key + " is not wanted"
		}
	}
	return ""
}

// bootstrapObjects returns the objects that a server begins with, without uids, resource
// versions and times, and the uids.
func bootstrapObjects(t *testing.T, s *kelsontest.Server) (objects map[string]string, uids map[string]bool) {
	t.Helper()
	client, err := dynamic.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	objects, uids = map[string]string{}, map[string]bool{}
	for _, resource := range []string{
		"namespaces.v1.", "clusterroles.v1.rbac.authorization.k8s.io", "clusterrolebindings.v1.rbac.authorization.k8s.io",
		"roles.v1.rbac.authorization.k8s.io", "rolebindings.v1.rbac.authorization.k8s.io", "priorityclasses.v1.scheduling.k8s.io",
		"flowschemas.v1.flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations.v1.flowcontrol.apiserver.k8s.io",
		"apiservices.v1.apiregistration.k8s.io",
	} {
		gvr, _ := schema.ParseResourceArg(resource)
		list, err := client.Resource(*gvr).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			obj := &list.Items[i]
			uids[string(obj.GetUID())] = true
			if at := obj.GetCreationTimestamp(); time.Since(at.Time).Abs() > time.Hour {
				t.Errorf("%s %s was created at %v, want about now", gvr.Resource, obj.GetName(), at)
			}
			if text, _ := obj.MarshalJSON(); strings.Contains(string(text), "2009-02-13") {
				t.Errorf("got %s, want no time but that of the start", text)
			}
			strip(obj.Object)
			text, err := json.Marshal(obj.Object)
			if err != nil {
				t.Fatal(err)
			}
			objects[gvr.Resource+" "+obj.GetNamespace()+"/"+obj.GetName()] = string(text)
		}
	}
	return objects, uids
}

// strip takes what differs between servers out of a JSON value.
func strip(v any) {
	switch v := v.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(key string, value any) bool {
			switch key {
			case "uid", "resourceVersion", "creationTimestamp", "time", "lastTransitionTime":
				_, isText := value.(string)
				return isText
			}
			strip(value)
			return false
		})
	case []any:
		for _, child := range v {
			strip(child)
		}
	}
}
