package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/internal/configfile"
	"github.com/apikeel/kelson/webhook"
)

const (
	imagePolicyNotes = "imagepolicywebhook.image-policy.k8s.io/"
	imagePolicyMark  = ".image-policy.k8s.io/"

	// Requests to the backend are retried with exponential backoff.
	imagePolicyAttempts = 5
	imagePolicyFactor   = 1.5
	imagePolicyTimeout  = 30 * time.Second
	imagePolicyCache    = 1024
)

// imagePolicy is ImagePolicyWebhook: it asks a backend whether images may be run.
type imagePolicy struct {
	base
	client       *rest.RESTClient
	answers      *cache.LRUExpireCache
	allowTTL     time.Duration
	denyTTL      time.Duration
	retryBackoff time.Duration
	defaultAllow bool
}

func newImagePolicy(b *builder) (admission.Plugin, error) {
	if b.configuration == nil {
		return nil, errors.New("no config specified")
	}
	var file struct {
		ImagePolicy struct {
			KubeConfigFile string `json:"kubeConfigFile"`
			AllowTTL       int64  `json:"allowTTL"`
			DenyTTL        int64  `json:"denyTTL"`
			RetryBackoff   int64  `json:"retryBackoff"`
			DefaultAllow   bool   `json:"defaultAllow"`
		} `json:"imagePolicy"`
	}
	if err := yaml.Unmarshal(b.configuration, &file); err != nil {
		return nil, configfile.Unquoted(err)
	}
	c := &file.ImagePolicy
	p := &imagePolicy{
		base: base{"ImagePolicyWebhook", func(t admission.Target) bool {
			return (t.Operation == admission.Create || t.Operation == admission.Update) && t.Group == "" && t.Resource == "pods" &&
				(t.Subresource == "" || t.Subresource == "ephemeralcontainers")
		}},
		answers: cache.NewLRUExpireCache(imagePolicyCache), defaultAllow: c.DefaultAllow,
	}
	var err error
	if p.retryBackoff, err = bounded(c.RetryBackoff, time.Millisecond, 1, 5*time.Minute, 500*time.Millisecond); err != nil {
		return nil, err
	}
	if p.allowTTL, err = bounded(c.AllowTTL, time.Second, time.Second, 30*time.Minute, 5*time.Minute); err != nil {
		return nil, err
	}
	if p.denyTTL, err = bounded(c.DenyTTL, time.Second, time.Second, 30*time.Minute, 30*time.Second); err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.KubeConfigFile)
	if err != nil {
		return nil, configfile.Unquoted(err)
	}
	config.Timeout = imagePolicyTimeout
	p.client, err = webhook.ReviewClient(config)
	return p, err
}

// bounded validates a duration: 0 is the default, -1 is none.
func bounded(value int64, unit, least, most, usual time.Duration) (time.Duration, error) {
	switch value {
	case -1:
		return 0, nil
	case 0:
		return usual, nil
	}
	if d := time.Duration(value) * unit; d < least || d > most {
		return d, fmt.Errorf("valid value is between %v and %v, got %v", least, most, d)
	}
	return time.Duration(value) * unit, nil
}

// Validate implements admission.Validator.
func (p *imagePolicy) Validate(ctx context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	spec := imagepolicyv1alpha1.ImageReviewSpec{Namespace: a.Namespace, Annotations: map[string]string{}}
	add := func(image string) {
		spec.Containers = append(spec.Containers, imagepolicyv1alpha1.ImageReviewContainerSpec{Image: image})
	}
	if a.Subresource == "" {
		for i := range pod.Spec.Containers {
			add(pod.Spec.Containers[i].Image)
		}
		for i := range pod.Spec.InitContainers {
			add(pod.Spec.InitContainers[i].Image)
		}
	} else {
		for i := range pod.Spec.EphemeralContainers {
			add(pod.Spec.EphemeralContainers[i].Image)
		}
	}
	for k, v := range pod.Annotations {
		if strings.Contains(k, imagePolicyMark) {
			spec.Annotations[k] = v
		}
	}
	status, err := p.review(ctx, spec)
	if err != nil {
		if !p.defaultAllow {
			return a.Forbidden(err)
		}
		a.Request.Annotate(imagePolicyNotes+"failed-open", "true")
		return nil
	}
	for k, v := range status.AuditAnnotations {
		a.Request.Annotate(imagePolicyNotes+k, v)
	}
	switch {
	case status.Allowed:
		return nil
	case status.Reason != "":
		return a.Forbidden(fmt.Errorf("image policy webhook backend denied one or more images: %s", status.Reason))
	}
	return a.Forbidden(errors.New("one or more images rejected by webhook backend"))
}

// review returns the review of the backend, or a cached one.
func (p *imagePolicy) review(ctx context.Context, spec imagepolicyv1alpha1.ImageReviewSpec) (*imagepolicyv1alpha1.ImageReviewStatus, error) {
	key, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	if known, ok := p.answers.Get(string(key)); ok {
		return known.(*imagepolicyv1alpha1.ImageReviewStatus), nil
	}
	body, err := json.Marshal(&imagepolicyv1alpha1.ImageReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "imagepolicy.k8s.io/v1alpha1", Kind: "ImageReview"}, Spec: spec,
	})
	if err != nil {
		return nil, err
	}
	wait := p.retryBackoff
	for attempt := 1; ; attempt++ {
		status, err := p.ask(ctx, body)
		if err == nil {
			ttl := p.denyTTL
			if status.Allowed {
				ttl = p.allowTTL
			}
			p.answers.Add(string(key), status, ttl)
			return status, nil
		}
		if !webhook.MayPass(err) || attempt == imagePolicyAttempts {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(wait):
		}
		wait = time.Duration(float64(wait) * imagePolicyFactor)
	}
}

// ask sends one request to the backend.
func (p *imagePolicy) ask(ctx context.Context, body []byte) (*imagepolicyv1alpha1.ImageReviewStatus, error) {
	result := p.client.Post().SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx)
	if err := result.Error(); err != nil { // Error decodes a Status in the response
		return nil, err
	}
	answer, err := result.Raw()
	if err != nil {
		return nil, err
	}
	var review imagepolicyv1alpha1.ImageReview
	if err := json.Unmarshal(answer, &review); err != nil {
		return nil, err
	}
	if kind := review.GroupVersionKind(); kind.Kind != "" && kind.Kind != "ImageReview" {
		return nil, fmt.Errorf("converting (%s.%s) to (v1alpha1.ImageReview): unknown conversion", kind.Version, kind.Kind)
	}
	return &review.Status, nil
}
