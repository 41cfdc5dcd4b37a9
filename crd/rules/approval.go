package rules

import (
	"fmt"
	"net/url"
	"strings"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Approval is the state of the annotation api-approved.kubernetes.io.
type Approval int

// Values of Approval.
const (
	Approved Approval = iota
	Unapproved
	ApprovalMissing
	ApprovalInvalid
)

// Protected reports whether a group is reserved for the Kubernetes community.
func Protected(group string) bool {
	return group == "k8s.io" || strings.HasSuffix(group, ".k8s.io") || group == "kubernetes.io" || strings.HasSuffix(group, ".kubernetes.io")
}

// ApprovalOf returns the state of the annotation, and the message for it.
func ApprovalOf(annotations map[string]string) (Approval, string) {
	const see = ", see https://github.com/kubernetes/enhancements/pull/1111"
	value := annotations[v1.KubeAPIApprovedAnnotation]
	switch u, err := url.ParseRequestURI(value); {
	case value == "":
		return ApprovalMissing, fmt.Sprintf("protected groups must have approval annotation %q", v1.KubeAPIApprovedAnnotation) + see
	case strings.HasPrefix(value, "unapproved"):
		return Unapproved, fmt.Sprintf("not approved: %q", value)
	case err == nil && u != nil && u.Host != "" && u.Scheme != "":
		return Approved, fmt.Sprintf("approved in %v", value)
	}
	return ApprovalInvalid, fmt.Sprintf("protected groups must have approval annotation %q with either a URL or a reason starting with \"unapproved\"", v1.KubeAPIApprovedAnnotation) + see
}

// validateApproval checks the annotation on create, and on update if its state changed.
func validateApproval(crd, old *v1.CustomResourceDefinition) field.ErrorList {
	if !Protected(crd.Spec.Group) {
		return nil
	}
	state, reason := ApprovalOf(crd.Annotations)
	if old != nil {
		if before, _ := ApprovalOf(old.Annotations); before == state {
			return nil
		}
	}
	path := field.NewPath("metadata", "annotations").Key(v1.KubeAPIApprovedAnnotation)
	switch state {
	case ApprovalInvalid:
		return field.ErrorList{field.Invalid(path, crd.Annotations[v1.KubeAPIApprovedAnnotation], reason)}
	case ApprovalMissing:
		return field.ErrorList{field.Required(path, reason)}
	}
	return nil
}
