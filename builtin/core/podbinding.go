package core

import (
	"context"
	"fmt"
	"maps"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Bindings defines bindings, the deprecated form of pods/binding. Nothing is stored.
func Bindings() resource.Definition {
	return resource.Definition{
		Resource:   "bindings",
		Kind:       "Binding",
		Namespaced: true,
		Verbs:      []string{"create"},
		Versions: []resource.Version{{
			Name: "v1",
			New:  func() resource.Object { return &corev1.Binding{} },
		}},
		CreateOn: "pods/binding",
		Answer: func(context.Context, resource.Object) (resource.Object, error) {
			return nil, apierrors.NewMethodNotSupported(corev1.Resource("bindings"), "create")
		},
	}
}

// clearsNomination is the feature gate of clearing nominatedNodeName once a pod is bound.
const clearsNomination = "ClearingNominatedNodeNameAfterBinding"

// bindPod is the Action of pods/binding: it sets the node of a pod.
func bindPod(ctx context.Context, target resource.Target, body resource.Object) (runtime.Object, error) {
	binding := body.(*corev1.Binding)
	if target.Name() != binding.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := validateBinding(binding); len(errs) > 0 {
		// As in kube-apiserver, the error has no reason and no causes.
		return nil, failure(http.StatusInternalServerError, problems.Text(errs))
	}
	gates := features.From(ctx)
	_, err := target.Update(ctx, func(obj resource.Object) error {
		pod := obj.(*corev1.Pod)
		if err := checkBindingTarget(ctx, pod, binding); err != nil {
			return err
		}
		pod.Spec.NodeName = binding.Target.Name
		if gates.Enabled(clearsNomination) {
			pod.Status.NominatedNodeName = ""
		}
		if len(binding.Annotations) > 0 && pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		maps.Copy(pod.Annotations, binding.Annotations)
		podspec.DropInitAnnotations(pod.Annotations)
		if gates.Enabled("PodTopologyLabelsAdmission") {
			if len(binding.Labels) > 0 && pod.Labels == nil {
				pod.Labels = map[string]string{}
			}
			maps.Copy(pod.Labels, binding.Labels)
		}
		setPodCondition(ctx, &pod.Status, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// failure makes an error without a reason.
func failure(code int32, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Message: message}}
}

func validateBinding(b *corev1.Binding) field.ErrorList {
	var e rules.Errors
	p := field.NewPath("target")
	isNode := b.Target.Kind == "" || b.Target.Kind == "Node"
	if !isNode {
		e.Add(field.NotSupported(p.Child("kind"), b.Target.Kind, []string{"Node", "<empty>"}))
	}
	if e.NotEmpty(p.Child("name"), b.Target.Name) && isNode {
		e.DNSSubdomain(p.Child("name"), b.Target.Name)
	}
	return field.ErrorList(e)
}

// checkBindingTarget returns why a pod cannot be bound, nil if it can.
func checkBindingTarget(ctx context.Context, pod *corev1.Pod, b *corev1.Binding) error {
	root := "/registry"
	if request.From(ctx).DryRun {
		root = "" // the storage key is empty in this error
	}
	differs := func(what, want, is string) error {
		return apierrors.NewConflict(corev1.Resource("pods"), pod.Name, fmt.Errorf(
			"StorageError: invalid object, Code: 4, Key: %s/pods/%s/%s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: %s in precondition: %v, %s in object meta: %v",
			root, pod.Namespace, pod.Name, what, want, what, is))
	}
	conflict := func(format string, args ...any) error {
		return apierrors.NewConflict(corev1.Resource("pods/binding"), pod.Name, fmt.Errorf(format, args...))
	}
	switch {
	case b.UID != "" && b.UID != pod.UID:
		return differs("UID", string(b.UID), string(pod.UID))
	case b.ResourceVersion != "" && b.ResourceVersion != pod.ResourceVersion:
		return differs("ResourceVersion", b.ResourceVersion, pod.ResourceVersion)
	case pod.DeletionTimestamp != nil:
		return conflict("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return conflict("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		return conflict("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	return nil
}
