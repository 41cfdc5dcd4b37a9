package kelsontest_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protodelim"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

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

// TestGatesSwitchedOff has features that are on by default be off.
func TestGatesSwitchedOff(t *testing.T) {
	for _, on := range []bool{true, false} {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			gates := map[string]bool{}
			for _, name := range []string{
				"StorageVersionHash", "HPAGeneration", "ManifestBasedAdmissionControlConfig", "PodLevelResourcesFixKubeletQOSClass", "PodLevelResourcesFixDefaulting",
				"CRDObservedGenerationTracking", "WatchListCompression", "NativeHistograms", "DeclarativeValidationBeta", "AllowParsingUserUIDFromCertAuth",
				"AuthorizePodWebsocketUpgradeCreatePermission", "ExtendWebSocketsToKubelet", "PortForwardWebsockets", "RemoteRequestHeaderUID",
				"StructuredAuthenticationConfigurationEgressSelector", "StructuredAuthenticationConfigurationJWKSMetrics", "TranslateStreamCloseWebsocketRequests",
			} {
				gates[name] = on
			}
			s := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.FeatureGates(gates))
			client := kubernetes.NewForConfigOrDie(s.Config())
			check := func(what string, got bool) {
				t.Helper()
				if got != on {
					t.Errorf("%s: got %v, want %v", what, got, on)
				}
			}
			list, err := client.Discovery().ServerResourcesForGroupVersion("v1")
			if err != nil {
				t.Fatal(err)
			}
			check("resources have hashes", slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.StorageVersionHash != "" }))

			hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
			hpa.Spec.MaxReplicas, hpa.Spec.ScaleTargetRef = 3, autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "d", APIVersion: "apps/v1"}
			hpa, err = client.AutoscalingV2().HorizontalPodAutoscalers("default").Create(t.Context(), hpa, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			check("autoscalers have a generation", hpa.Generation == 1)

			policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p.static.k8s.io"}}
			policy.Spec.Validations = []admissionregistrationv1.Validation{{Expression: "true"}}
			policy.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{"*"}, Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				},
			}}}
			_, err = client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{})
			check("names of static manifests are refused", apierrors.IsInvalid(err))

			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
			small, large := resource.MustParse("1"), resource.MustParse("2")
			pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": small, "memory": small}, Limits: corev1.ResourceList{"cpu": large, "memory": large},
			}}}
			pod.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": small}}
			if pod, err = client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			check("the limit of the pod is that of its containers", pod.Spec.Resources.Limits.Cpu().Equal(large))

			empty := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "q"}}
			empty.Spec.Containers, empty.Spec.Resources = pod.Spec.Containers[:1:1], &corev1.ResourceRequirements{}
			empty.Spec.Containers[0].VolumeMounts = nil
			if empty, err = client.CoreV1().Pods("default").Create(t.Context(), empty, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			check("resources of a pod that are empty do not count", empty.Status.QOSClass == corev1.PodQOSBurstable)

			custom := dynamic.NewForConfigOrDie(s.Config()).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
			crd := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "foos.example.com"},
				"spec": map[string]any{
					"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "foos", "kind": "Foo"},
					"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
				},
			}}
			if _, err = custom.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			crd, err = custom.Patch(t.Context(), "foos.example.com", types.MergePatchType, []byte(`{"status":{"observedGeneration":7}}`), metav1.PatchOptions{}, "status")
			if err != nil {
				t.Fatal(err)
			}
			generation, _, _ := unstructured.NestedInt64(crd.Object, "status", "observedGeneration")
			check("definitions have an observed generation", generation == 7)

			scraped, err := client.RESTClient().Get().AbsPath("/metrics").
				SetHeader("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited").DoRaw(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			native := false
			var family dto.MetricFamily
			for from := bytes.NewReader(scraped); protodelim.UnmarshalFrom(from, &family) == nil; family.Reset() {
				native = native || family.GetName() == "apiserver_request_duration_seconds" && family.Metric[0].Histogram.Schema != nil
			}
			check("histograms have native buckets", native)
		})
	}
}

// TestWatchesAreCompressed has watches that begin with what there is be compressed for
// clients that accept it, as those of client-go do, and no others; events come at once.
func TestWatchesAreCompressed(t *testing.T) {
	for _, c := range []struct {
		name, query, accept string
		off, compressed     bool
	}{
		{name: "what there is", query: "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", accept: "br, gzip", compressed: true},
		{name: "not accepted", query: "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"},
		{name: "not wanted", query: "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", accept: "gzip;q=0"},
		{name: "only changes", accept: "gzip"},
		{name: "without bookmarks", query: "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", accept: "gzip"},
		{name: "switched off", query: "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", accept: "gzip", off: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.FeatureGates(map[string]bool{"WatchListCompression": !c.off}))
			client := kubernetes.NewForConfigOrDie(s.Config())
			create := func(name string) {
				object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": strings.Repeat("long ", 1000)}}
				if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			create("a")
			create("b")
			config := rest.CopyConfig(s.Config())
			config.DisableCompression = true // so that nothing is undone on the way
			transport, err := rest.TransportFor(config)
			if err != nil {
				t.Fatal(err)
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=60"+c.query, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.accept != "" {
				r.Header.Set("Accept-Encoding", c.accept)
			}
			resp, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body := io.Reader(resp.Body)
			if got := resp.Header.Get("Content-Encoding") == "gzip"; got != c.compressed {
				t.Fatalf("got compressed %v, want %v; header %v", got, c.compressed, resp.Header)
			}
			if c.compressed {
				if got := resp.Header.Get("Vary"); got != "Accept-Encoding" {
					t.Errorf("got Vary %q, want Accept-Encoding", got)
				}
				if body, err = gzip.NewReader(resp.Body); err != nil {
					t.Fatal(err)
				}
			}
			events := json.NewDecoder(body)
			for _, name := range []string{"a", "b", "c", "d"} {
				if name >= "c" {
					create(name)
				}
				for {
					var event struct {
						Type   string
						Object corev1.ConfigMap
					}
					if err := events.Decode(&event); err != nil {
						t.Fatalf("before %s: %v", name, err)
					}
					if event.Type == "BOOKMARK" || event.Object.Name == "kube-root-ca.crt" {
						continue
					}
					if event.Object.Name != name || len(event.Object.Data["a"]) != 5000 {
						t.Fatalf("got %s %s with %d bytes, want %s with 5000", event.Type, event.Object.Name, len(event.Object.Data["a"]), name)
					}
					break
				}
			}
		})
	}
}
