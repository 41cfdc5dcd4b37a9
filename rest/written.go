package rest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/internal/yamltext"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// trackedObjects are the objects of a resource as one request writes them. They remember whether a
// write of the request has succeeded: after that an error must not invite the client to send the request
// again, see scope.errorAfterWrite.
type trackedObjects struct {
	*store.Resource
	// check returns an error if the request may not write any longer; nil lets it. It is asked at the last
	// moment before the store is.
	check   func(creates bool) error
	written atomic.Bool // set by all goroutines of a request
}

func track(r *store.Resource) *trackedObjects { return &trackedObjects{Resource: r} }

// mayWrite asks check.
func (o *trackedObjects) mayWrite(creates bool) error {
	if o.check == nil {
		return nil
	}
	return o.check(creates)
}

// noteWrite notes a write for which the store returned err.
func (o *trackedObjects) noteWrite(err error) {
	if err == nil {
		o.written.Store(true)
	}
}

// Create is store.Resource.Create.
func (o *trackedObjects) Create(ctx context.Context, key string, obj resource.Object, ttl time.Duration) (*store.Record, error) {
	if err := o.mayWrite(true); err != nil {
		return nil, err
	}
	rec, err := o.Resource.Create(ctx, key, obj, ttl)
	o.noteWrite(err)
	return rec, err
}

// Update is store.Resource.Update.
func (o *trackedObjects) Update(ctx context.Context, key string, change store.Change) (*store.Record, error) {
	rec, err := o.Resource.Update(ctx, key, func(current *store.Record, obj resource.Object) (resource.Object, time.Duration, error) {
		next, ttl, err := change(current, obj)
		if err == nil {
			err = o.mayWrite(false)
		}
		return next, ttl, err
	})
	o.noteWrite(err)
	return rec, err
}

// Replace is store.Resource.Replace.
func (o *trackedObjects) Replace(ctx context.Context, seen *store.Record, next resource.Object, ttl time.Duration) (*store.Record, error) {
	if err := o.mayWrite(false); err != nil {
		return nil, err
	}
	rec, err := o.Resource.Replace(ctx, seen, next, ttl)
	o.noteWrite(err)
	return rec, err
}

// Delete is store.Resource.Delete.
func (o *trackedObjects) Delete(ctx context.Context, key string, check func(current *store.Record) error) (*store.Record, error) {
	rec, err := o.Resource.Delete(ctx, key, func(current *store.Record) error {
		if check != nil {
			if err := check(current); err != nil {
				return err
			}
		}
		return o.mayWrite(false)
	})
	o.noteWrite(err)
	return rec, err
}

// Discard is store.Resource.Discard.
func (o *trackedObjects) Discard(ctx context.Context, key string, dryRun bool) error {
	if err := o.mayWrite(false); err != nil {
		return err
	}
	err := o.Resource.Discard(ctx, key, dryRun)
	if !dryRun {
		o.noteWrite(err)
	}
	return err
}

// errorAfterWrite returns the error with which a request is answered that failed with err. If there was no
// memory for the answer of a request that has written something, that is an uncertainError: after a 429
// with Retry-After clients send the request again by themselves.
func (s *scope) errorAfterWrite(err error) error {
	if s.objects == nil || !s.objects.written.Load() || !yamltext.IsRefusal(err) {
		return err
	}
	message := "the change is stored, but the server has no memory for an answer with the object: get it"
	switch s.req.Verb {
	case request.Delete:
		message = "the object is deleted or marked, but the server has no memory for an answer with it"
	case request.DeleteCollection:
		message = "objects are deleted or marked, but perhaps not all, since the server was short of memory"
	}
	return uncertainError{apierrors.NewTimeoutError(message, 0)}
}
