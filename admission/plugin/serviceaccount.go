package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/apikeel/kelson/admission"
)

const (
	defaultAccount = "default"
	// onlyOwnSecrets is the annotation of a service account whose pods may use only the
	// secrets that it lists.
	onlyOwnSecrets = "kubernetes.io/enforce-mountable-secrets"

	tokenVolume = "kube-api-access-"
	tokenPath   = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenSeconds is the requested lifetime of a token: an hour plus seven seconds, which
	// mark requests whose tokens are in fact valid for longer.
	tokenSeconds = 3607
	rootCAMap    = "kube-root-ca.crt"

	// The default account is created shortly after its namespace: reading it is retried
	// with exponential backoff, for about a second and a half.
	firstAccountWait = 10 * time.Millisecond
	lastAccountWait  = 640 * time.Millisecond
	// maxForgotten bounds the number of deleted default accounts that are remembered.
	maxForgotten = 4096
)

// serviceAccount is ServiceAccount: it sets the service account of pods and mounts its
// token.
type serviceAccount struct {
	base
	objects Objects
	make    bool // create missing default accounts

	mu sync.Mutex
	// deleted are the uids of namespaces whose default account was deleted. Guarded by
	// mu.
	deleted map[types.UID]bool
}

func newServiceAccount(b *builder) admission.Plugin {
	make := b.MakeAccounts
	return &serviceAccount{base: base{"ServiceAccount", func(t admission.Target) bool {
		if t.Group != "" {
			return false
		}
		switch t.Resource + "/" + t.Subresource {
		case "pods/":
			return t.Operation == admission.Create
		case "pods/ephemeralcontainers":
			return t.Operation == admission.Update
		case "serviceaccounts/":
			return t.Operation == admission.Delete && make
		}
		return false
	}}, objects: b.Objects, make: make, deleted: map[types.UID]bool{}}
}

// Admit implements admission.Mutator.
func (s *serviceAccount) Admit(ctx context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || a.Operation != admission.Create {
		return nil
	}
	if isMirror(pod) {
		return s.Validate(ctx, a)
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount = defaultAccount, defaultAccount
	}
	account, err := s.account(ctx, a, pod.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	if automounts(account, pod) {
		mountToken(&pod.Spec)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		pod.Spec.ImagePullSecrets = slices.Clone(account.ImagePullSecrets)
	}
	return checkSecrets(a, pod, account)
}

// Validate implements admission.Validator.
func (s *serviceAccount) Validate(ctx context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	switch {
	case a.Operation == admission.Delete:
		s.forget(ctx, a)
		return nil
	case !ok:
		return nil
	case a.Operation == admission.Create && isMirror(pod):
		return checkMirror(a, pod)
	case pod.Spec.ServiceAccountName == "":
		return a.Forbidden(fmt.Errorf("no service account specified for pod %s/%s", a.Namespace, pod.Name))
	}
	account, err := s.account(ctx, a, pod.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	return checkSecrets(a, pod, account)
}

// account reads a service account.
func (s *serviceAccount) account(ctx context.Context, a *admission.Attributes, name string) (*corev1.ServiceAccount, error) {
	account, err := newest[*corev1.ServiceAccount](ctx, s.objects, "", "serviceaccounts", a.Namespace, name)
	if name == defaultAccount && err != nil && apierrors.IsNotFound(err) {
		if s.make {
			account, err = s.makeDefault(ctx, a)
		} else {
			account, err = s.await(ctx, a.Namespace)
		}
	}
	if err != nil && apierrors.IsNotFound(err) { // which allocates, also for nil
		err = apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccount"}, name)
		if wrong := content.IsPathSegmentName(name); len(wrong) > 0 {
			err = fmt.Errorf("invalid resource name %q: %v", name, wrong)
		}
	}
	if err != nil {
		return nil, a.Forbidden(fmt.Errorf("error looking up service account %s/%s: %w", a.Namespace, name, err))
	}
	return account, nil
}

// await waits for the controller to create the default account.
func (s *serviceAccount) await(ctx context.Context, namespace string) (account *corev1.ServiceAccount, err error) {
	for wait := firstAccountWait; wait <= lastAccountWait; wait *= 2 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
		account, err = newest[*corev1.ServiceAccount](ctx, s.objects, "", "serviceaccounts", namespace, defaultAccount)
		if !apierrors.IsNotFound(err) {
			break
		}
	}
	return account, err
}

// makeDefault creates the default account of a namespace, unless it was deleted.
func (s *serviceAccount) makeDefault(ctx context.Context, a *admission.Attributes) (*corev1.ServiceAccount, error) {
	ns, err := namespace(ctx, s.objects, a.Namespace)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	deleted := s.deleted[ns.UID]
	s.mu.Unlock()
	if deleted {
		return nil, apierrors.NewNotFound(a.GroupResource(), defaultAccount)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: defaultAccount}}
	if a.DryRun {
		return account, nil
	}
	if err := s.objects.Create(ctx, "", "serviceaccounts", account); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	return newest[*corev1.ServiceAccount](ctx, s.objects, "", "serviceaccounts", a.Namespace, defaultAccount)
}

