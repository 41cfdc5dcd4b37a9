package plugin

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/apikeel/kelson/admission"
)

const networkingGroup = "networking.k8s.io"

// ingressClassNote is the deprecated annotation for the class of an ingress.
const ingressClassNote = "kubernetes.io/ingress.class"

// defaultIngressClass is DefaultIngressClass: it sets the default class of ingresses.
type defaultIngressClass struct {
	base
	objects admission.Objects
}

func newDefaultIngressClass(b *builder) admission.Plugin {
	return &defaultIngressClass{base{"DefaultIngressClass", on(networkingGroup, "ingresses", admission.Create)}, b.Objects}
}

// Admit implements admission.Mutator.
func (d *defaultIngressClass) Admit(ctx context.Context, a *admission.Attributes) error {
	ingress, ok := a.Object.(*networkingv1.Ingress)
	if !ok || ingress.Spec.IngressClassName != nil {
		return nil
	}
	if _, ok := ingress.Annotations[ingressClassNote]; ok {
		return nil
	}
	classes, err := list[*networkingv1.IngressClass](ctx, d.objects, networkingGroup, "ingressclasses", "")
	if err != nil {
		return a.Forbidden(err)
	}
	if class, ok := newestDefault(classes, networkingv1.AnnotationIsDefaultIngressClass); ok {
		ingress.Spec.IngressClassName = new(class.Name)
	}
	return nil
}

// denyExternalIPs is DenyServiceExternalIPs: it refuses new spec.externalIPs of services.
type denyExternalIPs struct{ base }

func newDenyExternalIPs(*builder) admission.Plugin {
	return denyExternalIPs{base{"DenyServiceExternalIPs", on("", "services", admission.Create, admission.Update)}}
}

// Validate implements admission.Validator.
func (denyExternalIPs) Validate(_ context.Context, a *admission.Attributes) error {
	service, ok := a.Object.(*corev1.Service)
	if !ok {
		return nil
	}
	had := sets.New[string]()
	if old, ok := a.Old.(*corev1.Service); ok {
		had.Insert(old.Spec.ExternalIPs...)
	}
	for _, ip := range service.Spec.ExternalIPs {
		if !had.Has(ip) {
			//lint:ignore ST1005 the words that clients know
			return a.Forbidden(errors.New("Use of external IPs is denied by admission control"))
		}
	}
	return nil
}
