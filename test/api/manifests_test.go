package api

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/kelsontest"
)

// manifest is a policy with its binding: what it is about must not be named so.
func manifest(name, group, resource, forbidden string) string {
	return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s.static.k8s.io}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [%[2]q], apiVersions: ["*"], resources: [%[3]s], operations: [CREATE]}]}
  validations: [{expression: "object.metadata.name != '%[4]s'"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s.static.k8s.io}
spec: {policyName: %[1]s.static.k8s.io, validationActions: [Deny]}
`, name, group, resource, forbidden)
}

// TestManifests applies policies from files, to policies too, and follows the
// files.
func TestManifests(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file("a.yaml", manifest("maps", "", "configmaps", "one"))
	file("b.yaml", manifest("policies", "admissionregistration.k8s.io", "validatingadmissionpolicies", "open"))
	config := filepath.Join(t.TempDir(), "admission.yaml")
	text := fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ValidatingAdmissionPolicy
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: ValidatingAdmissionPolicyConfiguration, staticManifestsDir: %q}`, dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := client(t, kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.Admission(plugin.Config{File: config})))
	create := func(name string) error {
		_, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: named(name)}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	const refusal = "ValidatingAdmissionPolicy 'maps.static.k8s.io' with binding 'maps.static.k8s.io' denied request"
	if err := create("one"); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), refusal) {
		t.Errorf("from the start: %v", err)
	}
	if err := create("two"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"open", "fine", "x.static.k8s.io"} {
		p := policyOn("", "configmaps", "true")
		p.Name = name
		_, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), p, metav1.CreateOptions{})
		if apierrors.IsInvalid(err) != (name != "fine") {
			t.Errorf("the policy %s: %v", name, err)
		}
	}
	file("a.yaml", manifest("maps", "", "configmaps", "two"))
	for deadline := time.Now().Add(30 * time.Second); create("two") == nil; {
		if time.Now().After(deadline) {
			t.Fatal("a changed manifest is not used")
		}
	}
	if err := create("one"); err != nil {
		t.Errorf("what was in a manifest is still in force: %v", err)
	}
	metrics, err := c.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "apiserver_manifest_admission_config_controller_"
	if n := strings.Count(string(metrics), prefix+"last_config_info{"); n != 1 ||
		!strings.Contains(string(metrics), prefix+`automatic_reloads_total{apiserver_id_hash="sha256:`) {
		t.Errorf("%d configurations are shown as the last, or no reloads are counted", n)
	}
}
