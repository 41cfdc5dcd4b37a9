package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The ConfigMap with the date since which the use of secret-based tokens is recorded, and
// the labels on secrets that record it. Dates compare as strings.
const (
	TrackingConfigMap = "kube-apiserver-legacy-service-account-token-tracking"
	TrackingSince     = "since"

	lastUsedLabel     = "kubernetes.io/legacy-token-last-used"
	invalidSinceLabel = "kubernetes.io/legacy-token-invalid-since"

	legacyUnused = 365 * 24 * time.Hour
	legacyEvery  = 24 * time.Hour
)

// LegacyTokens invalidates, and later deletes, auto-generated service account tokens in
// secrets that were not used for a year.
func LegacyTokens() Controller {
	return Controller{
		Name: "legacy-serviceaccount-token-cleaner-controller", Alias: "legacy-service-account-token-cleaner", Account: "legacy-service-account-token-cleaner",
		Start: func(env *Env) Observer {
			l := &legacy{Env: env}
			l.queue = NewQueue(env, 1, func(ctx context.Context, _ struct{}) error {
				err := l.work(ctx)
				if err == nil {
					l.queue.AddAfter(struct{}{}, legacyEvery)
				}
				return err
			})
			return l
		},
	}
}

type legacy struct {
	*Env
	queue *Queue[struct{}]
}

// Observe implements Observer. The controller works once a day, not on changes.
func (l *legacy) Observe([]Change) {}

// Synced implements Starter.
func (l *legacy) Synced() { l.queue.Add(struct{}{}) }

func (l *legacy) work(ctx context.Context) error {
	var tracking corev1.ConfigMap
	if err := l.Get(ctx, l.Kind("v1", "ConfigMap"), metav1.NamespaceSystem, TrackingConfigMap, &tracking); err != nil {
		return ignoreNotFound(err) // use is not recorded
	}
	since, err := time.Parse(time.DateOnly, tracking.Data[TrackingSince])
	if err != nil {
		return nil // the recorder will correct it
	}
	now := l.Now().UTC()
	if now.Before(since.AddDate(0, 0, 1).Add(legacyUnused)) {
		return nil
	}
	var all corev1.SecretList
	if err := l.List(ctx, l.Kind("v1", "Secret"), "", &all); err != nil {
		return err
	}
	var failed error
	for i := range all.Items {
		s := &all.Items[i]
		if !isUnused(s, now) {
			continue
		}
		if err := l.clean(ctx, s, now); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s/%s: %w", s.Namespace, s.Name, err))
		}
	}
	return failed
}

// isUnused reports whether a secret has a token that was not used for legacyUnused.
func isUnused(s *corev1.Secret, now time.Time) bool {
	limit := now.Add(-legacyUnused)
	if s.Type != corev1.SecretTypeServiceAccountToken || s.DeletionTimestamp != nil || !s.CreationTimestamp.Time.Before(limit) {
		return false
	}
	used, ok := s.Labels[lastUsedLabel]
	if !ok {
		return true
	}
	_, err := time.Parse(time.DateOnly, used)
	return err == nil && used < limit.Format(time.DateOnly)
}

// clean invalidates a token, or deletes one that has been invalid for legacyUnused.
// Tokens created by hand and tokens that a pod mounts are left alone.
func (l *legacy) clean(ctx context.Context, s *corev1.Secret, now time.Time) error {
	name := s.Annotations[corev1.ServiceAccountNameKey]
	if name == "" {
		return nil
	}
	var account corev1.ServiceAccount
	if err := l.Get(ctx, l.Kind("v1", "ServiceAccount"), s.Namespace, name, &account); err != nil {
		return ignoreNotFound(err)
	}
	if uid := s.Annotations[corev1.ServiceAccountUIDKey]; uid != "" && uid != string(account.UID) {
		return nil
	}
	if !slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == s.Name }) {
		return nil
	}
	if is, err := l.isMounted(ctx, s); is || err != nil {
		return err
	}
	secrets := l.Kind("v1", "Secret")
	since := s.Labels[invalidSinceLabel]
	if _, err := time.Parse(time.DateOnly, since); err != nil {
		_, err := l.Patch(ctx, secrets, s.Namespace, s.Name, types.MergePatchType, map[string]any{"metadata": map[string]any{
			"uid": s.UID, "labels": map[string]string{invalidSinceLabel: now.Format(time.DateOnly)},
		}})
		return mapOutdated(err)
	}
	if since >= now.Add(-legacyUnused).Format(time.DateOnly) {
		return nil
	}
	return mapOutdated(l.Delete(ctx, secrets, s.Namespace, s.Name, ifUnchanged(&s.ObjectMeta)))
}

// isMounted reports whether a pod may use a secret: the name occurs anywhere in the spec
// of a pod.
func (l *legacy) isMounted(ctx context.Context, s *corev1.Secret) (bool, error) {
	var pods struct {
		Items []struct{ Spec json.RawMessage }
	}
	if err := l.List(ctx, l.Kind("v1", "Pod"), s.Namespace, &pods); err != nil {
		return true, err
	}
	name := []byte(strconv.Quote(s.Name))
	for i := range pods.Items {
		if bytes.Contains(pods.Items[i].Spec, name) {
			return true, nil
		}
	}
	return false, nil
}
