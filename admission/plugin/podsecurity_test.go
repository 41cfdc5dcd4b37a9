package plugin

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
)

const securityPrefix = "pod-security.kubernetes.io/"

func TestPodSecurity(t *testing.T) {
	privileged := func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	}
	debug := func(p *corev1.Pod) {
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "d", Image: "i", SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}}}
	}
	image := func(i string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Containers[0].Image = i } }
	initial := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i", SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}}
	}
	deployment := &appsv1.Deployment{ObjectMeta: meta("d"), Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: newPod(privileged).Spec}}}
	runtimeClassed := func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("sandbox") }
	exempt := configFile(t, "PodSecurity", `    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline}
    exemptions: {usernames: [root], runtimeClasses: [sandbox]}
`)
	const refused = `pods "p" is forbidden: violates PodSecurity "baseline:latest": privileged (container "c" must not set securityContext.privileged=true)`
	for _, c := range []struct {
		name    string
		cfg     Config
		labels  []string
		write   write
		err     string
		warning string
	}{
		{name: "no labels", write: write{op: admission.Create, resource: "pods", obj: newPod(privileged)}},
		{name: "enforce", labels: []string{securityPrefix + "enforce", "baseline"}, write: write{op: admission.Create, resource: "pods", obj: newPod(privileged)}, err: refused},
		{name: "fits", labels: []string{securityPrefix + "enforce", "baseline"}, write: write{op: admission.Create, resource: "pods", obj: newPod()}},
		{name: "initial", labels: []string{securityPrefix + "enforce", "baseline"}, write: write{op: admission.Create, resource: "pods", obj: newPod(initial)}, err: `container "i" must not set`},
		{name: "ephemeral", labels: []string{securityPrefix + "enforce", "baseline"}, write: write{op: admission.Update, resource: "pods/ephemeralcontainers", obj: newPod(debug), old: newPod()}, err: `container "d" must not set`},
		{name: "status", labels: []string{securityPrefix + "enforce", "baseline"}, write: write{op: admission.Update, resource: "pods/status", obj: newPod(privileged), old: newPod(privileged)}},
		{name: "unchanged", labels: []string{securityPrefix + "enforce", "baseline"}, write: write{op: admission.Update, resource: "pods", obj: newPod(privileged), old: newPod(privileged)}},
		{name: "new image", labels: []string{securityPrefix + "enforce", "baseline"}, write: write{op: admission.Update, resource: "pods", obj: newPod(privileged, image("new")), old: newPod(privileged)}, err: refused},
		{name: "warn", labels: []string{securityPrefix + "warn", "baseline"}, write: write{op: admission.Create, resource: "pods", obj: newPod(privileged)}, warning: `would violate PodSecurity "baseline:latest"`},
		{name: "old version", labels: []string{securityPrefix + "enforce", "baseline", securityPrefix + "enforce-version", "v1.20"}, write: write{op: admission.Create, resource: "pods", obj: newPod(privileged)}, err: `"baseline:v1.20"`},
		{name: "template", labels: []string{securityPrefix + "enforce", "baseline"}, write: write{op: admission.Create, resource: "deployments.apps", obj: deployment}, warning: `would violate PodSecurity "baseline:latest"`},
		{name: "bad label", labels: []string{securityPrefix + "enforce", "bogus"}, write: write{op: admission.Create, resource: "pods", obj: newPod(privileged)}, err: `violates PodSecurity "restricted:latest"`},
		{name: "default", cfg: Config{File: exempt}, write: write{op: admission.Create, resource: "pods", obj: newPod(privileged)}, err: refused},
		{name: "exempt user", cfg: Config{File: exempt}, write: write{op: admission.Create, resource: "pods", obj: newPod(privileged), user: request.User{Name: "root"}}},
		{name: "exempt class", cfg: Config{File: exempt}, write: write{op: admission.Create, resource: "pods", obj: newPod(privileged, runtimeClassed)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := try(t, only(t, "PodSecurity", c.cfg, Deps{Objects: store("namespaces", newNamespace(c.labels...))}), c.write)
			refuses(t, err, c.err)
			if got := strings.Join(a.Request.Warnings(), "\n"); !strings.Contains(got, c.warning) || (got == "") != (c.warning == "") {
				t.Errorf("the warnings are %q", got)
			}
		})
	}
}

func TestPodSecurityNamespace(t *testing.T) {
	bad := newPod(func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	})
	other := bad.DeepCopy()
	other.Name = "q"
	objects := store("pods", bad, "pods", other)
	file := configFile(t, "PodSecurity", "    apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    exemptions: {namespaces: [ns]}\n")
	for _, c := range []struct {
		name     string
		cfg      Config
		write    write
		err      string
		warnings string
	}{
		{name: "bad label", write: write{op: admission.Create, resource: "namespaces", kind: "Namespace", obj: newNamespace(securityPrefix+"enforce", "bogus")},
			err: `Namespace "ns" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "bogus": must be one of privileged, baseline, restricted`},
		{name: "bad label stays", write: write{op: admission.Update, resource: "namespaces", kind: "Namespace", obj: newNamespace(securityPrefix+"enforce", "bogus"), old: newNamespace(securityPrefix+"enforce", "bogus")}},
		{name: "stricter", write: write{op: admission.Update, resource: "namespaces", kind: "Namespace", obj: newNamespace(securityPrefix+"enforce", "baseline"), old: newNamespace()},
			warnings: "existing pods in namespace \"ns\" violate the new PodSecurity enforce level \"baseline:latest\"\np (and 1 other pod): privileged"},
		{name: "laxer", write: write{op: admission.Update, resource: "namespaces", kind: "Namespace", obj: newNamespace(), old: newNamespace(securityPrefix+"enforce", "baseline")}},
		{name: "exempt", cfg: Config{File: file}, write: write{op: admission.Create, resource: "namespaces", kind: "Namespace", obj: newNamespace(securityPrefix+"enforce", "baseline", securityPrefix+"warn", "privileged")},
			warnings: `namespace "ns" is exempt from Pod Security, and the policy (enforce=baseline:latest) will be ignored`},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := try(t, only(t, "PodSecurity", c.cfg, Deps{Objects: objects}), c.write)
			refuses(t, err, c.err)
			if got := strings.Join(a.Request.Warnings(), "\n"); got != c.warnings {
				t.Errorf("the warnings are %q", got)
			}
		})
	}
}
