package api

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/history"
)

// TestHistory asks for what was: every store keeps versions for a while.
func TestHistory(t *testing.T) {
	everywhere(t, func(t *testing.T, c kubernetes.Interface) {
		maps := c.CoreV1().ConfigMaps("default")
		set := func(name, value string) *corev1.ConfigMap {
			return &corev1.ConfigMap{ObjectMeta: named(name), Data: map[string]string{"value": value}}
		}
		must(maps.Create(t.Context(), set("changed", "old"), metav1.CreateOptions{}))(t)
		from := must(maps.Create(t.Context(), set("deleted", "old"), metav1.CreateOptions{}))(t).ResourceVersion
		must(maps.Update(t.Context(), set("changed", "new"), metav1.UpdateOptions{}))(t)
		ok(t, maps.Delete(t.Context(), "deleted", metav1.DeleteOptions{}))
		to := must(maps.Create(t.Context(), set("created", "new"), metav1.CreateOptions{}))(t).ResourceVersion
		must(maps.Update(t.Context(), set("changed", "newer"), metav1.UpdateOptions{}))(t)

		ask := func(path string, answer any, params ...string) {
			t.Helper()
			request := c.CoreV1().RESTClient().Get().AbsPath(path).Param("resource", "configmaps").Param("namespace", "default")
			for i := 0; i < len(params); i += 2 {
				request = request.Param(params[i], params[i+1])
			}
			ok(t, json.Unmarshal(must(request.DoRaw(t.Context()))(t), answer))
		}
		var differs history.Differences
		ask(history.DiffPath, &differs, "from", from, "to", to)
		got := map[string]string{}
		for _, item := range differs.Items {
			got[item.Name] = item.Verb
		}
		if len(got) != 3 || got["changed"] != "update" || got["deleted"] != "delete" || got["created"] != "create" {
			t.Errorf("from %s to %s: got %v, want the three config maps that differ", from, to, got)
		}
		var then corev1.ConfigMap
		ask(history.AtPath, &then, "name", "deleted", "at", from)
		if then.Data["value"] != "old" {
			t.Errorf("at %s: got %v, want the config map that was deleted later", from, then.Data)
		}
		var changes history.Changes
		ask(history.ChangesPath, &changes, "name", "changed")
		var verbs []string
		for _, item := range changes.Changes {
			verbs = append(verbs, item.Verb)
		}
		if len(verbs) != 3 || verbs[0] != "update" || verbs[2] != "create" {
			t.Errorf("changes: got %v, want two updates after the creation", verbs)
		}
	})
}
