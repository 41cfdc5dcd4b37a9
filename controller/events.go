package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// warn creates an Event of type Warning about an object. An error is ignored.
func (e *Env) warn(ctx context.Context, component string, k *Kind, namespace, name string, uid types.UID, reason, message string) {
	events := e.Kind("v1", "Event")
	if events == nil {
		return
	}
	at := metav1.NewTime(e.Now())
	where := namespace
	if where == "" {
		where = metav1.NamespaceDefault
	}
	err := e.Create(ctx, events, where, &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", name, at.UnixNano()), Namespace: where},
		InvolvedObject: corev1.ObjectReference{APIVersion: k.APIVersion(), Kind: k.Kind, Namespace: namespace, Name: name, UID: uid},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: message,
		Source: corev1.EventSource{Component: component}, ReportingController: component,
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	})
	if err != nil {
		e.Log.Debug("an event could not be made", "reason", reason, "message", message, "error", err)
	}
}
