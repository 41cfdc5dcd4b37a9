package plugin

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/admission"
)

func account(change ...func(*corev1.ServiceAccount)) *corev1.ServiceAccount {
	a := &corev1.ServiceAccount{ObjectMeta: meta("default")}
	for _, f := range change {
		f(a)
	}
	return a
}

func TestServiceAccount(t *testing.T) {
	strict := account(func(a *corev1.ServiceAccount) {
		a.Annotations = map[string]string{onlyOwnSecrets: "true"}
		a.Secrets = []corev1.ObjectReference{{Name: "own"}}
		a.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	})
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	env := func(secret string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: secret}}}}
		}
	}
	for _, c := range []struct {
		name    string
		account *corev1.ServiceAccount
		pod     *corev1.Pod
		err     string
		check   func(*corev1.PodSpec) bool
	}{
		{name: "usual", account: account(), pod: newPod(), check: func(s *corev1.PodSpec) bool {
			m := s.Containers[0].VolumeMounts
			return s.ServiceAccountName == "default" && s.DeprecatedServiceAccount == "default" && len(s.Volumes) == 1 && len(m) == 1 &&
				m[0].Name == s.Volumes[0].Name && strings.HasPrefix(m[0].Name, "kube-api-access-") && m[0].MountPath == tokenPath && m[0].ReadOnly &&
				len(s.Volumes[0].Projected.Sources) == 3 && len(m[0].Name) == len("kube-api-access-")+5
		}},
		{name: "other", account: account(), pod: newPod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "other" }),
			err: `pods "p" is forbidden: error looking up service account ns/other: serviceaccount "other" not found`},
		{name: "not mounted by account", account: account(func(a *corev1.ServiceAccount) { a.AutomountServiceAccountToken = new(false) }), pod: newPod(),
			check: func(s *corev1.PodSpec) bool { return len(s.Volumes) == 0 }},
		{name: "mounted by pod", account: account(func(a *corev1.ServiceAccount) { a.AutomountServiceAccountToken = new(false) }),
			pod: newPod(func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = new(true) }), check: func(s *corev1.PodSpec) bool { return len(s.Volumes) == 1 }},
		{name: "mounted already", account: account(), pod: newPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "x", MountPath: tokenPath}}
		}), check: func(s *corev1.PodSpec) bool { return len(s.Volumes) == 0 && len(s.Containers[0].VolumeMounts) == 1 }},
		{name: "pull secrets", account: strict, pod: newPod(), check: func(s *corev1.PodSpec) bool {
			return len(s.ImagePullSecrets) == 1 && s.ImagePullSecrets[0].Name == "pull"
		}},
		{name: "own secret", account: strict, pod: newPod(env("own"))},
		{name: "foreign secret", account: strict, pod: newPod(env("foreign")),
			err: `container c with envFrom referencing secret.secretName="foreign" is not allowed because service account default does not reference that secret`},
		{name: "foreign volume", account: strict, pod: newPod(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "foreign"}}}}
		}), err: `volume with secret.secretName="foreign" is not allowed`},
		{name: "foreign pull secret", account: strict, pod: newPod(func(p *corev1.Pod) {
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "foreign"}}
		}), err: `imagePullSecrets[0].name="foreign" is not allowed because service account default does not reference that imagePullSecret`},
		{name: "mirror", account: account(), pod: newPod(mirror), check: func(s *corev1.PodSpec) bool { return s.ServiceAccountName == "" && len(s.Volumes) == 0 }},
		{name: "mirror with an account", account: account(), pod: newPod(mirror, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "default" }),
			err: "a mirror pod may not reference service accounts"},
		{name: "mirror with secrets", account: account(), pod: newPod(mirror, env("s")), err: "a mirror pod may not reference secrets"},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects := store("serviceaccounts", c.account, "namespaces", newNamespace())
			_, err := try(t, only(t, "ServiceAccount", Config{}, Deps{Objects: objects}), write{op: admission.Create, resource: "pods", obj: c.pod})
			refuses(t, err, c.err)
			if c.check != nil && !c.check(&c.pod.Spec) {
				t.Errorf("the pod is %+v", c.pod.Spec)
			}
		})
	}
}

func TestEphemeralSecrets(t *testing.T) {
	strict := account(func(a *corev1.ServiceAccount) { a.Annotations = map[string]string{onlyOwnSecrets: "true"} })
	pod := newPod(func(p *corev1.Pod) {
		p.Spec.ServiceAccountName = "default"
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", EnvFrom: []corev1.EnvFromSource{
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
		}}}}
	})
	_, err := try(t, only(t, "ServiceAccount", Config{}, Deps{Objects: store("serviceaccounts", strict)}),
		write{op: admission.Update, resource: "pods/ephemeralcontainers", obj: pod, old: newPod()})
	refuses(t, err, `ephemeral container e with envFrom referencing secret.secretName="s"`)
}

// TestMissingAccount waits for the account, or makes it.
func TestMissingAccount(t *testing.T) {
	create := func() write { return write{op: admission.Create, resource: "pods", obj: newPod()} }
	objects := store("namespaces", newNamespace())
	p := only(t, "ServiceAccount", Config{MakeAccounts: true}, Deps{Objects: objects})
	if _, err := try(t, p, create()); err != nil {
		t.Fatal(err)
	}
	made, err := objects.Get(t.Context(), "", "serviceaccounts", "ns", "default")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := try(t, p, write{op: admission.Delete, resource: "serviceaccounts", old: made}); err != nil {
		t.Fatal(err)
	}
	delete(objects, storedKey("", "serviceaccounts", "ns", "default"))
	_, err = try(t, p, create())
	refuses(t, err, `error looking up service account ns/default: serviceaccount "default" not found`)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	p = only(t, "ServiceAccount", Config{}, Deps{Objects: objects})
	if err := p.(admission.Mutator).Admit(ctx, create().attributes()); err == nil || ctx.Err() == nil {
		t.Errorf("nobody makes the account, and it is not waited for: %v", err)
	}
}
