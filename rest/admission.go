package rest

import (
	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A write is shown to admission twice: admit lets plugins change it, validateAdmission
// asks them about the result. What the server writes on its own account is not
// shown.

// admit returns the write as plugins have changed it, nil if nobody cares.
func (s *scope) admit(op admission.Operation, obj, old runtime.Object, options runtime.Object) (*admission.Attributes, error) {
	return s.admitWith(s.changes(), op, obj, old, options)
}

func (s *scope) admitWith(memory *heldMemory, op admission.Operation, obj, old runtime.Object, options runtime.Object) (*admission.Attributes, error) {
	chain := s.h.Admission
	if s.r == nil || !chain.Wants(admission.Target{Operation: op, Group: s.def.Group, Resource: s.def.Resource, Subresource: s.req.Subresource}) {
		return nil, nil
	}
	a := &admission.Attributes{
		Operation: op, Served: s.served, Subresource: s.req.Subresource, Namespace: s.req.Namespace, Name: s.req.Name,
		Object: obj, Old: old, Kind: s.served.GroupVersionKind(), Options: options, DryRun: s.req.DryRun, Request: s.req,
		Memory: memory, Abandon: s.abandon,
	}
	if s.req.DryRun {
		a.Trace = admission.TraceFrom(s.ctx())
	}
	if s.sub != nil && !s.sub.Kind.Empty() {
		a.Kind = s.sub.Kind
	}
	if s.def.Resource == "namespaces" && s.def.Group == "" {
		// A namespace is in itself.
		a.Namespace = a.Name
	}
	err := chain.Admit(s.ctx(), a)
	memory.Settle(false)
	if err != nil {
		return a, err
	}
	if o, ok := obj.(resource.Object); ok && op != admission.Connect {
		return a, s.checkBodyNamespace(o) // which a plugin may have changed
	}
	return a, nil
}

// validateAdmission asks plugins about a write as it will be stored.
func (s *scope) validateAdmission(a *admission.Attributes, obj runtime.Object) error {
	if a == nil {
		return nil
	}
	a.Object = obj
	if o, ok := obj.(resource.Object); ok && a.Name == "" {
		a.Name = o.GetName()
	}
	return s.h.Admission.Validate(s.ctx(), a)
}

// admitDelete asks about the deletion of an object. One that goes with a
// collection has no name there, as clients know it.
func (s *scope) admitDelete(old resource.Object, options *metav1.DeleteOptions) error {
	if s.sub != nil {
		return nil // an action that deletes was asked about itself
	}
	memory := &heldMemory{s: s} // objects of a collection are deleted at the same time
	defer memory.end()
	a, err := s.admitWith(memory, admission.Delete, nil, old, options)
	if err != nil || a == nil {
		return err
	}
	return s.validateAdmission(a, nil)
}

// createOptions and updateOptions are those of the request, as webhooks see
// them.
func (s *scope) createOptions() runtime.Object {
	return &metav1.CreateOptions{DryRun: s.dryRun(), FieldManager: s.param("fieldManager"), FieldValidation: s.param("fieldValidation")}
}

func (s *scope) updateOptions() runtime.Object {
	return &metav1.UpdateOptions{DryRun: s.dryRun(), FieldManager: s.param("fieldManager"), FieldValidation: s.param("fieldValidation")}
}

func (s *scope) dryRun() []string {
	if s.req.DryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

func (s *scope) param(name string) string {
	return s.req.Query.Get(name)
}
