package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/history"
)

// This file does the steps of a plan of undo: it writes through the API, each write after a
// dry run.

// apply writes: first what others need, then, after a dry run of all, the others.
func (u *undo) apply(ctx context.Context, steps []*undoStep) (failed int) {
	absent := map[string]bool{} // namespaces that are not there in a dry run
	for _, s := range steps {
		if !s.first() {
			continue
		}
		err := u.write(ctx, s, true)
		if err == nil && !u.only {
			err = u.write(ctx, s, false)
		}
		switch {
		case err != nil:
			s.fail(err)
		case u.only:
			s.Result = "would be done"
		default:
			s.Result = "done"
		}
		if s.Resource == "namespaces" && (u.only || err != nil) {
			absent[s.Name] = true
		}
	}
	u.each(ctx, steps, func(s *undoStep) {
		if s.Action == "skip" || s.first() {
			return
		}
		if s.Namespace != "" && absent[s.Namespace] {
			s.Notes = append(s.Notes, "there is no dry run, since its namespace is not there yet")
			s.Result = "would be done"
			if !u.only {
				s.fail(errors.New("its namespace could not be made"))
			}
			return
		}
		s.Result = "would be done"
		if err := u.write(ctx, s, true); err != nil {
			s.fail(err)
		}
	})
	if !u.only {
		u.writeAll(ctx, steps)
	}
	for _, s := range steps {
		if s.Result == "failed" {
			failed++
		}
	}
	return failed
}

// writeAll writes what a dry run has found right. A service that gets another address comes after
// all others, and what it owns after it: else the server could give it an address that another
// service of the plan is about to get back.
func (u *undo) writeAll(ctx context.Context, steps []*undoStep) {
	creates := map[types.UID]*undoStep{} // by the UID that the object had
	for _, s := range steps {
		if s.Action == "create" {
			creates[s.was.GetUID()] = s
		}
	}
	write := func(s *undoStep) {
		err := u.write(ctx, s, false)
		switch {
		case err == nil:
			s.Result = "done"
		case !errors.Is(err, errLate):
			s.fail(err)
		}
	}
	u.each(ctx, steps, func(s *undoStep) {
		if s.Result != "would be done" {
			return
		}
		// Owners have a lower rank, so their steps have been written, or are late.
		if s.was != nil && slices.ContainsFunc(s.was.GetOwnerReferences(), func(owner metav1.OwnerReference) bool {
			above := creates[owner.UID]
			return above != nil && above.late.Load()
		}) {
			s.late.Store(true)
		} else {
			write(s)
		}
	})
	u.each(ctx, slices.DeleteFunc(slices.Clone(steps), func(s *undoStep) bool { return !s.late.Load() }), write)
}

// errLate is returned by the first attempt to write a step that is late.
var errLate = errors.New("its address is taken")

func (s *undoStep) fail(err error) { s.Result, s.Error = "failed", err.Error() }

// undoWriters is how many writes are under way at a time.
const undoWriters = 16

// each calls f for steps, several at a time, but for those of one rank only when those of
// the ranks before have ended.
func (u *undo) each(ctx context.Context, steps []*undoStep, f func(*undoStep)) {
	for len(steps) > 0 {
		n := 1
		for n < len(steps) && steps[n].rank == steps[0].rank {
			n++
		}
		var group sync.WaitGroup
		next := make(chan *undoStep)
		for range min(n, undoWriters) {
			group.Go(func() {
				for s := range next {
					if ctx.Err() != nil {
						s.fail(ctx.Err())
					} else {
						f(s)
					}
				}
			})
		}
		for _, s := range steps[:n] {
			next <- s
		}
		close(next)
		group.Wait()
		steps = steps[n:]
	}
}

