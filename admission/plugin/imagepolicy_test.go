package plugin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"

	"github.com/apikeel/kelson/admission"
)

func TestImagePolicy(t *testing.T) {
	asked := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		var review imagepolicyv1alpha1.ImageReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || r.Method != http.MethodPost {
			t.Errorf("%s with %v", r.Method, err)
		}
		image := review.Spec.Containers[0].Image
		if slices.ContainsFunc(review.Spec.Containers, func(c imagepolicyv1alpha1.ImageReviewContainerSpec) bool { return c.Image == "bad" }) {
			image = "bad"
		}
		switch image {
		case "dead":
			http.Error(w, "no", http.StatusBadRequest)
			return
		case "bad":
			review.Status.Reason = "it is bad"
		default:
			review.Status.Allowed = image == "good"
		}
		_ = json.NewEncoder(w).Encode(&review)
	}))
	defer service.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %s}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\ncurrent-context: x\n", service.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	configured := func(open bool) admission.Plugin {
		file := configFile(t, "ImagePolicyWebhook", fmt.Sprintf("    imagePolicy: {kubeConfigFile: %s, retryBackoff: 1, defaultAllow: %v}\n", kubeconfig, open))
		return only(t, "ImagePolicyWebhook", Config{File: file}, Deps{Objects: stored{}})
	}
	shut, open := configured(false), configured(true)
	for _, c := range []struct {
		name   string
		plugin admission.Plugin
		image  string
		err    string
		asks   int
	}{
		{"good", shut, "good", "", 1},
		{"good again", shut, "good", "", 0},
		{"bad", shut, "bad", "image policy webhook backend denied one or more images: it is bad", 1},
		{"other", shut, "other", "one or more images rejected by webhook backend", 1},
		{"dead", shut, "dead", "the server rejected our request for an unknown reason", 1},
		{"dead, open", open, "dead", "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := asked
			pod := newPod(func(p *corev1.Pod) { p.Spec.Containers[0].Image = c.image })
			_, err := try(t, c.plugin, write{op: admission.Create, resource: "pods", obj: pod})
			refuses(t, err, c.err)
			if asked-before != c.asks {
				t.Errorf("the service was asked %d times", asked-before)
			}
		})
	}
	// Each image of a pod is judged, also those of containers that are added later.
	for name, change := range map[string]func(*corev1.Pod){
		"second container": func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Image: "bad"}) },
		"init container":   func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Image: "bad"}} },
		"ephemeral container": func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: "bad"}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			old := newPod(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "good" })
			pod := old.DeepCopy()
			change(pod)
			w := write{op: admission.Create, resource: "pods", obj: pod}
			if len(pod.Spec.EphemeralContainers) > 0 {
				w = write{op: admission.Update, resource: "pods/ephemeralcontainers", obj: pod, old: old}
			}
			_, err := try(t, shut, w)
			refuses(t, err, "image policy webhook backend denied one or more images: it is bad")
		})
	}
	if _, err := Plugins(Config{Enable: []string{"ImagePolicyWebhook"}, File: configFile(t, "ImagePolicyWebhook", "    imagePolicy: {kubeConfigFile: x, allowTTL: 99999}\n")}, Deps{Objects: stored{}}); err == nil {
		t.Error("a day is not too long")
	}
}
