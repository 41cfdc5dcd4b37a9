package controller_test

import (
	"testing"

	"github.com/apikeel/kelson/internal/polltest"
	internalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/kelsontest"
)

// gated starts a server with gates on, and all versions.
func gated(t *testing.T, names ...string) *cluster {
	t.Helper()
	gates := map[string]bool{}
	for _, name := range names {
		gates[name] = true
	}
	return start(t, kelsontest.FeatureGates(gates), kelsontest.Configure(func(c *controlplane.Config) {
		c.RuntimeConfig = map[string]string{"api/all": "true"}
	}))
}

// TestCoordinatedLeaderElection has the server choose the candidate that behaves as
// the oldest version, and tell the holder of the lease when there is a better one.
func TestCoordinatedLeaderElection(t *testing.T) {
	c := gated(t, "CoordinatedLeaderElection")
	candidates, leases := c.CoordinationV1beta1().LeaseCandidates("default"), c.CoordinationV1().Leases("default")
	nominate := func(name, emulated string) {
		must(candidates.Create(t.Context(), &coordinationv1beta1.LeaseCandidate{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: coordinationv1beta1.LeaseCandidateSpec{
				LeaseName: "component", Strategy: coordinationv1.OldestEmulationVersion,
				BinaryVersion: "1.37.0", EmulationVersion: emulated, RenewTime: new(metav1.NowMicro()),
			},
		}, metav1.CreateOptions{}))(t)
	}
	// Who is asked says that it is still there.
	answer := func() {
		for _, one := range must(candidates.List(t.Context(), metav1.ListOptions{}))(t).Items {
			if p := one.Spec.PingTime; p != nil && one.Spec.RenewTime.Before(p) {
				one.Spec.RenewTime = new(metav1.NowMicro())
				if _, err := candidates.Update(t.Context(), &one, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
					t.Fatal(err)
				}
			}
		}
	}
	lease := func(is func(s *coordinationv1.LeaseSpec) bool) func() bool {
		return func() bool {
			answer()
			l, err := leases.Get(t.Context(), "component", metav1.GetOptions{})
			return err == nil && is(&l.Spec)
		}
	}
	value := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}

	nominate("newer", "1.37.0")
	polltest.Until(t, "a leader", lease(func(s *coordinationv1.LeaseSpec) bool { return value(s.HolderIdentity) == "newer" }))
	nominate("older", "1.36.0")
	// It is told to the holder, unless the lease has run out meanwhile.
	polltest.Until(t, "a better leader", lease(func(s *coordinationv1.LeaseSpec) bool {
		return value(s.PreferredHolder) == "older" || value(s.HolderIdentity) == "older"
	}))
}

// TestStorageVersions has the server tell in which versions it keeps objects, and
// forget what others have told that are gone.
func TestStorageVersions(t *testing.T) {
	c := gated(t, "StorageVersionAPI")
	versions := c.InternalV1alpha1().StorageVersions()
	pods := must(versions.Get(t.Context(), "core.pods", metav1.GetOptions{}))(t)
	if len(pods.Status.StorageVersions) != 1 || *pods.Status.CommonEncodingVersion != "v1" {
		t.Fatalf("%+v", pods.Status)
	}
	self := pods.Status.StorageVersions[0].APIServerID
	must(c.CoordinationV1().Leases("kube-system").Get(t.Context(), self, metav1.GetOptions{}))(t)

	pods.Status.StorageVersions = append(pods.Status.StorageVersions, internalv1alpha1.ServerStorageVersion{
		APIServerID: "gone", EncodingVersion: "v2", DecodableVersions: []string{"v2"},
	})
	pods.Status.CommonEncodingVersion = nil
	must(versions.UpdateStatus(t.Context(), pods, metav1.UpdateOptions{}))(t)
	polltest.Until(t, "it is forgotten", func() bool {
		now := must(versions.Get(t.Context(), "core.pods", metav1.GetOptions{}))(t).Status
		return len(now.StorageVersions) == 1 && now.CommonEncodingVersion != nil && *now.CommonEncodingVersion == "v1"
	})
}

// TestGroupProtection keeps a group of pods as long as there is one in it.
func TestGroupProtection(t *testing.T) {
	c := gated(t, "GenericWorkload")
	groups, pods := c.SchedulingV1beta1().PodGroups("default"), c.CoreV1().Pods("default")
	must(groups.Create(t.Context(), &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "g"},
		Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
			Basic: &schedulingv1beta1.BasicSchedulingPolicy{},
		}},
	}, metav1.CreateOptions{}))(t)
	must(pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{
			Containers:      []corev1.Container{{Name: "c", Image: "i"}},
			SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: new("g")},
		},
	}, metav1.CreateOptions{}))(t)
	if err := groups.Delete(t.Context(), "g", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if g := must(groups.Get(t.Context(), "g", metav1.GetOptions{}))(t); g.DeletionTimestamp == nil {
		t.Error("the group is not being deleted")
	}
	if err := pods.Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "the group is gone", func() bool {
		_, err := groups.Get(t.Context(), "g", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}
