package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/apikeel/kelson/resource"
)

// Flunder is the form of v1beta1, in which flunders are stored.
type Flunder struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   FlunderSpec   `json:"spec,omitempty"`
	Status FlunderStatus `json:"status,omitempty"`
}

// FlunderSpec is what a flunder refers to.
type FlunderSpec struct {
	FlunderReference string `json:"flunderReference,omitempty" doc:"A name of another flunder, mutually exclusive to the FischerReference."`
	FischerReference string `json:"fischerReference,omitempty" doc:"A name of a fischer, mutually exclusive to the FlunderReference."`
	ReferenceType    string `json:"referenceType,omitempty" doc:"The reference type."`
}

// FlunderStatus is empty.
type FlunderStatus struct{}

// FlunderV1Alpha1 is the form of v1alpha1.
type FlunderV1Alpha1 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   FlunderSpecV1Alpha1 `json:"spec,omitempty"`
	Status FlunderStatus       `json:"status,omitempty"`
}

// FlunderSpecV1Alpha1 has one name, and says what it is the name of.
type FlunderSpecV1Alpha1 struct {
	Reference     string `json:"reference,omitempty" doc:"A name of another flunder or fischer, depending on the reference type."`
	ReferenceType string `json:"referenceType,omitempty" doc:"The reference type, defaults to Flunder if reference is set."`
}

// Fischer keeps flunders from having names.
type Fischer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	DisallowedFlunders []string `json:"disallowedFlunders,omitempty" doc:"Names that flunders must not have."`
}

// DeepCopyObject implements runtime.Object.
func (f *Flunder) DeepCopyObject() runtime.Object { return resource.Copy(f) }

// DeepCopyObject implements runtime.Object.
func (f *FlunderV1Alpha1) DeepCopyObject() runtime.Object { return resource.Copy(f) }

// DeepCopyObject implements runtime.Object.
func (f *Fischer) DeepCopyObject() runtime.Object { return resource.Copy(f) }
