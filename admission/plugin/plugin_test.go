package plugin

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// stored is Objects of a test.
type stored map[string]resource.Object

func storedKey(group, name, namespace, key string) string {
	return group + "/" + name + "/" + namespace + "/" + key
}

// store makes Objects of what is given: the resource, and an object of it.
func store(pairs ...any) stored {
	s := stored{}
	for i := 0; i < len(pairs); i += 2 {
		gr := schema.ParseGroupResource(pairs[i].(string))
		obj := pairs[i+1].(resource.Object)
		s[storedKey(gr.Group, gr.Resource, obj.GetNamespace(), obj.GetName())] = obj
	}
	return s
}

func (s stored) Get(_ context.Context, group, name, namespace, key string) (resource.Object, error) {
	if obj, ok := s[storedKey(group, name, namespace, key)]; ok {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: name}, key)
}

func (s stored) GetNewest(ctx context.Context, group, name, namespace, key string) (resource.Object, error) {
	return s.Get(ctx, group, name, namespace, key)
}

func (s stored) List(_ context.Context, group, name, namespace string) (objs []resource.Object, _ error) {
	prefix := group + "/" + name + "/"
	if namespace != "" {
		prefix += namespace + "/"
	}
	for key, obj := range s {
		if strings.HasPrefix(key, prefix) {
			objs = append(objs, obj)
		}
	}
	slices.SortFunc(objs, func(a, b resource.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	return objs, nil
}

func (s stored) Create(_ context.Context, group, name string, obj resource.Object) error {
	key := storedKey(group, name, obj.GetNamespace(), obj.GetName())
	if _, ok := s[key]; ok {
		return apierrors.NewAlreadyExists(schema.GroupResource{Group: group, Resource: name}, obj.GetName())
	}
	s[key] = obj
	return nil
}

func (s stored) UpdateStatus(ctx context.Context, group, name, namespace, key string, change func(resource.Object) error) (resource.Object, error) {
	obj, err := s.Get(ctx, group, name, namespace, key)
	if err != nil {
		return nil, err
	}
	next := obj.DeepCopyObject().(resource.Object)
	if err := change(next); err != nil {
		return nil, err
	}
	s[storedKey(group, name, namespace, key)] = next
	return next, nil
}

// write is an attempt to write, of a test.
type write struct {
	op       admission.Operation
	resource string // pods, pods/status, ingresses.networking.k8s.io
	kind     string
	obj, old resource.Object
	user     request.User
	dryRun   bool
}

func (w write) attributes() *admission.Attributes {
	name, sub, _ := strings.Cut(w.resource, "/")
	gr := schema.ParseGroupResource(name)
	def := &resource.Definition{Group: gr.Group, Resource: gr.Resource, Kind: w.kind, Namespaced: true}
	a := &admission.Attributes{
		Operation: w.op, Subresource: sub, DryRun: w.dryRun,
		Served:  &resource.Served{Definition: def, Version: &resource.Version{Name: "v1"}, GroupVersion: schema.GroupVersion{Group: gr.Group, Version: "v1"}},
		Kind:    schema.GroupVersionKind{Group: gr.Group, Version: "v1", Kind: w.kind},
		Request: &request.Request{User: w.user, Warned: &request.Warnings{}},
	}
	one := w.obj
	if one == nil {
		one = w.old
	}
	a.Namespace, a.Name = one.GetNamespace(), one.GetName()
	if name == "namespaces" {
		a.Namespace = a.Name
	}
	if w.obj != nil {
		a.Object = w.obj
	}
	if w.old != nil {
		a.Old = w.old
	}
	return a
}

// only returns a plugin alone.
func only(t *testing.T, name string, cfg Config, deps Deps) admission.Plugin {
	t.Helper()
	cfg.Enable = append(cfg.Enable, name)
	plugins, err := Plugins(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plugins {
		if p.Name() == name {
			return p
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}

// try lets a plugin look at a write, in both stages.
func try(t *testing.T, p admission.Plugin, w write) (*admission.Attributes, error) {
	t.Helper()
	a := w.attributes()
	chain := admission.NewChain(p)
	if err := chain.Admit(t.Context(), a); err != nil {
		return a, err
	}
	return a, chain.Validate(t.Context(), a)
}

// refuses checks the error of a write: that it has a text, or that there is none.
func refuses(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("it is refused: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("the error is %v, and not %q", err, want)
	}
}

// configFile writes an AdmissionConfiguration.
func configFile(t *testing.T, name, configuration string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "admission.yaml")
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: " + name + "\n  configuration:\n" + configuration
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }

func newNamespace(labels ...string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", UID: "1", Labels: map[string]string{}}}
	for i := 0; i < len(labels); i += 2 {
		ns.Labels[labels[i]] = labels[i+1]
	}
	return ns
}

func newPod(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta("p"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	for _, f := range change {
		f(pod)
	}
	return pod
}

// brought is a plugin that is not from here.
type brought struct{ base }

func (brought) Validate(context.Context, *admission.Attributes) error { return nil }

func TestPlugins(t *testing.T) {
	names := func(plugins []admission.Plugin) (names []string) {
		for _, p := range plugins {
			names = append(names, p.Name())
		}
		return names
	}
	const usual = "NamespaceLifecycle LimitRanger ServiceAccount TaintNodesByCondition PodSecurity Priority DefaultTolerationSeconds " +
		"DefaultStorageClass StorageObjectInUseProtection PodGroupProtection PersistentVolumeClaimResize RuntimeClass CertificateApproval " +
		"CertificateSigning ClusterTrustBundleAttest CertificateSubjectRestriction DefaultIngressClass PodTopologyLabels " +
		"NodeDeclaredFeatureValidator PodResizeValidator ResourceQuota"
	hook, own := brought{base{name: "MutatingAdmissionWebhook"}}, brought{base{name: "Own"}}
	for _, c := range []struct {
		name string
		cfg  Config
		with []admission.Plugin
		want string
		err  string
	}{
		{name: "default", want: usual},
		{name: "off and on", cfg: Config{Enable: []string{"AlwaysDeny"}, Disable: []string{"Priority"}},
			want: strings.Replace(usual, " Priority", "", 1) + " AlwaysDeny"},
		{name: "brought", with: []admission.Plugin{hook, own},
			want: strings.Replace(usual, " ResourceQuota", " Own MutatingAdmissionWebhook ResourceQuota", 1)},
		{name: "brought and off", with: []admission.Plugin{hook, own}, cfg: Config{Disable: []string{"Own", "MutatingAdmissionWebhook"}}, want: usual},
		{name: "unknown", cfg: Config{Enable: []string{"Bogus"}}, err: `enable-admission-plugins plugin "Bogus" is unknown`},
		{name: "unknown off", cfg: Config{Disable: []string{"Bogus"}}, err: `disable-admission-plugins plugin "Bogus" is unknown`},
		{name: "both", cfg: Config{Enable: []string{"Priority"}, Disable: []string{"Priority"}},
			err: "[Priority] in enable-admission-plugins and disable-admission-plugins overlapped"},
		{name: "no file", cfg: Config{File: "/does/not/exist"}, err: `failed to read plugin config: unable to read admission control configuration from "/does/not/exist"`},
		{name: "needs configuration", cfg: Config{Enable: []string{"ImagePolicyWebhook"}}, err: `couldn't init admission plugin "ImagePolicyWebhook": no config specified`},
	} {
		t.Run(c.name, func(t *testing.T) {
			plugins, err := Plugins(c.cfg, Deps{Objects: stored{}, Plugins: c.with})
			refuses(t, err, c.err)
			if got := strings.Join(names(plugins), " "); got != c.want {
				t.Errorf("the plugins are\n%s\nand not\n%s", got, c.want)
			}
		})
	}
}

func TestConfiguration(t *testing.T) {
	for _, c := range []struct{ name, plugin, text, err string }{
		{"quota", "ResourceQuota", "    apiVersion: apiserver.config.k8s.io/v1\n    kind: ResourceQuotaConfiguration\n    limitedResources: [{resource: pods}]\n", ""},
		{"quota without a resource", "ResourceQuota", "    apiVersion: apiserver.config.k8s.io/v1\n    kind: ResourceQuotaConfiguration\n    limitedResources: [{apiGroup: apps}]\n", "limitedResources[0].resource: Required value"},
		{"another kind", "PodSecurity", "    apiVersion: v1\n    kind: Pod\n", `no kind "Pod" is registered for version "v1"`},
		{"no kind", "PodSecurity", "    defaults: {}\n", "Object 'Kind' is missing"},
		{"unknown field", "PodSecurity", "    apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    bogus: 1\n", "strict decoding error"},
		{"unknown level", "PodSecurity", "    apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    defaults: {enforce: bogus}\n",
			`defaults.enforce: Invalid value: "bogus": must be one of privileged, baseline, restricted`},
		{"exempt twice", "PodSecurity", "    apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    exemptions: {namespaces: [a, a]}\n",
			`exemptions.namespaces[1]: Duplicate value: "a"`},
		{"events", "EventRateLimit", "    apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n    kind: Configuration\n    limits: [{type: Server, qps: 1, burst: 0}]\n", "limits[0].burst: Invalid value: 0: must be positive"},
		{"tolerations", "PodTolerationRestriction", "    apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1\n    kind: Configuration\n    default: [{operator: Bogus}]\n", "invalid config: podtolerationrestriction.default[0].operator"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Plugins(Config{Enable: []string{c.plugin}, File: configFile(t, c.plugin, c.text)}, Deps{Objects: stored{}})
			refuses(t, err, c.err)
		})
	}
	// A file of its own, beside the first.
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: [{name: X, path: x.yaml}]\n",
		"x.yaml": "x: 1\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := (Config{File: filepath.Join(dir, "a.yaml")}).Configuration("X"); string(got) != "x: 1\n" || err != nil {
		t.Errorf("the file of a plugin is %q, %v", got, err)
	}
}

func TestAlwaysDeny(t *testing.T) {
	_, err := try(t, only(t, "AlwaysDeny", Config{}, Deps{Objects: stored{}}), write{op: admission.Create, resource: "pods", obj: newPod()})
	refuses(t, err, `pods "p" is forbidden: admission control is denying all modifications`)
}
