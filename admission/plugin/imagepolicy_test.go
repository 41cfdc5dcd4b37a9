package plugin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
		switch image := review.Spec.Containers[0].Image; image {
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
	if _, err := Plugins(Config{Enable: []string{"ImagePolicyWebhook"}, File: configFile(t, "ImagePolicyWebhook", "    imagePolicy: {kubeConfigFile: x, allowTTL: 99999}\n")}, Deps{Objects: stored{}}); err == nil {
		t.Error("a day is not too long")
	}
}
