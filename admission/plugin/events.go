package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"

	"github.com/apikeel/kelson/admission"
)

// eventRateLimit is EventRateLimit: it limits the rate of event writes.
type eventRateLimit struct {
	base
	limits []*eventLimit
}

// eventLimit has a rate limiter for each key: server, namespace, user, or source and object.
type eventLimit struct {
	Type      string `json:"type"`
	QPS       int32  `json:"qps"`
	Burst     int32  `json:"burst"`
	CacheSize int32  `json:"cacheSize"`

	key      func(a *admission.Attributes) string
	mu       sync.Mutex
	limiters *lru.Cache // key → flowcontrol.RateLimiter
}

// defaultLimiters is the default size of the LRU cache of limiters.
const defaultLimiters = 4096

func eventKeys() map[string]func(a *admission.Attributes) string {
	return map[string]func(a *admission.Attributes) string{
		"Server":    func(*admission.Attributes) string { return "" },
		"Namespace": func(a *admission.Attributes) string { return a.Namespace },
		"User":      func(a *admission.Attributes) string { return a.Request.User.Name },
		"SourceAndObject": func(a *admission.Attributes) string {
			event, ok := a.Object.(*corev1.Event)
			if !ok {
				return ""
			}
			about := &event.InvolvedObject
			return strings.Join([]string{
				event.Source.Component, event.Source.Host,
				about.Kind, about.Namespace, about.Name, string(about.UID), about.APIVersion,
			}, "")
		},
	}
}

func newEventRateLimit(b *builder) (admission.Plugin, error) {
	var file struct {
		APIVersion string        `json:"apiVersion"`
		Kind       string        `json:"kind"`
		Limits     []*eventLimit `json:"limits"`
	}
	if b.configuration != nil {
		if err := decode(b.configuration, &file, "Configuration", "eventratelimit.admission.k8s.io/v1alpha1"); err != nil {
			return nil, err
		}
	}
	if errs := validateEventLimits(file.Limits); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	for _, l := range file.Limits {
		size := int(l.CacheSize)
		if size == 0 {
			size = defaultLimiters
		}
		l.key, l.limiters = eventKeys()[l.Type], lru.New(size)
	}
	return &eventRateLimit{base{"EventRateLimit", func(t admission.Target) bool {
		return t.Group == "" && t.Resource == "events" && (t.Operation == admission.Create || t.Operation == admission.Update)
	}}, file.Limits}, nil
}

func validateEventLimits(limits []*eventLimit) (errs field.ErrorList) {
	path := field.NewPath("limits")
	if len(limits) == 0 {
		errs = append(errs, field.Invalid(path, nil, "must not be empty"))
	}
	types := []string{"Server", "Namespace", "User", "SourceAndObject"}
	for i, l := range limits {
		at := path.Index(i)
		if !slices.Contains(types, l.Type) {
			errs = append(errs, field.NotSupported(at.Child("type"), l.Type, types))
		}
		if l.Burst <= 0 {
			errs = append(errs, field.Invalid(at.Child("burst"), l.Burst, "must be positive"))
		}
		if l.QPS <= 0 {
			errs = append(errs, field.Invalid(at.Child("qps"), l.QPS, "must be positive"))
		}
		if l.Type != "Server" && l.CacheSize < 0 {
			errs = append(errs, field.Invalid(at.Child("cacheSize"), l.CacheSize, "must not be negative"))
		}
	}
	return errs
}

// Validate implements admission.Validator.
func (p *eventRateLimit) Validate(_ context.Context, a *admission.Attributes) error {
	if a.Kind.Group != "" || a.Kind.Kind != "Event" || a.DryRun {
		return nil
	}
	var errs []error
	for _, l := range p.limits {
		if key := l.key(a); !l.limiter(key).TryAccept() {
			errs = append(errs, fmt.Errorf("limit reached on type %v for key %v", l.Type, key))
		}
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		return apierrors.NewTooManyRequestsError(err.Error())
	}
	return nil
}

func (l *eventLimit) limiter(key string) flowcontrol.RateLimiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if limiter, ok := l.limiters.Get(key); ok {
		return limiter.(flowcontrol.RateLimiter)
	}
	limiter := flowcontrol.NewTokenBucketRateLimiter(float32(l.QPS), int(l.Burst))
	l.limiters.Add(key, limiter)
	return limiter
}
