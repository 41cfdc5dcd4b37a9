package authn

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/resource"
)

// stored are the objects of a resource: those that the server knows of by now,
// and those that were acknowledged.
type stored struct {
	resource.Objects
	cached, all map[string]resource.Object
}

type lister struct {
	resource.Lister
	objects map[string]resource.Object
}

func (l lister) Get(_ context.Context, namespace, name string) (resource.Object, error) {
	if obj := l.objects[namespace+"/"+name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("things"), name)
}

func (s stored) Get(ctx context.Context, namespace, name string) (resource.Object, error) {
	return lister{objects: s.all}.Get(ctx, namespace, name)
}

func (s stored) Cached() resource.Lister { return lister{objects: s.cached} }

func (s stored) Has(_ context.Context, namespace, name string) bool {
	return s.cached[namespace+"/"+name] != nil
}

func (s stored) Update(_ context.Context, namespace, name string, change func(resource.Object) error) error {
	return change(s.all[namespace+"/"+name])
}

func TestLive(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "x", UID: "1"}
	account, secret := &corev1.ServiceAccount{ObjectMeta: meta}, &corev1.Secret{ObjectMeta: meta}
	pod, node := &corev1.Pod{ObjectMeta: meta}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	resources := map[string]stored{
		"serviceaccounts": {cached: map[string]resource.Object{"ns/x": account}},
		"secrets":         {all: map[string]resource.Object{"ns/x": secret}},
		"pods":            {all: map[string]resource.Object{"ns/x": pod}, cached: map[string]resource.Object{"ns/y": secret}},
		"nodes":           {cached: map[string]resource.Object{"/x": node}},
		"hooks":           {cached: map[string]resource.Object{"/x": node}},
	}
	live := Live(func(group, name string) resource.Objects {
		if (group == "admissionregistration.k8s.io") != (name == "hooks") {
			t.Errorf("got group %q of %s", group, name)
		}
		return resources[name]
	})
	ctx := t.Context()
	if got, err := live.ServiceAccount(ctx, "ns", "x"); got != account || err != nil {
		t.Errorf("got %v, error %v", got, err)
	}
	if got, err := live.Secret(ctx, "ns", "x"); got != secret || err != nil {
		t.Errorf("what was made a moment ago is not seen: got %v, error %v", got, err)
	}
	if got, err := live.Pod(ctx, "ns", "x"); got != pod || err != nil {
		t.Errorf("got %v, error %v", got, err)
	}
	if got, err := live.Node(ctx, "x"); got != node || err != nil {
		t.Errorf("got %v, error %v", got, err)
	}
	if got, err := live.WebhookConfiguration(ctx, "hooks", "x"); got != node || err != nil {
		t.Errorf("got %v, error %v", got, err)
	}
	if _, err := live.ServiceAccount(ctx, "ns", "none"); !apierrors.IsNotFound(err) {
		t.Errorf("error %v", err)
	}
	for ref, want := range map[serviceaccount.Reference]bool{
		{Resource: "serviceaccounts", Namespace: "ns", Name: "x"}: true, {Resource: "pods", Namespace: "ns", Name: "x"}: false,
	} {
		if live.Exists(ctx, ref) != want {
			t.Errorf("%v exists: %v", ref, !want)
		}
	}
	if err := live.LabelSecret(ctx, "ns", "x", "1", "k", "v"); err != nil || secret.Labels["k"] != "v" {
		t.Errorf("labels %v, error %v", secret.Labels, err)
	}
	if err := live.LabelSecret(ctx, "ns", "x", "other", "k", "w"); !apierrors.IsConflict(err) || secret.Labels["k"] != "v" {
		t.Errorf("labels %v, error %v", secret.Labels, err)
	}
}
