package kubectl

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Gadgets have two versions, of which the newer is the hub of conversions.

func gadgetScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for version, types := range map[string][2]runtime.Object{"v1": {&oldGadget{}, &oldGadgetList{}}, "v2": {&gadget{}, &gadgetList{}}} {
		gv := schema.GroupVersion{Group: "gadgets.example.com", Version: version}
		scheme.AddKnownTypeWithName(gv.WithKind("Gadget"), types[0])
		scheme.AddKnownTypeWithName(gv.WithKind("GadgetList"), types[1])
		metav1.AddToGroupVersion(scheme, gv)
	}
	return scheme
}

type gadget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Width  int64 `json:"width"`
		Height int64 `json:"height,omitempty"`
	} `json:"spec"`
	Status gadgetStatus `json:"status,omitzero"`
}

type gadgetStatus struct {
	Area int64 `json:"area,omitempty"`
}

type gadgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []gadget `json:"items"`
}

// oldGadget has its size as a text: 3x4.
type oldGadget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Size string `json:"size"`
	} `json:"spec"`
	Status gadgetStatus `json:"status,omitzero"`
}

type oldGadgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []oldGadget `json:"items"`
}

// Hub marks the version that others convert to.
func (g *gadget) Hub() {}

func (g *oldGadget) ConvertTo(to conversion.Hub) error {
	hub := to.(*gadget)
	hub.ObjectMeta, hub.Status = g.ObjectMeta, g.Status
	if _, err := fmt.Sscanf(g.Spec.Size, "%dx%d", &hub.Spec.Width, &hub.Spec.Height); err != nil {
		return fmt.Errorf("size %q: %w", g.Spec.Size, err)
	}
	return nil
}

func (g *oldGadget) ConvertFrom(from conversion.Hub) error {
	hub := from.(*gadget)
	g.ObjectMeta, g.Status = hub.ObjectMeta, hub.Status
	g.Spec.Size = fmt.Sprintf("%dx%d", hub.Spec.Width, hub.Spec.Height)
	return nil
}

func (g *gadget) DeepCopyObject() runtime.Object        { return copied(g) }
func (g *gadgetList) DeepCopyObject() runtime.Object    { return copied(g) }
func (g *oldGadget) DeepCopyObject() runtime.Object     { return copied(g) }
func (g *oldGadgetList) DeepCopyObject() runtime.Object { return copied(g) }

func copied[T any](from *T) *T {
	to := new(T)
	raw, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(raw, to)
	}
	if err != nil {
		panic(err)
	}
	return to
}

// judge is what webhooks do to gadgets.
type judge struct{}

func (judge) Default(_ context.Context, g *gadget) error {
	if g.Spec.Height == 0 {
		g.Spec.Height = 1
	}
	return nil
}

func (judge) ValidateCreate(_ context.Context, g *gadget) (admission.Warnings, error) {
	if g.Spec.Width > 100 {
		return nil, fmt.Errorf("too wide: %d", g.Spec.Width)
	}
	return nil, nil
}

func (j judge) ValidateUpdate(ctx context.Context, old, g *gadget) (admission.Warnings, error) {
	var warnings admission.Warnings
	if g.Spec.Width < old.Spec.Width {
		warnings = append(warnings, "it shrinks")
	}
	_, err := j.ValidateCreate(ctx, g)
	return warnings, err
}

func (judge) ValidateDelete(context.Context, *gadget) (admission.Warnings, error) { return nil, nil }

const gadgetDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.gadgets.example.com}
spec:
  group: gadgets.example.com
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets, singular: gadget}
  versions:
  - name: v1
    served: true
    storage: true
    deprecated: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, required: [size], properties: {size: {type: string, pattern: '^\d+x\d+$'}}}
          status: {type: object, properties: {area: {type: integer}}}
  - name: v2
    served: true
    storage: false
    subresources: {status: {}}
    additionalPrinterColumns: [{name: Area, type: integer, jsonPath: .status.area}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [width]
            properties: {width: {type: integer, minimum: 1}, height: {type: integer}}
            x-kubernetes-validations: [{rule: '!has(self.height) || self.height < 1000', fieldPath: .height, reason: FieldValueForbidden, message: too high}]
          status: {type: object, properties: {area: {type: integer}}}
`

const gadgetWebhooks = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: gadgets}
webhooks:
- name: default.gadgets.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  rules: [{apiGroups: [gadgets.example.com], apiVersions: [v2], resources: [gadgets], operations: [CREATE, UPDATE]}]
  clientConfig: {service: {namespace: default, name: hooks, path: /mutate-gadgets-example-com-v2-gadget}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: gadgets}
webhooks:
- name: judge.gadgets.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  rules: [{apiGroups: [gadgets.example.com], apiVersions: [v2], resources: [gadgets], operations: [CREATE, UPDATE]}]
  clientConfig: {service: {namespace: default, name: hooks, path: /validate-gadgets-example-com-v2-gadget}}
`
