package manifests

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apikeel/kelson/builtin/admissionregistration"
	"github.com/apikeel/kelson/resource"
)

const (
	policy = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: p.static.k8s.io}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]}
  validations: [{expression: "true"}]
`
	binding = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: b.static.k8s.io}
spec: {policyName: p.static.k8s.io, validationActions: [Deny]}
`
	hook = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: w.static.k8s.io}
webhooks:
- name: w.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {url: "https://127.0.0.1:1/"}
`
)

func open(t *testing.T, dir, plugin string) (*Directory, error) {
	t.Helper()
	kinds := map[string]*resource.Definition{}
	group := admissionregistration.Group(admissionregistration.Config{Manifests: true})
	for i := range group.Resources {
		d := &group.Resources[i]
		if policies := strings.HasPrefix(d.Kind, "ValidatingAdmissionPolicy"); plugin == "ValidatingAdmissionPolicy" && policies || d.Kind == plugin {
			kinds[d.Kind] = d
		}
	}
	return Open(Config{Plugin: plugin, Path: dir, Kinds: kinds})
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func names(d *Directory) []string {
	var out []string
	for _, obj := range d.Current().Objects {
		out = append(out, obj.GetName())
	}
	return out
}

// TestLoad reads what is right, and what is wrong in every way that has words of
// its own.
func TestLoad(t *testing.T) {
	replace := strings.NewReplacer
	list := "apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(policy), "\n", "\n  ")
	for name, test := range map[string]struct {
		plugin string
		files  map[string]string
		names  []string // sorted
		err    string   // or how it ends
	}{
		"nothing":     {files: map[string]string{"a.txt": "nonsense", "e.yaml": ""}},
		"documents":   {files: map[string]string{"a.yaml": policy + "---\n\n---\n" + binding}, names: []string{"b.static.k8s.io", "p.static.k8s.io"}},
		"files":       {files: map[string]string{"a.yml": binding, "b.YAML": policy}, names: []string{"b.static.k8s.io", "p.static.k8s.io"}},
		"list":        {files: map[string]string{"a.json": list}, names: []string{"p.static.k8s.io"}},
		"empty list":  {files: map[string]string{"a.yaml": "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyList\nitems: []"}},
		"webhook":     {plugin: "ValidatingWebhookConfiguration", files: map[string]string{"a.yaml": hook}, names: []string{"w.static.k8s.io"}},
		"name":        {files: map[string]string{"a.yaml": replace("p.static.k8s.io", "p").Replace(policy)}, err: `/a.yaml" must have a name ending with ".static.k8s.io"`},
		"no name":     {files: map[string]string{"a.yaml": replace("{name: p.static.k8s.io}", "{}").Replace(policy)}, err: `ValidatingAdmissionPolicy "": metadata.name: Required value: name or generateName is required`},
		"twice":       {files: map[string]string{"a.yaml": policy, "b.yaml": policy}, err: `/a.yaml")`},
		"unknown":     {files: map[string]string{"a.yaml": policy + "  more: 1\n"}, err: `/a.yaml: strict decoding error: unknown field "spec.more"`},
		"no kind":     {files: map[string]string{"a.yaml": "a: b"}, err: "Object 'Kind' is missing in 'a: b'"},
		"other kind":  {files: map[string]string{"a.yaml": hook}, err: "/a.yaml: unsupported resource type *v1.ValidatingWebhookConfiguration"},
		"old version": {files: map[string]string{"a.yaml": replace("io/v1\n", "io/v1beta1\n").Replace(policy)}, err: "unsupported resource type *v1beta1.ValidatingAdmissionPolicy"},
		"rules":       {files: map[string]string{"a.yaml": replace(`"true"`, `""`).Replace(policy)}, err: `ValidatingAdmissionPolicy "p.static.k8s.io": spec.validations[0].expression: Required value: expression is not specified`},
		"params":      {files: map[string]string{"a.yaml": policy + "  paramKind: {apiVersion: v1, kind: ConfigMap}\n"}, err: `ValidatingAdmissionPolicy "p.static.k8s.io": spec.paramKind is not supported for static manifests`},
		"paramRef":    {files: map[string]string{"a.yaml": replace("Deny]", "Deny], paramRef: {name: x, parameterNotFoundAction: Deny}").Replace(binding)}, err: `binding "b.static.k8s.io": spec.paramRef is not supported for static manifests`},
		"no policy":   {files: map[string]string{"a.yaml": binding}, err: `binding "b.static.k8s.io" references policy "p.static.k8s.io" which does not exist in the manifest directory`},
		"stored":      {files: map[string]string{"a.yaml": replace("policyName: p.static.k8s.io", "policyName: p").Replace(binding)}, err: `binding "b.static.k8s.io": spec.policyName "p" must end with ".static.k8s.io"`},
		"service": {plugin: "ValidatingWebhookConfiguration", files: map[string]string{"a.yaml": replace(`url: "https://127.0.0.1:1/"`, "service: {namespace: a, name: b}").Replace(hook)},
			err: `/a.yaml"): clientConfig.service is not supported for static manifests; use clientConfig.url instead`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, test.files)
			if test.plugin == "" {
				test.plugin = "ValidatingAdmissionPolicy"
			}
			d, err := open(t, dir, test.plugin)
			if test.err != "" {
				if err == nil || !strings.HasSuffix(err.Error(), test.err) {
					t.Fatal(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := names(d); !slices.Equal(got, test.names) {
				t.Errorf("%v", got)
			}
		})
	}
}

// TestRefresh changes the files: what can be used is, what cannot changes nothing.
func TestRefresh(t *testing.T) {
	dir := t.TempDir()
	d, err := open(t, dir, "ValidatingAdmissionPolicy")
	if err != nil || len(d.Current().Objects) != 0 {
		t.Fatal(err)
	}
	for _, step := range []struct {
		files map[string]string
		names []string
	}{
		{map[string]string{"a.yaml": policy}, []string{"p.static.k8s.io"}},
		{map[string]string{"b.yaml": "nonsense"}, []string{"p.static.k8s.io"}},
		{map[string]string{"b.yaml": binding}, []string{"b.static.k8s.io", "p.static.k8s.io"}},
		{map[string]string{"a.yaml": ""}, []string{"b.static.k8s.io", "p.static.k8s.io"}}, // a binding alone
		{map[string]string{"b.yaml": ""}, nil},
	} {
		write(t, dir, step.files)
		d.refresh()
		before := d.Current()
		if got := names(d); !slices.Equal(got, step.names) {
			t.Errorf("after %v: %v", step.files, got)
		}
		if d.refresh(); d.Current() != before {
			t.Error("what has not changed is used anew")
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if d.refresh(); d.seen.failed == "" {
		t.Error("a directory that is gone is no failure")
	}
}

// TestCheckPath judges paths.
func TestCheckPath(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"f": ""})
	for path, want := range map[string]string{
		dir:                        "",
		"relative":                 `staticManifestsDir: Invalid value: "relative": must be an absolute file path`,
		filepath.Join(dir, "none"): "no such file or directory",
		filepath.Join(dir, "f"):    "must be a directory",
	} {
		if err := CheckPath(path); (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
