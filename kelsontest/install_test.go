package kelsontest_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/apikeel/kelson/kelsontest"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
)

func widgets(t testing.TB, s *kelsontest.Server, version string) dynamic.ResourceInterface {
	t.Helper()
	c, err := dynamic.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	return c.Resource(schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "widgets"}).Namespace("team")
}

// conversion is what an API server sends to a conversion webhook, and gets back.
type conversion struct {
	metav1.TypeMeta `json:",inline"`
	Request         *struct {
		UID     types.UID                    `json:"uid"`
		Version string                       `json:"desiredAPIVersion"`
		Objects []*unstructured.Unstructured `json:"objects"`
	} `json:"request,omitempty"`
	Response *struct {
		UID     types.UID                    `json:"uid"`
		Objects []*unstructured.Unstructured `json:"convertedObjects"`
		Result  metav1.Status                `json:"result"`
	} `json:"response,omitempty"`
}

// rename calls the size of v1 length in v2.
func rename(obj *unstructured.Unstructured, version string) {
	from, to := "size", "length"
	if version == "v1" {
		from, to = to, from
	}
	if spec, ok := obj.Object["spec"].(map[string]any); ok && spec[from] != nil {
		spec[to] = spec[from]
		delete(spec, from)
	}
}

// webhooks refuse the widget "bad", and convert others.
func webhooks(t testing.TB, convert func(obj *unstructured.Unstructured, version string)) http.Handler {
	answer := func(handle func(body *json.Decoder) (any, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			out, err := handle(json.NewDecoder(r.Body))
			if err == nil {
				err = json.NewEncoder(w).Encode(out)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	mux := http.NewServeMux()
	mux.Handle("POST /validate-widget", answer(func(body *json.Decoder) (any, error) {
		var review admissionv1.AdmissionReview
		err := body.Decode(&review)
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "bad"}
		return review, err
	}))
	mux.Handle("POST /convert", answer(func(body *json.Decoder) (any, error) {
		var review conversion
		if err := body.Decode(&review); err != nil {
			return nil, err
		}
		review.Response = new(struct {
			UID     types.UID                    `json:"uid"`
			Objects []*unstructured.Unstructured `json:"convertedObjects"`
			Result  metav1.Status                `json:"result"`
		})
		review.Response.UID, review.Response.Result.Status = review.Request.UID, metav1.StatusSuccess
		for _, obj := range review.Request.Objects {
			_, version, _ := strings.Cut(review.Request.Version, "/")
			convert(obj, version)
			obj.SetAPIVersion(review.Request.Version)
			review.Response.Objects = append(review.Response.Objects, obj)
		}
		review.Request = nil
		return review, nil
	}))
	return mux
}

func TestInstall(t *testing.T) {
	s := kelsontest.Start(t, kelsontest.CRDs("testdata/crds"), kelsontest.Convert("widgets.example.com"),
		kelsontest.WebhookConfigurations("testdata/webhooks"), kelsontest.Manifests("testdata/manifests/team.yaml"))
	hooks, err := s.Webhooks()
	if err != nil {
		t.Fatal(err)
	}
	if err := hooks.Serve(webhooks(t, rename)); err != nil {
		t.Fatal(err)
	}
	v1, v2 := widgets(t, s, "v1"), widgets(t, s, "v2")
	first, err := v2.Get(t.Context(), "first", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if length, _, _ := unstructured.NestedInt64(first.Object, "spec", "length"); length != 3 {
		t.Errorf("in v2 it is %v", first.Object)
	}
	// The metadata of kinds without a protobuf form have one.
	metaClient, err := metadata.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	meta, err := metaClient.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "widgets"}).Namespace("team").Get(t.Context(), "first", metav1.GetOptions{})
	if err != nil || meta.UID != first.GetUID() || meta.ResourceVersion != first.GetResourceVersion() {
		t.Errorf("the metadata is %v, %v", meta, err)
	}
	widget := func(name string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": map[string]any{"size": int64(1)},
		}}
	}
	if _, err := v1.Create(t.Context(), widget("good"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := v1.Create(t.Context(), widget("bad"), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "denied the request") {
		t.Errorf("the webhook has not refused it: %v", err)
	}
	if got := names(t, client(t, s.Config())); got != "settings" {
		t.Errorf("config maps are %q", got)
	}
	// Once more, over what is there.
	if err := s.Apply(t.Context(), "testdata/crds", "testdata/manifests"); err != nil {
		t.Error(err)
	}
}

func TestInstallErrors(t *testing.T) {
	for name, c := range map[string]struct {
		opt  kelsontest.Option
		want string
	}{
		"no folder":     {kelsontest.CRDs("testdata/none"), "no such file"},
		"unknown kind":  {kelsontest.Manifests("testdata/manifests"), "no matches for kind"},
		"not an object": {kelsontest.Manifests("install_test.go"), "install_test.go"},
	} {
		s, err := kelsontest.New(kelsontest.NoControllers(), c.opt)
		if err == nil {
			s.Stop()
			t.Errorf("%s: no error", name)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
