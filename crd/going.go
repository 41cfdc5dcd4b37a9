package crd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Deletion of a CustomResourceDefinition: its custom objects are deleted first. Until
// they are gone nothing can be created, and the condition Terminating shows progress.

// remaining is a resource that still had objects at a revision.
type remaining struct {
	group, resource string
	revision        int64
}

// finishPending writes statuses that could not be written before, and deletes the objects of
// definitions that are being deleted. It returns the resources that still have objects.
func (s *Server) finishPending(ctx context.Context) (left []remaining, err error) {
	s.mu.Lock()
	var unsettled, going []string
	for name, e := range s.entries {
		if e.statusPending {
			unsettled = append(unsettled, name)
		}
		if e.cleanup {
			going = append(going, name)
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, name := range unsettled {
		errs = append(errs, s.writeStatus(ctx, name, func(crd *apiextensions.CustomResourceDefinition) taken {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.takenFrom(crd)
		}))
	}
	for _, name := range going {
		more, err := s.deleteObjects(ctx, name)
		left, errs = append(left, more...), append(errs, err)
	}
	return left, errors.Join(errs...)
}

// deleteObjects deletes the objects of a definition that is being deleted, and then removes its
// finalizer. If objects remain because of their own finalizers, it is called again when
// they change.
func (s *Server) deleteObjects(ctx context.Context, name string) ([]remaining, error) {
	s.mu.Lock()
	e := s.entries[name]
	s.mu.Unlock()
	if e == nil {
		return nil, nil
	}
	terminating := func(status apiextensions.ConditionStatus, reason, message string, done bool) error {
		update := s.Store.UpdateStatus
		if done {
			update = s.Store.Release
		}
		err := update(ctx, name, func(crd *apiextensions.CustomResourceDefinition) error {
			setCondition(&crd.Status, apiextensions.CustomResourceDefinitionCondition{
				Type: apiextensions.Terminating, Status: status, Reason: reason, Message: message,
			}, metav1.NewTime(request.From(ctx).Received))
			if done {
				crd.Finalizers = slices.DeleteFunc(crd.Finalizers, func(f string) bool { return f == finalizer })
			}
			return nil
		})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	if e.definition == nil {
		return nil, terminating(apiextensions.ConditionFalse, "NeverEstablished", "resource was never established", true)
	}
	if err := terminating(apiextensions.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress", false); err != nil {
		return nil, err
	}
	left, revision, err := s.Store.DeleteObjects(ctx, e.group, e.names.Plural)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("objects of %s: %w", name, err),
			terminating(apiextensions.ConditionTrue, "InstanceDeletionFailed", fmt.Sprintf("could not issue all deletes: %v", err), false))
	}
	if left > 0 {
		return []remaining{{e.group, e.names.Plural, revision}}, nil
	}
	return nil, terminating(apiextensions.ConditionFalse, "InstanceDeletionCompleted", "removed all instances", true)
}

// refuseNew returns a Strategy.Begin that refuses creates while the definition is being
// deleted.
func refuseNew(group, name string, deleting *atomic.Bool) func(context.Context, resource.Object, resource.Object) (func(resource.Outcome), error) {
	return func(_ context.Context, obj, old resource.Object) (func(resource.Outcome), error) {
		if old != nil || !deleting.Load() {
			return nil, nil
		}
		return nil, apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: name}, obj.GetName(),
			errors.New("create not allowed while custom resource definition is terminating"))
	}
}
