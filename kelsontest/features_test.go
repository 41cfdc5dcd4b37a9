package kelsontest_test

import (
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/kelsontest"
)

// TestFeatureGates has kinds and fields behind gates be there or not, as the gates and
// the version say.
func TestFeatureGates(t *testing.T) {
	beta := kelsontest.Configure(func(c *controlplane.Config) {
		c.RuntimeConfig = map[string]string{schedulingv1beta1.SchemeGroupVersion.String(): "true"}
	})
	for _, c := range []struct {
		name      string
		options   []kelsontest.Option
		bundles   bool // ClusterTrustBundle, on since 1.37
		workloads bool // GenericWorkload, off
		mode      bool // EmptyDirVolumeMode, off
	}{
		{"by default", nil, true, false, false},
		{"disabled", []kelsontest.Option{kelsontest.FeatureGates(map[string]bool{"ClusterTrustBundle": false, "ClusterTrustBundleProjection": false})}, false, false, false},
		{"enabled", []kelsontest.Option{
			kelsontest.FeatureGates(map[string]bool{"GenericWorkload": true}), kelsontest.FeatureGates(map[string]bool{"EmptyDirVolumeMode": true}),
		}, true, true, true},
		{"earlier", []kelsontest.Option{kelsontest.EmulatedVersion("1.36")}, false, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := kelsontest.Start(t, append(c.options, beta)...)
			client, err := kubernetes.NewForConfig(s.Config())
			if err != nil {
				t.Fatal(err)
			}
			served := func(version, name string) bool {
				list, err := client.Discovery().ServerResourcesForGroupVersion(version)
				if err != nil && !apierrors.IsNotFound(err) {
					t.Fatal(err)
				}
				for _, r := range list.APIResources {
					if r.Name == name {
						return true
					}
				}
				return false
			}
			if got := served(certificatesv1.SchemeGroupVersion.String(), "clustertrustbundles"); got != c.bundles {
				t.Errorf("clustertrustbundles are served: got %v, want %v", got, c.bundles)
			}
			if got := served(schedulingv1beta1.SchemeGroupVersion.String(), "workloads"); got != c.workloads {
				t.Errorf("workloads are served: got %v, want %v", got, c.workloads)
			}
			pod, err := client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p"},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "c", Image: "i"}},
					Volumes:    []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Mode: new(int32(0o700))}}}},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := pod.Spec.Volumes[0].EmptyDir.Mode != nil; got != c.mode {
				t.Errorf("the mode of the volume is kept: got %v, want %v", got, c.mode)
			}
		})
	}
}

// TestFeatureGatesRefused has servers not start that kube-apiserver would not.
func TestFeatureGatesRefused(t *testing.T) {
	for want, option := range map[string]kelsontest.Option{
		"unrecognized feature gate: Unheard":                                      kelsontest.FeatureGates(map[string]bool{"Unheard": true}),
		"StorageVersionAPI is enabled, but depends on features that are disabled": kelsontest.FeatureGates(map[string]bool{"StorageVersionAPI": true, "APIServerIdentity": false}),
		"cannot set feature gate ImageVolume to false, feature is locked to true": kelsontest.FeatureGates(map[string]bool{"ImageVolume": false}),
		"this server cannot switch off what is behind StorageVersionHash":         kelsontest.FeatureGates(map[string]bool{"StorageVersionHash": false}),
		"emulation version 1.20 is not between":                                   kelsontest.EmulatedVersion("1.20"),
	} {
		s, err := kelsontest.New(option)
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