// write does one step.
func (u *undo) write(ctx context.Context, s *undoStep, dry bool) error {
	query := url.Values{"fieldManager": {undoManager}}
	if dry {
		query.Set("dryRun", metav1.DryRunAll)
	}
	switch s.Action {
	case "delete":
		uid, version := s.now.GetUID(), s.now.GetResourceVersion()
		background := metav1.DeletePropagationBackground
		options := &metav1.DeleteOptions{
			TypeMeta:      metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"},
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, PropagationPolicy: &background,
		}
		if dry {
			options.DryRun = []string{metav1.DryRunAll} // where there is a body, the query does not count
		}
		_, err := u.send(ctx, http.MethodDelete, &s.Ref, query, options)
		if apierrors.IsNotFound(err) {
			return nil // the garbage collector was first
		}
		return err
	case "update":
		return u.update(ctx, s, s.now, query, dry)
	}
	return u.create(ctx, s, query, dry)
}

// update replaces an object with what it was, if it is still what it is in the plan.
func (u *undo) update(ctx context.Context, s *undoStep, now *unstructured.Unstructured, query url.Values, dry bool) error {
	obj := s.was.DeepCopy()
	obj.SetResourceVersion(now.GetResourceVersion())
	obj.SetUID(now.GetUID())
	obj.SetCreationTimestamp(now.GetCreationTimestamp())
	obj.SetGeneration(now.GetGeneration())
	u.mapOwners(ctx, s, obj, dry)
	done, err := u.send(ctx, http.MethodPut, &s.Ref, query, obj)
	if err == nil && !dry {
		u.cameBack(s.was.GetUID(), done.GetUID())
	}
	return err
}

// cameBack notes the UID that an object has now.
func (u *undo) cameBack(was, now types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.uids[was] = now
}

// nowOf returns the UID that an object has now.
func (u *undo) nowOf(was types.UID) (now types.UID, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now, ok = u.uids[was]
	return now, ok
}

// create makes an object that was deleted.
func (u *undo) create(ctx context.Context, s *undoStep, query url.Values, dry bool) error {
	obj := s.was.DeepCopy()
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "selfLink"} {
		unstructured.RemoveNestedField(obj.Object, "metadata", field)
	}
	u.mapOwners(ctx, s, obj, dry)
	done, err := u.send(ctx, http.MethodPost, &s.Ref, query, obj)
	if apierrors.IsInvalid(err) && s.Group == "" && s.Resource == "services" && strings.Contains(err.Error(), "already allocated") {
		if !dry && s.late.CompareAndSwap(false, true) {
			return errLate
		}
		if !dry || u.only {
			s.note("an address or a port that it had is taken, so it gets another: " + addresses(obj))
		}
		dropAddresses(obj)
		done, err = u.send(ctx, http.MethodPost, &s.Ref, query, obj)
	}
	if apierrors.IsAlreadyExists(err) && !s.madeByController() {
		return fmt.Errorf("somebody has created it since the plan was made; plan again to see what is different: %w", err)
	}
	if apierrors.IsAlreadyExists(err) {
		now, err := u.send(ctx, http.MethodGet, &s.Ref, nil, nil)
		if err != nil {
			return err
		}
		return u.update(ctx, s, now, query, dry)
	}
	if err != nil || dry {
		return err
	}
	u.cameBack(s.was.GetUID(), done.GetUID())
	if s.first() && s.Resource != "namespaces" {
		return u.awaitEstablished(ctx, s)
	}
	return nil
}

// madeByController reports whether controllers make the object in every namespace.
func (s *undoStep) madeByController() bool {
	return s.Group == "" && (s.Resource == "serviceaccounts" && s.Name == "default" || s.Resource == "configmaps" && s.Name == "kube-root-ca.crt")
}

func (s *undoStep) note(text string) {
	if !slices.Contains(s.Notes, text) {
		s.Notes = append(s.Notes, text)
	}
}

// addresses returns what the server may have allocated for a Service.
func addresses(obj *unstructured.Unstructured) string {
	ip, _, _ := unstructured.NestedString(obj.Object, "spec", "clusterIP")
	return ip
}