// forget records that the default account of a namespace is being deleted.
func (s *serviceAccount) forget(ctx context.Context, a *admission.Attributes) {
	old, ok := a.Old.(*corev1.ServiceAccount)
	if !ok || old.Name != defaultAccount || a.DryRun {
		return
	}
	ns, err := namespace(ctx, s.objects, a.Namespace)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.deleted) >= maxForgotten {
		clear(s.deleted)
	}
	s.deleted[ns.UID] = true
}

func isMirror(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

// checkMirror refuses mirror pods that refer to API objects: a mirror pod stands for a
// static pod of a kubelet, which cannot use them.
func checkMirror(a *admission.Attributes, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return a.Forbidden(errors.New("a mirror pod may not reference service accounts"))
	}
	if usesSecrets(&pod.Spec) {
		return a.Forbidden(errors.New("a mirror pod may not reference secrets"))
	}
	for i := range pod.Spec.Volumes {
		if p := pod.Spec.Volumes[i].Projected; p != nil {
			for j := range p.Sources {
				if p.Sources[j].ServiceAccountToken != nil {
					return a.Forbidden(errors.New("a mirror pod may not use ServiceAccountToken volume projections"))
				}
			}
		}
	}
	return nil
}

func automounts(account *corev1.ServiceAccount, pod *corev1.Pod) bool {
	switch {
	case pod.Spec.AutomountServiceAccountToken != nil:
		return *pod.Spec.AutomountServiceAccountToken
	case account.AutomountServiceAccountToken != nil:
		return *account.AutomountServiceAccountToken
	}
	return true
}

// mountToken adds the projected volume with token, CA bundle and namespace, and mounts it
// where client libraries expect it.
func mountToken(spec *corev1.PodSpec) {
	name, has := "", false
	for i := range spec.Volumes {
		if strings.HasPrefix(spec.Volumes[i].Name, tokenVolume) {
			name, has = spec.Volumes[i].Name, true
			break
		}
	}
	if !has {
		name = tokenVolume + rand.String(5)
	}
	needed := false
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenPath }) {
				c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenPath})
				needed = true
			}
		}
	}
	if !has && needed {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: tokenSource()}})
	}
}

func tokenSource() *corev1.ProjectedVolumeSource {
	return &corev1.ProjectedVolumeSource{
		DefaultMode: new(corev1.ProjectedVolumeSourceDefaultMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(tokenSeconds))}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootCAMap},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
			}}},
		},
	}
}

// checkSecrets checks that a pod uses only secrets that its account lists, if the account
// enforces that. Of an update only the ephemeral containers are checked.
func checkSecrets(a *admission.Attributes, pod *corev1.Pod, account *corev1.ServiceAccount) error {
	if only, _ := strconv.ParseBool(account.Annotations[onlyOwnSecrets]); !only {
		return nil
	}
	secrets := sets.New[string]()
	for _, ref := range account.Secrets {
		secrets.Insert(ref.Name)
	}
	may := secrets.Has
	if a.Operation == admission.Update {
		for i := range pod.Spec.EphemeralContainers {
			if err := checkEnv((*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon), "ephemeral container", account.Name, may); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range pod.Spec.Volumes {
		if s := pod.Spec.Volumes[i].Secret; s != nil && !may(s.SecretName) {
			return a.Forbidden(fmt.Errorf("volume with secret.secretName=%q is not allowed because service account %s does not reference that secret", s.SecretName, account.Name))
		}
	}
	for i := range pod.Spec.InitContainers {
		if err := checkEnv(&pod.Spec.InitContainers[i], "init container", account.Name, may); err != nil {
			return a.Forbidden(err)
		}
	}
	for i := range pod.Spec.Containers {
		if err := checkEnv(&pod.Spec.Containers[i], "container", account.Name, may); err != nil {
			return a.Forbidden(err)
		}
	}
	pull := sets.New(account.ImagePullSecrets...)
	for i, ref := range pod.Spec.ImagePullSecrets {
		if !pull.Has(ref) {
			return a.Forbidden(fmt.Errorf("imagePullSecrets[%d].name=%q is not allowed because service account %s does not reference that imagePullSecret", i, ref.Name, account.Name))
		}
	}
	return nil
}

func checkEnv(c *corev1.Container, kind, account string, may func(string) bool) error {
	const rule = "referencing secret.secretName=%q is not allowed because service account %s does not reference that secret"
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.SecretKeyRef != nil && !may(from.SecretKeyRef.Name) {
			return fmt.Errorf("%s %s with envVar %s "+rule, kind, c.Name, c.Env[i].Name, from.SecretKeyRef.Name, account)
		}
	}
	for i := range c.EnvFrom {
		if ref := c.EnvFrom[i].SecretRef; ref != nil && !may(ref.Name) {
			return fmt.Errorf("%s %s with envFrom "+rule, kind, c.Name, ref.Name, account)
		}
	}
	return nil
}
