package apiserver

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/bootstrap"
	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// EnsureTokenTracking makes the config map that says since when the use of tokens in
// secrets is noted, which is what authentication does.
func (s *Server) EnsureTokenTracking(ctx context.Context) error {
	if err := s.EnsureNamespaces(ctx); err != nil {
		return err
	}
	return s.Ensure(ctx, []resource.Object{&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: controller.TrackingConfigMap, Namespace: metav1.NamespaceSystem},
		Data:       map[string]string{controller.TrackingSince: request.From(ctx).Received.UTC().Format(time.DateOnly)},
	}}, func(existing, wanted resource.Object) (resource.Object, bootstrap.Action) {
		now, want := existing.(*corev1.ConfigMap), wanted.(*corev1.ConfigMap)
		if _, err := time.Parse(time.DateOnly, now.Data[controller.TrackingSince]); err == nil {
			return existing, bootstrap.Keep
		}
		now = now.DeepCopy()
		now.Data = maps.Clone(now.Data)
		if now.Data == nil {
			now.Data = map[string]string{}
		}
		now.Data[controller.TrackingSince] = want.Data[controller.TrackingSince]
		return now, bootstrap.Update
	})
}