// dropAddresses removes the addresses and ports of a service that the server gives.
func dropAddresses(obj *unstructured.Unstructured) {
	for _, field := range []string{"clusterIP", "clusterIPs", "healthCheckNodePort"} {
		unstructured.RemoveNestedField(obj.Object, "spec", field)
	}
	ports, _, _ := unstructured.NestedSlice(obj.Object, "spec", "ports")
	for _, port := range ports {
		if port, ok := port.(map[string]any); ok {
			delete(port, "nodePort")
		}
	}
	if len(ports) > 0 {
		_ = unstructured.SetNestedSlice(obj.Object, ports, "spec", "ports")
	}
}

// mapOwners sets the UIDs of owners to those that they have now. An owner that is not there
// is left out: the garbage collector would delete the object again.
func (u *undo) mapOwners(ctx context.Context, s *undoStep, obj *unstructured.Unstructured, dry bool) {
	owners := obj.GetOwnerReferences()
	if len(owners) == 0 || dry {
		return
	}
	kept := owners[:0]
	for _, owner := range owners {
		if uid, ok := u.nowOf(owner.UID); ok {
			owner.UID = uid
		} else if !u.exists(ctx, s, &owner) {
			s.note(fmt.Sprintf("its owner %s %s is not there, so the reference is left out", owner.Kind, owner.Name))
			continue
		}
		kept = append(kept, owner)
	}
	obj.SetOwnerReferences(kept)
}

// exists reports whether an owner is there with its UID. An owner that cannot be looked up
// is taken to be there.
func (u *undo) exists(ctx context.Context, s *undoStep, owner *metav1.OwnerReference) bool {
	u.mu.Lock()
	known, ok := u.owners[owner.UID]
	u.mu.Unlock()
	if ok {
		return known
	}
	there := true
	kind := strings.ToLower(owner.Kind)
	if group, _, ok := strings.Cut(owner.APIVersion, "/"); ok {
		kind += "." + group
	}
	if m, err := u.t.resource(kind); err == nil {
		ref := &history.Ref{Group: m.Resource.Group, Version: m.Resource.Version, Resource: m.Resource.Resource, Name: owner.Name}
		if m.Scope.Name() == "namespace" {
			ref.Namespace = s.Namespace
		}
		now, err := u.send(ctx, http.MethodGet, ref, nil, nil)
		there = err == nil && now.GetUID() == owner.UID || err != nil && !apierrors.IsNotFound(err)
	}
	u.mu.Lock()
	u.owners[owner.UID] = there
	u.mu.Unlock()
	return there
}

// awaitEstablished waits until objects of a definition can be made.
func (u *undo) awaitEstablished(ctx context.Context, s *undoStep) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		now, err := u.send(ctx, http.MethodGet, &s.Ref, nil, nil)
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not established: %w", s.Name, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// send sends a request about an object to the API.
func (u *undo) send(ctx context.Context, method string, ref *history.Ref, query url.Values, body any) (*unstructured.Unstructured, error) {
	path := []string{"/apis", ref.Group, ref.Version}
	if ref.Group == "" {
		path = []string{"/api", ref.Version}
	}
	if ref.Namespace != "" {
		path = append(path, "namespaces", url.PathEscape(ref.Namespace))
	}
	path = append(path, ref.Resource)
	if method != http.MethodPost {
		path = append(path, url.PathEscape(ref.Name))
	}
	req := u.t.client.Verb(method).RequestURI(strings.Join(path, "/") + "?" + query.Encode())
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		req = req.Body(text).SetHeader("Content-Type", "application/json")
	}
	result := req.SetHeader("Accept", "application/json").Do(ctx)
	text, err := result.Raw()
	if err != nil {
		return nil, apiError(err, text)
	}
	out := &unstructured.Unstructured{}
	return out, out.UnmarshalJSON(text)
}

// apiError is the error of the API with the server's own words.
func apiError(err error, text []byte) error {
	var said metav1.Status
	if json.Unmarshal(text, &said) == nil && said.Kind == "Status" && said.Message != "" {
		return &apierrors.StatusError{ErrStatus: said}
	}
	return err
}
