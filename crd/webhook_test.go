package crd

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/measuretest"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/webhook"
)

// converting returns a converter whose webhook answers what answer makes of a
// review that is right.
func converting(t *testing.T, answer func(review *apiextensions.ConversionReview, objs []map[string]any)) *hook {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var review apiextensions.ConversionReview
		if err := json.Unmarshal(body, &review); err != nil {
			t.Error(err)
		}
		var objs []map[string]any
		for _, raw := range review.Request.Objects {
			var obj map[string]any
			if err := json.Unmarshal(raw.Raw, &obj); err != nil {
				t.Error(err)
			}
			obj["apiVersion"] = review.Request.DesiredAPIVersion
			obj["converted"] = true
			objs = append(objs, obj)
		}
		review.Response = &apiextensions.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		review.Request = nil
		if answer != nil {
			answer(&review, objs)
		}
		if review.Response != nil && review.Response.ConvertedObjects == nil {
			for _, obj := range objs {
				raw, _ := json.Marshal(obj)
				review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Raw: raw})
			}
		}
		_ = json.NewEncoder(w).Encode(&review)
	}))
	t.Cleanup(server.Close)
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return newHook(&webhook.Client{TellTimeout: true}, &apiextensions.WebhookConversion{
		ConversionReviewVersions: []string{"v9", "v1"},
		ClientConfig:             &apiextensions.WebhookClientConfig{URL: &server.URL, CABundle: bundle},
	})
}

func widgets(names ...string) (objs []resource.Object) {
	for _, name := range names {
		objs = append(objs, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"name": name, "uid": "u-" + name, "labels": map[string]any{"a": "b"}, "generation": int64(3)},
		}})
	}
	return objs
}

func TestConversion(t *testing.T) {
	h := converting(t, func(_ *apiextensions.ConversionReview, objs []map[string]any) {
		meta := objs[0]["metadata"].(map[string]any)
		meta["labels"], meta["generation"] = map[string]any{"c": "d"}, 99
	})
	in := append(widgets("a", "b"), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v2", "kind": "Widget", "metadata": map[string]any{"name": "same"}}})
	out, err := h.convert(in, "example.com/v2")
	if err != nil {
		t.Fatal(err)
	}
	if len(out) != 3 || content(out[1])["converted"] != true || out[2] != in[2] {
		t.Errorf("converted to %v", out)
	}
	first := out[0].(*unstructured.Unstructured)
	if first.GetLabels()["c"] != "d" || first.GetGeneration() != 3 || first.GetAPIVersion() != "example.com/v2" {
		t.Errorf("labels may change, nothing else: %v", first)
	}
	if content(in[0])["apiVersion"] != "example.com/v1" {
		t.Error("what was passed in has changed")
	}
}

// TestInvalidObjectInAList: the error about an object that was converted alone, as a part of a list, is that
// of an object of the list.
func TestInvalidObjectInAList(t *testing.T) {
	_, err := converting(t, func(_ *apiextensions.ConversionReview, objs []map[string]any) { objs[0]["kind"] = "Other" }).convert(widgets("a"), "example.com/v2")
	var item resource.ItemError
	if !errors.As(err, &item) {
		t.Fatalf("got %v, want an ItemError", err)
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{err, "invalid object at index 0: invalid kind"},
		{item.InList(func(index int) int { return 700 + index }), "invalid converted object at index 700: invalid kind"},
	} {
		if !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("got %v, want %q", c.err, c.want)
		}
	}
}

// TestRefusedAnswerIsNoFailure: an answer for which there is no memory is not counted as a failure of the
// webhook, and not called one.
func TestRefusedAnswerIsNoFailure(t *testing.T) {
	h := converting(t, func(_ *apiextensions.ConversionReview, objs []map[string]any) {
		objs[0]["large"] = strings.Repeat("x", 1<<20) // a small answer needs no memory
	})
	sink := &measuretest.Sink{}
	h.metrics = sink
	h.client.Hold = func(context.Context, int64) (func(), error) { return nil, budget.ErrBusy }
	_, err := h.convert(widgets("a"), "example.com/v2")
	if !errors.Is(err, budget.ErrBusy) || strings.Contains(err.Error(), "fail") {
		t.Errorf("got %v, want ErrBusy, and no word of a failure", err)
	}
	if counted := sink.Names(); len(counted) > 0 {
		t.Errorf("got metrics %v, want none", counted)
	}
	h.client.Hold = nil
	if _, err := h.convert(widgets("a"), "example.com/v2"); err != nil || len(sink.Of(measure.ConversionRequests, "success", "")) != 1 {
		t.Errorf("with memory: got %v and metrics %v, want a success", err, sink.Names())
	}
}

func TestBadConversions(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(review *apiextensions.ConversionReview, objs []map[string]any)
		want   string
	}{
		{"uid", func(r *apiextensions.ConversionReview, _ []map[string]any) { r.Response.UID = "x" }, "expected response.uid="},
		{"no response", func(r *apiextensions.ConversionReview, _ []map[string]any) { r.Response = nil }, "no response provided"},
		{"kind of answer", func(r *apiextensions.ConversionReview, _ []map[string]any) { r.Kind = "Other" }, "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview"},
		{"failure", func(r *apiextensions.ConversionReview, _ []map[string]any) {
			r.Response.Result = metav1.Status{Status: metav1.StatusFailure, Message: "cannot"}
		}, "conversion webhook for example.com/v1, Kind=Widget failed: cannot"},
		{"count", func(r *apiextensions.ConversionReview, _ []map[string]any) {
			r.Response.ConvertedObjects = []runtime.RawExtension{}
		}, "returned 0 objects, expected 2"},
		{"version", func(_ *apiextensions.ConversionReview, objs []map[string]any) {
			objs[0]["apiVersion"] = "example.com/v3"
		},
			"invalid converted object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v3)"},
		{"kind", func(_ *apiextensions.ConversionReview, objs []map[string]any) { objs[1]["kind"] = "Other" }, "at index 1: invalid kind (expected Widget, received Other)"},
		{"order", func(_ *apiextensions.ConversionReview, objs []map[string]any) { objs[0], objs[1] = objs[1], objs[0] }, "must have the same name: a != b"},
		{"uid of object", func(_ *apiextensions.ConversionReview, objs []map[string]any) {
			objs[0]["metadata"].(map[string]any)["uid"] = "z"
		}, "must have the same UID: u-a != z"},
		{"labels", func(_ *apiextensions.ConversionReview, objs []map[string]any) {
			objs[0]["metadata"].(map[string]any)["labels"] = map[string]any{"a": 1}
		}, "invalid metadata in object at index 0: metadata.labels[a] must be a string"},
	} {
		_, err := converting(t, c.answer).convert(widgets("a", "b"), "example.com/v2")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
